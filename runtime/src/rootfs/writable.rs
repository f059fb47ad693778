//! The writable layer of a container, and the copy of its image where overlayfs does not work.
//!
//! `<data>/containers/<id>/` contains a symbolic link `owner` to the state directory to which the layer belongs, and
//! one of these:
//!
//! - `upper` and `work`, the directories of an overlay;
//! - `limited`, a directory of a project quota with `upper` and `work`, if the layer has such a limit;
//! - `layer.ext4`, a file system with `upper` and `work`, if the layer has a limit of the other kind;
//! - `root`, a complete copy of the container's root. It is copied as `root.tmp` and then renamed.
//!
//! If the container has volumes without a name, they are in `volumes`. Copies of images that it mounts are in `images`.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink},
        },
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, openat};

use super::{
    copy::copy_layers,
    mount_tree::{attach_private, clone_one, map_tree, mount_unrestricted},
    overlay::Overlay,
    relabel::relabel,
};
use crate::{
    error::{Context, RuntimeError},
    id_map::{IdMap, as_root_of},
    project_quota::{self, ProjectRange},
};

/// The mechanism that limits a writable layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerLimit {
    /// A project quota of the node's file system.
    ProjectQuota,
    /// A file system of its own in a sparse file.
    OwnFileSystem,
}

impl LayerLimit {
    /// Its name for a reader.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProjectQuota => "project quota",
            Self::OwnFileSystem => "ext4 in a file",
        }
    }
}

/// The symbolic link to the state directory. Several state directories can share a data directory.
const OWNER: &str = "owner";

/// The writable layer of one container.
#[derive(Debug)]
pub(crate) struct WritableLayer {
    directory: PathBuf,
}

/// The directory of all writable layers in a data directory.
pub(super) fn layers_in(data_dir: &Path) -> PathBuf {
    data_dir.join("containers")
}

/// The directory of the writable layer of a container. It need not exist.
pub(crate) fn writable_layer(data_dir: &Path, id: &str) -> PathBuf {
    layers_in(data_dir).join(id)
}

impl WritableLayer {
    /// The writable layer of a container in the data directory. It need not exist.
    pub fn of(data_dir: &Path, id: &str) -> Self {
        Self { directory: writable_layer(data_dir, id) }
    }

