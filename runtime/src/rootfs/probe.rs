//! Whether overlayfs works with writable layers in a data directory, and over images.
//!
//! It is tried out, because file systems and kernels refuse it at different moments. On another overlay or a network
//! file system the mount fails. On a file system without the extended attributes or the kind of rename that overlayfs
//! needs, the mount succeeds and programs in the container fail later.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, fgetxattr, flock, fstatfs, mkdirat, openat, renameat,
        unlinkat,
    },
    io::Errno,
};

use super::{
    layers::open_layer,
    overlay::Overlay,
    writable::{layers_in, remove_tree},
};
use crate::error::{Context, RuntimeError};

/// Tries overlayfs in a data directory. Returns the reason if it does not work. All files are removed afterwards, and
/// no mount is ever attached.
///
/// # Errors
///
/// The result is unknown, for instance because the disk is full.
pub(crate) fn overlay_problem(data_dir: &Path) -> Result<Option<String>, RuntimeError> {
    try_out(data_dir, "overlayfs", |directory| {
        prepare_layers(directory)?;
        try_overlay(directory)
    })
}

/// Tries an overlay over an image of a file system. `attributes` are those of its root. Otherwise like
/// [`overlay_problem`].
pub(crate) fn image_problem(
    data_dir: &Path,
    image: &[u8],
    attributes: &[(Vec<u8>, Vec<u8>)],
) -> Result<Option<String>, RuntimeError> {
    try_out(data_dir, "images of file systems", |directory| try_image(directory, image, attributes))
}

