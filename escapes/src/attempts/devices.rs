//! Devices of the node.

use std::{
    fs,
    os::{fd::AsRawFd, unix::fs::FileTypeExt},
};

use super::tools::{block, character, each, readable, writable};
use crate::{
    attempt::{Attempt, Refusal},
    sys::call,
};

/// Entries of `/dev` that a container has.
const USUAL: &[&str] = &[
    "console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout",
    "tty", "urandom", "zero",
];

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::new("make and open the physical memory (mem)", || character(1, 1)),
    Attempt::new("make and open the kernel's memory (kmem)", || character(1, 2)),
    Attempt::new("make and open the I/O ports (port)", || character(1, 4)),
    Attempt::new("make and open the kernel's log (kmsg)", || character(1, 11)),
    Attempt::new("make and open a RAM disk (ram0)", || block(1, 0)),
    Attempt::new("make and open a loop device (loop0)", || block(7, 0)),
    Attempt::new("make and open the control of loop devices", || character(10, 237)),
    Attempt::new("make and open a SCSI disk (sda)", || block(8, 0)),
    Attempt::new("make and open an NVMe disk (nvme0n1)", || block(259, 0)),
    Attempt::new("make and open a virtio disk (vda)", || block(254, 0)),
    Attempt::new("make and open the device mapper", || character(10, 236)),
    Attempt::new("make and open fuse", || character(10, 229)),
    Attempt::new("make and open cuse", || character(10, 203)),
    Attempt::new("make and open the tunnel device (tun)", || character(10, 200)),
    Attempt::new("make and open the virtual machine monitor (kvm)", || character(10, 232)),
    Attempt::new("make and open vhost-net", || character(10, 238)),
    Attempt::new("make and open vhost-vsock", || character(10, 241)),
    Attempt::new("make and open vfio", || character(10, 196)),
    Attempt::new("make and open userfaultfd", || character(10, 126)),
    Attempt::new("make and open the random generator's hardware (hwrng)", || character(10, 183)),
    Attempt::new("make and open the memory of the firmware (nvram)", || character(10, 144)),
    Attempt::new("make and open an input device (uinput)", || character(10, 223)),
    Attempt::new("make and open the first terminal (tty1)", || character(4, 1)),
    Attempt::new("make and open a serial line (ttyS0)", || character(4, 64)),
    Attempt::new("make and open the screen's memory (vcs)", || character(7, 0)),
    Attempt::new("make and open the node's console", || character(5, 1)),
    Attempt::new("make and open the clock (rtc0)", || character(252, 0)),
    Attempt::new("find another device in /dev", || {
        let entries = fs::read_dir("/dev")?.flatten();
        let unusual = |entry: &fs::DirEntry| {
            let device = |kind: fs::FileType| kind.is_block_device() || kind.is_char_device();
            !USUAL.contains(&&*entry.file_name().to_string_lossy()) && entry.file_type().is_ok_and(device)
        };
        if entries.into_iter().any(|entry| unusual(&entry)) { Ok(0) } else { Err(Refusal::Nothing("no device")) }
    }),
    Attempt::new("read the kernel's memory by /dev/core", || readable("/dev/core")),
    Attempt::new("write to the kernel's log by /dev/kmsg", || writable("/dev/kmsg")),
    Attempt::new("open the controlling terminal of the agent (tty)", || readable("/dev/tty")),
    Attempt::new("type into the terminal of process 1 (TIOCSTI)", || {
        let terminal = fs::File::open("/proc/1/fd/0")?;
        call!(libc::SYS_ioctl, terminal.as_raw_fd(), libc::TIOCSTI, c" ")
    }),
    Attempt::new("paste into the console (TIOCLINUX)", || {
        let terminal = fs::File::open("/proc/1/fd/0")?;
        call!(libc::SYS_ioctl, terminal.as_raw_fd(), libc::TIOCLINUX, &[12_u8])
    }),
    Attempt::new("take over a terminal (TIOCSCTTY)", || {
        call!(libc::SYS_setsid)?;
        let terminal = fs::File::open("/proc/1/fd/0")?;
        call!(libc::SYS_ioctl, terminal.as_raw_fd(), libc::TIOCSCTTY, 1)
    }),
    Attempt::new("see the terminals of other containers", || {
        // The first one is the container's own.
        let terminals = each("/dev/pts", "").into_iter().filter(|path| !path.ends_with("ptmx"));
        if terminals.count() > 1 { Ok(0) } else { Err(Refusal::Nothing("none")) }
    }),
    Attempt::new("permit all devices (devices.allow)", || {
        super::tools::any(
            ["/sys/fs/cgroup/devices/devices.allow", "/sys/fs/cgroup/devices.allow"].map(Into::into),
            |path| writable(path),
        )
    }),
];
