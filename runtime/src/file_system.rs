//! A file system of its own in a sparse file: the limit of a writable layer, or a host volume.
//!
//! The file becomes a loop device that lets go of the file by itself when the file system is unmounted. A new mount is
//! not attached. So a kill of any process leaves neither a mount nor a device that no container and no directory uses.
//!
//! A file system must never be on two loop devices at once: each would write without knowing of the other. The file of
//! a volume that is still mounted in another mount namespace has a device already, and that is used again.
//!
//! A read-only volume is read-only as a file system too, so no later mount of it can be writable.

use std::{
    fs::{self, File, Metadata},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use host::durable::private_file;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, openat, statx},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
        fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree, unmount,
    },
};

use crate::{block_device::Device, sys};

/// Where the programs that make file systems can be. The environment may have no `PATH`.
const DIRECTORIES: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"];

/// The size of a block of an ext4 file system that is made here, in bytes.
const BLOCK: u64 = 4096;

/// A kind of file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4(5).
    Ext4,
    /// xfs(5).
    Xfs,
}

/// What is mounted at a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounted {
    /// Nothing.
    Nothing,
    /// The file system or the directory that was asked about.
    This,
    /// Something else.
    Other,
}

impl FileSystem {
    /// The kernel's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The program that makes such a file system.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Ext4 => "mkfs.ext4",
            Self::Xfs => "mkfs.xfs",
        }
    }

    /// The package with the program.
    pub const fn package(self) -> &'static str {
        match self {
            Self::Ext4 => "e2fsprogs",
            Self::Xfs => "xfsprogs",
        }
    }

    /// The path of the program, if the node has it.
    pub fn formatter(self) -> Option<PathBuf> {
        program(self.program())
    }

    /// Nothing is written that a new sparse file has already.
    const fn quiet_options(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["-q", "-F", "-m", "0", "-b", "4096"],
            Self::Xfs => &["-q", "-f", "-K"],
        }
    }

    /// The options of each mount. Freed blocks are given back to the node's disk.
    const fn mount_flags(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["discard"],
            // A copy of a volume has the UUID of its source.
            Self::Xfs => &["discard", "nouuid"],
        }
    }
}

/// The path of a program of file systems, if the node has it.
pub fn program(name: &str) -> Option<PathBuf> {
    DIRECTORIES.iter().map(|directory| Path::new(directory).join(name)).find(|path| path.is_file())
}

/// Makes an empty sparse file of this size.
pub fn create(path: &Path, bytes: u64) -> io::Result<File> {
    let file = private_file(path)?;
    file.set_len(bytes)?;
    drop(file);
    fs::OpenOptions::new().read(true).write(true).open(path)
}

/// Makes a file system in a new file or on a device with the program at `formatter`. The program is bound to nothing of
/// a container and ends by itself. It outlives a caller that is killed, so it gets the file and not its name: by the
/// name, it could write to the file of the next attempt.
pub fn format(kind: FileSystem, formatter: &Path, options: &[&str], file: &File) -> io::Result<()> {
    let mut command = Command::new(formatter);
    command.args(kind.quiet_options()).args(options).args(["--", "/proc/self/fd/0"]).env_clear().current_dir("/");
    let output = command.stdin(Stdio::from(file.try_clone()?)).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}

/// What may be done with the files of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading and writing.
    Write,
    /// Only reading, in all mounts of the file system.
    Read,
}

/// Mounts the file system of a volume: without the effect of device nodes and of set-user-id programs. The mount is not
/// attached.
pub fn mount_volume(device: &Device, kind: FileSystem, access: Access) -> io::Result<OwnedFd> {
    let restrictions = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    mount_device(device.path(), kind, access, restrictions)
}

/// Mounts the file system in a file that has no loop device yet. The mount is not attached.
pub(crate) fn mount_new(file: &File, kind: FileSystem) -> io::Result<OwnedFd> {
    let (_device, path) = sys::attach_loop_device(file.as_fd(), 0)?;
    mount_device(&path, kind, Access::Write, MountAttrFlags::empty())
}

fn mount_device(device: &Path, kind: FileSystem, access: Access, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen(kind.name(), FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", device)?;
    for flag in kind.mount_flags() {
        fsconfig_set_flag(&context, *flag)?;
    }
    let mut attributes = attributes;
    if access == Access::Read {
        fsconfig_set_flag(&context, "ro")?;
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A mount of a directory that is read-only, and on which device nodes and set-user-id programs have no effect. It is
/// not attached.
pub fn mount_directory(directory: &Path) -> io::Result<OwnedFd> {
    let tree = open_tree(CWD, directory, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    sys::restrict_mount(tree.as_fd())?;
    Ok(tree)
}

/// Makes a mounted file system as large as its device, which has `bytes` bytes.
pub fn grow(mount: &OwnedFd, kind: FileSystem, bytes: u64) -> io::Result<()> {
    let root = openat(mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    match kind {
        FileSystem::Ext4 => sys::grow_ext4(root.as_fd(), bytes / BLOCK),
        FileSystem::Xfs => sys::grow_xfs(root.as_fd(), bytes),
    }
}

/// Attaches a mount to a directory of this mount namespace.
pub fn attach(mount: &OwnedFd, directory: &Path) -> io::Result<()> {
    Ok(move_mount(mount, "", CWD, directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Unmounts what is mounted at a directory. It fails if a process of the node uses it.
pub fn detach(directory: &Path) -> io::Result<()> {
    Ok(unmount(directory, UnmountFlags::NOFOLLOW)?)
}

/// What is mounted at a directory. `is_this` recognizes the root of the mount that is asked about.
pub fn mounted_at(directory: &Path, is_this: impl Fn(&Metadata) -> bool) -> io::Result<Mounted> {
    if !is_mount(directory)? {
        return Ok(Mounted::Nothing);
    }
    Ok(if is_this(&fs::symlink_metadata(directory)?) { Mounted::This } else { Mounted::Other })
}

/// Whether a mount begins at this directory.
pub fn is_mount(directory: &Path) -> io::Result<bool> {
    let found = statx(CWD, directory, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
    // Linux 5.8 tells it, as loop devices need it too.
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// The program of a caller that was killed goes on. Meanwhile another caller has made a file with the same name.
    #[test]
    fn the_program_writes_to_its_own_file_and_not_to_one_of_the_same_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("volume");
        for (kind, bytes, magic, at) in
            [(FileSystem::Ext4, 16 << 20, &b"\x53\xef"[..], 1024 + 56), (FileSystem::Xfs, 512 << 20, &b"XFSB"[..], 0)]
        {
            let formatter = kind.formatter().unwrap();
            let file = create(&path, bytes).unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, "of the next caller").unwrap();
            format(kind, &formatter, &[], &file).unwrap();
            let mut found = vec![0; magic.len()];
            file.read_exact_at(&mut found, at).unwrap();
            assert_eq!(found, magic, "{kind:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "of the next caller", "{kind:?}");
            fs::remove_file(&path).unwrap();
        }
    }
}
