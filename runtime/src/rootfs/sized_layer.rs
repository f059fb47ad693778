//! A writable layer with a limit: a file system of its own (ext4) in a sparse file of the container's directory.
//!
//! The file becomes a loop device that lets go of the file by itself when the file system is unmounted. The mount is
//! never attached: only the container's overlay uses it. So a kill of any process leaves neither a mount nor a device.

use std::{os::fd::OwnedFd, path::Path};

use super::writable::WritableLayer;
use crate::{
    error::{Context, StartError},
    file_system::{self, FileSystem},
};

/// No journal: the layer does not survive a power cut.
const FORMAT: [&str; 4] = ["-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"];

/// A new file system, mounted and not attached. Unmounted with its last user.
pub(crate) struct SizedLayer(OwnedFd);

impl SizedLayer {
    /// Makes the container's directory, with a file system for `bytes` bytes. Leftovers of an earlier container are
    /// removed. It must be called in the host's mount namespace.
    pub fn make(writable: &WritableLayer, state_dir: &Path, bytes: u64) -> Result<Self, StartError> {
        let (program, package) = (FileSystem::Ext4.program(), FileSystem::Ext4.package());
        let formatter = FileSystem::Ext4.formatter().ok_or_else(|| {
            let text = format!(
                "the writable layer is limited to {bytes} bytes, and this node lacks the program {program}, which \
                 makes its file system: install {package} on the node, or remove `size` from `storage_opt` and \
                 `writable_layer`"
            );
            StartError::invalid(text)
        })?;
        writable.create(state_dir)?;
        let path = writable.file_system();
        let name = || format!("the file system of the writable layer, {}", path.display());
        let file = file_system::create(&path, file_size(bytes)).context(name)?;
        failpoint::at("creator-before-format");
        file_system::format(FileSystem::Ext4, &formatter, &FORMAT, &file)
            .context(|| format!("{program}: {}", name()))?;
        failpoint::at("creator-before-loop");
        file_system::mount_new(&file, FileSystem::Ext4)
            .map(Self)
            .context(|| format!("mounting {} by a loop device (Linux 5.8)", name()))
            .map_err(Into::into)
    }

    /// The root of the file system.
    pub fn into_mount(self) -> OwnedFd {
        self.0
    }
}

/// The size of the file, in which a task can write at least this number of bytes. mkfs.ext4 uses a sixteenth of a small
/// file system for inodes, and a sixty-fourth of others. The kernel reserves a fiftieth, but no more than 16 MiB.
fn file_size(bytes: u64) -> u64 {
    const BLOCK: u64 = 4096;
    let inodes = if bytes < 512 << 20 { bytes / 14 } else { bytes / 56 };
    let others = (bytes / 48).min(16 << 20) + (1 << 20);
    let all = bytes.saturating_add(inodes).saturating_add(others);
    // A file of the largest size cannot be made, and that is an error.
    all.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_room_for_the_metadata_in_whole_blocks() {
        for bytes in [1, 1 << 20, 511 << 20, 512 << 20, 10 << 30, u64::MAX / 2] {
            let (size, inodes) = (file_size(bytes), if bytes < 512 << 20 { 16 } else { 64 });
            assert!(size - size / inodes >= bytes && size.is_multiple_of(4096), "{bytes}: {size}");
            assert!(size <= bytes + bytes / 10 + (2 << 20), "{bytes}: {size}");
        }
        assert_eq!(file_size(u64::MAX), u64::MAX);
    }
}
