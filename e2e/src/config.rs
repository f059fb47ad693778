//! The configuration of a test agent: the templates `common.hcl.in`, `server.hcl`, `client.hcl.in` and `docker.hcl.in`,
//! filled in.
//!
//! Each agent has bridges and subnets of its own, so that one agent never sees the addresses of another one.

use std::{
    fs,
    net::Ipv4Addr,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU8, Ordering},
};

use crate::{
    Consul, Context, Outcome, Tools, network,
    ports::free_port,
    versions::{BRIDGE_IPV6, Version},
};

/// The bridges and subnets of one agent. They all contain the agent's number.
#[derive(Debug)]
pub(crate) struct Subnets {
    /// Nomad's bridge for groups.
    pub(crate) bridge: String,
    /// The IPv4 subnet of Nomad's bridge.
    pub(crate) subnet: String,
    /// The driver's bridge for tasks without a group network.
    pub(crate) own_bridge: String,
    /// The IPv4 subnet of the driver's bridge.
    pub(crate) own_subnet: String,
    /// The IPv6 subnet of the driver's bridge; empty on a machine without IPv6.
    pub(crate) own_subnet6: String,
    subnet6: String,
    cni_subnet: String,
}

impl Subnets {
    /// Bridges and subnets that no interface of this network namespace uses.
    pub(crate) fn free() -> Self {
        let number = free_number();
        let ipv6 = |prefix: &str| {
            if network::has_ipv6() { format!("{prefix}:0:0:{number:x}::/64") } else { String::new() }
        };
        Self {
            bridge: format!("oci-rs-{number}"),
            subnet: format!("172.27.{number}.0/24"),
            own_bridge: format!("oci-own-{number}"),
            own_subnet: format!("172.28.{number}.0/24"),
            own_subnet6: ipv6("fd28"),
            subnet6: ipv6("fd27"),
            cni_subnet: format!("172.29.{number}.0/24"),
        }
    }
}

/// The N of a subnet 172.27.N.0/24 that no interface uses. Agents in other network namespaces get other numbers,
/// because CNI plugins keep their leases in one directory of the machine.
fn free_number() -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let taken = Command::new("ip").args(["-brief", "address"]).output().map(|output| output.stdout).unwrap_or_default();
    let taken = String::from_utf8_lossy(&taken).into_owned();
    let first = (std::process::id() as u8).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let free = |number: &u8| !taken.contains(&format!(" {}/", Ipv4Addr::new(172, 27, *number, 1)));
    (0..=u8::MAX).map(|offset| first.wrapping_add(offset)).find(free).unwrap_or(first)
}

/// One of the two Nomad processes of an agent.
pub(crate) struct Endpoint<'a> {
    /// The port of its HTTP API.
    pub(crate) http_port: u16,
    /// The configuration file to write.
    pub(crate) config: &'a Path,
}

/// Writes the configuration of server and client, and the CNI configuration, into the agent's directory. `overrides` is
/// a second file of the client, with its text.
pub(crate) fn write(
    tools: &Tools,
    directory: &Path,
    subnets: &Subnets,
    server: &Endpoint,
    client: &Endpoint,
    consul: Option<&Consul>,
    (overrides, acl): (Option<(&Path, &str)>, bool),
) -> Outcome {
    let server_port = free_port()?;
    let mut common = common_values(tools, directory, subnets, server, server_port, consul);
    common.push(("CLIENT_HTTP_PORT", client.http_port.to_string()));
    let template = |name: &str| fs::read_to_string(tools.home.join(name)).context(name);
    for (endpoint, name, rpc_port, file) in
        [(server, "server", server_port, "server.hcl"), (client, "client", free_port()?, "client.hcl.in")]
    {
        let own = [
            ("NAME", name.to_owned()),
            ("HTTP_PORT", endpoint.http_port.to_string()),
            ("RPC_PORT", rpc_port.to_string()),
            ("SERF_PORT", free_port()?.to_string()),
        ];
        let networks = template("networks.hcl.in")?;
        let stands_in = name == "client" && overrides.is_none();
        let docker = if stands_in { template("docker.hcl.in")? } else { String::new() };
        let acl = if acl { "\nacl {\n  enabled = true\n}\n" } else { "" };
        let text = template("common.hcl.in")? + &template(file)?.replace("@NETWORKS@\n", &networks) + &docker + acl;
        fs::write(endpoint.config, fill_in(&fill_in(&text, &common), &own))?;
    }
    if let Some((file, text)) = overrides {
        fs::write(file, fill_in(text, &common))?;
    }
    let network = fill_in(&template("cni/e2e.conflist.in")?, &common);
    fs::write(directory.join("cni/e2e.conflist"), network).context("the CNI configuration")
}

/// The values that server and client share.
fn common_values(
    tools: &Tools,
    directory: &Path,
    subnets: &Subnets,
    server: &Endpoint,
    server_port: u16,
    consul: Option<&Consul>,
) -> Vec<(&'static str, String)> {
    let low = 20_000 + (server.http_port % 100) * 100;
    // Nothing listens on port 1. Without Consul, the client does not look for one either.
    let no_consul = "127.0.0.1:1";
    vec![
        ("DIR", directory.display().to_string()),
        ("LOG_LEVEL", "DEBUG".to_owned()),
        ("SERVER_PORT", server_port.to_string()),
        ("RAW_EXEC", "true".to_owned()),
        ("DRIVERS", "oci-rs,docker,raw_exec".to_owned()),
        ("CNI_PATH", tools.cni.display().to_string()),
        ("MIN_PORT", low.to_string()),
        ("MAX_PORT", (low + 99).to_string()),
        ("BRIDGE", subnets.bridge.clone()),
        ("SUBNET", subnets.subnet.clone()),
        ("BRIDGE_IPV6", bridge_ipv6(tools.version, subnets)),
        ("CNI_SUBNET", subnets.cni_subnet.clone()),
        ("OWN_BRIDGE", subnets.own_bridge.clone()),
        ("OWN_SUBNET", subnets.own_subnet.clone()),
        ("OWN_SUBNET6", subnets.own_subnet6.clone()),
        ("USERNS", std::env::var("OCI_RS_USERNS").unwrap_or_else(|_| "auto".to_owned())),
        ("CONSUL", consul.map_or(no_consul, |consul| consul.api().host()).to_owned()),
        ("CONSUL_GRPC", consul.map_or_else(|| no_consul.to_owned(), Consul::grpc)),
        ("NO_CONSUL", if consul.is_some() { "" } else { ",consul" }.to_owned()),
    ]
}

/// The option for IPv6 on Nomad's bridge. A Nomad without this option does not start with it.
fn bridge_ipv6(version: Version, subnets: &Subnets) -> String {
    let subnet = &subnets.subnet6;
    if version.has(&BRIDGE_IPV6) { format!("bridge_network_subnet_ipv6 = \"{subnet}\"") } else { String::new() }
}

/// Replaces each `@NAME@` by its value.
fn fill_in(text: &str, values: &[(&str, String)]) -> String {
    values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("@{name}@"), value))
}
