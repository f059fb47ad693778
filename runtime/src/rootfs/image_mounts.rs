//! Images that a container mounts beside its own, read-only.
//!
//! The layers are mounted as those of a root, without a writable layer. So nothing is copied, and all containers that
//! use an image share its page cache. Where overlayfs does not work, the image is copied into the container's
//! directory.
//!
//! The mounts are in the mount namespace of the creator and of the container. So they disappear with the container.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, OFlags, fstat},
    io::Errno,
};

use super::{
    copy::copy_layers,
    layers::Layers,
    mount_tree::{attach_tree, clone_open, mount_unrestricted},
    overlay::Overlay,
    relabel::relabel,
    root::Root,
    writable::WritableLayer,
};
use crate::{
    address::LayerMounts,
    error::{Context, StartError, StartErrorKind},
    id_map::IdMap,
    plan::{ContainerPlan, Mount, MountKind, RootStorage, SelinuxLabels},
    spec::PreparedSource,
};

/// The images that a container mounts, each with the index of its mount and its open layers.
pub(crate) struct ImageMounts(Vec<(usize, Layers)>);

impl ImageMounts {
    /// Opens the layers, as [`Layers::open`] does. `address` has the mounts of all layers of the plan. The caller is in
    /// the host's mount namespace.
    pub fn open(
        plan: &ContainerPlan,
        address: Option<&LayerMounts>,
        map: Option<&IdMap>,
        label: Option<&str>,
    ) -> Result<Self, StartError> {
        let mut first = plan.root.layers.len();
        let mut opened = Vec::new();
        for (index, mount) in plan.mounts.iter().enumerate() {
            let MountKind::Image { layers, storage, .. } = &mount.kind else { continue };
            let mounts = address.map(|address| address.of(first..first + layers.len()));
            first += layers.len();
            // A copy is mapped itself.
            let map = map.filter(|_| *storage == RootStorage::Overlay);
            opened.push((index, Layers::open(layers, mounts.as_ref(), map, label)?));
        }
        Ok(Self(opened))
    }

    /// Attaches the layers that are mounts, as [`Layers::attach`] does.
    pub fn attach(&self, place: &Path) -> Result<(), StartError> {
        Ok(self.0.iter().try_for_each(|(_, layers)| layers.attach(place))?)
    }

    /// Mounts the images below `directory`, in the mount namespace in which the container is created. Copies are made
    /// in the container's `writable` layer. With a mapping of ids, all of them get it. `kept` keeps the layers open.
    pub fn prepare(
        self,
        plan: &ContainerPlan,
        directory: &Path,
        writable: &WritableLayer,
        map: Option<&IdMap>,
        kept: &mut Layers,
    ) -> Result<Vec<PreparedSource>, StartError> {
        let label = plan.selinux.as_ref().map(SelinuxLabels::of_files);
        let mut prepared = Vec::new();
        for (index, layers) in self.0 {
            failpoint::at("creator-before-image");
            let mount = &plan.mounts[index];
            let MountKind::Image { storage, sub_path, .. } = &mount.kind else { continue };
            let place = directory.join(format!("image-{index}"));
            fs::create_dir_all(&place).context(|| format!("making {}", place.display()))?;
            match storage {
                RootStorage::Overlay => mount_layers(layers.paths(), directory, &place, label.as_deref())?,
                RootStorage::Copy => {
                    let copy = writable.mounted_image(index);
                    fs::create_dir_all(&copy).context(|| format!("making {}", copy.display()))?;
                    copy_layers(layers.paths(), &copy)?;
                    label.as_deref().map_or(Ok(()), |label| relabel(&copy, label))?;
                    mount_unrestricted(&copy, &place, map)?;
                }
            }
            kept.keep_layers(layers);
            let original = mount.host_path().map(Path::to_owned).unwrap_or_default();
            let chosen = match sub_path {
                None => place,
                Some(sub_path) => part_of(&place, sub_path, directory.join(format!("image-{index}-part")))
                    .map_err(|problem| sub_path_error(mount, sub_path, &problem))?,
            };
            prepared.push(PreparedSource { destination: mount.destination.clone(), original, prepared: chosen });
        }
        Ok(prepared)
    }
}

/// Mounts layers, top-most first, without a writable layer. overlayfs needs two of them: below a single layer, an empty
/// directory changes nothing.
fn mount_layers(layers: &[PathBuf], directory: &Path, place: &Path, label: Option<&str>) -> Result<(), StartError> {
    let mut stack = layers.to_vec();
    if stack.len() == 1 {
        let empty = directory.join("empty-layer");
        fs::create_dir_all(&empty).context(|| format!("making {}", empty.display()))?;
        stack.push(empty);
    }
    Ok(Overlay::read_only(&stack)?.labelled(label).mount(place)?)
}

/// Attaches a part of a mounted image at another path. Links lead to where they lead in a container of the image.
fn part_of(image: &Path, sub_path: &Path, place: PathBuf) -> io::Result<PathBuf> {
    let part = Root::open(image, None)?.resolve(sub_path, OFlags::PATH)?;
    match FileType::from_raw_mode(fstat(&part)?.st_mode) {
        FileType::Directory | FileType::RegularFile => {}
        kind => return Err(io::Error::other(format!("it is a {kind:?}, neither a directory nor a regular file"))),
    }
    attach_tree(&clone_open(&part)?, &place)?;
    Ok(place)
}

fn sub_path_error(mount: &Mount, sub_path: &Path, problem: &io::Error) -> StartError {
    let missing = problem.raw_os_error().map(Errno::from_raw_os_error);
    let problem = match missing {
        Some(Errno::NOENT | Errno::NOTDIR) => "the image has no such file or directory".to_owned(),
        Some(Errno::LOOP) => "its links lead in a circle".to_owned(),
        _ => problem.to_string(),
    };
    let text = format!("mount at {}: sub_path {sub_path:?}: {problem}; write a path in the image", mount.destination);
    StartError::new(StartErrorKind::MountSource, text)
}
