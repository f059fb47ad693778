//! The network namespace that a container joins.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use oci_spec::runtime::Spec;
use rustix::fs::{Mode, OFlags, fstatfs, open};

use crate::{error::StartError, plan::Network};

/// The type of the file system of namespaces (linux/magic.h).
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// A network namespace that the container joins. It is held open, because its path does not exist in the mount
/// namespace in which the container is created.
pub(crate) struct HeldNetwork(Option<OwnedFd>);

impl HeldNetwork {
    /// Opens the namespace of the plan, if it names one. It must be called in the host's mount namespace. A removed
    /// namespace can leave its file behind, empty, and the error of the engine would only be "Invalid argument".
    pub fn open(network: &Network) -> Result<Self, StartError> {
        let Network::Path(path) = network else { return Ok(Self(None)) };
        let opened = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
        let problem = match opened.and_then(|held| Ok((fstatfs(&held)?, held))) {
            Ok((file_system, held)) if file_system.f_type as u64 == NSFS_MAGIC => return Ok(Self(Some(held))),
            Ok(_) => "the file at this path is not a namespace".to_owned(),
            Err(error) => io::Error::from(error).to_string(),
        };
        Err(StartError::invalid(format!(
            "the network namespace {path:?} is gone: {problem}. Starting the task again does not help until the \
             creator of the namespace creates it again"
        )))
    }

    /// Sets the path of the namespace in the spec to the descriptor, which the engine's processes inherit.
    pub fn name_in(&self, spec: &mut Spec) {
        let Some(held) = &self.0 else { return };
        let namespaces = spec.linux_mut().iter_mut().flat_map(|linux| linux.namespaces_mut().iter_mut().flatten());
        for namespace in namespaces.filter(|namespace| namespace.path().is_some()) {
            namespace.set_path(Some(format!("/proc/self/fd/{}", held.as_raw_fd()).into()));
        }
    }
}
