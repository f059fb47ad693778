//! Merging a stack of layers into one directory, as overlayfs merges them.
//!
//! The layers are merged name by name from the top:
//!
//! - The first layer that has a name decides whether it is a directory.
//! - Directories of the same name become one directory, with the attributes of the top-most one. A layer can hide the
//!   content of the layers below it.
//!
//! Only visible files are copied, so the cost depends on the size of the image, not on the sum of its layers. Layers do
//! not change meanwhile.
//!
//! The image store marks hidden names as follows:
//!
//! - A character device 0:0 or a socket hides the name (whiteout). Images contain neither.
//! - The extended attribute `trusted.overlay.opaque`, or a socket `.wh..wh..opq` in the directory, hides the content of
//!   the directory in lower layers.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fgetxattr, mkdirat, open, statat},
    io::Errno,
};

use super::{
    entry::{Blocks, EntryCopier, Marks},
    path::{join, open_directory},
};
use crate::error::{Context, RuntimeError};

/// The extended attribute of an opaque directory.
pub(super) const OPAQUE: &CStr = c"trusted.overlay.opaque";
/// The socket in an opaque directory.
const OPAQUE_SOCKET: &CStr = c".wh..wh..opq";

/// Copies the merged content of `layers`, top-most first, to the empty directory `target`.
pub(in crate::rootfs) fn copy_layers(layers: &[PathBuf], target: &Path) -> Result<(), RuntimeError> {
    copy_layers_until(layers, target, &|| false)
}

/// The same. Before each file and each part of a large file it asks whether the copy is `cancelled`.
pub(in crate::rootfs) fn copy_layers_until(
    layers: &[PathBuf],
    target: &Path,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), RuntimeError> {
    copy_opened(&open_layers(layers)?, target, cancelled)
}

/// The same with directories of the layers.
pub(super) fn copy_opened(layers: &[OwnedFd], target: &Path, cancelled: &dyn Fn() -> bool) -> Result<(), RuntimeError> {
    copy(layers, target, Marks::OfOverlayfs, cancelled).map(drop)
}

/// Copies the content and the attributes of the directory `source` to the empty directory `target`. No file hides
/// another one. Before each file and each part of a large file it asks whether the copy is `cancelled`.
pub(in crate::rootfs) fn copy_tree(
    source: &Path,
    target: &Path,
    cancelled: &dyn Fn() -> bool,
) -> Result<Blocks, RuntimeError> {
    copy(&open_layers(&[source.to_owned()])?, target, Marks::None, cancelled)
}

/// Opens the root of each layer.
pub(super) fn open_layers(layers: &[PathBuf]) -> Result<Vec<OwnedFd>, RuntimeError> {
    let mut roots = Vec::new();
    for layer in layers {
        let root = open(layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        roots.push(root.context(|| format!("image layer {}", layer.display()))?);
    }
    Ok(roots)
}

fn copy(roots: &[OwnedFd], target: &Path, marks: Marks, cancelled: &dyn Fn() -> bool) -> Result<Blocks, RuntimeError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(target, flags, Mode::empty()).context(|| format!("opening {}", target.display()))?;
    let mut merge = Merge { layers: roots, copier: EntryCopier::new(root, marks, cancelled), marks };
    let mut steps = vec![Step::Fill { path: Vec::new(), layers: (0..roots.len()).collect() }];
    while let Some(step) = steps.pop() {
        merge.step(&step, &mut steps).context(|| {
            let path = String::from_utf8_lossy(step.path()).into_owned();
            let source = if marks == Marks::None { "the directory" } else { "the image" };
            format!("copying /{path} of {source} to {}", target.display())
        })?;
    }
    Ok(merge.copier.blocks())
}

/// A step of the merge. It names directories and does not keep them open, because an image may be deep and have many
/// layers.
#[derive(Debug)]
enum Step {
    /// Fill the existing directory at `path` from these layers. All of them have it.
    Fill { path: Vec<u8>, layers: Vec<usize> },
    /// Set the attributes of the directory to those in this layer. This comes after filling it, because filling changes
    /// its time and needs a permissive mode.
    Finish { path: Vec<u8>, layer: usize },
}

impl Step {
    fn path(&self) -> &[u8] {
        match self {
            Self::Fill { path, .. } | Self::Finish { path, .. } => path,
        }
    }
}

/// The state of a name during the merge.
#[derive(Debug)]
enum NameState {
    /// The file was copied, or the name is hidden. Lower layers do not matter.
    Settled,
    /// A directory in these layers. `merging`: lower layers may add content.
    Directory { layers: Vec<usize>, merging: bool },
}

struct Merge<'a> {
    layers: &'a [OwnedFd],
    copier: EntryCopier<'a>,
    marks: Marks,
}

impl Merge<'_> {
    fn step(&mut self, step: &Step, steps: &mut Vec<Step>) -> io::Result<()> {
        match step {
            Step::Fill { path, layers } => self.fill(path, layers, steps),
            Step::Finish { path, layer } => {
                let model = open_directory(&self.layers[*layer], path)?;
                self.copier.finish_directory(&model, path)
            }
        }
    }

    fn fill(&mut self, path: &[u8], layers: &[usize], steps: &mut Vec<Step>) -> io::Result<()> {
        let Some(top) = layers.first() else { return Ok(()) };
        steps.push(Step::Finish { path: path.to_vec(), layer: *top });
        let target = open_directory(self.copier.root(), path)?;
        let mut names: HashMap<CString, NameState> = HashMap::new();
        for layer in layers {
            self.merge_directory(*layer, (&target, path), &mut names)?;
        }
        for (name, state) in names {
            if let NameState::Directory { layers, .. } = state {
                mkdirat(&target, &name, Mode::RWXU)?;
                steps.push(Step::Fill { path: join(path, &name), layers });
            }
        }
        Ok(())
    }

    /// Merges the directory of one layer into the open directory `target`, which is at `path`.
    fn merge_directory(
        &mut self,
        layer: usize,
        (target, path): (&OwnedFd, &[u8]),
        names: &mut HashMap<CString, NameState>,
    ) -> io::Result<()> {
        let source = open_directory(&self.layers[layer], path)?;
        for entry in Dir::read_from(&source)? {
            let entry = entry?;
            let name = entry.file_name();
            if [c".", c".."].contains(&name) || matches!(names.get(name), Some(NameState::Settled)) {
                continue;
            }
            self.copier.check()?;
            let stat = statat(&source, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            match names.get_mut(name) {
                Some(NameState::Directory { layers, merging }) => {
                    if *merging && is_directory {
                        layers.push(layer);
                        *merging = !is_opaque(&source, name)?;
                    } else {
                        *merging = false;
                    }
                }
                _ if is_directory => {
                    let merging = !is_opaque(&source, name)?;
                    names.insert(name.to_owned(), NameState::Directory { layers: vec![layer], merging });
                }
                _ => {
                    if self.marks == Marks::None || !is_whiteout(&stat) {
                        self.copier.copy((&source, name), &stat, (target, path))?;
                    }
                    names.insert(name.to_owned(), NameState::Settled);
                }
            }
        }
        Ok(())
    }
}

/// Whether a file is a whiteout.
pub(super) fn is_whiteout(stat: &Stat) -> bool {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => true,
        FileType::CharacterDevice => stat.st_rdev == 0,
        _ => false,
    }
}

/// Whether a directory hides its content in lower layers.
pub(super) fn is_opaque(parent: impl AsFd, name: &CStr) -> Result<bool, Errno> {
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
