//! The errors of the crate. Their texts become events of the task, so they name the remedy.

use std::{net::IpAddr, path::PathBuf};

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
    /// The rules of the driver's bridge could not be changed.
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    /// Programs that the network needs are not installed.
    #[error(
        "this node cannot connect tasks to the CNI network {network}: {} not found (searched in {directories}). \
         Install the package containernetworking-plugins, or name their directory in the plugin block \
         (`network {{ cni_path = … }}`)",
        programs.join(", ")
    )]
    MissingPrograms {
        /// The network's name.
        network: String,
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
        /// How many there are, or the plugin's own words.
        detail: String,
    },
    /// Another container has the address that the container must have.
    #[error(
        "network {network}: a task on this node has the address {address}: choose another one \
         (`ipv4_address`, `ipv6_address`), or end that task"
    )]
    AddressInUse {
        /// The network's name.
        network: String,
        /// The address.
        address: IpAddr,
    },
    /// The bridge has no room for another container.
    #[error(
        "network {network} has no room for another task: the kernel connects at most 1023 interfaces to a bridge; end \
         tasks, or give some of them another network (`network_mode`)"
    )]
    BridgeFull {
        /// The network's name.
        network: String,
    },
    /// The node has no such interface.
    #[error("this node has no network interface {name}, which the spec of a device names")]
    NoInterface {
        /// Its name.
        name: String,
    },
    /// Another container has the interface.
    #[error(
        "the network interface {name}, which the spec of a device names, is lent to another task ({holder}): end it"
    )]
    InterfaceLent {
        /// Its name on the node.
        name: String,
        /// The container.
        holder: String,
    },
    /// The container's namespace has an interface with the name.
    #[error("the task's network has an interface {name} already: give it another `name` in `netDevices` of the spec")]
    InterfaceNameTaken {
        /// The name.
        name: String,
    },
    /// The kernel refused to move an interface.
    #[error("the network interface {name}, which the spec of a device names, cannot move to the task: {problem}")]
    InterfaceNotMoved {
        /// Its name on the node.
        name: String,
        /// The reason.
        problem: String,
    },
    /// A CNI plugin failed.
    #[error("network {network}: {program} failed ({command}): {problem}")]
    ProgramFailed {
        /// The network's name.
        network: String,
        /// The program.
        program: String,
        /// The CNI operation.
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
            Self::Io(_)
                | Self::Record(RecordError::Io(_))
                | Self::Firewall(_)
                | Self::NoFreeAddress { .. }
                | Self::AddressInUse { .. }
                | Self::BridgeFull { .. }
                | Self::NoInterface { .. }
                | Self::InterfaceLent { .. }
                | Self::ProgramFailed { .. }
        )
    }
}
