//! Project quotas of xfs and ext4 (quotactl(2), xfs_quota(8)).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

const FS_IOC_FSGETXATTR: u32 = 0x801C_581F;
const FS_IOC_FSSETXATTR: u32 = 0x401C_5820;
/// New files in a directory get its project.
const INHERIT: u32 = 0x200;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
const Q_XGETQSTAT: u32 = 0x5805;
/// The type of project quotas.
const PROJECT: u32 = 2;
/// Limits of projects are enforced.
const ENFORCED: u16 = 1 << 5;
/// The limits of blocks are set.
const BLOCK_LIMITS: u32 = 1;
/// The limits of inodes are set.
const INODE_LIMITS: u32 = 4;
/// The unit of limits in bytes.
const UNIT: u64 = 1024;

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `struct if_dqblk` of linux/quota.h.
#[repr(C)]
#[derive(Default)]
struct Quota {
    hard_limit: u64,
    soft_limit: u64,
    bytes: u64,
    inode_limits: [u64; 2],
    inodes: u64,
    times: [u64; 2],
    valid: u32,
}

/// `struct fs_quota_stat` of linux/dqblk_xfs.h.
#[repr(C)]
#[derive(Default)]
struct State {
    version: i8,
    flags: u16,
    padding: i8,
    files: [u64; 6],
    numbers: [u32; 4],
    warnings: [u16; 2],
}

/// What a project uses.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ProjectUsage {
    /// The bytes of its files.
    pub bytes: u64,
    /// The number of its files.
    pub inodes: u64,
    /// The limit of its bytes; 0 is none.
    pub limit: u64,
}

/// The project of a file.
pub(crate) fn project_of(file: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(attributes(file)?.project)
}

/// Makes a directory, and everything that will be made in it, part of a project.
pub(crate) fn set_project(directory: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let found = attributes(directory)?;
    let wanted = Attributes { project, flags: found.flags | INHERIT, ..found };
    // SAFETY: the structure has the kernel's layout and outlives the call, which only reads it.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), FS_IOC_FSSETXATTR as _, &raw const wanted) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn attributes(file: BorrowedFd<'_>) -> io::Result<Attributes> {
    let mut found = Attributes::default();
    // SAFETY: the structure has the kernel's layout and outlives the call, which fills it.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR as _, &raw mut found) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(found) }
}

/// Whether the file system of this file enforces limits of projects. A kernel or a file system without them does not.
pub(crate) fn enforces_projects(file: BorrowedFd<'_>) -> bool {
    let mut state = State { version: 1, ..State::default() };
    quotactl(file, Q_XGETQSTAT, 0, &mut state).is_ok() && state.flags & ENFORCED != 0
}

/// What a project uses on the file system of this file.
pub(crate) fn project_usage(file: BorrowedFd<'_>, project: u32) -> io::Result<ProjectUsage> {
    let mut found = Quota::default();
    match quotactl(file, Q_GETQUOTA, project, &mut found) {
        // xfs knows nothing of a project without files and limits.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(ProjectUsage::default()),
        result => result?,
    }
    Ok(ProjectUsage { bytes: found.bytes, inodes: found.inodes, limit: found.hard_limit.saturating_mul(UNIT) })
}

/// Sets the limits of a project: of its bytes, and of its files if that is given. 0 removes a limit.
pub(crate) fn set_project_limits(
    file: BorrowedFd<'_>,
    project: u32,
    bytes: u64,
    inodes: Option<u64>,
) -> io::Result<()> {
    let limit = bytes / UNIT;
    let mut wanted = Quota { hard_limit: limit, soft_limit: limit, valid: BLOCK_LIMITS, ..Quota::default() };
    if let Some(inodes) = inodes {
        wanted.inode_limits = [inodes; 2];
        wanted.valid |= INODE_LIMITS;
    }
    quotactl(file, Q_SETQUOTA, project, &mut wanted)
}

fn quotactl<T>(file: BorrowedFd<'_>, command: u32, project: u32, argument: &mut T) -> io::Result<()> {
    // SAFETY: the caller passes the structure of the command, with the kernel's layout. It outlives the call.
    let result = unsafe {
        let argument = ptr::from_mut(argument);
        libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command << 8 | PROJECT, project, argument)
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Attributes>(), size_of::<Quota>(), size_of::<State>()), (28, 72, 80));
    }
}
