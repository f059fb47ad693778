//! The plugin block's options for tasks' own networks.

use std::path::PathBuf;

use ipnet::{Ipv4Net, Ipv6Net};
use network::Settings;

use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
};

/// The longest IPv4 prefix that has two addresses besides the network and broadcast address: one for the bridge, one
/// for a container.
const MAX_PREFIX_IPV4: u8 = 30;
/// The same for IPv6.
const MAX_PREFIX_IPV6: u8 = 126;

/// The options of `network`.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "default_mode",
        OptionType::String,
        Literal(r#""bridge""#),
        "network of a task that sets no `network_mode` and whose group has no network: `bridge`, as with docker, or \
         `host`",
    ),
    OptionSpec::honoured(
        "bridge",
        OptionType::String,
        Literal(r#""oci-rs""#),
        "name of the driver's bridge. It is made when the first task needs it",
    ),
    OptionSpec::honoured(
        "subnet",
        OptionType::String,
        Literal(r#""172.26.80.0/20""#),
        "IPv4 subnet of the bridge. Its first address is the bridge's",
    ),
    OptionSpec::honoured(
        "subnet_ipv6",
        OptionType::String,
        Words("no IPv6"),
        "IPv6 subnet of the bridge, as in `fd00:26:80::/64`. Its first address is the bridge's",
    ),
    OptionSpec::honoured(
        "group_networks",
        OptionType::Bool,
        Words("false, or true with the name `docker`"),
        "the driver makes the networks of groups in Nomad's place, so that groups may set `network { hostname }`. \
         Nomad allows only one driver in a group to do so",
    ),
    OptionSpec::honoured(
        "cni_path",
        OptionType::String,
        Literal(r#""/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni""#),
        "directories with CNI plugins, separated by colons. A plugin is taken from the first directory that has it",
    ),
    OptionSpec::honoured(
        "cni_config_dir",
        OptionType::String,
        Literal(r#""/opt/cni/config""#),
        "directory with the CNI networks for `network_mode = \"cni/<name>\"`",
    ),
];

/// The network of a task that sets no `network_mode` and whose group has no network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultNetwork {
    /// Its own network on the driver's bridge.
    Bridge,
    /// The host's.
    Host,
}

/// Reads `default_mode`.
pub fn default_network(block: &ConfigBlock) -> DefaultNetwork {
    match block.string("default_mode").as_deref() {
        None | Some("bridge") => DefaultNetwork::Bridge,
        Some("host") => DefaultNetwork::Host,
        Some(other) => {
            let problem = format!("{other:?} cannot be the default network of all tasks");
            block.error("default_mode", problem, "write bridge or host");
            DefaultNetwork::Bridge
        }
    }
}

/// Reads the settings of the driver's bridge and of CNI.
pub fn settings(block: &ConfigBlock, default: Settings) -> Settings {
    Settings {
        bridge: bridge(block).unwrap_or(default.bridge),
        subnet: subnet_ipv4(block).unwrap_or(default.subnet),
        subnet_ipv6: subnet_ipv6(block),
        cni_path: cni_path(block).unwrap_or(default.cni_path),
        config_dir: block.absolute_path("cni_config_dir").unwrap_or(default.config_dir),
    }
}

fn bridge(block: &ConfigBlock) -> Option<String> {
    let name = block.string("bridge")?;
    let valid = name.len() <= Settings::MAX_NAME_LENGTH
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !valid {
        let problem = format!("{name:?} cannot name an interface");
        block.error("bridge", problem, "use up to 15 letters, digits, `-`, `_` and `.`");
    }
    Some(name)
}

fn subnet_ipv4(block: &ConfigBlock) -> Option<Ipv4Net> {
    let text = block.string("subnet")?;
    let subnet = text.parse().ok().map(|subnet: Ipv4Net| subnet.trunc());
    let subnet = subnet.filter(|subnet| subnet.prefix_len() <= MAX_PREFIX_IPV4);
    if subnet.is_none() {
        block.error("subnet", format!("{text:?} is no IPv4 subnet"), "write it as in \"172.26.80.0/20\"");
    }
    subnet
}

fn subnet_ipv6(block: &ConfigBlock) -> Option<Ipv6Net> {
    let text = block.string("subnet_ipv6")?;
    let subnet = text.parse().ok().map(|subnet: Ipv6Net| subnet.trunc());
    let subnet = subnet.filter(|subnet| subnet.prefix_len() <= MAX_PREFIX_IPV6);
    if subnet.is_none() {
        block.error("subnet_ipv6", format!("{text:?} is no IPv6 subnet"), "write it as in \"fd00:26:80::/64\"");
    }
    subnet
}

fn cni_path(block: &ConfigBlock) -> Option<Vec<PathBuf>> {
    let text = block.string("cni_path")?;
    let directories: Vec<PathBuf> =
        text.split(':').filter(|directory| !directory.is_empty()).map(PathBuf::from).collect();
    for directory in directories.iter().filter(|directory| !directory.is_absolute()) {
        block.error("cni_path", format!("{directory:?} is not an absolute path"), "begin it with /");
    }
    Some(directories)
}
