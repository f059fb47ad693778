//! Network, names and resolvers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::value::Reader;

/// Where the container's network comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// The group's network namespace if it has one, otherwise what the operator chose.
    #[default]
    Unset,
    /// The group's network namespace if it has one, otherwise one of its own on the driver's bridge.
    Bridge,
    /// One of its own, connected to the operator's CNI network of this name.
    Named(String),
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

/// Addresses that a container is to have in a network of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Hardware address, `aa:bb:cc:dd:ee:ff`.
    pub mac: Option<String>,
    /// IPv4.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6.
    pub ipv6: Option<Ipv6Addr>,
    /// Services advertise the IPv6 address.
    pub advertise_ipv6: bool,
}

pub fn mode(block: &Reader) -> NetworkMode {
    let Some(mode) = block.string("network_mode") else { return NetworkMode::Unset };
    match mode.as_str() {
        "host" => NetworkMode::Host,
        "none" => NetworkMode::None,
        "bridge" | "default" => NetworkMode::Bridge,
        _ => match mode.strip_prefix("cni/").filter(|name| !name.is_empty() && !name.contains('/')) {
            Some(name) => NetworkMode::Named(name.to_owned()),
            None => {
                refuse(block, &mode);
                NetworkMode::Unset
            }
        },
    }
}

/// Networks that only docker's daemon knows.
fn refuse(block: &Reader, mode: &str) {
    let (problem, remedy) = if mode.starts_with("container:") {
        (
            "another container's network cannot be joined by its name",
            "put both tasks into one group with `network { mode = \"bridge\" }`, where they share a network",
        )
    } else {
        (
            "there are no docker networks",
            "write bridge, host, none, or cni/<name> for a CNI network of the operator's; tasks that talk to each other find each \
             other in a group with `network { mode = \"bridge\" }` or by their services",
        )
    };
    block.error("network_mode", format!("{mode:?} is not supported: {problem}"), remedy);
}

pub fn addresses(block: &Reader) -> Addresses {
    let mac = block.string("mac_address");
    if let Some(text) = mac.as_deref().filter(|text| !is_hardware_address(text)) {
        block.error(
            "mac_address",
            format!("{text:?} is not the hardware address of one interface"),
            "write it as in \"02:42:ac:11:00:02\"; the first number is even",
        );
    }
    let ipv4 = block.string("ipv4_address").and_then(|text| {
        let address = text.parse().ok();
        if address.is_none() {
            block.error("ipv4_address", format!("{text:?} is not an IPv4 address"), "write it as in \"172.26.80.9\"");
        }
        address
    });
    let ipv6 = block.string("ipv6_address").and_then(|text| {
        let address = text.parse().ok();
        if address.is_none() {
            block.error("ipv6_address", format!("{text:?} is not an IPv6 address"), "write it as in \"fd00::9\"");
        }
        address
    });
    Addresses { mac, ipv4, ipv6, advertise_ipv6: block.bool("advertise_ipv6_address") }
}

/// Six bytes that do not mean a group of interfaces.
fn is_hardware_address(text: &str) -> bool {
    let bytes: Vec<Option<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2 && !part.starts_with('+')))
        .collect();
    matches!(bytes.as_slice(), [Some(first), rest @ ..] if first & 1 == 0 && rest.len() == 5 && rest.iter().all(Option::is_some))
}

pub fn hostname(block: &Reader) -> Option<String> {
    let name = block.string("hostname")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    // HOST_NAME_MAX of the kernel.
    if name.len() > 64 || !name.chars().all(allowed) {
        block.error(
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
                block.error(
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
        block.error("dns_servers", format!("{server:?} is not an IP address"), "write it as in \"10.0.0.2\"");
    }
    for (option, words) in [("dns_search_domains", &dns.searches), ("dns_options", &dns.options)] {
        for word in words.iter().filter(|word| word.is_empty() || word.contains(char::is_whitespace)) {
            block.error(option, format!("{word:?} is not one word"), "make every word an element of the list");
        }
    }
    dns
}
