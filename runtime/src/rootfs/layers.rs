//! A container's layers: directories, and files that hold an EROFS file system and are mounted.
//!
//! Every mount of such a file has pages in memory of its own, whatever other mounts of it have. So the plugin mounts
//! each once and containers are made over that; what finds no mount of the plugin's (a successor took over) makes its
//! own. No mount is ever attached anywhere.

use std::{
    collections::HashMap,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    process,
    sync::{Mutex, PoisonError},
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

use crate::{
    address::{HeldFile, LayerMounts},
    error::{Context, RuntimeError},
};

/// A layer's files, open as a directory.
pub(super) fn open_layer(path: &Path) -> io::Result<OwnedFd> {
    let found = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&found)?.st_mode) {
        FileType::RegularFile => mount_image(path),
        FileType::Directory => Ok(found),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// The root of a mount that is attached nowhere, and gone when nothing uses it any more.
fn mount_image(path: &Path) -> io::Result<OwnedFd> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", path)?;
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?)
}

/// The images that this process has mounted, by their path. Each takes a descriptor, so those that were used longest
/// ago go when there are many.
#[derive(Debug, Default)]
pub(crate) struct MountedImages(Mutex<HashMap<PathBuf, Mounted>>);

#[derive(Debug)]
struct Mounted {
    /// Device and inode of the image.
    file: (u64, u64),
    root: OwnedFd,
    used: Instant,
}

impl MountedImages {
    /// How a process that is started from this one finds the mounts of those of the layers that are images; nothing if
    /// none is. Mounts what is not yet; what fails is left to that process, which tells why.
    ///
    /// Short, however many they are: a directory of descriptors, and for each layer the number there of its mount and
    /// its device, which no other mount has.
    pub fn address(&self, layers: &[PathBuf]) -> Option<LayerMounts> {
        let mut mounted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mounts: Vec<Option<HeldFile>> =
            layers.iter().map(|layer| find(&mut mounted, layer).ok().flatten()).collect();
        let address =
            mounts.iter().any(Option::is_some).then(|| LayerMounts { pid: process::id(), mounts: mounts.clone() });
        forget_oldest(&mut mounted, most());
        address
    }

