//! A terminal out of the container's own devpts.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{FileType, Mode, OFlags, fchown, fcntl_setfl, fstat, fstatfs, major, minor, open},
    process::Uid,
    pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use super::TerminalSize;

/// Both sides of a terminal.
pub(super) struct Terminal {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

/// Makes a terminal for a user. To be called in the container's mount namespace.
///
/// What stands at a path there is the container's to choose, so the device is checked after it was opened, opening waits
/// for nobody, and the slave is asked of the master.
pub(super) fn open_terminal(uid: u32, size: TerminalSize) -> io::Result<Terminal> {
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
    Ok(Terminal { master, slave })
}
