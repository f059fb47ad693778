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
use crate::{
    plan::{DescribedDevice, Device, NodeKind},
    user::ResolvedUser,
};

/// A device node of the host and where it appears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostDevice {
    pub container_path: PathBuf,
    pub kind: NodeKind,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Any of `r`, `w`, `m`. `None`: the cgroup does not allow its use.
    pub permissions: Option<String>,
}

impl HostDevice {
    fn kind(&self) -> LinuxDeviceType {
        match self.kind {
            NodeKind::Block => LinuxDeviceType::B,
            NodeKind::Character => LinuxDeviceType::C,
            NodeKind::Fifo => LinuxDeviceType::P,
        }
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

    /// The rights that need a rule. A FIFO is no device for the cgroup.
    pub fn access(&self) -> Option<&str> {
        self.permissions.as_deref().filter(|_| self.kind != NodeKind::Fifo)
    }

    /// The rule that allows its use, if it has one.
    pub fn rule(&self) -> Result<Option<LinuxDeviceCgroup>, SpecError> {
        let Some(access) = self.access() else { return Ok(None) };
        let valid = !access.is_empty() && access.bytes().all(|byte| b"rwm".contains(&byte));
        if !valid {
            return Err(SpecError::DevicePermissions(access.to_owned()));
        }
        Ok(Some(
            LinuxDeviceCgroupBuilder::default()
                .allow(true)
                .typ(self.kind())
                .major(i64::from(self.major))
                .minor(i64::from(self.minor))
                .access(access)
                .build()?,
        ))
    }
}

/// The devices that every container has, without those of `others`, which has some of the same names.
pub(crate) fn standard_devices(others: &[HostDevice]) -> Vec<HostDevice> {
    const STANDARD: [(&str, u32, u32); 6] = [
        ("/dev/null", 1, 3),
        ("/dev/zero", 1, 5),
        ("/dev/full", 1, 7),
        ("/dev/random", 1, 8),
        ("/dev/urandom", 1, 9),
        ("/dev/tty", 5, 0),
    ];
    let standard = STANDARD.map(|(path, major, minor)| HostDevice {
        container_path: path.into(),
        kind: NodeKind::Character,
        major,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
        permissions: None,
    });
    let is_new = |device: &HostDevice| others.iter().all(|other| other.container_path != device.container_path);
    standard.into_iter().filter(is_new).collect()
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

/// The permission bits of a described node that does not exist on the host.
const DEFAULT_MODE: u32 = 0o666;

/// Completes a described device of a plan with the node of the host. The command's user owns it by default.
pub(crate) fn described_device(device: &DescribedDevice, user: &ResolvedUser) -> io::Result<HostDevice> {
    let number = |metadata: &fs::Metadata| (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let described = match (device.kind, device.number) {
        (Some(NodeKind::Fifo), _) => Some((NodeKind::Fifo, (0, 0))),
        (kind, number) => kind.zip(number),
    };
    let node = fs::metadata(&device.host_path).and_then(|metadata| {
        let kind = kind_of(metadata.file_type()).ok_or_else(|| invalid("not a device".to_owned()))?;
        Ok((kind, metadata))
    });
    let (kind, (major, minor), mode) = match (described, node) {
        (Some((kind, number)), Ok((_, metadata))) => (kind, number, metadata.mode() & 0o7777),
        (Some((kind, number)), Err(_)) => (kind, number, DEFAULT_MODE),
        (None, Ok((kind, metadata))) => {
            if device.kind.is_some_and(|wanted| wanted != kind) {
                return Err(invalid(
                    format!("it is a {kind:?} device, and the description says otherwise").to_lowercase(),
                ));
            }
            (kind, device.number.unwrap_or_else(|| number(&metadata)), metadata.mode() & 0o7777)
        }
        (None, Err(error)) => return Err(error),
    };
    Ok(HostDevice {
        container_path: (&device.container_path).into(),
        kind,
        major,
        minor,
        mode: device.mode.map_or(mode, |mode| mode & 0o7777),
        uid: device.uid.unwrap_or(user.uid),
        gid: device.gid.unwrap_or(user.gid),
        permissions: device.permissions.clone(),
    })
}

fn invalid(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem)
}

fn kind_of(kind: fs::FileType) -> Option<NodeKind> {
    if kind.is_block_device() {
        Some(NodeKind::Block)
    } else if kind.is_char_device() {
        Some(NodeKind::Character)
    } else {
        kind.is_fifo().then_some(NodeKind::Fifo)
    }
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
    } else if let Some(kind) = kind_of(kind).filter(|kind| *kind != NodeKind::Fifo) {
        found.push(HostDevice {
            container_path: container.to_owned(),
            kind,
            major: rustix::fs::major(metadata.rdev()),
            minor: rustix::fs::minor(metadata.rdev()),
            mode: metadata.mode() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            permissions: Some(permissions.to_owned()),
        });
    }
    Ok(())
}
