//! What the plugin and the mounter say to each other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{options::VolumeOptions, problem::VolumeError};

/// The one order of a mounter.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Mount a file system where only the mounter sees it, and send a copy of the mount. `place` is any directory.
    Mount { options: VolumeOptions, place: PathBuf },
    /// Ask the file system at this path something that only its server can answer.
    Ask { path: PathBuf },
    /// Unmount what is mounted at this path.
    Unmount { path: PathBuf },
}

/// The one answer. That of a successful order to mount has the mount as a descriptor.
pub(super) type Answer = Result<(), VolumeError>;
