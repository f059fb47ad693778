//! A terminal of the container's own devpts.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{FileType, Mode, OFlags, fchown, fcntl_setfl, fstat, fstatfs, major, minor, open},
    process::Uid,
    pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use super::request::TerminalSize;

/// Both sides of a terminal.
pub(super) struct Pty {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

/// Opens a new terminal for a user. The caller is in the container's mount namespace.
///
/// The container decides which file is at a path there. So opening does not block, the opened device is checked, and
/// the slave side comes from the master side, not from a path.
pub(super) fn open_pty(uid: u32, size: TerminalSize) -> io::Result<Pty> {
    const DEVPTS_SUPER_MAGIC: u64 = 0x1cd1;
    const PTMX: (u32, u32) = (5, 2);
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let master = open("/dev/pts/ptmx", flags, Mode::empty())?;
    let (stat, system) = (fstat(&master)?, fstatfs(&master)?);
    let device = (major(stat.st_rdev), minor(stat.st_rdev));
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    if !is_device || device != PTMX || system.f_type as u64 != DEVPTS_SUPER_MAGIC {
        return Err(io::Error::other("/dev/pts/ptmx of the container is not the terminal multiplexer"));
    }
    fcntl_setfl(&master, OFlags::RDWR)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    fchown(&slave, Some(Uid::from_raw(uid)), None)?;
    let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&slave, size)?;
    Ok(Pty { master, slave })
}
