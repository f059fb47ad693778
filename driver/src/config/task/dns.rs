//! The task block's options for the host name, /etc/hosts and /etc/resolv.conf.

use std::net::IpAddr;

use crate::config::{
    block::ConfigBlock,
    option::{DefaultValue::Words, OptionSpec, OptionType},
};

/// The kernel's maximum length of a host name (HOST_NAME_MAX).
const MAX_HOSTNAME: usize = 64;

/// The options of the task block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "hostname",
        OptionType::String,
        Words("the node's name on the host's network, otherwise the group's, or the first part of the allocation's id"),
        "host name in the container",
    ),
    OptionSpec::honoured(
        "extra_hosts",
        OptionType::Strings,
        Words("none"),
        "additional lines of /etc/hosts as `name:address`",
    ),
    OptionSpec::honoured(
        "dns_servers",
        OptionType::Strings,
        Words("the host's"),
        "addresses of name servers. The group's `dns` block overrides them",
    ),
    OptionSpec::honoured(
        "dns_search_domains",
        OptionType::Strings,
        Words("the host's"),
        "search domains, `.` for none. The group's `dns` block overrides them",
    ),
    OptionSpec::honoured(
        "dns_options",
        OptionType::Strings,
        Words("the host's"),
        "resolver options. The group's `dns` block overrides them",
    ),
];

/// One line of /etc/hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraHost {
    /// The name.
    pub name: String,
    /// Its address. `None` is the host itself (docker's `host-gateway`).
    pub address: Option<IpAddr>,
}

/// Values for /etc/resolv.conf. An empty list keeps the host's values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsOptions {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains. `.` alone removes the host's.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// Reads `hostname`.
pub fn hostname(block: &ConfigBlock) -> Option<String> {
    let name = block.string("hostname")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.len() > MAX_HOSTNAME || !name.chars().all(allowed) {
        block.error(
            "hostname",
            format!("{name:?} is not a host name"),
            "use up to 64 letters, digits, `-`, `_` and `.`",
        );
    }
    Some(name)
}

/// Reads `extra_hosts`.
pub fn extra_hosts(block: &ConfigBlock) -> Vec<ExtraHost> {
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

/// A line `name:address`. An IPv6 address may stand in brackets.
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

/// Reads `dns_servers`, `dns_search_domains` and `dns_options`.
pub fn options(block: &ConfigBlock) -> DnsOptions {
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
