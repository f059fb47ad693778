//! Loop devices: a file as a block device (loop(4)).

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, fstat, makedev, mknodat},
    io::Errno,
};

const LOOP_CTL_GET_FREE: u32 = 0x4C82;
const LOOP_GET_STATUS64: u32 = 0x4C05;
const LOOP_SET_CAPACITY: u32 = 0x4C07;
/// Since Linux 5.8.
const LOOP_CONFIGURE: u32 = 0x4C0A;
/// The device lets go of its file when its last user has closed it.
const AUTOCLEAR: u32 = 4;
/// The file's content is not cached a second time, if its file system can do that.
const DIRECT_IO: u32 = 16;
/// The number of loop devices among block devices.
const MAJOR: u32 = 7;
/// Another process may take the free device first, this number of times.
const ATTEMPTS: usize = 100;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct Info {
    /// The first two are the device and the inode of the file.
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

impl Default for Info {
    fn default() -> Self {
        Self {
            numbers: [0; 5],
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            names: [0; 160],
            init: [0; 2],
        }
    }
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct Config {
    file: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// Makes a file a block device. The result is the open device and its path. The device has the file until both the
/// result is closed and no file system on the device is mounted, also if this process is killed.
///
/// `sector` is the size of its sectors in bytes. With 0, the kernel takes the smallest that allows direct I/O. On xfs
/// this is larger for a file that shares blocks with another one.
pub(crate) fn attach_loop_device(file: BorrowedFd<'_>, sector: u32) -> io::Result<(OwnedFd, PathBuf)> {
    let open = |path: &PathBuf| OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path);
    let control = open(&PathBuf::from("/dev/loop-control"))?;
    for _ in 0..ATTEMPTS {
        let number = free_number(&control)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = match open(&path) {
            // Without devtmpfs, the kernel makes no node for a new device.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_node(&path, number)?;
                open(&path)?
            }
            device => device?,
        };
        match configure(&device, file, sector) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            result => return result.map(|()| (device.into(), path)),
        }
    }
    Err(io::Error::other("other processes take every free loop device"))
}

/// The loop device that has this file, open, with its path; `None` if there is none. It keeps the file as long as the
/// result is open.
pub(crate) fn loop_device_of(file: BorrowedFd<'_>) -> io::Result<Option<(OwnedFd, PathBuf)>> {
    let wanted = fstat(file)?;
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse().ok());
        let (Some(number), path) = (number, Path::new("/dev").join(&name)) else { continue };
        if !Path::new("/sys/block").join(&name).join("loop/backing_file").exists() {
            continue;
        }
        let device = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_node(&path, number).and(File::open(&path)),
            device => device,
        };
        match device.and_then(|device| Ok((file_numbers(&device)?, device))) {
            Ok((found, device)) if found == (wanted.st_dev, wanted.st_ino) => return Ok(Some((device.into(), path))),
            Ok(_) => {}
            // The device has let go of its file meanwhile.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        }
    }
    Ok(None)
}

/// Makes a loop device as large as its file.
pub(crate) fn follow_file_size(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY as _) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The device and the inode of the file that a loop device has.
fn file_numbers(device: &File) -> io::Result<(u64, u64)> {
    let mut info = Info::default();
    // SAFETY: the structure has the kernel's layout and outlives the call, which fills it.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut info) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok((info.numbers[0], info.numbers[1])) }
}

fn make_node(path: &PathBuf, number: u32) -> io::Result<()> {
    match mknodat(CWD, path, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, makedev(MAJOR, number)) {
        Err(Errno::EXIST) => fs::metadata(path).map(drop),
        made => Ok(made?),
    }
}

fn free_number(control: &File) -> io::Result<u32> {
    // SAFETY: the request takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

fn configure(device: &File, file: BorrowedFd<'_>, sector: u32) -> io::Result<()> {
    let info = Info { flags: AUTOCLEAR | DIRECT_IO, ..Info::default() };
    let file = u32::try_from(file.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let config = Config { file, block_size: sector, info, reserved: [0; 8] };
    // SAFETY: the structure has the kernel's layout and outlives the call, which only reads it.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }
}