fn try_image(directory: &Path, image: &[u8], attributes: &[(Vec<u8>, Vec<u8>)]) -> io::Result<Option<String>> {
    for name in ["upper", "work"] {
        fs::create_dir_all(directory.join(name))?;
    }
    let path = directory.join("image");
    fs::write(&path, image)?;
    let failed = |error: io::Error| match Errno::from_io_error(&error) {
        Some(errno) if is_transient(errno) => Err(error),
        _ => Ok(Some(format!("an image cannot be mounted: {error}"))),
    };
    let missing = open_layer(&path).and_then(|root| {
        let root = openat(root, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(attributes.iter().find(|(key, value)| !has_attribute(&root, key, value)))
    });
    match missing {
        Ok(None) => {}
        Ok(Some((key, _))) => {
            return Ok(Some(format!("the kernel does not show {} of images", String::from_utf8_lossy(key))));
        }
        Err(error) => return failed(error),
    }
    let overlay =
        Overlay::open(&[path], &directory.join("upper"), &directory.join("work")).map_err(io::Error::other)?;
    match overlay.detached("lowerdir+", true) {
        Ok(_) => Ok(None),
        Err(error) => failed(error.into()),
    }
}

/// Whether a directory has this extended attribute.
fn has_attribute(directory: &OwnedFd, key: &[u8], value: &[u8]) -> bool {
    let mut actual = vec![0; value.len()];
    fgetxattr(directory, key, &mut actual[..]).is_ok_and(|length| actual[..length] == *value)
}

/// Calls `attempt` with the path of a directory that it may create, under a lock. Removes the directory afterwards.
fn try_out(
    data_dir: &Path,
    subject: &str,
    attempt: impl FnOnce(&Path) -> io::Result<Option<String>>,
) -> Result<Option<String>, RuntimeError> {
    let layers = layers_in(data_dir);
    let directory = layers.join(".probe");
    let context = || format!("trying out {subject} in {}", layers.display());
    // Only one process at a time. An earlier one may have died and left the directory.
    DirBuilder::new().recursive(true).mode(0o700).create(&layers).context(context)?;
    let lock = File::open(&layers).context(context)?;
    flock(&lock, FlockOperation::LockExclusive).context(context)?;
    remove_tree(&directory)?;
    let outcome = attempt(&directory).context(context);
    remove_tree(&directory)?;
    Ok(outcome?.map(|problem| format!("{problem} ({} is on {})", data_dir.display(), file_system(&lock))))
}

/// Creates the directories and files that the attempt uses.
fn prepare_layers(directory: &Path) -> io::Result<()> {
    for name in ["lower/directory", "upper", "work"] {
        fs::create_dir_all(directory.join(name))?;
    }
    fs::write(directory.join("lower/directory/old"), "")?;
    fs::write(directory.join("lower/renamed"), "")
}

/// Mounts an overlay and tests the operations that depend on the file system of the upper directory.
fn try_overlay(directory: &Path) -> Result<Option<String>, io::Error> {
    if !has_file_types(&directory.join("lower"))? {
        return Ok(Some("directories there do not tell the kinds of their entries (d_type)".to_owned()));
    }
    let overlay = Overlay::open(&[directory.join("lower")], &directory.join("upper"), &directory.join("work"))
        .map_err(io::Error::other)?;
    let legacy = |error: Errno| if error == Errno::INVAL { overlay.detached("lowerdir", false) } else { Err(error) };
    let root = match overlay.detached("lowerdir", true).or_else(legacy) {
        Ok(root) => root,
        Err(error) if is_transient(error) => return Err(error.into()),
        Err(Errno::NODEV) => return Ok(Some("the kernel has no overlayfs, or may not load it".to_owned())),
        Err(error) => return Ok(Some(format!("overlayfs cannot be mounted: {}", io::Error::from(error)))),
    };
    match exercise(&root) {
        Ok(true) => Ok(None),
        Ok(false) => {
            Ok(Some("on overlayfs, a directory that was removed and made again shows its old content".to_owned()))
        }
        Err(error) if is_transient(error) => Err(error.into()),
        Err(error) => Ok(Some(format!("overlayfs fails when it is written to: {}", io::Error::from(error)))),
    }
}

/// Creates whiteouts, and an opaque directory in place of a lower one. Returns whether the content is as expected.
fn exercise(root: &OwnedFd) -> Result<bool, Errno> {
    renameat(root, "renamed", root, "new")?;
    unlinkat(root, "directory/old", AtFlags::empty())?;
    unlinkat(root, "directory", AtFlags::REMOVEDIR)?;
    mkdirat(root, "directory", Mode::RWXU)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let list = |name: &str| -> Result<Vec<Vec<u8>>, Errno> {
        let directory = openat(root, name, flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            names.push(entry?.file_name().to_bytes().to_vec());
        }
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        Ok(names)
    };
    Ok(list("directory")?.is_empty() && list(".")? == [b"directory".to_vec(), b"new".to_vec()])
}

/// Whether listings of a directory contain the types of the files (d_type). Without them overlayfs does not recognise
/// its own whiteouts in a listing.
fn has_file_types(directory: &Path) -> io::Result<bool> {
    for entry in Dir::read_from(File::open(directory)?)? {
        if entry?.file_type() == FileType::Unknown {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether an error says nothing about overlayfs, because it may go away.
fn is_transient(error: Errno) -> bool {
    [Errno::NOSPC, Errno::DQUOT, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::INTR].contains(&error)
}

/// The name of the file system of a file (statfs(2)), for messages.
fn file_system(file: &File) -> String {
    let Ok(stat) = fstatfs(file) else { return "an unknown file system".to_owned() };
    // The magic numbers have 32 bits, although the field is wider on some architectures.
    let name = match stat.f_type as u32 {
        0x794c_7630 => "overlayfs",
        0x6969 => "NFS",
        0x8584_58f6 => "ramfs",
        0x4d44 => "FAT",
        0x6573_5546 => "FUSE",
        0x0102_1994 => "tmpfs",
        0x5846_5342 => "XFS",
        0x9123_683e => "btrfs",
        0xef53 => "ext4",
        0xfe53_4d42 | 0xff53_4d42 => "SMB",
        other => return format!("a file system of type {other:#x}"),
    };
    name.to_owned()
}
