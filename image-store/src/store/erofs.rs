//! Mounting a layer's image to look into it: where its own process sees it, and nobody else.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};

/// The root of a mount that is attached nowhere, and gone when it is closed.
pub(crate) fn mount(image: &Path) -> io::Result<OwnedFd> {
    // The kernel would say no more than that the argument is invalid.
    image.metadata()?;
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", image)?;
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?)
}
