//! A volume with a limit: a file system of its own in a sparse file, mounted on the volume's directory.
//!
//! The file takes the disk space that tasks have written, not the limit.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::Path,
};

use host::Context;
use runtime::file_system::{self, FileSystem, Mounted};
use rustix::{
    fs::{AtFlags, StatVfs, fstatvfs, statvfs, unlinkat},
    io::Errno,
};

use super::{error::PluginError, place::Place, request::Capacity};

/// The least size of a file system of each kind. The programs that make them refuse less, or leave no room.
const fn least(kind: FileSystem) -> u64 {
    match kind {
        FileSystem::Ext4 => 4 << 20,
        FileSystem::Xfs => 300 << 20,
    }
}

/// Makes an empty file system with room for the capacity. It is mounted and not attached. Replaces a leftover.
pub fn make(place: &Place, kind: FileSystem, capacity: Capacity) -> Result<(File, OwnedFd), PluginError> {
    let (name, least) = (kind.name(), least(kind));
    if capacity.max > 0 && capacity.max < least {
        let problem = format!("capacity_max: {} bytes are too few for {name}: give {least} or more", capacity.max);
        return Err(PluginError::new(problem));
    }
    let formatter = kind.formatter().ok_or_else(|| {
        let (program, package) = (kind.program(), kind.package());
        PluginError::new(format!(
            "capacity_max: this node lacks the program {program}, which makes the file system of a volume with a \
             limit: install {package} on the node, or remove capacity_min and capacity_max"
        ))
    })?;
    let path = place.file(kind);
    let mut bytes = capacity.first_size().max(least);
    loop {
        remove(&path)?;
        let made = format(&path, kind, &formatter, bytes)?;
        let room = fstatvfs(&made.1).context(|| format!("measuring {}", path.display()))?;
        match capacity.next_size(bytes, room.f_bavail.saturating_mul(room.f_frsize)) {
            Some(next) => bytes = next,
            None => return Ok(made),
        }
    }
}

fn format(path: &Path, kind: FileSystem, formatter: &Path, bytes: u64) -> Result<(File, OwnedFd), PluginError> {
    let options: &[&str] = match kind {
        FileSystem::Ext4 => &["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"],
        FileSystem::Xfs => &[],
    };
    let file = file_system::create(path, bytes).context(|| format!("making {}", path.display()))?;
    failpoint::at("volume-before-format");
    let made = file_system::format(kind, formatter, options, &file);
    made.context(|| format!("{}: making a file system of {bytes} bytes in {}", kind.program(), path.display()))?;
    failpoint::at("volume-before-loop");
    let mount = mount_file(&file, path, kind)?;
    // Programs expect an empty volume. The checking program makes the directory when it needs it.
    match unlinkat(&mount, "lost+found", AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok((file, mount)),
        Err(error) => Err(error).context(|| format!("removing lost+found in {}", path.display()))?,
    }
}

fn mount_file(file: &File, path: &Path, kind: FileSystem) -> Result<OwnedFd, PluginError> {
    let action = || format!("mounting {} by a loop device (Linux 5.8)", path.display());
    Ok(file_system::mount_volume(file, kind, false).context(action)?)
}

/// Mounts a complete volume on its directory, unless it is mounted there. Returns its size.
pub fn expose(place: &Place, kind: FileSystem) -> Result<u64, PluginError> {
    let (file, target) = (place.file(kind), place.path());
    let opened = match OpenOptions::new().read(true).write(true).open(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(lost(&file)),
        opened => opened.context(|| format!("opening {}", file.display()))?,
    };
    match DirBuilder::new().mode(0o700).create(&target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.context(|| format!("making {}", target.display()))?,
    }
    let looking = || format!("looking at {}", target.display());
    match file_system::mounted_at(&target, &opened).context(looking)? {
        Mounted::This => {}
        Mounted::Nothing => {
            failpoint::at("volume-before-mount");
            let mount = mount_file(&opened, &file, kind)?;
            failpoint::at("volume-before-attach");
            file_system::attach(&mount, &target).context(|| format!("mounting the volume on {}", target.display()))?;
        }
        Mounted::Other => {
            let target = target.display();
            return Err(PluginError::new(format!("something else is mounted on {target}: unmount it")));
        }
    }
    failpoint::at("volume-before-answer");
    Ok(size(&statvfs(&target).context(looking)?))
}

/// The size of a file system, as `df` shows it.
fn size(state: &StatVfs) -> u64 {
    state.f_blocks.saturating_mul(state.f_frsize)
}

/// Unmounts a volume. An error says that processes of the node use it.
pub fn hide(place: &Place, kind: FileSystem) -> Result<(), PluginError> {
    let (file, target) = (place.file(kind), place.path());
    let (Ok(opened), true) = (File::open(&file), place.is_taken()?) else { return Ok(()) };
    let mounted = file_system::mounted_at(&target, &opened);
    if mounted.context(|| format!("looking at {}", target.display()))? == Mounted::This {
        failpoint::at("volume-before-unmount");
        file_system::detach(&target).context(|| {
            format!("unmounting {} (end the processes of the node that use it: fuser -vm)", target.display())
        })?;
    }
    Ok(())
}

/// Removes a file. A missing file is no error.
pub fn remove(path: &Path) -> Result<(), PluginError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context(|| format!("removing {}", path.display()))?
        }
        _ => Ok(()),
    }
}

/// The error about a volume whose data are gone.
pub fn lost(path: &Path) -> PluginError {
    PluginError::new(format!(
        "the data of the volume are gone ({} is missing): restore them, or delete the volume and make another one",
        path.display()
    ))
}