    /// Its directory. Another process may remove it at any time.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The containers of this state directory that have a writable layer.
    pub fn list(data_dir: &Path, state_dir: &Path) -> Result<Vec<String>, RuntimeError> {
        let directory = layers_in(data_dir);
        let read = || -> io::Result<Vec<String>> {
            let mut containers = Vec::new();
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                if owner(&entry.path()) == state_dir.as_os_str().as_bytes() {
                    containers.extend(entry.file_name().into_string());
                }
            }
            Ok(containers)
        };
        read().context(|| format!("listing {}", directory.display()))
    }

    /// Removes empty directories. A process that was killed before it created the link `owner` leaves such a directory.
    pub fn remove_empty(data_dir: &Path) -> Result<(), RuntimeError> {
        let directory = layers_in(data_dir);
        let remove = || -> io::Result<()> {
            for entry in fs::read_dir(&directory)? {
                let path = entry?.path();
                match fs::remove_dir(&path) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => tracing::warn!(directory = %path.display(), %error, "empty directory not removed"),
                }
            }
            Ok(())
        };
        remove().context(|| format!("sweeping {}", directory.display()))
    }

    /// Creates the directory. Leftovers of an earlier container are removed.
    pub fn create(&self, state_dir: &Path) -> Result<(), RuntimeError> {
        self.remove()?;
        let create = || -> io::Result<()> {
            fs::DirBuilder::new().mode(0o700).create(&self.directory)?;
            failpoint::at("root-before-owner");
            // A symbolic link, because it is stored in the directory itself. After a power cut it is complete, or the
            // files that were created after it are missing too.
            symlink(state_dir, self.directory.join(OWNER))
        };
        // A sweep may remove the directory before it has an owner. That can happen only once, because the sweep has
        // listed the directories before.
        let retry = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { create() } else { Err(error) };
        create().or_else(retry).context(|| format!("making the writable layer {}", self.directory.display()))
    }

    /// The name of the container.
    pub(super) fn name(&self) -> &str {
        self.directory.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// The directory of all writable layers.
    pub(super) fn all(&self) -> &Path {
        self.directory.parent().unwrap_or(Path::new("/"))
    }

    /// The file with the file system of a layer that has a limit.
    pub(super) fn file_system(&self) -> PathBuf {
        self.directory.join("layer.ext4")
    }

    /// The directory with the project quota of a layer that has a limit.
    pub(super) fn limited(&self) -> PathBuf {
        self.directory.join("limited")
    }

    /// The mechanism that limits the layer; `None` if it has no limit, or does not exist.
    pub fn limit(&self) -> Option<LayerLimit> {
        if self.limited().is_dir() {
            return Some(LayerLimit::ProjectQuota);
        }
        self.file_system().is_file().then_some(LayerLimit::OwnFileSystem)
    }

    /// Removes the limit of the layer's project. The directory by which the project is found must still be there, so
    /// that a removal that was killed is repeated.
    fn remove_limit(&self) -> io::Result<()> {
        let directory = match File::open(self.limited()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let project = project_quota::project_of(&directory)?;
        if ProjectRange::LAYERS.has(self.name(), project) {
            project_quota::remove_limits(&directory, project)?;
            failpoint::at("destroy-after-limit");
        }
        Ok(())
    }

    /// Mounts this layer, which has just been created, over `layers` on `target`. If it is `sized`, that is the mount
    /// of its own file system or of its limited directory. Its root gets the mode and the owner of the image's root.
    /// All files have the SELinux label.
    ///
    /// With a mapping of ids, the layers must have it, and the writable layer gets a mount of its own. The mount of the
    /// writable layer, if there is one, is attached at `place`, if that is given, and is the result. It is best closed
    /// when the process ends: closing a detached mount waits for all processors.
    pub fn mount_over(
        &self,
        layers: &[PathBuf],
        sized: Option<OwnedFd>,
        target: &Path,
        map: Option<&IdMap>,
        place: Option<&Path>,
        label: Option<&str>,
    ) -> Result<Option<OwnedFd>, RuntimeError> {
        let base = match &sized {
            Some(mount) => PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd())),
            None => self.directory.clone(),
        };
        let top = layers.first().map_or(Path::new(""), PathBuf::as_path);
        let image_root = fs::metadata(top).context(|| format!("image layer {}", top.display()))?;
        let (upper, work) = (base.join("upper"), base.join("work"));
        let on_disk = |id: u32| map.map_or(id, |map| map.range().in_container(id).unwrap_or_default());
        let create = || -> io::Result<()> {
            fs::create_dir(&upper)?;
            fs::create_dir(&work)?;
            std::os::unix::fs::chown(&upper, Some(on_disk(image_root.uid())), Some(on_disk(image_root.gid())))?;
            fs::set_permissions(&upper, fs::Permissions::from_mode(image_root.mode() & 0o7777))
        };
        create().context(|| format!("making the writable layer {}", self.directory.display()))?;
        let name = || format!("the writable layer {}", self.directory.display());
        let Some(map) = map else {
            if let (Some(mount), Some(place)) = (&sized, place) {
                attach_private(mount, place).context(name)?;
            }
            return Overlay::open(layers, &upper, &work)?.labelled(label).mount(target).map(|()| sized);
        };
        let mount = sized.map_or_else(|| clone_one(&self.directory), Ok).context(name)?;
        map_tree(&mount, Some(map), name)?;
        place.map_or(Ok(()), |place| attach_private(&mount, place)).context(name)?;
        let [upper, work] = ["upper", "work"]
            .map(|name| openat(&mount, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()));
        let overlay = Overlay::over(layers, upper.context(name)?, work.context(name)?)?.labelled(label);
        // The kernel makes files of the overlay with the ids of the process that mounts it.
        let mounted = as_root_of(Some(map.range()), || overlay.mount(target)).context(name)?;
        mounted.map_err(|error| RuntimeError::UserNamespace(error.to_string()))?;
        Ok(Some(mount))
    }

    /// Copies `layers` to one directory and mounts the directory on `target`. Not the layers have the mapping of ids,
    /// but the mount.
    pub fn mount_copy(
        &self,
        layers: &[PathBuf],
        state_dir: &Path,
        target: &Path,
        map: Option<&IdMap>,
        label: Option<&str>,
    ) -> Result<(), RuntimeError> {
        self.create(state_dir)?;
        if map.is_some() {
            // Before the copy, which may take long.
            let mount = clone_one(&self.directory).context(|| format!("opening {}", self.directory.display()))?;
            map_tree(&mount, map, || format!("the writable layer {}", self.directory.display()))?;
        }
        let (temporary, root) = (self.directory.join("root.tmp"), self.directory.join("root"));
        fs::create_dir(&temporary).context(|| format!("making {}", temporary.display()))?;
        failpoint::at("root-before-copy");
        copy_layers(layers, &temporary)?;
        // Before the ids are mapped: afterwards a file keeps its label if the mapping lacks its owner.
        label.map_or(Ok(()), |label| relabel(&temporary, label))?;
        failpoint::at("root-before-rename");
        fs::rename(&temporary, &root).context(|| format!("renaming {}", temporary.display()))?;
        failpoint::at("root-before-mount");
        mount_unrestricted(&root, target, map)
    }

    /// The directory of a volume without a name, by its position among the container's volumes.
    pub fn volume(&self, index: usize) -> PathBuf {
        self.directory.join("volumes").join(index.to_string())
    }

    /// The directory of the copy of a mounted image, by the position of the mount among the container's mounts.
    pub fn mounted_image(&self, index: usize) -> PathBuf {
        self.directory.join("images").join(index.to_string())
    }

    /// Removes the layer. A missing layer is no error. The link `owner` is removed last: a layer of which a part stays
    /// must be found by the next sweep.
    pub fn remove(&self) -> Result<(), RuntimeError> {
        self.remove_limit().context(|| format!("removing the project quota of {}", self.directory.display()))?;
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.context(|| format!("listing {}", self.directory.display()))?,
        };
        for entry in entries {
            let entry = entry.context(|| format!("listing {}", self.directory.display()))?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&entry.path())?;
            } else if entry.file_name() != OWNER {
                fs::remove_file(entry.path()).context(|| format!("removing {}", entry.path().display()))?;
            }
        }
        remove_tree(&self.directory)
    }
}

/// The state directory to which a writable layer belongs; empty if the layer does not name one.
fn owner(layer: &Path) -> Vec<u8> {
    let path = layer.join(OWNER);
    // Earlier builds wrote a regular file.
    let written = || fs::read(&path).unwrap_or_default();
    fs::read_link(&path).map_or_else(|_| written(), |owner| owner.as_os_str().as_bytes().to_vec())
}

/// Removes a directory tree. A missing directory is no error.
pub(super) fn remove_tree(directory: &Path) -> Result<(), RuntimeError> {
    match host::tree::remove(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context(|| format!("removing {}", directory.display()))
        }
        _ => Ok(()),
    }
}
