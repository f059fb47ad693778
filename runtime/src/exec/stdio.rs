//! Descriptors for commands and helpers.

use std::{fs::File, io, os::fd::OwnedFd};

use rustix::{
    fs::{FileType, fchown, fstat},
    process::Uid,
};

/// `/dev/null`, open for reading and writing.
pub(super) fn null() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}

/// Makes the user the owner of a pipe, so that a program of the user can open `/dev/stdout` again. Pipes are made for
/// one command; other files have an owner and keep it.
pub(super) fn give_pipe(pipe: &OwnedFd, uid: u32) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(pipe)?.st_mode) == FileType::Fifo {
        fchown(pipe, Some(Uid::from_raw(uid)), None)?;
    }
    Ok(())
}
