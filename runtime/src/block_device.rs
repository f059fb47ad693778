//! Block devices with the file systems of volumes: loop devices, and decrypted devices above them.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::{
    fs::fstat,
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
};

use crate::sys;

/// A block device. It exists at least until the value is dropped.
#[derive(Debug)]
pub struct Device {
    open: OwnedFd,
    path: PathBuf,
}

impl Device {
    /// The loop device that a file has already.
    pub fn existing(file: &File) -> io::Result<Option<Self>> {
        Ok(sys::loop_device_of(file.as_fd())?.map(|(open, path)| Self { open, path }))
    }

    /// The loop device of a file, which is made if the file has none. The caller holds a lock of the file. `sector` is
    /// the size of its sectors in bytes, and 0 is the kernel's choice.
    pub fn of_file(file: &File, sector: u32) -> io::Result<Self> {
        if let Some(existing) = Self::existing(file)? {
            return Ok(existing);
        }
        let (open, path) = sys::attach_loop_device(file.as_fd(), sector)?;
        Ok(Self { open, path })
    }

    /// The device of the device mapper with this name. `None` if there is none, or if it has no content.
    pub fn mapped(name: &str) -> io::Result<Option<Self>> {
        for entry in fs::read_dir("/sys/block")? {
            let directory = entry?.path();
            let read = |file: &str| fs::read_to_string(directory.join(file)).unwrap_or_default();
            if read("dm/name").trim_end() != name || read("size").trim_end() == "0" {
                continue;
            }
            let Some(file) = directory.file_name() else { continue };
            let path = Path::new("/dev").join(file);
            return match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(open) => Ok(Some(Self { open: open.into(), path })),
                // It was removed meanwhile.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) => Ok(None),
                Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            };
        }
        Ok(None)
    }

    /// Makes a loop device as large as its file.
    pub fn follow_file_size(&self) -> io::Result<()> {
        sys::follow_file_size(self.open.as_fd())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the device, which is that of the files on it.
    pub fn number(&self) -> io::Result<u64> {
        Ok(fstat(&self.open)?.st_rdev)
    }

    /// The open device as a file.
    pub fn file(&self) -> io::Result<File> {
        Ok(self.open.try_clone()?.into())
    }

    /// A descriptor of the device that programs inherit which this process starts.
    pub fn inherited(&self) -> io::Result<Inherited> {
        let copy = fcntl_dupfd_cloexec(&self.open, 3)?;
        fcntl_setfd(&copy, FdFlags::empty())?;
        Ok(Inherited(copy))
    }
}

/// A descriptor for programs.
#[derive(Debug)]
pub struct Inherited(OwnedFd);

impl Inherited {
    /// The path of the device for such a program. The path of the device itself could belong to another file by then.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

/// Removes the device of the device mapper with this name as soon as it has no user. A missing device is no error.
pub fn remove_mapping(name: &str) -> io::Result<()> {
    sys::remove_mapping(name)
}

/// Lets the kernel kill the process of a command when the thread that starts it ends.
pub fn end_with_this_thread(command: &mut Command) {
    sys::end_with_parent(command);
}
