//! Network, names and resolvers.

use std::net::IpAddr;

use super::super::value::Reader;

/// Where the container's network comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// The group's network namespace if it has one, otherwise the host.
    #[default]
    Group,
    /// The host's, whatever the group has.
    Host,
    /// Nothing but loopback.
    None,
}

/// One line of /etc/hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraHost {
    /// The name.
    pub name: String,
    /// Its address; `None` is the host itself (docker's `host-gateway`).
    pub address: Option<IpAddr>,
}

/// What the task says about /etc/resolv.conf; empty lists leave the host's values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsOptions {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains; `.` alone removes the host's.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}

const BRIDGE: &str = "write `network { mode = \"bridge\" }` in the group and remove it here";

pub fn mode(block: &Reader) -> NetworkMode {
    let Some(mode) = block.string("network_mode") else { return NetworkMode::Group };
    match mode.as_str() {
        "host" => NetworkMode::Host,
        "none" => NetworkMode::None,
        "bridge" | "default" => {
            block.mistake("network_mode", format!("{mode:?} is not supported: there is no docker bridge"), BRIDGE);
            NetworkMode::Group
        }
        _ => {
            block.mistake("network_mode", format!("{mode:?} is not supported: there are no docker networks"), BRIDGE);
            NetworkMode::Group
        }
    }
}

pub fn hostname(block: &Reader) -> Option<String> {
    let name = block.string("hostname")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    // HOST_NAME_MAX of the kernel.
    if name.len() > 64 || !name.chars().all(allowed) {
        block.mistake(
            "hostname",
            format!("{name:?} is not a host name"),
            "use up to 64 letters, digits, `-`, `_` and `.`",
        );
    }
    Some(name)
}

pub fn extra_hosts(block: &Reader) -> Vec<ExtraHost> {
    block
        .strings("extra_hosts")
        .iter()
        .filter_map(|line| {
            let host = parse_host(line);
            if host.is_none() {
                block.mistake(
                    "extra_hosts",
                    format!("{line:?} is not `name:address`"),
                    "write it as in \"db.internal:10.0.0.5\"",
                );
            }
            host
        })
        .collect()
}

fn parse_host(line: &str) -> Option<ExtraHost> {
    let (name, address) = line.split_once(':')?;
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '#') {
        return None;
    }
    let address = match address {
        "host-gateway" => None,
        _ => Some(address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address).parse().ok()?),
    };
    Some(ExtraHost { name: name.to_owned(), address })
}

pub fn dns(block: &Reader) -> DnsOptions {
    let dns = DnsOptions {
        servers: block.strings("dns_servers"),
        searches: block.strings("dns_search_domains"),
        options: block.strings("dns_options"),
    };
    for server in dns.servers.iter().filter(|server| server.parse::<IpAddr>().is_err()) {
        block.mistake("dns_servers", format!("{server:?} is not an IP address"), "write it as in \"10.0.0.2\"");
    }
    for (option, words) in [("dns_search_domains", &dns.searches), ("dns_options", &dns.options)] {
        for word in words.iter().filter(|word| word.is_empty() || word.contains(char::is_whitespace)) {
            block.mistake(option, format!("{word:?} is not one word"), "make every word an element of the list");
        }
    }
    dns
}
