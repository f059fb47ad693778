//! The folder in which a container's own changes lie, and with them a copy of its image where that cannot be mounted.
//!
//! `<data>/containers/<id>/` holds a link `owner` to the state folder that it belongs to, and then either `upper` and `work` of an
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

/// Names the state folder that a writable layer belongs to: others may use the same data folder.
const OWNER: &str = "owner";

/// The writable layer of one container.
#[derive(Debug)]
pub(crate) struct Writable {
    folder: PathBuf,
}

/// The folder of all writable layers.
pub(super) fn all(data_dir: &Path) -> PathBuf {
    data_dir.join("containers")
}

impl Writable {
    /// Where a container's writable layer lies in the data folder.
    pub fn of(data_dir: &Path, id: &str) -> Self {
        Self { folder: all(data_dir).join(id) }
    }

    /// The containers that have a writable layer, as far as they belong to this state folder.
    pub fn list(data_dir: &Path, state_dir: &Path) -> Result<Vec<String>, RuntimeError> {
        let folder = all(data_dir);
        let read = || -> io::Result<Vec<String>> {
            let mut found = Vec::new();
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                if owner(&entry.path()) == state_dir.as_os_str().as_bytes() {
                    found.extend(entry.file_name().into_string());
                }
            }
            Ok(found)
        };
        read().context(|| format!("listing {}", folder.display()))
    }

    /// Removes folders in which nothing is, not even the name of an owner: their maker was killed before it could say.
    pub fn remove_empty(data_dir: &Path) -> Result<(), RuntimeError> {
        let folder = all(data_dir);
        let remove = || -> io::Result<()> {
            for entry in fs::read_dir(&folder)? {
                match fs::remove_dir(entry?.path()) {
                    Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    result => result?,
                }
            }
            Ok(())
        };
        remove().context(|| format!("sweeping {}", folder.display()))
    }

    /// Makes the folder; what an earlier container left is removed.
    fn create(&self, state_dir: &Path) -> Result<(), RuntimeError> {
        self.remove()?;
        let make = || -> io::Result<()> {
            fs::DirBuilder::new().mode(0o700).create(&self.folder)?;
            failpoint::at("root-before-owner");
            // A link is part of the folder: after a power cut it is there whole, or nothing that stands beside it is there either.
            symlink(state_dir, self.folder.join(OWNER))
        };
        // A sweep may take the folder for one without an owner; it cannot take what is made next for that too.
        let again = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { make() } else { Err(error) };
        make().or_else(again).context(|| format!("making the writable layer {}", self.folder.display()))
    }

    /// Makes an empty layer, whose root has mode and owner of the image's, and mounts it over `layers` on `target`.
    pub fn mount_over(&self, layers: &[PathBuf], state_dir: &Path, target: &Path) -> Result<(), RuntimeError> {
        self.create(state_dir)?;
        let top = layers.first().map_or(Path::new(""), PathBuf::as_path);
        let model = fs::metadata(top).context(|| format!("image layer {}", top.display()))?;
        let (upper, work) = (self.folder.join("upper"), self.folder.join("work"));
        let make = || -> io::Result<()> {
            fs::create_dir(&upper)?;
            fs::create_dir(&work)?;
            std::os::unix::fs::chown(&upper, Some(model.uid()), Some(model.gid()))?;
            fs::set_permissions(&upper, fs::Permissions::from_mode(model.mode() & 0o7777))
        };
        make().context(|| format!("making the writable layer {}", self.folder.display()))?;
        Stack::open(layers, &upper, &work)?.mount(target)
    }

    /// Copies `layers` into one folder and mounts that on `target`.
    pub fn copy_of(&self, layers: &[PathBuf], state_dir: &Path, target: &Path) -> Result<(), RuntimeError> {
        self.create(state_dir)?;
        let (half, root) = (self.folder.join("root.tmp"), self.folder.join("root"));
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
        remove_tree(&self.folder)
    }
}

/// The state folder that a writable layer belongs to; nothing when it does not say.
fn owner(layer: &Path) -> Vec<u8> {
    let path = layer.join(OWNER);
    // Earlier builds wrote a file.
    let written = || fs::read(&path).unwrap_or_default();
    fs::read_link(&path).map_or_else(|_| written(), |owner| owner.as_os_str().as_bytes().to_vec())
}

/// Removes a folder and all in it; none is fine.
pub(super) fn remove_tree(folder: &Path) -> Result<(), RuntimeError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(RuntimeError::Io { action: format!("removing {}", folder.display()), source: error })
        }
        _ => Ok(()),
    }
}
