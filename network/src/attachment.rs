//! The connection of a container to its network, as the container needs to know it.

use std::{net::IpAddr, path::PathBuf};

/// The connection of a container to its network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// The file of the network namespace.
    pub namespace: PathBuf,
    /// The container's addresses, in the order of the CNI result; on our own bridge IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// The addresses of the gateways, if there are any. On our own bridge that is the host.
    pub gateways: Vec<IpAddr>,
    /// The resolver configuration of the network.
    pub dns: Dns,
}

/// A network's resolver configuration. An empty list means that the network does not configure it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}
