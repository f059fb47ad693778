//! A writable layer with a limit.
//!
//! There are two mechanisms. Both give a mount that is never attached to the node, which is the base of the container's
//! overlay:
//!
//! - A project quota: the directory `limited` belongs to a project of its own, which has a limit. The project is found
//!   again by the directory, so the removal of the layer removes the limit first.
//! - A file system of its own (ext4) in a sparse file. The file becomes a loop device that lets go of the file by
//!   itself when the file system is unmounted. So a kill of any process leaves neither a mount nor a device.
//!
//! The owner of a file can move it to another project, unless the owner is in a user namespace. So a project quota
//! limits only containers with a user namespace of their own.

use std::{
    fs::{DirBuilder, File},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

use super::{
    mount_tree::clone_one,
    writable::{LayerLimit, WritableLayer},
};
use crate::{
    error::{Context, StartError},
    file_system::{self, FileSystem},
    project_quota::{self, ProjectRange},
};

/// No journal: the layer does not survive a power cut.
const FORMAT: [&str; 4] = ["-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"];

/// What the directories of the overlay take of a project quota, at most.
const DIRECTORIES: u64 = 64 << 10;

/// The mount of a new layer. It is not attached, and is unmounted with its last user.
pub(crate) struct SizedLayer(OwnedFd);

impl SizedLayer {
    /// Makes the container's directory, with a layer for `bytes` bytes. Leftovers of an earlier container are removed.
    /// It must be called in the host's mount namespace. `is_mapped`: the container has a user namespace of its own.
    pub fn make(writable: &WritableLayer, state_dir: &Path, bytes: u64, is_mapped: bool) -> Result<Self, StartError> {
        let all = File::open(writable.all()).context(|| format!("opening {}", writable.all().display()))?;
        if mechanism(project_quota::is_available(&all), is_mapped) == LayerLimit::ProjectQuota
            && let Some(limited) = Self::by_quota(writable, state_dir, bytes, &all)?
        {
            return Ok(limited);
        }
        Self::in_file(writable, state_dir, bytes)
    }

    /// A directory with a project quota. `None` if other layers have every project that its name leads to.
    fn by_quota(
        writable: &WritableLayer,
        state_dir: &Path,
        bytes: u64,
        all: &File,
    ) -> Result<Option<Self>, StartError> {
        writable.create(state_dir)?;
        let path = writable.limited();
        let name = || format!("the project quota of the writable layer, {}", path.display());
        DirBuilder::new().mode(0o700).create(&path).context(name)?;
        let directory = File::open(&path).context(name)?;
        failpoint::at("creator-before-project");
        flock(all, FlockOperation::LockExclusive).context(name)?;
        let taken = project_quota::take(&directory, ProjectRange::LAYERS.of(writable.name())).context(name)?;
        flock(all, FlockOperation::Unlock).context(name)?;
        let Some(project) = taken else { return Ok(None) };
        failpoint::at("creator-before-limit");
        let limit = bytes.saturating_add(DIRECTORIES);
        project_quota::set_limits(&directory, project, limit, Some(files(bytes))).context(name)?;
        failpoint::at("creator-after-limit");
        Ok(Some(Self(clone_one(&path).context(name)?)))
    }

    /// A file system of its own in a sparse file.
    fn in_file(writable: &WritableLayer, state_dir: &Path, bytes: u64) -> Result<Self, StartError> {
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

    /// The root of the layer.
    pub fn into_mount(self) -> OwnedFd {
        self.0
    }
}

/// The mechanism of a layer. `has_quotas`: its directory can be limited by a project quota. `is_mapped`: the container
/// has a user namespace of its own.
fn mechanism(has_quotas: bool, is_mapped: bool) -> LayerLimit {
    if has_quotas && is_mapped { LayerLimit::ProjectQuota } else { LayerLimit::OwnFileSystem }
}

/// The number of files that a task may have with a project quota. It is that of a file system of its own: otherwise
/// empty files could take every inode of the node's file system.
fn files(bytes: u64) -> u64 {
    const LEAST: u64 = 64;
    LEAST + bytes / if bytes < 512 << 20 { 4096 } else { 16384 }
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_quota_limits_only_tasks_that_cannot_leave_it() {
        for (has_quotas, is_mapped, expected) in [
            (true, true, LayerLimit::ProjectQuota),
            (true, false, LayerLimit::OwnFileSystem),
            (false, true, LayerLimit::OwnFileSystem),
            (false, false, LayerLimit::OwnFileSystem),
        ] {
            assert_eq!(mechanism(has_quotas, is_mapped), expected, "{has_quotas} {is_mapped}");
        }
    }

    #[test]
    fn the_file_has_room_for_the_metadata_in_whole_blocks() {
        for bytes in [1, 1 << 20, 511 << 20, 512 << 20, 10 << 30, u64::MAX / 2] {
            let (size, inodes) = (file_size(bytes), if bytes < 512 << 20 { 16 } else { 64 });
            assert!(size - size / inodes >= bytes && size.is_multiple_of(4096), "{bytes}: {size}");
            assert!(size <= bytes + bytes / 10 + (2 << 20), "{bytes}: {size}");
        }
        assert_eq!(file_size(u64::MAX), u64::MAX);
    }

    proptest! {
        /// Empty files of a task never take more than a file of 16 KiB for each of its bytes would.
        #[test]
        fn the_number_of_files_follows_the_size(bytes in 1u64 << 20..1 << 50) {
            let files = files(bytes);
            prop_assert!(files >= bytes / 16384 && files <= 64 + bytes / 4096, "{files}");
        }
    }
}
