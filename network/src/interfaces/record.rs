//! The record of the interfaces that moved to a container.

use std::{fs::File, io, os::unix::fs::MetadataExt, path::PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::messages::LinkFacts;
use crate::namespace;

/// The newest version of the record. It increases when an older build would misread a record.
pub(crate) const VERSION: u32 = 1;

/// Interfaces of the node in the network namespace of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InterfaceRecord {
    /// The boot in which they moved. A later boot begins with all interfaces on the node.
    pub boot: String,
    /// The file to which the namespace is pinned.
    pub namespace: PathBuf,
    /// The number of the namespace. Another namespace can be pinned to the same file later.
    pub inode: u64,
    /// The interfaces.
    pub interfaces: Vec<LentInterface>,
}

/// An interface of the node in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LentInterface {
    /// Its name on the node.
    pub host_name: String,
    /// Its name in the container.
    pub name: String,
    /// Its index in the namespace. `None` until it is ready there.
    pub index: Option<u32>,
    /// Its kind, as in `veth`. Empty: a physical one.
    pub kind: String,
    /// The hardware device of a physical one, as in `0000:3b:00.0`.
    pub device: Option<String>,
    /// Whether it was on.
    pub up: bool,
    /// Its permanent global addresses, with the lengths of their prefixes.
    pub addresses: Vec<String>,
}

impl InterfaceRecord {
    /// Whether it has the interface with this name on the node.
    pub fn has(&self, host_name: &str) -> bool {
        self.interfaces.iter().any(|lent| lent.host_name == host_name)
    }

    /// The namespace, if it still exists under its file.
    pub fn open_namespace(&self) -> io::Result<Option<File>> {
        if !namespace::is_pinned(&self.namespace) {
            return Ok(None);
        }
        let file = match File::open(&self.namespace) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        Ok((file.metadata()?.ino() == self.inode).then_some(file))
    }
}

impl LentInterface {
    /// Whether a link can be this interface.
    pub fn is(&self, link: &LinkFacts) -> bool {
        link.kind == self.kind && link.device == self.device
    }

    /// The addresses.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.addresses.iter().filter_map(|address| address.parse().ok())
    }
}
