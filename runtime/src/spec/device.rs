//! Devices of the host, as a container gets them.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use oci_spec::runtime::{
    LinuxDevice, LinuxDeviceBuilder, LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, LinuxDeviceType,
};

use super::error::SpecError;
use crate::plan::Device;

/// A device node of the host and where it appears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostDevice {
    pub container_path: PathBuf,
    pub block: bool,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub permissions: String,
}

impl HostDevice {
    fn kind(&self) -> LinuxDeviceType {
        if self.block { LinuxDeviceType::B } else { LinuxDeviceType::C }
    }

    /// The node that is made.
    pub fn node(&self) -> Result<LinuxDevice, SpecError> {
        Ok(LinuxDeviceBuilder::default()
            .path(&self.container_path)
            .typ(self.kind())
            .major(i64::from(self.major))
            .minor(i64::from(self.minor))
            .file_mode(self.mode)
            .uid(self.uid)
            .gid(self.gid)
            .build()?)
    }

    /// The rule that allows its use.
    pub fn rule(&self) -> Result<LinuxDeviceCgroup, SpecError> {
        let valid = !self.permissions.is_empty() && self.permissions.bytes().all(|byte| b"rwm".contains(&byte));
        if !valid {
            return Err(SpecError::DevicePermissions(self.permissions.clone()));
        }
        Ok(LinuxDeviceCgroupBuilder::default()
            .allow(true)
            .typ(self.kind())
            .major(i64::from(self.major))
            .minor(i64::from(self.minor))
            .access(&self.permissions)
            .build()?)
    }
}

/// Looks a device of a plan up on the host. A directory means all devices in it.
pub(crate) fn host_devices(device: &Device) -> io::Result<Vec<HostDevice>> {
    let mut found = Vec::new();
    collect(&device.host_path, Path::new(&device.container_path), &device.permissions, &mut found)?;
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a device, and no directory with devices"));
    }
    Ok(found)
}

/// Names below /dev that are not the host's devices but file systems of their own.
const NOT_DEVICES: [&str; 8] = ["pts", "shm", "fd", "mqueue", "console", "ptmx", "core", "hugepages"];

fn collect(host: &Path, container: &Path, permissions: &str, found: &mut Vec<HostDevice>) -> io::Result<()> {
    let metadata = fs::metadata(host)?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        for entry in fs::read_dir(host)? {
            let entry = entry?;
            let name = entry.file_name();
            let skip = entry.file_type()?.is_symlink() || NOT_DEVICES.iter().any(|other| name == *other);
            if !skip {
                collect(&entry.path(), &container.join(&name), permissions, found)?;
            }
        }
    } else if kind.is_char_device() || kind.is_block_device() {
        found.push(HostDevice {
            container_path: container.to_owned(),
            block: kind.is_block_device(),
            major: rustix::fs::major(metadata.rdev()),
            minor: rustix::fs::minor(metadata.rdev()),
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            permissions: permissions.to_owned(),
        });
    }
    Ok(())
}
