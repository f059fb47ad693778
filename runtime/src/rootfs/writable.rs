//! The directory in which a container's own changes lie, and with them a copy of its image where that cannot be mounted.
//!
//! `<data>/containers/<id>/` holds a link `owner` to the state directory that it belongs to, and then either `upper` and `work` of an
//! overlay, or `root`, the whole of the container's root. `root` is complete, because it is copied as `root.tmp` and then renamed.

use std::{
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
};

use super::{copy, overlay::Stack};
use crate::error::{Context, RuntimeError};

/// Names the state directory that a writable layer belongs to: others may use the same data directory.
const OWNER: &str = "owner";

/// The writable layer of one container.
#[derive(Debug)]
pub(crate) struct Writable {
    directory: PathBuf,
}

/// The directory of all writable layers.
pub(super) fn all(data_dir: &Path) -> PathBuf {
    data_dir.join("containers")
}

impl Writable {
    /// Where a container's writable layer lies in the data directory.
    pub fn of(data_dir: &Path, id: &str) -> Self {
        Self { directory: all(data_dir).join(id) }
    }

    /// The containers that have a writable layer, as far as they belong to this state directory.
    pub fn list(data_dir: &Path, state_dir: &Path) -> Result<Vec<String>, RuntimeError> {
        let directory = all(data_dir);
        let read = || -> io::Result<Vec<String>> {
            let mut found = Vec::new();
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                if owner(&entry.path()) == state_dir.as_os_str().as_bytes() {
                    found.extend(entry.file_name().into_string());
                }
            }
            Ok(found)
        };
        read().context(|| format!("listing {}", directory.display()))
    }

    /// Removes directories in which nothing is, not even the name of an owner: their maker was killed before it could say.
    pub fn remove_empty(data_dir: &Path) -> Result<(), RuntimeError> {
        let directory = all(data_dir);
        let remove = || -> io::Result<()> {
            for entry in fs::read_dir(&directory)? {
                match fs::remove_dir(entry?.path()) {
                    Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    result => result?,
                }
            }
            Ok(())
        };
        remove().context(|| format!("sweeping {}", directory.display()))
    }

    /// Makes the directory; what an earlier container left is removed.
    fn create(&self, state_dir: &Path) -> Result<(), RuntimeError> {
        self.remove()?;
        let make = || -> io::Result<()> {
            fs::DirBuilder::new().mode(0o700).create(&self.directory)?;
            failpoint::at("root-before-owner");
            // A link is part of the directory: after a power cut it is there whole, or nothing that stands beside it is there either.
            symlink(state_dir, self.directory.join(OWNER))
        };
        // A sweep may take the directory for one without an owner; it cannot take what is made next for that too.
        let again = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { make() } else { Err(error) };
        make().or_else(again).context(|| format!("making the writable layer {}", self.directory.display()))
    }

    /// Makes an empty layer, whose root has mode and owner of the image's, and mounts it over `layers` on `target`.
    pub fn mount_over(&self, layers: &[PathBuf], state_dir: &Path, target: &Path) -> Result<(), RuntimeError> {
        self.create(state_dir)?;
        let top = layers.first().map_or(Path::new(""), PathBuf::as_path);
        let model = fs::metadata(top).context(|| format!("image layer {}", top.display()))?;
        let (upper, work) = (self.directory.join("upper"), self.directory.join("work"));
        let make = || -> io::Result<()> {
            fs::create_dir(&upper)?;
            fs::create_dir(&work)?;
            std::os::unix::fs::chown(&upper, Some(model.uid()), Some(model.gid()))?;
            fs::set_permissions(&upper, fs::Permissions::from_mode(model.mode() & 0o7777))
        };
        make().context(|| format!("making the writable layer {}", self.directory.display()))?;
        Stack::open(layers, &upper, &work)?.mount(target)
    }

    /// Copies `layers` into one directory and mounts that on `target`.
    pub fn copy_of(&self, layers: &[PathBuf], state_dir: &Path, target: &Path) -> Result<(), RuntimeError> {
        self.create(state_dir)?;
        let (half, root) = (self.directory.join("root.tmp"), self.directory.join("root"));
        fs::create_dir(&half).context(|| format!("making {}", half.display()))?;
        failpoint::at("root-before-copy");
        copy::layers(layers, &half)?;
        failpoint::at("root-before-rename");
        fs::rename(&half, &root).context(|| format!("renaming {}", half.display()))?;
        failpoint::at("root-before-mount");
        copy::mount(&root, target).context(|| format!("mounting {}", root.display()))
    }

    /// Removes the layer; none is fine.
    pub fn remove(&self) -> Result<(), RuntimeError> {
        remove_tree(&self.directory)
    }
}

/// The state directory that a writable layer belongs to; nothing when it does not say.
fn owner(layer: &Path) -> Vec<u8> {
    let path = layer.join(OWNER);
    // Earlier builds wrote a file.
    let written = || fs::read(&path).unwrap_or_default();
    fs::read_link(&path).map_or_else(|_| written(), |owner| owner.as_os_str().as_bytes().to_vec())
}

/// Removes a directory and all in it; none is fine.
pub(super) fn remove_tree(directory: &Path) -> Result<(), RuntimeError> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context(|| format!("removing {}", directory.display()))
        }
        _ => Ok(()),
    }
}
