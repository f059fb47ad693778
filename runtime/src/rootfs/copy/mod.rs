//! One directory with what a stack of layers shows, for hosts where overlayfs cannot do it.
//!
//! The layers are merged as overlayfs merges them, name by name from the top: the first layer that has a name decides; directories of
//! one name are one directory, with the attributes of the top-most, down to the layer that hides the rest. Only what shows is copied, so
//! this costs what the image is large, not what its layers are together. Layers are not changed by anybody meanwhile.
//!
//! What hides is marked as in the image store: a character device 0:0 or a socket in place of a name that is gone (no image holds
//! either), and on a directory `trusted.overlay.opaque`, or in it a socket `.wh..wh..opq`.

mod node;

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fgetxattr, mkdirat, open, openat2, statat},
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use self::node::Copier;
use crate::{
    error::{Context, RuntimeError},
    sys::unrestrict_mount,
};

const OPAQUE: &CStr = c"trusted.overlay.opaque";
const OPAQUE_SOCKET: &CStr = c".wh..wh..opq";

/// Copies what `layers`, top-most first, show together into the empty directory `target`.
pub(super) fn layers(layers: &[PathBuf], target: &Path) -> Result<(), RuntimeError> {
    let mut roots = Vec::new();
    for layer in layers {
        let root = open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        roots.push(root.context(|| format!("image layer {}", layer.display()))?);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(target, flags, Mode::empty()).context(|| format!("opening {}", target.display()))?;
    let mut merge = Merge { layers: &roots, copier: Copier::new(root) };
    let everything = Step::Fill { path: Vec::new(), layers: (0..roots.len()).collect() };
    let mut steps = vec![everything];
    while let Some(step) = steps.pop() {
        merge.step(&step, &mut steps).context(|| {
            let path = String::from_utf8_lossy(step.path()).into_owned();
            format!("copying /{path} of the image to {}", target.display())
        })?;
    }
    Ok(())
}

/// What is left to do. Directories are kept by name, not open: an image may be deep and its layers many.
#[derive(Debug)]
enum Step {
    /// Fill the directory at `path`, which is there, from these layers, all of which have it.
    Fill { path: Vec<u8>, layers: Vec<usize> },
    /// Give it the attributes that it has in that layer. Filling it would change its time, and need a mode that allows it.
    Finish { path: Vec<u8>, layer: usize },
}

impl Step {
    fn path(&self) -> &[u8] {
        match self {
            Self::Fill { path, .. } | Self::Finish { path, .. } => path,
        }
    }
}

/// What was found under a name so far.
#[derive(Debug)]
enum Found {
    /// It is decided: copied, or gone.
    Settled,
    /// A directory in these layers; `open` to what lower layers have in it.
    Directory { layers: Vec<usize>, open: bool },
}

struct Merge<'a> {
    layers: &'a [OwnedFd],
    copier: Copier,
}

impl Merge<'_> {
    fn step(&mut self, step: &Step, steps: &mut Vec<Step>) -> io::Result<()> {
        match step {
            Step::Fill { path, layers } => self.fill(path, layers, steps),
            Step::Finish { path, layer } => {
                let model = directory(&self.layers[*layer], path)?;
                self.copier.finish_directory(&model, path)
            }
        }
    }

    fn fill(&mut self, path: &[u8], layers: &[usize], steps: &mut Vec<Step>) -> io::Result<()> {
        let Some(top) = layers.first() else { return Ok(()) };
        steps.push(Step::Finish { path: path.to_vec(), layer: *top });
        let target = directory(self.copier.root(), path)?;
        let mut names: HashMap<CString, Found> = HashMap::new();
        for layer in layers {
            let source = directory(&self.layers[*layer], path)?;
            for entry in Dir::read_from(&source)? {
                let entry = entry?;
                let name = entry.file_name();
                if [c".", c".."].contains(&name) || matches!(names.get(name), Some(Found::Settled)) {
                    continue;
                }
                let stat = statat(&source, name, AtFlags::SYMLINK_NOFOLLOW)?;
                let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                match names.get_mut(name) {
                    Some(Found::Directory { layers, open }) => {
                        if *open && directory {
                            layers.push(*layer);
                            *open = !hides_all(&source, name)?;
                        } else {
                            *open = false;
                        }
                    }
                    _ if directory => {
                        let open = !hides_all(&source, name)?;
                        names.insert(name.to_owned(), Found::Directory { layers: vec![*layer], open });
                    }
                    _ => {
                        if !hides(&stat) {
                            self.copier.copy((&source, name), &stat, (&target, path))?;
                        }
                        names.insert(name.to_owned(), Found::Settled);
                    }
                }
            }
        }
        for (name, found) in names {
            if let Found::Directory { layers, .. } = found {
                mkdirat(&target, &name, Mode::RWXU)?;
                steps.push(Step::Fill { path: node::join(path, &name), layers });
            }
        }
        Ok(())
    }
}

/// A directory below a root, by a path that neither leaves it nor contains a link.
fn directory(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Whether it stands for a name that is gone.
fn hides(stat: &Stat) -> bool {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => true,
        FileType::CharacterDevice => stat.st_rdev == 0,
        _ => false,
    }
}

/// Whether a directory hides what lower layers have in it.
fn hides_all(parent: impl AsFd, name: &CStr) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let mut value = [0u8; 4];
    match fgetxattr(&directory, OPAQUE, &mut value) {
        Ok(length) if &value[..length] == b"y" => return Ok(true),
        Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error),
    }
    match statat(&directory, OPAQUE_SOCKET, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Socket),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Mounts the directory on `target`, with none of the restrictions that the file system it lies on may be mounted with: an overlay
/// would not have them either.
pub(super) fn mount(root: &Path, target: &Path) -> io::Result<()> {
    let copy = open_tree(CWD, root, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    unrestrict_mount(copy.as_fd())?;
    Ok(move_mount(&copy, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

#[cfg(test)]
mod tests;
