//! The one rule that no plugin makes: what is forwarded to the bridge is accepted, also on hosts that forward nothing else.
//!
//! CNI's firewall plugin lets containers out and answers in; connections to published ports begin outside. Hosts with dockerd or
//! ufw drop what nobody accepts. The plugin looks into a chain of the administrator's first, in which the rule stands. It
//! stays, as the bridge does: it concerns nothing but the bridge's own subnet.

use std::process::Command;

use crate::{
    error::NetworkError,
    plugin::{self, find_in_system},
    settings::Settings,
};

/// The chain, which the firewall plugin is told about.
pub(crate) const CHAIN: &str = "OCI-RS-ADMIN";

/// The programs that make rules for these settings.
pub(crate) fn programs(settings: &Settings) -> impl Iterator<Item = (&'static str, String)> {
    let ipv6 = settings.subnet_ipv6.map(|subnet| ("ip6tables", subnet.to_string()));
    [("iptables", settings.subnet.to_string())].into_iter().chain(ipv6)
}

/// Makes the rule if it is not there.
pub(crate) fn accept_forwarded(settings: &Settings) -> Result<(), NetworkError> {
    for (program, subnet) in programs(settings) {
        let rule = ["-o", &settings.bridge, "-d", &subnet, "-j", "ACCEPT"];
        let call = |action: &str, rest: &[&str]| {
            let path = find_in_system(program).ok_or("it is not installed")?;
            let mut command = Command::new(path);
            command.args(["-w", "-t", "filter", action, CHAIN]).args(rest);
            let (status, output) = plugin::run(command, b"", None)?;
            if status.success() { Ok(()) } else { Err(format!("{status}; {}", output.trim())) }
        };
        if call("-C", &rule).is_ok() {
            continue;
        }
        // The chain may be there without the rule.
        let made = call("-N", &[]);
        call("-A", &rule).or_else(|problem| made.and(Err(problem))).map_err(|problem: String| {
            NetworkError::Plugin {
                network: settings.bridge.clone(),
                program: program.to_owned(),
                command: "rule for the bridge",
                problem,
            }
        })?;
    }
    Ok(())
}
