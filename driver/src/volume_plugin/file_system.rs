//! A volume with a limit: a file system of its own in a sparse file.
//!
//! The file takes the disk space that tasks have written, not the limit.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use host::Context;
use runtime::{
    block_device::Device,
    file_system::{self, Access, FileSystem},
};
use rustix::{
    fs::{AtFlags, StatVfs, fstatvfs, ioctl_ficlone, syncfs, unlinkat},
    io::Errno,
};

use super::{
    error::PluginError,
    luks,
    place::{Format, Place},
    request::Capacity,
};

/// The least size of a file system of each kind. The programs that make them refuse less, or leave no room.
const fn least(kind: FileSystem) -> u64 {
    match kind {
        FileSystem::Ext4 => 4 << 20,
        FileSystem::Xfs => 300 << 20,
    }
}

/// The file system of a volume.
#[derive(Debug, Clone, Copy)]
pub struct OwnFileSystem<'a> {
    /// The volume.
    pub place: &'a Place,
    /// What its file contains.
    pub format: Format,
    /// The file with the key, if the request names one.
    pub key: Option<&'a Path>,
}

impl OwnFileSystem<'_> {
    fn path(&self) -> PathBuf {
        self.place.file(self.format)
    }

    /// Makes an empty file system with room for the capacity. It is mounted and not attached. Replaces a leftover.
    pub fn make(&self, capacity: Capacity) -> Result<(File, OwnedFd), PluginError> {
        let kind = self.format.file_system;
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
        let mut bytes = capacity.first_size().max(least);
        loop {
            self.remove()?;
            let made = self.format(&formatter, bytes)?;
            let room = fstatvfs(&made.1).context(|| format!("measuring {}", self.path().display()))?;
            match capacity.next_size(bytes, room.f_bavail.saturating_mul(room.f_frsize)) {
                Some(next) => bytes = next,
                None => return Ok(made),
            }
        }
    }

    fn format(&self, formatter: &Path, bytes: u64) -> Result<(File, OwnedFd), PluginError> {
        let (path, kind) = (self.path(), self.format.file_system);
        let options: &[&str] = match kind {
            FileSystem::Ext4 => &["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0"],
            FileSystem::Xfs => &[],
        };
        let making = || format!("making {}", path.display());
        let file = file_system::create(&path, bytes + self.format.header()).context(making)?;
        failpoint::at("volume-before-format");
        let device = if self.format.is_encrypted { Some(self.encrypt(&file)?) } else { None };
        let target = match &device {
            Some(device) => device.file().context(making)?,
            None => file.try_clone().context(making)?,
        };
        let made = file_system::format(kind, formatter, options, &target);
        made.context(|| format!("{}: making a file system of {bytes} bytes in {}", kind.program(), path.display()))?;
        drop(target);
        failpoint::at("volume-before-loop");
        let mount = self.mount_file(&file, Access::Write)?;
        // Programs expect an empty volume. The checking program makes the directory when it needs it.
        match unlinkat(&mount, "lost+found", AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok((file, mount)),
            Err(error) => Err(error).context(|| format!("removing lost+found in {}", path.display()))?,
        }
    }

    /// Writes the header of an encrypted volume to a new file, and opens the device behind it.
    fn encrypt(&self, file: &File) -> Result<Device, PluginError> {
        let path = self.path();
        let device = self.loop_device(file).context(|| format!("making {} a loop device", path.display()))?;
        luks::format(&device, self.key)?;
        failpoint::at("volume-before-mapping");
        luks::open(self.place, file, &device, self.key)
    }

    fn loop_device(&self, file: &File) -> io::Result<Device> {
        Device::of_file(file, self.format.sector())
    }

    fn mount_file(&self, file: &File, access: Access) -> Result<OwnedFd, PluginError> {
        let path = self.path();
        let action = || format!("mounting {} by a loop device (Linux 5.8)", path.display());
        let device = self.loop_device(file).context(action)?;
        if !self.format.is_encrypted {
            return Ok(file_system::mount_volume(&device, self.format.file_system, access).context(action)?);
        }
        let mapped = luks::open(self.place, file, &device, self.key)?;
        let mounted = file_system::mount_volume(&mapped, self.format.file_system, access);
        failpoint::at("volume-before-letting-go");
        luks::let_go(self.place, file)?;
        Ok(mounted.context(|| format!("mounting {}, decrypted", path.display()))?)
    }

    /// Makes a file system that shares the blocks of the one in `source`, and at least with room for the capacity. It
    /// is mounted and not attached. Replaces a leftover. `None` if the node's file system cannot share blocks, or if
    /// the clone cannot grow.
    pub fn make_clone(&self, capacity: Capacity, source: &File) -> Result<Option<(File, OwnedFd)>, PluginError> {
        let path = self.path();
        let action = || format!("cloning a volume to {}", path.display());
        self.remove()?;
        let file = file_system::create(&path, 0).context(action)?;
        failpoint::at("volume-before-clone");
        match ioctl_ficlone(&file, source) {
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::PERM) => {
                return self.remove().map(|()| None);
            }
            cloned => cloned.context(action)?,
        }
        let has = self.bytes(&file)?;
        let mut bytes = capacity.first_size().max(has);
        loop {
            file.set_len(bytes + self.format.header()).context(action)?;
            let mount = self.mount_file(&file, Access::Write)?;
            if bytes > has {
                failpoint::at("volume-before-growth");
                match file_system::grow(&mount, self.format.file_system, bytes) {
                    // ext4 needs the capability SYS_RESOURCE for this. Without it, files are copied.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        drop(mount);
                        return self.remove().map(|()| None);
                    }
                    grown => grown.context(|| format!("capacity_max: growing {} to {bytes} bytes", path.display()))?,
                }
            }
            let room = size(&fstatvfs(&mount).context(action)?);
            match capacity.next_size(bytes, room) {
                Some(next) => bytes = next,
                None => return Ok(Some((file, mount))),
            }
        }
    }

    /// Makes the file system of a volume, which is mounted at the volume's path, `bytes` bytes large, or larger if the
    /// capacity wants it. Returns what `df` shows.
    pub fn grow(&self, file: &File, capacity: Capacity, mut bytes: u64) -> Result<u64, PluginError> {
        let path = self.place.path();
        let action = || format!("capacity_min, capacity_max: making the file system of {} larger", path.display());
        let device = Device::existing(file).context(action)?.ok_or_else(|| lost(&self.path()))?;
        let root: OwnedFd = File::open(&path).context(action)?.into();
        loop {
            if bytes > self.bytes(file)? {
                file.set_len(bytes + self.format.header()).context(action)?;
                // After a power cut, the file must not be smaller than the file system.
                file.sync_all().context(action)?;
            }
            failpoint::at("volume-before-growth");
            device.follow_file_size().context(action)?;
            file_system::grow(&root, self.format.file_system, bytes).map_err(|error| {
                let remedy = match error.kind() {
                    io::ErrorKind::PermissionDenied => "; give Nomad's agent the capability SYS_RESOURCE",
                    _ => "; make another volume, as a copy of this one (from)",
                };
                PluginError::new(format!("{}: {error}{remedy}", action()))
            })?;
            let room = size(&fstatvfs(&root).context(action)?);
            match capacity.next_size(bytes, room) {
                Some(next) => bytes = next,
                None => {
                    syncfs(&root).context(action)?;
                    return Ok(room);
                }
            }
        }
    }

    /// Opens the file of a complete volume.
    pub fn open(&self) -> Result<File, PluginError> {
        let file = self.path();
        match OpenOptions::new().read(true).write(true).open(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(lost(&file)),
            opened => Ok(opened.context(|| format!("opening {}", file.display()))?),
        }
    }

    /// The size of the device with the file system.
    pub fn bytes(&self, file: &File) -> Result<u64, PluginError> {
        let found = file.metadata().context(|| format!("looking at {}", self.path().display()))?;
        Ok(found.len().saturating_sub(self.format.header()))
    }

    /// Mounts the file system of a complete volume. The mount is not attached.
    pub fn mount(&self, access: Access) -> Result<OwnedFd, PluginError> {
        self.mount_file(&self.open()?, access)
    }

    /// The number of the device on which the file system is, if there is one.
    pub fn device_number(&self) -> Result<Option<u64>, PluginError> {
        let path = self.path();
        let action = || format!("looking for the device of {}", path.display());
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.context(action)?,
        };
        let device = match self.format.is_encrypted {
            true => luks::existing(self.place, &file)?,
            false => Device::existing(&file).context(action)?,
        };
        Ok(device.map(|device| device.number()).transpose().context(action)?)
    }

    /// Removes the file and, once it has no user, its decrypted device. A missing file is no error.
    pub fn remove(&self) -> Result<(), PluginError> {
        let path = self.path();
        if self.format.is_encrypted {
            match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                opened => luks::let_go(self.place, &opened.context(|| format!("opening {}", path.display()))?)?,
            }
        }
        remove(&path)
    }
}

/// The size of a file system, as `df` shows it.
pub fn size(state: &StatVfs) -> u64 {
    state.f_blocks.saturating_mul(state.f_frsize)
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
