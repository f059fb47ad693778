//! A lowest layer with the places of the mounts that almost every container has.
//!
//! A place that no layer of the image has must be made in the writable layer, which takes several writes to the disk
//! for each container. Below the image's layers, the places of this layer exist already. What the image has at a place
//! goes before, and a place that the image hides is made as before.
//!
//! Only a container that has a mount at each place gets the layer, so that no container sees a file of it.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use crate::{
    error::{Context, RuntimeError},
    plan::{ContainerPlan, MAX_OVERLAY_LAYERS, RootStorage},
};

/// Directories that every container has: mounts of libcontainer, and the parent of the files. And places below Nomad's
/// directories, which the mounts of those hide.
const DIRECTORIES: [&str; 5] = ["dev", "etc", "proc", "sys", "alloc/logs/.nomad"];
/// Where Nomad's directories are mounted.
const NOMAD_DIRECTORIES: [&str; 3] = ["alloc", "local", "secrets"];
/// Where the files of a container's network are mounted.
const FILES: [&str; 3] = ["etc/hostname", "etc/hosts", "etc/resolv.conf"];

/// The directory of the layer.
fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("mount-points")
}

/// Makes the layer, or what is missing of it. Several processes may do so at the same time.
pub(crate) fn make_mount_points(data_dir: &Path) -> Result<(), RuntimeError> {
    let layer = directory(data_dir);
    let make = || -> io::Result<()> {
        let directories = NOMAD_DIRECTORIES.iter().chain(&DIRECTORIES).map(|name| layer.join(name));
        for directory in [layer.clone()].into_iter().chain(directories) {
            DirBuilder::new().recursive(true).mode(0o755).create(&directory)?;
            // The umask may have removed bits.
            fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
        }
        for file in FILES.map(|name| layer.join(name)) {
            let made = OpenOptions::new().create(true).append(true).mode(0o644).open(file)?;
            made.set_permissions(Permissions::from_mode(0o644))?;
        }
        Ok(())
    };
    make().context(|| format!("making the mount points {}", layer.display()))
}

/// The layers of a container's root, top-most first: those of its image, and the layer of mount points if it may have
/// that.
pub(crate) fn with_mount_points(plan: &ContainerPlan, data_dir: &Path) -> Vec<PathBuf> {
    let mut layers = plan.root.layers.clone();
    let lowest = directory(data_dir);
    if may_have_mount_points(plan) && lowest.is_dir() {
        layers.push(lowest);
    }
    layers
}

/// Whether the root is an overlay to which a layer can be added, with a mount at each place of the layer. Pure.
fn may_have_mount_points(plan: &ContainerPlan) -> bool {
    let root = &plan.root;
    // A writable layer with a file system of its own works where that of the data directory cannot map ids.
    if root.storage != RootStorage::Overlay || root.size.is_some() || root.layers.len() >= MAX_OVERLAY_LAYERS {
        return false;
    }
    let files = plan.files.iter().map(|(destination, _)| destination);
    let destinations = plan.mounts.iter().map(|mount| &mount.destination).chain(files);
    let destinations: Vec<&str> = destinations.map(|path| path.trim_matches('/')).collect();
    NOMAD_DIRECTORIES.iter().chain(&FILES).all(|place| destinations.contains(place))
}