    /// Lets go of images that were removed, which take their space as long as they are mounted.
    pub fn forget_removed(&self) {
        forget_removed(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The number and the device of a layer's mount.
fn find(mounted: &mut HashMap<PathBuf, Mounted>, layer: &Path) -> io::Result<Option<HeldFile>> {
    let Some(file) = image(layer)? else { return Ok(None) };
    let used = Instant::now();
    if mounted.get(layer).is_none_or(|known| known.file != file) {
        forget_removed(mounted);
        mounted.insert(layer.to_owned(), Mounted { file, root: mount_image(layer)?, used });
    }
    let Some(found) = mounted.get_mut(layer) else { return Ok(None) };
    found.used = used;
    Ok(Some(HeldFile { descriptor: found.root.as_raw_fd(), number: fstat(&found.root)?.st_dev }))
}

fn forget_removed(mounted: &mut HashMap<PathBuf, Mounted>) {
    mounted.retain(|path, known| image(path).is_ok_and(|file| file == Some(known.file)));
}

/// How many are kept: a part of the descriptors that this process may have.
fn most() -> usize {
    const FEWEST: usize = 16;
    let all = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(all / 4).unwrap_or(usize::MAX).max(FEWEST)
}

fn forget_oldest(mounted: &mut HashMap<PathBuf, Mounted>, most: usize) {
    let mut times: Vec<Instant> = mounted.values().map(|known| known.used).collect();
    if let Some(surplus) = times.len().checked_sub(most).filter(|surplus| *surplus > 0) {
        let (_, newest_to_go, _) = times.select_nth_unstable(surplus - 1);
        mounted.retain(|_, known| known.used > *newest_to_go);
    }
}

/// Device and inode of a layer that is an image.
fn image(layer: &Path) -> io::Result<Option<(u64, u64)>> {
    let meta = layer.metadata()?;
    Ok(meta.is_file().then(|| (meta.dev(), meta.ino())))
}

/// Layers by paths that lead into them, top-most first, for as long as this is kept.
pub(crate) struct Layers {
    paths: Vec<PathBuf>,
    _roots: Vec<OwnedFd>,
}

impl Layers {
    /// Finds the plugin's mounts at their address, or makes them.
    pub fn open(layers: &[PathBuf], address: Option<&LayerMounts>) -> Result<Self, RuntimeError> {
        let (mut paths, mut roots) = (Vec::with_capacity(layers.len()), Vec::new());
        for (index, layer) in layers.iter().enumerate() {
            let held = address.and_then(|address| Some((address.pid, (*address.mounts.get(index)?)?)));
            let mut find = || -> io::Result<PathBuf> {
                if image(layer)?.is_none() {
                    return Ok(layer.clone());
                }
                let root = held.and_then(|(pid, file)| at(pid, file)).map_or_else(|| mount_image(layer), Ok)?;
                let path = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
                roots.push(root);
                Ok(path)
            };
            paths.push(find().context(|| format!("image layer {}", layer.display()))?);
        }
        Ok(Self { paths, _roots: roots })
    }

    /// Directories, and names of descriptors.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

/// A mount of an address, unless who gave it is gone.
fn at(pid: u32, file: HeldFile) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = open(file.path(pid), flags, Mode::empty()).ok()?;
    // Its process may have ended, and another one may have its number.
    (fstat(&found).ok()?.st_dev == file.number).then_some(found)
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    #[test]
    fn directories_stay_what_they_are_and_other_files_are_no_layers() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("layer")).unwrap();
        fs::write(at("layer/file"), "").unwrap();
        fs::write(at("no-image"), "x").unwrap();
        let layers = [at("layer"), at("layer")];
        let mounted = MountedImages::default();
        assert_eq!(mounted.address(&layers), None);
        assert_eq!(Layers::open(&layers, None).unwrap().paths(), layers);
        for (name, problem) in [("no-image", "no-image"), ("missing", "No such file")] {
            assert_eq!(mounted.address(&[at(name)]), None);
            let error = Layers::open(&[at(name)], None).err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        }
        assert!(open_layer(&at("layer/file")).is_err());
        std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert_eq!(open_layer(&at("socket")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn nothing_else_is_taken_for_a_mount() {
        let root = open("/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (pid, device) = (process::id(), fstat(&root).unwrap().st_dev);
        let file = HeldFile { descriptor: root.as_raw_fd(), number: device };
        assert!(at(pid, file).is_some());
        for wrong in [HeldFile { number: device * 10 + 1, ..file }, HeldFile { descriptor: 9999, ..file }] {
            assert!(at(pid, wrong).is_none(), "{wrong}");
        }
        assert!(at(u32::MAX, file).is_none());
        // Whoever held it has let go.
        drop(root);
        assert!(at(pid, file).is_none());
    }

    #[test]
    fn those_that_were_used_longest_ago_go() {
        let now = Instant::now();
        let mounted = |age: u64| {
            let root = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            Mounted { file: (0, 0), root, used: now - Duration::from_secs(age) }
        };
        for (most, expected) in [(0, &[][..]), (1, &[1]), (3, &[1, 2, 3]), (5, &[1, 2, 3, 4, 5]), (9, &[1, 2, 3, 4, 5])]
        {
            let mut all: HashMap<PathBuf, Mounted> =
                [3, 1, 5, 2, 4].map(|age| (age.to_string().into(), mounted(age))).into_iter().collect();
            forget_oldest(&mut all, most);
            let mut left: Vec<u64> = all.keys().map(|path| path.to_str().unwrap().parse().unwrap()).collect();
            left.sort();
            assert_eq!(left, expected);
        }
        assert!(most() >= 16);
    }
}
