//! Named volumes: directories of the node that jobs share by name. The first container that uses a volume creates it.
//!
//! A volume is absent or complete. It is filled under the temporary name `.new.<name>` in the same directory and then
//! renamed. A leftover of a killed process under such a name is removed by the next creation of the same volume, under
//! a lock.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{DirBuilderExt, PermissionsExt},
    },
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

use super::{copy::copy_layers, root::Root, writable::remove_tree};
use crate::{
    error::{Context, RuntimeError},
    plan::NamedVolume,
};

/// The prefix of the temporary name of a volume. No volume name begins with it.
const TEMPORARY_PREFIX: &str = ".new.";

/// Creates a volume unless it exists. `root` is the container's root, without any mounts in it.
pub(crate) fn create_volume(volume: &NamedVolume, root: &Root) -> Result<(), RuntimeError> {
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
        fill(&temporary, root, Path::new(&volume.destination))?;
    }
    failpoint::at("root-before-volume-rename");
    fs::rename(&temporary, &volume.directory).and_then(|()| lock.sync_all()).context(action)
}

/// Copies the directory that the image has at a path, with its attributes. Without such a directory it copies nothing.
fn fill(temporary: &Path, root: &Root, destination: &Path) -> Result<(), RuntimeError> {
    match root.resolve(destination, rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY) {
        Ok(directory) => copy_layers(&[format!("/proc/self/fd/{}", directory.as_raw_fd()).into()], temporary),
        Err(_) => Ok(()),
    }
}
