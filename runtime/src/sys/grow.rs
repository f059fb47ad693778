//! Growing a mounted file system (resize2fs(8) and xfs_growfs(8) make the same calls).

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

const EXT4_IOC_RESIZE_FS: u32 = 0x4008_6610;
const XFS_IOC_FSGEOMETRY_V1: u32 = 0x8070_5864;
const XFS_IOC_FSGROWFSDATA: u32 = 0x4010_586E;

/// `struct xfs_fsop_geom_v1` of xfs_fs.h. Only what is used has a name.
#[repr(C)]
#[derive(Default)]
struct Geometry {
    block_size: u32,
    numbers: [u32; 6],
    /// The part of the space that inodes may take, in percent.
    inode_percent: u32,
    sizes: [u64; 10],
}

/// `struct xfs_growfs_data` of xfs_fs.h.
#[repr(C)]
struct Growth {
    blocks: u64,
    inode_percent: u32,
}

/// Makes a mounted ext4 file system this number of its blocks large.
pub(crate) fn grow_ext4(mount: BorrowedFd<'_>, blocks: u64) -> io::Result<()> {
    // SAFETY: the number outlives the call, which only reads it.
    let result = unsafe { libc::ioctl(mount.as_raw_fd(), EXT4_IOC_RESIZE_FS as _, &raw const blocks) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a mounted xfs file system this number of bytes large.
pub(crate) fn grow_xfs(mount: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let mut geometry = Geometry::default();
    // SAFETY: the structure has the kernel's layout and outlives the call, which fills it.
    if unsafe { libc::ioctl(mount.as_raw_fd(), XFS_IOC_FSGEOMETRY_V1 as _, &raw mut geometry) } == -1 {
        return Err(io::Error::last_os_error());
    }
    let blocks = bytes.checked_div(u64::from(geometry.block_size)).ok_or(io::ErrorKind::InvalidData)?;
    let growth = Growth { blocks, inode_percent: geometry.inode_percent };
    // SAFETY: the structure has the kernel's layout and outlives the call, which only reads it.
    let result = unsafe { libc::ioctl(mount.as_raw_fd(), XFS_IOC_FSGROWFSDATA as _, &raw const growth) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Geometry>(), size_of::<Growth>()), (112, 16));
    }
}
