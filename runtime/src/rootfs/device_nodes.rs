//! Device nodes for a container with a user namespace of its own, in which no process may make any.
//!
//! Each node is a mount of one file, because the nodes of the node's `/dev` belong to users that the container does not
//! have. These belong to the container's users with the same ids.

use std::{ffi::CString, fs, io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{CWD, FileType, Gid, Mode, Uid, chmod, chown, makedev, mknodat},
    mount::{MountFlags, mount},
};

use super::mount_tree::clone_one;
use crate::{
    error::{Context, RuntimeError},
    plan::{IdRange, NodeKind},
    spec::HostDevice,
};

/// Makes the nodes in a file system of their own at `directory`, which stays until the mount namespace ends. The result
/// has a detached mount for each node. The nodes get the SELinux label.
pub(crate) fn device_nodes(
    directory: &Path,
    devices: &[&HostDevice],
    range: IdRange,
    label: Option<&str>,
) -> Result<Vec<OwnedFd>, RuntimeError> {
    if devices.is_empty() {
        return Ok(Vec::new());
    }
    let prepare = || -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let label = label.map_or(String::new(), |label| format!(",context=\"{label}\""));
        let options = CString::new(format!("mode=755{label}"))?;
        Ok(mount("tmpfs", directory, "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, Some(options.as_c_str()))?)
    };
    prepare().context(|| format!("making {}", directory.display()))?;
    let numbered = devices.iter().enumerate();
    numbered
        .map(|(number, device)| {
            let path = directory.join(number.to_string());
            make(&path, device, range).context(|| format!("making device {}", device.container_path.display()))
        })
        .collect()
}

fn make(path: &Path, device: &HostDevice, range: IdRange) -> io::Result<OwnedFd> {
    let kind = match device.kind {
        NodeKind::Block => FileType::BlockDevice,
        NodeKind::Character => FileType::CharacterDevice,
        NodeKind::Fifo => FileType::Fifo,
    };
    let mode = Mode::from_raw_mode(device.mode);
    mknodat(CWD, path, kind, mode, makedev(device.major, device.minor))?;
    let owner = range.on_node(device.uid).map(Uid::from_raw);
    chown(path, owner, range.on_node(device.gid).map(Gid::from_raw))?;
    chmod(path, mode)?;
    Ok(clone_one(path)?)
}
