//! Networks: CNI plugins, iptables, and the packet filters of other programs.

use std::path::PathBuf;

use crate::health::Finding;

/// The plugins that Nomad's bridge networks need.
pub const CNI_PLUGINS: [&str; 5] = ["bridge", "firewall", "host-local", "loopback", "portmap"];

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Network {
    /// The directories in which CNI plugins are looked for.
    pub cni_path: Vec<PathBuf>,
    /// Those of [`CNI_PLUGINS`] that are in none of them.
    pub missing_plugins: Vec<&'static str>,
    /// An `iptables` program is installed.
    pub iptables: bool,
    /// Why that program does not tell its version.
    pub iptables_problem: Option<String>,
    /// The filter table of iptables-legacy is in the kernel.
    pub legacy_table: bool,
    /// A program that changes that table is installed.
    pub legacy_program: bool,
    /// The chains that filter forwarded packets, except those of iptables and our own, or why they are unknown; `None`
    /// without a program nft.
    pub forward_chains: Option<Result<Vec<String>, String>>,
    /// The bridge's name.
    pub bridge: String,
}

/// Judges it.
pub fn judge(network: &Network) -> Vec<Finding> {
    vec![cni(network), iptables(network), filters(network)]
}

fn cni(network: &Network) -> Finding {
    let paths: Vec<String> = network.cni_path.iter().map(|path| path.display().to_string()).collect();
    if network.missing_plugins.is_empty() {
        return Finding::ok("cni", "the CNI plugins of Nomad's bridge networks are installed");
    }
    let missing = network.missing_plugins.join(", ");
    Finding::warning(
        "cni",
        format!(
            "CNI plugins are missing in {}: {missing}. Groups with `mode = \"bridge\"` cannot start",
            paths.join(", ")
        ),
        "install Debian's package containernetworking-plugins, or set network { cni_path } in the plugin block and \
         cni_path in the agent's client block",
    )
}

fn iptables(network: &Network) -> Finding {
    let check = "iptables";
    match network {
        Network { legacy_table: true, legacy_program: false, .. } => Finding::warning(
            check,
            "the filter table of iptables-legacy is loaded, but its program is not installed: packets of tasks may be \
             dropped",
            "install iptables, or unload the module iptable_filter",
        ),
        Network { iptables: false, .. } => Finding::warning(
            check,
            "there is no program iptables: Nomad's bridge networks need it. The driver's own bridge does not",
            "install iptables",
        ),
        Network { iptables_problem: Some(problem), .. } => Finding::warning(
            check,
            format!("iptables does not work: {problem}. Nomad's bridge networks need it"),
            "run `iptables -V` on this node, and repair it",
        ),
        _ => Finding::ok(check, "iptables is installed"),
    }
}

fn filters(network: &Network) -> Finding {
    let (check, bridge) = ("filters", &network.bridge);
    match &network.forward_chains {
        None => Finding::warning(
            check,
            "the program nft is missing: filters of other programs are not looked at. The driver itself needs no nft",
            "install nftables",
        ),
        Some(Err(problem)) => Finding::warning(
            check,
            format!("nft does not work: {problem}. Filters of other programs are not looked at"),
            "run `nft list chains` on this node, and repair it",
        ),
        Some(Ok(chains)) if chains.is_empty() => Finding::ok(check, "no other program filters forwarded packets"),
        Some(Ok(chains)) => Finding::warning(
            check,
            format!("other filters may drop the packets of tasks: {}", chains.join(", ")),
            format!(
                "accept the bridge there: `iifname \"{bridge}\" accept` and `oifname \"{bridge}\" accept`, or \
                 `firewall-cmd --permanent --zone=trusted --add-interface={bridge}`"
            ),
        ),
    }
}

/// The chains that filter forwarded packets in the output of `nft -j list chains`, except those of iptables, which the
/// driver enters itself, and its own ones. `None` if it is not such an output.
pub fn forward_chains(output: &[u8]) -> Option<Vec<String>> {
    let json: serde_json::Value = serde_json::from_slice(output).ok()?;
    let chains = json.get("nftables")?.as_array()?.iter().filter_map(|item| item.get("chain"));
    let foreign = chains.filter_map(|chain| {
        let text = |name: &str| chain.get(name).and_then(serde_json::Value::as_str);
        let (family, table) = (text("family")?, text("table")?);
        let by_iptables = ["ip", "ip6"].contains(&family) && table == "filter";
        let is_filter = text("hook") == Some("forward") && text("type") == Some("filter");
        (is_filter && !by_iptables && !table.starts_with("oci-rs-") && ["ip", "ip6", "inet"].contains(&family))
            .then(|| format!("{family} {table} {}", text("name").unwrap_or_default()))
    });
    Some(foreign.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cli::doctor::checks::tests::expect,
        health::Level::{Ok, Warning},
    };

    #[test]
    fn each_lack_of_the_network_is_told() {
        let chains = |names: &[&str]| Some(Result::Ok(names.iter().map(|name| (*name).to_owned()).collect()));
        let good =
            || Network { iptables: true, forward_chains: chains(&[]), bridge: "b0".into(), ..Network::default() };
        assert!(judge(&good()).iter().all(|finding| finding.level == Ok));
        let paths = vec![PathBuf::from("/opt/cni/bin")];
        for (network, check, part) in [
            (Network { missing_plugins: vec!["portmap"], cni_path: paths, ..good() }, "cni", "/opt/cni/bin: portmap"),
            (Network { iptables: false, ..good() }, "iptables", "no program iptables"),
            (Network { legacy_table: true, ..good() }, "iptables", "iptables-legacy"),
            (Network { iptables_problem: Some("killed".into()), ..good() }, "iptables", "does not work: killed"),
            (Network { forward_chains: None, ..good() }, "filters", "install nftables"),
            (Network { forward_chains: Some(Err("killed".into())), ..good() }, "filters", "does not work: killed"),
            (Network { forward_chains: chains(&["inet f c"]), ..good() }, "filters", "iifname \"b0\" accept"),
        ] {
            expect(&judge(&network), check, Warning, part);
        }
        let legacy = Network { legacy_table: true, legacy_program: true, ..good() };
        expect(&judge(&legacy), "iptables", Ok, "installed");
    }

    #[test]
    fn chains_of_others_are_told_from_those_of_iptables_and_ours() {
        let chain = |family: &str, table: &str, hook: &str| {
            json!({"chain": {
                "family": family, "table": table, "name": "c", "type": "filter", "hook": hook,
            }})
        };
        let output = json!({"nftables": [
            {"metainfo": {"version": "1.0"}},
            chain("inet", "firewalld", "forward"), chain("ip", "filter", "forward"), chain("ip6", "filter", "forward"),
            chain("ip", "oci-rs-oci-rs", "forward"), chain("inet", "own", "input"), chain("bridge", "x", "forward"),
            {"chain": {"family": "ip", "table": "plain", "name": "no-hook"}},
        ]});
        assert_eq!(forward_chains(output.to_string().as_bytes()).unwrap(), ["inet firewalld c"]);
        assert_eq!(forward_chains(b"no json"), None);
    }
}
