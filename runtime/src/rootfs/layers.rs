//! A container's layers. A layer is a directory, or an image: a file with an EROFS file system, which has to be
//! mounted.
//!
//! Each mount of an image has its own page cache. So the plugin mounts each image once, and containers use that mount.
//! A process that does not find the plugin's mount (a new plugin has taken over) mounts the image itself. The mounts
//! are never attached.

use std::{
    collections::HashMap,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    process,
    sync::{Mutex, OnceLock, PoisonError},
    time::Instant,
};

use rustix::{
    fs::{FileType, Mode, OFlags, fstat, open},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
        fsopen,
    },
    process::{Resource, getrlimit},
};

use super::mount_tree::{attach_private, clone_one, clone_open, map_tree};
use crate::{
    address::{HeldFile, LayerMounts},
    error::{Context, RuntimeError},
    id_map::IdMap,
};

/// Opens a layer as a directory. An image is mounted.
pub(super) fn open_layer(path: &Path) -> io::Result<OwnedFd> {
    let layer = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&layer)?.st_mode) {
        FileType::RegularFile => mount_image(path, None),
        FileType::Directory => Ok(layer),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// Mounts an image. The mount is not attached, and it disappears with its last user. Its files get the SELinux label.
fn mount_image(path: &Path, label: Option<&str>) -> io::Result<OwnedFd> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", path)?;
    fsconfig_set_flag(&context, "ro")?;
    if let Some(label) = label {
        fsconfig_set_string(&context, "context", label)?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?)
}

/// The images that this process has mounted, by path. Each needs a descriptor, so there is a limit. Beyond it the least
/// recently used ones are unmounted.
#[derive(Debug, Default)]
pub(crate) struct MountedImages {
    mounted: Mutex<HashMap<PathBuf, MountedImage>>,
    /// The SELinux label of all files.
    label: OnceLock<String>,
}

#[derive(Debug)]
struct MountedImage {
    /// Device and inode of the image file.
    file: (u64, u64),
    root: OwnedFd,
    last_used: Instant,
}

impl MountedImages {
    /// The files of images that are mounted from now on get this SELinux label.
    pub fn label(&self, label: &str) {
        self.label.get_or_init(|| label.to_owned());
    }

    /// The addresses by which a child process finds the mounts of the layers. `None` if no layer is an image. Images
    /// that are not mounted yet are mounted. An error is left to the child process, which reports it.
    pub fn address(&self, layers: &[PathBuf]) -> Option<LayerMounts> {
        let mut mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        let mounts: Vec<Option<HeldFile>> =
            layers.iter().map(|layer| mount_of(&mut mounted, layer, self.label.get()).ok().flatten()).collect();
        let address =
            mounts.iter().any(Option::is_some).then(|| LayerMounts { pid: process::id(), mounts: mounts.clone() });
        forget_oldest(&mut mounted, max_mounts());
        address
    }

    /// Unmounts the images of removed files. Until then the files take disk space.
    pub fn forget_removed(&self) {
        forget_removed(&mut self.mounted.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The descriptor and the device of a layer's mount; `None` if the layer is a directory.
fn mount_of(
    mounted: &mut HashMap<PathBuf, MountedImage>,
    layer: &Path,
    label: Option<&String>,
) -> io::Result<Option<HeldFile>> {
    let Some(file) = image_file(layer)? else { return Ok(None) };
    let now = Instant::now();
    if mounted.get(layer).is_none_or(|known| known.file != file) {
        forget_removed(mounted);
        mounted.insert(
            layer.to_owned(),
            MountedImage { file, root: mount_image(layer, label.map(String::as_str))?, last_used: now },
        );
    }
    let Some(image) = mounted.get_mut(layer) else { return Ok(None) };
    image.last_used = now;
    Ok(Some(HeldFile { descriptor: image.root.as_raw_fd(), number: fstat(&image.root)?.st_dev }))
}

fn forget_removed(mounted: &mut HashMap<PathBuf, MountedImage>) {
    mounted.retain(|path, known| image_file(path).is_ok_and(|file| file == Some(known.file)));
}

/// The most images that stay mounted: a quarter of the descriptors that this process may have open.
fn max_mounts() -> usize {
    const MIN: usize = 16;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 4).unwrap_or(usize::MAX).max(MIN)
}

/// Unmounts the least recently used images beyond `max`.
fn forget_oldest(mounted: &mut HashMap<PathBuf, MountedImage>, max: usize) {
    let mut times: Vec<Instant> = mounted.values().map(|known| known.last_used).collect();
    if let Some(surplus) = times.len().checked_sub(max).filter(|surplus| *surplus > 0) {
        let (_, newest_removed, _) = times.select_nth_unstable(surplus - 1);
        mounted.retain(|_, known| known.last_used > *newest_removed);
    }
}

/// Device and inode of a layer that is an image; `None` if the layer is a directory.
fn image_file(layer: &Path) -> io::Result<Option<(u64, u64)>> {
    let meta = layer.metadata()?;
    Ok(meta.is_file().then(|| (meta.dev(), meta.ino())))
}

/// Open layers, top-most first. Their paths are valid while this value exists.
pub(crate) struct Layers {
    paths: Vec<PathBuf>,
    roots: Vec<OwnedFd>,
    /// Mounts of other directories of the root.
    others: Vec<OwnedFd>,
}

impl Layers {
    /// Opens the layers. Uses the plugin's mounts at `address`, and mounts the images that it does not find there. With
    /// a mapping of ids, each layer is a mount of its own. Files of images that are mounted get the SELinux label.
    pub fn open(
        layers: &[PathBuf],
        address: Option<&LayerMounts>,
        map: Option<&IdMap>,
        label: Option<&str>,
    ) -> Result<Self, RuntimeError> {
        let (mut paths, mut roots) = (Vec::with_capacity(layers.len()), Vec::new());
        for (index, layer) in layers.iter().enumerate() {
            let held = address.and_then(|address| Some((address.pid, (*address.mounts.get(index)?)?)));
            let name = || format!("image layer {}", layer.display());
            let Some(root) = mounted_layer(layer, held, map.is_some(), label).context(name)? else {
                paths.push(layer.clone());
                continue;
            };
            map_tree(&root, map, name)?;
            paths.push(PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())));
            roots.push(root);
        }
        Ok(Self { paths, roots, others: Vec::new() })
    }

