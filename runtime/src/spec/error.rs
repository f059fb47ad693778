//! Why a plan cannot become a spec.

use std::path::PathBuf;

use super::rlimit::rlimit_names;
use crate::{capability::CapabilityError, error::StartError};

/// A plan that cannot become a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    /// Neither the task nor the image names a command.
    #[error("the command is empty")]
    NoCommand,
    /// A name that is not the name of a capability.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// The option `ulimit` has a name that the kernel does not know.
    #[error("ulimit {0:?}: there is no such limit; known are {known}", known = rlimit_names())]
    UnknownRlimit(String),
    /// The option `ulimit` has a soft limit above its hard limit.
    #[error("ulimit {0}: the soft limit is above the hard limit")]
    SoftAboveHard(String),
    /// The task has `hostname` and `uts_mode = "host"`. Remove one of them.
    #[error("hostname: the container shares the host's UTS namespace, so its name cannot be set")]
    HostnameOfHost,
    /// The destination of a mount is not an absolute path below `/`.
    #[error("mount destination {0:?}: an absolute path below / is needed")]
    MountDestination(String),
    /// The destination of a mount is `/proc` or below it. Choose another one.
    #[error("mount destination {0:?}: /proc cannot be covered, which confines the container")]
    MountOverProc(String),
    /// Another mount of the task binds the host's `/dev`. Choose a destination elsewhere.
    #[error(
        "mount destination {0:?}: the host's /dev is mounted over the container's, so nothing of the container's can \
         be mounted below it"
    )]
    MountBelowHostDev(String),
    /// The destination of a mount is below a read-only tmpfs of the same task.
    #[error(
        "mount destination {0:?}: {1} is an empty read-only tmpfs, in which there is no place for it; make that one \
         writable"
    )]
    MountInReadonlyTmpfs(String, String),
    /// Another file system than a directory of the host is mounted at `/dev`. Choose another destination.
    #[error("mount destination \"/dev\": only a directory of the host can be mounted there")]
    MountOverDev,
    /// The image of a mount is empty. Name another image.
    #[error("mount destination {0:?}: the image has no layers")]
    MountedImageWithoutLayers(String),
    /// The path of a device in the container is not below `/dev`.
    #[error("device {0:?}: devices appear below /dev; choose another path in the container")]
    DevicePlace(PathBuf),
    /// The option `cgroup_permissions` of a device has another letter.
    #[error("device permissions {0:?}: any of r, w and m are allowed")]
    DevicePermissions(String),
    /// The container's OCI specification cannot be made, for example because of its seccomp profile.
    #[error("OCI spec: {0}")]
    Oci(String),
}

impl From<oci_spec::OciSpecError> for SpecError {
    fn from(error: oci_spec::OciSpecError) -> Self {
        Self::Oci(error.to_string())
    }
}

impl From<SpecError> for StartError {
    fn from(error: SpecError) -> Self {
        Self::invalid(error.to_string())
    }
}
