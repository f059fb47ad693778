//! Devices of the device mapper (dmsetup(8)).

use std::{
    fs::OpenOptions,
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
};

const CONTROL: &str = "/dev/mapper/control";
const DM_DEV_REMOVE: u32 = 0xC138_FD04;
/// The oldest interface that knows [`DEFERRED_REMOVE`].
const VERSION: [u32; 3] = [4, 27, 0];
/// A device in use is removed when its last user has closed it.
const DEFERRED_REMOVE: u32 = 1 << 17;
/// The longest name, with the zero at its end.
const NAME: usize = 128;

/// `struct dm_ioctl` of linux/dm-ioctl.h.
#[repr(C)]
struct Request {
    version: [u32; 3],
    size: u32,
    start: u32,
    targets: u32,
    opened: i32,
    flags: u32,
    event: u32,
    padding: u32,
    device: u64,
    name: [u8; NAME],
    uuid: [u8; 129],
    data: [u8; 7],
}

/// Removes the device with this name as soon as it has no user. A missing device is no error.
pub(crate) fn remove_mapping(name: &str) -> io::Result<()> {
    let mut request = Request {
        version: VERSION,
        size: size_of::<Request>() as u32,
        start: 0,
        targets: 0,
        opened: 0,
        flags: DEFERRED_REMOVE,
        event: 0,
        padding: 0,
        device: 0,
        name: [0; NAME],
        uuid: [0; 129],
        data: [0; 7],
    };
    if name.len() >= NAME {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(CONTROL);
    let control = match opened {
        // Without a device mapper there is no device.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => return Ok(()),
        opened => opened?,
    };
    // SAFETY: the structure has the kernel's layout, names its own size, and outlives the call, which may fill it.
    let result = unsafe { libc::ioctl(control.as_raw_fd(), DM_DEV_REMOVE as _, &raw mut request) };
    match io::Error::last_os_error() {
        _ if result != -1 => Ok(()),
        error if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_kernels_size() {
        assert_eq!(size_of::<Request>(), 312);
    }
}
