//! Networks of single containers: a network namespace that a file pins, connected to the driver's bridge, or by CNI
//! plugins to a network of the operator. Also network namespaces of groups, which Nomad connects.
//!
//! Always true:
//!
//! - Before anything of a container's network is created on the host, a record in the state directory describes it. The
//!   record is removed last.
//! - Work on a container's network happens only under the lock of its directory. A running CNI plugin shares that lock,
//!   also after the process that started it was killed.
//! - So the next process finds and removes everything that a killed process left, and no process removes a network that
//!   is still being created.
//!
//! Pure modules decide (`bridge/addresses.rs`, [`Conflist`], [`AttachRequest`]); the modules around them act.

mod attachment;
mod bridge;
mod cni;
mod error;
mod group;
mod group_namespaces;
mod interfaces;
mod listing;
mod namespace;
mod networks;
mod record;
mod request;
mod settings;
mod sys;

pub use attachment::{Attachment, Dns};
pub use bridge::probe::bridge_problem;
pub use cni::conflist::Conflist;
pub use error::NetworkError;
pub use group::{GroupNetwork, UNPRIVILEGED, prepare_group};
pub use group_namespaces::{GroupNamespace, GroupNamespaces};
pub use interfaces::{Interface, LendRequest, LendTarget};
pub use listing::{Connection, NetworkView, network, networks};
pub use networks::{Claim, Networks, namespace_of};
pub use request::{AttachRequest, NetworkChoice, PortMapping, Protocol};
pub use settings::Settings;
