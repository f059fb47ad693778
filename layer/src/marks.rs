//! How a layer says what it hides of the layers below.
//!
//! Normally as overlayfs reads it: a character device 0:0 in place of a name that is gone, `trusted.overlay.opaque` on a directory that
//! shows nothing of lower ones. A file system may refuse both: overlayfs itself takes no such device, others have no such attributes.
//! Then a socket stands in, which no tar entry can make: under the name that is gone, or as `.wh..wh..opq` in the opaque directory. Such
//! a layer cannot be mounted, only copied by somebody who knows these signs.

use std::{ffi::CStr, os::fd::AsFd};

use rustix::{
    fs::{AtFlags, FileType, Mode, XattrFlags, fgetxattr, fsetxattr, mknodat, statat},
    io::Errno,
};

/// Marks a directory that hides what lower layers have in it.
pub const OPAQUE: &CStr = c"trusted.overlay.opaque";

/// The socket that does it where the attribute cannot be set.
pub const OPAQUE_SOCKET: &CStr = c".wh..wh..opq";

/// Hides a name of lower layers. Says whether overlayfs can read it.
pub fn hide(parent: impl AsFd, name: &[u8]) -> Result<bool, Errno> {
    match mknodat(parent.as_fd(), name, FileType::CharacterDevice, Mode::empty(), 0) {
        Err(Errno::PERM | Errno::OPNOTSUPP) => {
            mknodat(parent, name, FileType::Socket, Mode::empty(), 0)?;
            Ok(false)
        }
        result => result.map(|()| true),
    }
}

/// Hides all that lower layers have in a directory. Says whether overlayfs can read it.
pub fn hide_all(directory: impl AsFd) -> Result<bool, Errno> {
    match fsetxattr(directory.as_fd(), OPAQUE, b"y", XattrFlags::empty()) {
        Err(Errno::PERM | Errno::OPNOTSUPP) => {
            mknodat(directory, OPAQUE_SOCKET, FileType::Socket, Mode::empty(), 0)?;
            Ok(false)
        }
        result => result.map(|()| true),
    }
}

/// Whether a directory hides all that lower layers have in it.
pub fn hides_all(directory: impl AsFd) -> Result<bool, Errno> {
    let mut value = [0u8; 4];
    match fgetxattr(directory.as_fd(), OPAQUE, &mut value) {
        Ok(length) if &value[..length] == b"y" => return Ok(true),
        Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(errno),
    }
    match statat(directory, OPAQUE_SOCKET, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Socket),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}
