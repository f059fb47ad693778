//! Named volumes: directories of the node that jobs share by name, made by the first container that wants one.
//!
//! A volume is absent or complete: it is filled under another name beside it, `.new.<name>`, and then renamed. What a maker that was
//! killed left under such a name is removed by the next one of the same volume, which holds a lock meanwhile.

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

use super::{Root, copy, writable::remove_tree};
use crate::{
    error::{Context, RuntimeError},
    plan::NamedVolume,
};

/// What a half-made volume's name begins with; no volume's own name does.
const HALF: &str = ".new.";

/// Makes a volume unless it is there. `root` is the container's, with nothing mounted in it yet.
pub(crate) fn make_volume(volume: &NamedVolume, root: &Root) -> Result<(), RuntimeError> {
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
    let half = parent.join(format!("{HALF}{}", name.to_string_lossy()));
    remove_tree(&half)?;
    fs::create_dir(&half).context(action)?;
    fs::set_permissions(&half, fs::Permissions::from_mode(0o755)).context(action)?;
    failpoint::at("root-before-volume-copy");
    if volume.copy {
        fill(&half, root, Path::new(&volume.destination))?;
    }
    failpoint::at("root-before-volume-rename");
    fs::rename(&half, &volume.directory).and_then(|()| lock.sync_all()).context(action)
}

/// Copies what the image has at a path, attributes of the directory included; nothing if there is no directory.
fn fill(half: &Path, root: &Root, destination: &Path) -> Result<(), RuntimeError> {
    match root.resolve(destination, rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY) {
        Ok(directory) => copy::layers(&[format!("/proc/self/fd/{}", directory.as_raw_fd()).into()], half),
        Err(_) => Ok(()),
    }
}
