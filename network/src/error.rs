//! The errors of the crate. Their texts become events of the task, so they name the remedy.

use std::path::PathBuf;

use host::{IoError, record::RecordError};

/// A container's network could not be created or removed.
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
        "this node cannot give tasks a network of their own: {} not found (CNI plugins are searched in {directories}). \
         Install the packages containernetworking-plugins and iptables, or name their directory in the plugin block \
         (`network {{ cni_path = … }}`). Until then tasks can have `network_mode = \"host\"` or \"none\"; \
         `network {{ default_mode = \"host\" }}` in the plugin block makes the first the default",
        programs.join(", ")
    )]
    MissingPrograms {
        /// Their names.
        programs: Vec<String>,
        /// The directories in which plugins were searched.
        directories: String,
    },
    /// The operator has no network of this name.
    #[error("there is no CNI network {name:?} in {directory}: the operator must put its .conflist there{problems}")]
    UnknownNetwork {
        /// The name.
        name: String,
        /// The directory in which it was searched.
        directory: PathBuf,
        /// The problems of files that could not be parsed, or nothing.
        problems: String,
    },
    /// The network does not support an option of the task.
    #[error("{0}")]
    Unsupported(String),
    /// Every address is in use.
    #[error(
        "network {network} has no free address left: end tasks, or give it a larger subnet (`network {{ subnet = … }}` \
         in the plugin block for the driver's own bridge); {detail}"
    )]
    NoFreeAddress {
        /// The network's name.
        network: String,
        /// The plugin's own words.
        detail: String,
    },
    /// A CNI plugin or iptables failed.
    #[error("network {network}: {program} failed ({command}): {problem}")]
    ProgramFailed {
        /// The network's name.
        network: String,
        /// The program.
        program: String,
        /// The CNI operation, or the purpose of the call.
        command: &'static str,
        /// The program's own words.
        problem: String,
    },
}

impl NetworkError {
    /// Whether a later attempt on this node may succeed.
    pub fn recoverable(&self) -> bool {
        matches!(
            self,
            Self::Io(_) | Self::Record(RecordError::Io(_)) | Self::NoFreeAddress { .. } | Self::ProgramFailed { .. }
        )
    }
}
