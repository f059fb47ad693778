//! Whether overlayfs works with writable layers in a data directory, and over images: tried out, because file systems and kernels refuse it at
//! different moments.
//!
//! Another overlay and network file systems are refused when mounting; one without the extended attributes or the kind of rename
//! that overlayfs needs lets itself be mounted, and then some programs fail in the container.

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

use super::{layers::open_layer, overlay::Stack, writable};
use crate::error::{Context, RuntimeError};

/// Tries it out; the reason when it does not work. An error says that it could not be found out (a full disk, for instance).
/// Nothing stays, and no mount is ever attached.
pub(crate) fn overlay_problem(data_dir: &Path) -> Result<Option<String>, RuntimeError> {
    try_out(data_dir, "overlayfs", |directory| {
        prepare(directory)?;
        attempt(directory)
    })
}

/// The same of an overlay over an image of a file system, whose root has these extended attributes.
pub(crate) fn image_problem(
    data_dir: &Path,
    image: &[u8],
    attributes: &[(Vec<u8>, Vec<u8>)],
) -> Result<Option<String>, RuntimeError> {
    try_out(data_dir, "images of file systems", |directory| {
        for name in ["upper", "work"] {
            fs::create_dir_all(directory.join(name))?;
        }
        let path = directory.join("image");
        fs::write(&path, image)?;
        let failed = |error: io::Error| match Errno::from_io_error(&error) {
            Some(errno) if passing(errno) => Err(error),
            _ => Ok(Some(format!("an image cannot be mounted: {error}"))),
        };
        let missing = open_layer(&path).and_then(|root| {
            let root = openat(root, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            Ok(attributes.iter().find(|(key, value)| !has(&root, key, value)))
        });
        match missing {
            Ok(None) => {}
            Ok(Some((key, _))) => {
                return Ok(Some(format!("the kernel does not show {} of images", String::from_utf8_lossy(key))));
            }
            Err(error) => return failed(error),
        }
        let stack =
            Stack::open(&[path], &directory.join("upper"), &directory.join("work")).map_err(io::Error::other)?;
        match stack.detached("lowerdir+", true) {
            Ok(_) => Ok(None),
            Err(error) => failed(error.into()),
        }
    })
}

/// Whether a directory has this extended attribute.
fn has(directory: &OwnedFd, key: &[u8], value: &[u8]) -> bool {
    let mut found = vec![0; value.len()];
    fgetxattr(directory, key, &mut found[..]).is_ok_and(|length| found[..length] == *value)
}

fn try_out(
    data_dir: &Path,
    what: &str,
    attempt: impl FnOnce(&Path) -> io::Result<Option<String>>,
) -> Result<Option<String>, RuntimeError> {
    let all = writable::all(data_dir);
    let directory = all.join(".probe");
    let context = || format!("trying out {what} in {}", all.display());
    // One at a time: another plugin may be at it, or may have died in the middle.
    DirBuilder::new().recursive(true).mode(0o700).create(&all).context(context)?;
    let lock = File::open(&all).context(context)?;
    flock(&lock, FlockOperation::LockExclusive).context(context)?;
    writable::remove_tree(&directory)?;
    let outcome = attempt(&directory).context(context);
    writable::remove_tree(&directory)?;
    Ok(outcome?.map(|problem| format!("{problem} ({} is on {})", data_dir.display(), file_system(&lock))))
}

fn prepare(directory: &Path) -> io::Result<()> {
    for name in ["lower/directory", "upper", "work"] {
        fs::create_dir_all(directory.join(name))?;
    }
    fs::write(directory.join("lower/directory/old"), "")?;
    fs::write(directory.join("lower/renamed"), "")
}

/// Mounts an overlay and does in it what puts the file system of its upper directory to the test.
fn attempt(directory: &Path) -> Result<Option<String>, io::Error> {
    if !tells_kinds(&directory.join("lower"))? {
        return Ok(Some("directories there do not tell the kinds of their entries (d_type)".to_owned()));
    }
    let stack = Stack::open(&[directory.join("lower")], &directory.join("upper"), &directory.join("work"))
        .map_err(io::Error::other)?;
    let older = |error: Errno| if error == Errno::INVAL { stack.detached("lowerdir", false) } else { Err(error) };
    let root = match stack.detached("lowerdir", true).or_else(older) {
        Ok(root) => root,
        Err(error) if passing(error) => return Err(error.into()),
        Err(Errno::NODEV) => return Ok(Some("the kernel has no overlayfs, or may not load it".to_owned())),
        Err(error) => return Ok(Some(format!("overlayfs cannot be mounted: {}", io::Error::from(error)))),
    };
    match exercise(&root) {
        Ok(true) => Ok(None),
        Ok(false) => {
            Ok(Some("on overlayfs, a directory that was removed and made again shows its old content".to_owned()))
        }
        Err(error) if passing(error) => Err(error.into()),
        Err(error) => Ok(Some(format!("overlayfs fails when it is written to: {}", io::Error::from(error)))),
    }
}

/// Leaves whiteouts, and an opaque directory in place of a lower one. Says whether all looks as it should.
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

/// Without the kinds, overlayfs does not recognise its own whiteouts in a listing.
fn tells_kinds(directory: &Path) -> io::Result<bool> {
    for entry in Dir::read_from(File::open(directory)?)? {
        if entry?.file_type() == FileType::Unknown {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Says nothing about overlayfs: it may work a moment later.
fn passing(error: Errno) -> bool {
    [Errno::NOSPC, Errno::DQUOT, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::INTR].contains(&error)
}

/// A file system by its name, for people (statfs(2)).
fn file_system(file: &File) -> String {
    let Ok(stat) = fstatfs(file) else { return "an unknown file system".to_owned() };
    // The magic numbers are 32 bits wide, whatever the type of the field.
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
