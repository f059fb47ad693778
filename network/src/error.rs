//! What can go wrong, in words for the person who reads the task's events.

use std::path::PathBuf;

use host::{IoError, record::RecordError};

/// Why a container's network could not be made or taken down.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The operating system refused an action.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The record of a network cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Programs that the network needs are not installed.
    #[error(
        "this node cannot give tasks a network of their own: {} not found (CNI plugins are looked for in {directories}). Install \
         the packages containernetworking-plugins and iptables, or name their directory in the plugin block (`network {{ cni_path = … \
         }}`). Until then tasks can have `network_mode = \"host\"` or \"none\"; `network {{ default_mode = \"host\" }}` in the plugin \
         block makes the first the rule",
        programs.join(", ")
    )]
    Missing {
        /// Their names.
        programs: Vec<String>,
        /// Where plugins were looked for.
        directories: String,
    },
    /// The operator has no network of this name.
    #[error("there is no CNI network {name:?} in {directory}: the operator must put its .conflist there{problems}")]
    UnknownNetwork {
        /// Its name.
        name: String,
        /// Where it was looked for.
        directory: PathBuf,
        /// What was wrong with files that could not be read, or nothing.
        problems: String,
    },
    /// The network cannot do what the task asks of it.
    #[error("{0}")]
    Unfit(String),
    /// Every address is in use.
    #[error(
        "network {network} has no free address left: end tasks, or give it a larger subnet (`network {{ subnet = … }}` in the \
         plugin block for the driver's own bridge); {detail}"
    )]
    Exhausted {
        /// The network's name.
        network: String,
        /// The plugin's own words.
        detail: String,
    },
    /// A CNI plugin or iptables failed.
    #[error("network {network}: {program} failed ({command}): {problem}")]
    Plugin {
        /// The network's name.
        network: String,
        /// The program.
        program: String,
        /// What it was to do.
        command: &'static str,
        /// Its own words.
        problem: String,
    },
}

impl NetworkError {
    /// Whether the same may succeed later on this node.
    pub fn recoverable(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Record(RecordError::Io(_)) | Self::Exhausted { .. } | Self::Plugin { .. })
    }
}
