//! Named volumes: directories of the node that jobs share by name. The first container that uses a volume creates it.
//!
//! A volume is absent or complete. It is filled under the temporary name `.new.<name>` in the same directory and then
//! renamed. A leftover of a killed process under such a name is removed by the next creation of the same volume, under
//! a lock.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, StatVfsMountFlags, flock, statvfs};

use super::{
    copy::copy_layers,
    mount_tree::{clone_one, map_tree},
    root::Root,
    writable::remove_tree,
};
use crate::{
    error::{Context, RuntimeError},
    id_map::{IdMap, as_root_of},
    plan::{IDS_PER_CONTAINER, NamedVolume},
};

/// The prefix of the temporary name of a volume. No volume name begins with it.
const TEMPORARY_PREFIX: &str = ".new.";

/// Creates a volume unless it exists. `root` is the container's root, without any mounts in it.
pub(crate) fn create_volume(volume: &NamedVolume, root: &Root, map: Option<&IdMap>) -> Result<(), RuntimeError> {
    let action = || format!("making the volume {}", volume.directory.display());
    let (Some(parent), Some(name)) = (volume.directory.parent(), volume.directory.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput)).context(action);
    };
    DirBuilder::new().recursive(true).mode(0o700).create(parent).context(action)?;
    let lock = File::open(parent).context(action)?;
    flock(&lock, FlockOperation::LockExclusive).context(action)?;
    if volume.directory.exists() {
        return Ok(());
    }
    let temporary = parent.join(format!("{TEMPORARY_PREFIX}{}", name.to_string_lossy()));
    remove_tree(&temporary)?;
    fs::create_dir(&temporary).context(action)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755)).context(action)?;
    failpoint::at("root-before-volume-copy");
    if volume.copy {
        fill(&temporary, root, Path::new(&volume.destination), map)?;
    }
    failpoint::at("root-before-volume-rename");
    fs::rename(&temporary, &volume.directory).and_then(|()| lock.sync_all()).context(action)
}

/// Fills a mounted volume, whose ids are mapped already, with the image's files at `destination`, unless it has files
/// or is read-only. `root` is the container's root, without any mounts in it.
pub(crate) fn fill_if_empty(
    volume: &Path,
    root: &Root,
    destination: &Path,
    map: Option<&IdMap>,
) -> Result<(), RuntimeError> {
    let mut entries = fs::read_dir(volume).context(|| format!("listing {}", volume.display()))?;
    let state = statvfs(volume).context(|| format!("looking at {}", volume.display()))?;
    if entries.next().is_some() || state.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    let Ok(directory) = root.resolve(destination, rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY) else {
        return Ok(());
    };
    let copy = || copy_layers(&[format!("/proc/self/fd/{}", directory.as_raw_fd()).into()], volume);
    let copied = as_root_of(map.map(IdMap::range), copy).context(|| format!("filling {}", volume.display()))?;
    copied.map_err(|error| about_ids(error, map))
}

/// Copies the directory that the image has at a path, with its attributes. Without such a directory it copies nothing.
fn fill(temporary: &Path, root: &Root, destination: &Path, map: Option<&IdMap>) -> Result<(), RuntimeError> {
    let Ok(directory) = root.resolve(destination, rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY) else {
        return Ok(());
    };
    let target = clone_one(temporary).context(|| format!("opening {}", temporary.display()))?;
    copy_to_mount(&directory, &target, temporary, map)
}

/// Copies an open directory of the image to a detached mount of `name`, whose ids are mapped first.
pub(super) fn copy_to_mount(
    directory: &OwnedFd,
    mount: &OwnedFd,
    name: &Path,
    map: Option<&IdMap>,
) -> Result<(), RuntimeError> {
    let by_descriptor = |file: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    map_tree(mount, map, || format!("the volume {}", name.display()))?;
    let copy = || copy_layers(&[by_descriptor(directory)], &by_descriptor(mount));
    let copied = as_root_of(map.map(IdMap::range), copy);
    copied.context(|| format!("filling the volume {}", name.display()))?.map_err(|error| about_ids(error, map))
}

/// The error of a copy to a volume with mapped ids. The kernel refuses to make a file with an id that the mapping lacks
/// (EOVERFLOW), and to read such a file (EACCES).
fn about_ids(error: RuntimeError, map: Option<&IdMap>) -> RuntimeError {
    match error {
        RuntimeError::Io(error)
            if map.is_some() && matches!(error.source.raw_os_error(), Some(libc::EOVERFLOW | libc::EACCES)) =>
        {
            let text = format!("{error}; does a file there belong to an id above {}?", IDS_PER_CONTAINER - 1);
            RuntimeError::UserNamespace(text)
        }
        error => error,
    }
}
