//! Mounts the EROFS image of a layer to read its files.
//!
//! The mount is attached to no directory: only the descriptor of its root reaches it.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};

/// Mounts an image. The mount ends when the returned descriptor of its root is closed.
pub fn mount(image: &Path) -> io::Result<OwnedFd> {
    // Without this look, the kernel's only error for a missing image is "invalid argument".
    image.metadata()?;
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", image)?;
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?)
}
