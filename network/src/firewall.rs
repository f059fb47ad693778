//! The one firewall rule that no CNI plugin makes: accept packets that are forwarded to our bridge.
//!
//! CNI's firewall plugin accepts packets from containers and the replies to them. Connections to published ports come
//! from outside, and hosts with dockerd or ufw drop forwarded packets that no rule accepts. The firewall plugin jumps
//! to a chain of the administrator first; our rule is in that chain. The rule stays on the host as the bridge does. It
//! concerns only the subnet of the bridge.

use std::process::Command;

use crate::{
    error::NetworkError,
    program::{find_in_system, run},
    settings::Settings,
};

/// The chain of the administrator. The configuration of the firewall plugin names it.
pub(crate) const ADMIN_CHAIN: &str = "OCI-RS-ADMIN";

/// The programs that create rules for these settings, each with its subnet.
pub(crate) fn programs(settings: &Settings) -> impl Iterator<Item = (&'static str, String)> {
    let ipv6 = settings.subnet_ipv6.map(|subnet| ("ip6tables", subnet.to_string()));
    [("iptables", settings.subnet.to_string())].into_iter().chain(ipv6)
}

/// Creates the rule unless it exists.
pub(crate) fn accept_forwarded(settings: &Settings) -> Result<(), NetworkError> {
    for (program, subnet) in programs(settings) {
        accept_to(program, &settings.bridge, &subnet).map_err(|problem| NetworkError::ProgramFailed {
            network: settings.bridge.clone(),
            program: program.to_owned(),
            command: "rule for the bridge",
            problem,
        })?;
    }
    Ok(())
}

fn accept_to(program: &str, bridge: &str, subnet: &str) -> Result<(), String> {
    let rule = ["-o", bridge, "-d", subnet, "-j", "ACCEPT"];
    if iptables(program, "-C", &rule).is_ok() {
        return Ok(());
    }
    // The chain may exist without the rule, so an error of -N matters only if -A fails too.
    let created = iptables(program, "-N", &[]);
    iptables(program, "-A", &rule).or_else(|problem| created.and(Err(problem)))
}

/// Calls iptables or ip6tables for the administrator's chain.
fn iptables(program: &str, action: &str, rest: &[&str]) -> Result<(), String> {
    let path = find_in_system(program).ok_or("it is not installed")?;
    let mut command = Command::new(path);
    command.args(["-w", "-t", "filter", action, ADMIN_CHAIN]).args(rest);
    let (status, output) = run(command, b"", None)?;
    if status.success() { Ok(()) } else { Err(format!("{status}; {}", output.trim())) }
}
