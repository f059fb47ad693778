//! Copying a directory of an image from its layers.
//!
//! The directory is found as a container of the image would find it: links lead to where they lead there, and `..` does
//! not lead out of the image. The layers need no overlay for it, so it works where overlayfs does not.

use std::{
    ffi::{CStr, CString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, readlinkat, statat},
    io::Errno,
};

use super::{
    merge::{copy_opened, is_opaque, is_whiteout, open_layers},
    path::{join, open_directory},
};
use crate::error::{Context, RuntimeError};

/// The most links on the way, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Copies the directory at `part` of the merged `layers`, top-most first, to the empty directory `target`. Before each
/// file and each part of a large file it asks whether the copy is `cancelled`.
pub(in crate::rootfs) fn copy_part(
    layers: &[PathBuf],
    part: &Path,
    target: &Path,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), RuntimeError> {
    let roots = open_layers(layers)?;
    let found = locate(&roots, part).context(|| format!("opening {part:?} of the image"))?;
    copy_opened(&found, target, cancelled)
}

/// What a name means in a directory of the merged layers.
enum Meaning {
    /// A directory, in these layers.
    Directory(Vec<usize>),
    /// A link with this text.
    Link(CString),
    /// Another file.
    Other,
    /// Nothing.
    Missing,
}

/// Opens a directory of the merged layers, in each layer that has a part of it.
pub(super) fn locate(layers: &[OwnedFd], part: &Path) -> io::Result<Vec<OwnedFd>> {
    let mut rest = names(part.as_os_str().as_bytes());
    // The directories on the way, from the root, each with the layers that have it.
    let mut way: Vec<(Vec<u8>, Vec<usize>)> = vec![(Vec::new(), (0..layers.len()).collect())];
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let Some((path, holders)) = way.last() else { break };
        if name == b".." {
            if way.len() > 1 {
                way.pop();
            }
            continue;
        }
        let name = CString::new(name)?;
        match meaning(layers, (path, holders), &name)? {
            Meaning::Directory(holders) => way.push((join(path, &name), holders)),
            Meaning::Link(_) if links == MAX_LINKS => return Err(Errno::LOOP.into()),
            Meaning::Link(text) => {
                links += 1;
                if text.to_bytes().starts_with(b"/") {
                    way.truncate(1);
                }
                rest.extend(names(text.to_bytes()));
            }
            Meaning::Other => return Err(Errno::NOTDIR.into()),
            Meaning::Missing => return Err(Errno::NOENT.into()),
        }
    }
    let (path, holders) = way.pop().unwrap_or_default();
    let opened = holders.iter().map(|layer| open_directory(&layers[*layer], &path));
    Ok(opened.collect::<Result<_, _>>()?)
}

/// The names of a path, the last one first.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(<[u8]>::to_vec).collect()
}

/// Looks up a name in the directory at `path`, which the layers `holders` have.
fn meaning(layers: &[OwnedFd], (path, holders): (&[u8], &[usize]), name: &CStr) -> io::Result<Meaning> {
    let mut found = Vec::new();
    for layer in holders {
        let parent = open_directory(&layers[*layer], path)?;
        let stat = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                found.push(*layer);
                if is_opaque(&parent, name)? {
                    break;
                }
            }
            _ if !found.is_empty() => break,
            FileType::Symlink => return Ok(Meaning::Link(readlinkat(&parent, name, Vec::new())?)),
            _ if is_whiteout(&stat) => return Ok(Meaning::Missing),
            _ => return Ok(Meaning::Other),
        }
    }
    Ok(if found.is_empty() { Meaning::Missing } else { Meaning::Directory(found) })
}
