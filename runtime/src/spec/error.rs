//! Why a plan cannot become a spec.

use std::path::PathBuf;

use super::rlimit::rlimit_names;
use crate::{capability::CapabilityError, error::StartError};

/// A plan that cannot become a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("the command is empty")]
    NoCommand,
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    #[error("ulimit {0:?}: there is no such limit; known are {known}", known = rlimit_names())]
    UnknownRlimit(String),
    #[error("ulimit {0}: the soft limit is above the hard limit")]
    SoftAboveHard(String),
    #[error("hostname: the container shares the host's UTS namespace, so its name cannot be set")]
    HostnameOfHost,
    #[error("mount destination {0:?}: an absolute path below / is needed")]
    MountDestination(String),
    #[error("mount destination {0:?}: /proc cannot be covered, which confines the container")]
    MountOverProc(String),
    #[error(
        "mount destination {0:?}: the host's /dev is mounted over the container's, so nothing of the container's can \
         be mounted below it"
    )]
    MountBelowHostDev(String),
    #[error(
        "mount destination {0:?}: {1} is an empty read-only tmpfs, in which there is no place for it; make that one \
         writable"
    )]
    MountInReadonlyTmpfs(String, String),
    #[error("mount destination \"/dev\": only a directory of the host can be mounted there")]
    MountOverDev,
    #[error("mount destination {0:?}: the image has no layers")]
    MountedImageWithoutLayers(String),
    #[error("device {0:?}: devices appear below /dev; choose another path in the container")]
    DevicePlace(PathBuf),
    #[error("device permissions {0:?}: any of r, w and m are allowed")]
    DevicePermissions(String),
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
