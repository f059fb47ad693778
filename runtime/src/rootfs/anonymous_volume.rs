//! Volumes without a name: those of the image, and those that a task mounts without a name.
//!
//! A volume is the directory `volumes/<number>` beside the container's writable layer. It is filled from the image
//! before the container starts, and it is removed with the writable layer. It is not a part of the overlay, so programs
//! in the container write to it directly.

use std::{
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, PermissionsExt},
    },
    path::Path,
};

use super::{
    mount_tree::{attach_tree, clone_one, map_tree},
    volume::copy_to_mount,
};
use crate::{
    error::{Context, RuntimeError},
    id_map::IdMap,
    sys::{PropagationType, set_propagation, unrestrict_mount},
};

/// Creates the directory `volume`, and mounts it at `target`, which is created. It has the content and the attributes
/// of the open directory `model` of the image, if there is one. The mount has no restrictions of the mount of `volume`:
/// the image's files at this path would not have them either.
pub(crate) fn create_anonymous_volume(
    volume: &Path,
    model: Option<&OwnedFd>,
    target: &Path,
    map: Option<&IdMap>,
) -> Result<(), RuntimeError> {
    let create = || -> io::Result<()> {
        volume.parent().map_or(Ok(()), fs::create_dir_all)?;
        DirBuilder::new().mode(0o700).create(volume)
    };
    create().context(|| format!("making the volume {}", volume.display()))?;
    let action = || format!("mounting the volume {}", volume.display());
    let tree = clone_one(volume).context(action)?;
    match model {
        Some(model) => copy_to_mount(model, &tree, volume, map)?,
        None => {
            map_tree(&tree, map, || format!("the volume {}", volume.display()))?;
            fs::set_permissions(volume, fs::Permissions::from_mode(0o755))
                .context(|| format!("making the volume {}", volume.display()))?;
        }
    }
    let mount = || -> io::Result<()> {
        unrestrict_mount(tree.as_fd())?;
        set_propagation(tree.as_fd(), PropagationType::Private)?;
        attach_tree(&tree, target)
    };
    mount().context(action)
}
