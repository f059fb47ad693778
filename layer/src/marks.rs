//! The marks by which a layer hides files of lower layers.
//!
//! | what is hidden | mark that overlayfs reads | mark if the file system refuses that one |
//! |---|---|---|
//! | a name | a character device 0:0 of that name | a socket of that name |
//! | all content of a directory | `trusted.overlay.opaque` on the directory | a socket `.wh..wh..opq` in it |
//!
//! Overlayfs itself takes no such device, and other file systems have no such attributes. No tar entry can make a
//! socket. A layer with sockets for marks cannot be mounted; it can only be copied by code that reads them.

use std::{ffi::CStr, os::fd::AsFd};

use rustix::{
    fs::{AtFlags, FileType, Mode, XattrFlags, fgetxattr, fsetxattr, mknodat, statat},
    io::Errno,
};

/// The extended attribute of a directory that hides the lower layers' content.
pub const OPAQUE: &CStr = c"trusted.overlay.opaque";

/// The socket in an opaque directory whose file system refuses the attribute.
pub const OPAQUE_SOCKET: &CStr = c".wh..wh..opq";

/// Hides a name of lower layers. Returns whether overlayfs reads the mark.
pub fn hide(parent: impl AsFd, name: &[u8]) -> Result<bool, Errno> {
    match mknodat(parent.as_fd(), name, FileType::CharacterDevice, Mode::empty(), 0) {
        Err(Errno::PERM | Errno::OPNOTSUPP) => {
            mknodat(parent, name, FileType::Socket, Mode::empty(), 0)?;
            Ok(false)
        }
        result => result.map(|()| true),
    }
}

/// Hides the lower layers' content of a directory. Returns whether overlayfs reads the mark.
pub fn hide_all(directory: impl AsFd) -> Result<bool, Errno> {
    match fsetxattr(directory.as_fd(), OPAQUE, b"y", XattrFlags::empty()) {
        Err(Errno::PERM | Errno::OPNOTSUPP) => {
            mknodat(directory, OPAQUE_SOCKET, FileType::Socket, Mode::empty(), 0)?;
            Ok(false)
        }
        result => result.map(|()| true),
    }
}

/// Whether a directory hides the lower layers' content. Reads both marks.
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
