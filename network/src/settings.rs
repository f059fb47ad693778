//! What the operator decides.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use ipnet::{Ipv4Net, Ipv6Net};

/// Where CNI plugins and networks are found, and what the bridge of our own is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Directories with CNI plugins; the first one that has a plugin provides it.
    pub cni_path: Vec<PathBuf>,
    /// Directory with the operator's network configurations.
    pub config_dir: PathBuf,
    /// Name of the bridge, at most 15 characters; it is the network's name as well.
    pub bridge: String,
    /// Its IPv4 addresses; the first one is the bridge's own.
    pub subnet: Ipv4Net,
    /// Its IPv6 addresses, if tasks are to have some.
    pub subnet_ipv6: Option<Ipv6Net>,
}

impl Settings {
    /// The longest name that an interface can have (IFNAMSIZ less its NUL).
    pub const LONGEST_NAME: usize = 15;

    /// Whether an address is one that a container on the bridge can have.
    pub fn holds_ipv4(&self, address: Ipv4Addr) -> bool {
        self.subnet.contains(&address) && self.subnet.network() != address && self.subnet.broadcast() != address
    }

    /// The same for IPv6.
    pub fn holds_ipv6(&self, address: Ipv6Addr) -> bool {
        self.subnet_ipv6.is_some_and(|subnet| subnet.contains(&address) && subnet.network() != address)
    }

    /// The directories as `CNI_PATH` has them.
    pub(crate) fn search_path(directories: &[PathBuf]) -> String {
        directories.iter().map(|directory| directory.to_string_lossy()).collect::<Vec<_>>().join(":")
    }
}

impl Default for Settings {
    /// Nomad's own places first. The subnet is the block that follows the one of Nomad's bridge.
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
    fn addresses_of_the_subnet_but_not_its_edges() {
        let settings = Settings { subnet_ipv6: "fd00:1::/64".parse().ok(), ..Settings::default() };
        let held = |address: &str| settings.holds_ipv4(address.parse().expect("an address"));
        assert!(held("172.26.80.2") && held("172.26.95.254"));
        assert!(!held("172.26.80.0") && !held("172.26.95.255") && !held("172.26.96.1"));
        let held = |address: &str| settings.holds_ipv6(address.parse().expect("an address"));
        assert!(held("fd00:1::2") && !held("fd00:1::") && !held("fd00:2::2"));
        assert!(!Settings::default().holds_ipv6("fd00:1::2".parse().expect("an address")));
    }
}
