//! The operator's settings for networks.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use ipnet::{Ipv4Net, Ipv6Net};

/// The locations of CNI plugins and network configurations, and the properties of our own bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Directories with CNI plugins. A plugin is taken from the first directory that has it.
    pub cni_path: Vec<PathBuf>,
    /// Directory with the operator's network configurations.
    pub config_dir: PathBuf,
    /// The name of the bridge and of its network. It has at most [`Settings::MAX_NAME_LENGTH`] characters.
    pub bridge: String,
    /// The IPv4 subnet. Its first address is that of the bridge.
    pub subnet: Ipv4Net,
    /// The IPv6 subnet. Without it, containers have no IPv6 addresses.
    pub subnet_ipv6: Option<Ipv6Net>,
}

impl Settings {
    /// The longest possible name of a network interface (IFNAMSIZ without the NUL), in bytes.
    pub const MAX_NAME_LENGTH: usize = 15;

    /// Whether a container on the bridge can have this address.
    pub fn holds_ipv4(&self, address: Ipv4Addr) -> bool {
        self.subnet.contains(&address) && self.subnet.network() != address && self.subnet.broadcast() != address
    }

    /// The same for IPv6.
    pub fn holds_ipv6(&self, address: Ipv6Addr) -> bool {
        self.subnet_ipv6.is_some_and(|subnet| subnet.contains(&address) && subnet.network() != address)
    }

    /// The directories in the form of the variable `CNI_PATH`.
    pub(crate) fn search_path(directories: &[PathBuf]) -> String {
        directories.iter().map(|directory| directory.to_string_lossy()).collect::<Vec<_>>().join(":")
    }
}

impl Default for Settings {
    /// Plugins are searched first where Nomad searches them. The subnet is the block after that of Nomad's bridge.
    fn default() -> Self {
        Self {
            cni_path: ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"].map(PathBuf::from).into(),
            config_dir: PathBuf::from("/opt/cni/config"),
            bridge: "oci-rs".to_owned(),
            subnet: Ipv4Net::new_assert(Ipv4Addr::new(172, 26, 80, 0), 20),
            subnet_ipv6: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn addresses_of_the_subnet_are_usable_except_its_first_and_last() {
        let settings = Settings { subnet_ipv6: "fd00:1::/64".parse().ok(), ..Settings::default() };
        let held = |address: &str| settings.holds_ipv4(address.parse().expect("an address"));
        assert!(held("172.26.80.2") && held("172.26.95.254"));
        assert!(!held("172.26.80.0") && !held("172.26.95.255") && !held("172.26.96.1"));
        let held = |address: &str| settings.holds_ipv6(address.parse().expect("an address"));
        assert!(held("fd00:1::2") && !held("fd00:1::") && !held("fd00:2::2"));
        assert!(!Settings::default().holds_ipv6("fd00:1::2".parse().expect("an address")));
    }
}
