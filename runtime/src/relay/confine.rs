//! The rights of a log relay after it has opened its FIFOs and has connected for the first time.
//!
//! It must be able to connect again: it resolves names, reads certificates, and reaches every server and socket. It
//! writes to the FIFOs, which are open, and to the task's directory.

use std::{io, path::Path};

use confinement::{Access, CheckedCall, Confinement, Files, OwnCalls, Place, Values, calls};
use log_drivers::Destination;
use rustix::thread::CapabilitySet;

use crate::state::TaskDir;

/// The system calls of a relay, besides those that all processes of the driver make.
#[rustfmt::skip]
pub(crate) const CALLS: &[&str] = &[
    "bind", "clone", "connect", "dup2", "dup3", "eventfd2", "getpeername", "getsockname", "getsockopt", "memfd_create",
    "recvfrom", "recvmsg", "sendmsg", "sendto", "set_robust_list", "setsockopt", "shutdown", "uname",
];

/// The families of its sockets, and the number of waiting bytes.
pub(crate) const CHECKED: &[CheckedCall] = &[
    CheckedCall {
        name: "socket",
        argument: 0,
        values: Values::OneOf(&[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32]),
    },
    CheckedCall { name: "ioctl", argument: 1, values: Values::OneOf(&[libc::FIONREAD as u32, libc::FIONBIO as u32]) },
];

/// Gives up everything that the relay does not need from now on. It has one thread.
pub(super) fn confine(task: &TaskDir, destination: &Destination) -> io::Result<()> {
    // The socket of a log server and the key of a certificate may belong to another user than root.
    let capabilities = match destination.uses_files() {
        true => CapabilitySet::DAC_OVERRIDE,
        false => CapabilitySet::empty(),
    };
    let places = vec![(Place::Path(task.path()), Access::Write), (Place::Path(Path::new("/")), Access::Read)];
    let any = [calls::BASE, calls::FILES, calls::COMMIT, CALLS];
    let checked = [calls::CHECKED, CHECKED].concat();
    let files = Files { places, tcp: true, signals: false };
    Confinement { capabilities, calls: OwnCalls { any: &any, checked: &checked }, files: Some(files) }.apply()
}
