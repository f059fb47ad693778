//! The plugin block's part about networks that are a task's own.

use std::path::PathBuf;

use ipnet::{Ipv4Net, Ipv6Net};
use network::Settings;

use super::{plugin::absolute, value::Reader};

/// The network of a task that names none, in a group that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultNetwork {
    /// One of its own on the driver's bridge.
    Bridge,
    /// The host's.
    Host,
}

/// What tasks get that name no network.
pub fn default_network(block: &Reader) -> DefaultNetwork {
    match block.string("default_mode").as_deref() {
        None | Some("bridge") => DefaultNetwork::Bridge,
        Some("host") => DefaultNetwork::Host,
        Some(other) => {
            block.error("default_mode", format!("{other:?} cannot be everybody's network"), "write bridge or host");
            DefaultNetwork::Bridge
        }
    }
}

/// The driver's own bridge, and where CNI plugins and networks are.
pub fn settings(block: &Reader, default: Settings) -> Settings {
    let bridge = block.string("bridge").unwrap_or(default.bridge);
    let nameable = |name: &str| {
        name.len() <= Settings::MAX_NAME_LENGTH
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    if !nameable(&bridge) {
        block.error(
            "bridge",
            format!("{bridge:?} cannot name an interface"),
            "use up to 15 letters, digits, `-`, `_` and `.`",
        );
    }
    let subnet = block.string("subnet").map(|text| {
        // Room for the bridge and one container beside the two addresses that mean something else.
        let subnet = text.parse().ok().map(|subnet: Ipv4Net| subnet.trunc()).filter(|subnet| subnet.prefix_len() <= 30);
        if subnet.is_none() {
            block.error("subnet", format!("{text:?} is no IPv4 subnet"), "write it as in \"172.26.80.0/20\"");
        }
        subnet
    });
    let subnet_ipv6 = block.string("subnet_ipv6").and_then(|text| {
        let subnet =
            text.parse().ok().map(|subnet: Ipv6Net| subnet.trunc()).filter(|subnet| subnet.prefix_len() <= 126);
        if subnet.is_none() {
            block.error("subnet_ipv6", format!("{text:?} is no IPv6 subnet"), "write it as in \"fd00:26:80::/64\"");
        }
        subnet
    });
    let cni_path = block.string("cni_path").map(|text| {
        let directories: Vec<PathBuf> =
            text.split(':').filter(|directory| !directory.is_empty()).map(PathBuf::from).collect();
        for directory in directories.iter().filter(|directory| !directory.is_absolute()) {
            block.error("cni_path", format!("{directory:?} is not an absolute path"), "begin it with /");
        }
        directories
    });
    Settings {
        bridge,
        subnet: subnet.flatten().unwrap_or(default.subnet),
        subnet_ipv6,
        cni_path: cni_path.unwrap_or(default.cni_path),
        config_dir: absolute(block, "cni_config_dir").unwrap_or(default.config_dir),
    }
}
