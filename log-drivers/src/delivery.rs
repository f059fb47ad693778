//! How the output of one container is delivered: plain data, from which a process that knows nothing else can do it.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{address::Address, fluentd::Fluentd, gelf::Gelf, journald::Journald, syslog::Syslog};

/// What a log driver may know of a container, in docker's terms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerFacts {
    /// 64 hexadecimal digits, see [`container_id`].
    pub id: String,
    /// The name, without a leading slash.
    pub name: String,
    /// The digest of the image.
    pub image_id: String,
    /// The image as the job names it.
    pub image_name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The name of the node.
    pub hostname: String,
}

/// An id with docker's form for a container that has another name: the same for the same name.
pub fn container_id(name: &str) -> String {
    hex::encode(Sha256::digest(name))
}

/// What happens with output that the destination does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The container waits.
    Blocking,
    /// Up to this number of bytes wait in memory. Messages that come while the memory is full are dropped.
    NonBlocking {
        /// The limit.
        max_buffer_size: u64,
    },
}

/// The delivery of one container's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// What happens with output that the destination does not take.
    pub mode: Mode,
    /// The destination.
    pub destination: Destination,
}

/// The destination, with all that each message to it says of the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// A syslog server.
    Syslog(Syslog),
    /// A Graylog server.
    Gelf(Gelf),
    /// A Fluentd server.
    Fluentd(Fluentd),
    /// The node's journal.
    Journald(Journald),
}

impl Destination {
    /// Whether a connection needs files of the node: a socket, or keys and certificates.
    pub fn uses_files(&self) -> bool {
        let is_socket = |address: &Address| matches!(address, Address::Unix(_) | Address::Unixgram(_));
        match self {
            Self::Syslog(syslog) => {
                let is_tls = matches!(syslog.address, Some(Address::Tls(_)));
                is_tls || syslog.address.as_ref().is_none_or(is_socket)
            }
            Self::Gelf(gelf) => is_socket(&gelf.address),
            Self::Fluentd(fluentd) => is_socket(&fluentd.address) || matches!(fluentd.address, Address::Tls(_)),
            Self::Journald(_) => true,
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syslog(syslog) => syslog.fmt(f),
            Self::Gelf(gelf) => gelf.fmt(f),
            Self::Fluentd(fluentd) => fluentd.fmt(f),
            Self::Journald(journald) => journald.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_id_has_dockers_form() {
        let id = super::container_id("alloc.web.0123");
        assert!(id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        assert_ne!(id, super::container_id("alloc.web.0124"));
    }
}