    /// Attaches the layers that are mounts at one place, over each other. overlayfs finds them by their descriptors.
    pub fn attach(&self, place: &Path) -> Result<(), RuntimeError> {
        let attach = || self.roots.iter().try_for_each(|root| attach_private(root, place));
        attach().context(|| format!("mounting layers at {}", place.display()))
    }

    /// Keeps another mount of the root open as long as the layers.
    pub fn keep(&mut self, mount: OwnedFd) {
        self.others.push(mount);
    }

    /// Keeps the mounts of other layers open as long as these.
    pub fn keep_layers(&mut self, other: Self) {
        self.others.extend(other.roots.into_iter().chain(other.others));
    }

    /// The paths of the layers: directories of the host, or names of descriptors.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

/// The root of a layer that is a mount: an image, which the process of `held` may have mounted, and with `own` any
/// layer. With `own` no other process uses the mount. `None` for a directory that needs no mount.
fn mounted_layer(
    layer: &Path,
    held: Option<(u32, HeldFile)>,
    own: bool,
    label: Option<&str>,
) -> io::Result<Option<OwnedFd>> {
    if image_file(layer)?.is_none() {
        return Ok(if own { Some(clone_one(layer)?) } else { None });
    }
    let held = held.and_then(|(pid, file)| mount_at(pid, file));
    // A kernel that does not copy detached mounts needs a new mount, with a page cache of its own.
    let usable = if own { held.and_then(|held| clone_open(&held).ok()) } else { held };
    usable.map_or_else(|| mount_image(layer, label), Ok).map(Some)
}

/// Opens a mount of an address. `None` if the process that mounted it has ended.
fn mount_at(pid: u32, file: HeldFile) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(file.path(pid), flags, Mode::empty()).ok()?;
    // The process may have ended, and a new process may have its pid.
    (fstat(&root).ok()?.st_dev == file.number).then_some(root)
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    #[test]
    fn directories_are_used_as_they_are_and_other_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("layer")).unwrap();
        fs::write(at("layer/file"), "").unwrap();
        fs::write(at("no-image"), "x").unwrap();
        let layers = [at("layer"), at("layer")];
        let mounted = MountedImages::default();
        assert_eq!(mounted.address(&layers), None);
        assert_eq!(Layers::open(&layers, None, None, None).unwrap().paths(), layers);
        for (name, problem) in [("no-image", "no-image"), ("missing", "No such file")] {
            assert_eq!(mounted.address(&[at(name)]), None);
            let error = Layers::open(&[at(name)], None, None, None).err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        }
        assert!(open_layer(&at("layer/file")).is_err());
        std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert_eq!(open_layer(&at("socket")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn only_the_addressed_mount_is_accepted() {
        let root = open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (pid, device) = (process::id(), fstat(&root).unwrap().st_dev);
        let file = HeldFile { descriptor: root.as_raw_fd(), number: device };
        assert!(mount_at(pid, file).is_some());
        for wrong in [HeldFile { number: device * 10 + 1, ..file }, HeldFile { descriptor: 9999, ..file }] {
            assert!(mount_at(pid, wrong).is_none(), "{wrong}");
        }
        assert!(mount_at(u32::MAX, file).is_none());
        // The descriptor is closed.
        drop(root);
        assert!(mount_at(pid, file).is_none());
    }

    #[test]
    fn the_least_recently_used_images_are_unmounted() {
        let now = Instant::now();
        let mounted = |age: u64| {
            let root = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            MountedImage { file: (0, 0), root, last_used: now - Duration::from_secs(age) }
        };
        for (max, expected) in [(0, &[][..]), (1, &[1]), (3, &[1, 2, 3]), (5, &[1, 2, 3, 4, 5]), (9, &[1, 2, 3, 4, 5])]
        {
            let mut all: HashMap<PathBuf, MountedImage> =
                [3, 1, 5, 2, 4].map(|age| (age.to_string().into(), mounted(age))).into_iter().collect();
            forget_oldest(&mut all, max);
            let mut left: Vec<u64> = all.keys().map(|path| path.to_str().unwrap().parse().unwrap()).collect();
            left.sort();
            assert_eq!(left, expected);
        }
        assert!(max_mounts() >= 16);
    }
}
