//! The rights of a mounter.
//!
//! It holds them from its order on. Its files are not restricted: the kernel mounts nothing for a thread that Landlock
//! restricts.

use std::io;

use confinement::{CheckedCall, Confinement, OwnCalls, Values, calls};
use rustix::thread::CapabilitySet;

use super::protocol::Order;

/// Mounting, and the names of servers.
#[rustfmt::skip]
const CALLS: &[&str] = &[
    "bind", "connect", "fsconfig", "fsopen", "getsockname", "getsockopt", "mount", "open_tree", "recvfrom", "recvmsg",
    "sendmsg", "sendto", "setsockopt", "umount2", "uname", "unshare",
];

const CHECKED: &[CheckedCall] = &[CheckedCall {
    name: "socket",
    argument: 0,
    values: Values::OneOf(&[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32]),
}];

/// Gives up everything that the order does not need.
pub(super) fn confine(order: &Order) -> io::Result<()> {
    let checked = [calls::CHECKED, CHECKED].concat();
    let calls = OwnCalls { any: &[calls::BASE, calls::FILES, CALLS], checked: &checked };
    Confinement { capabilities: capabilities(order), calls, files: None }.apply()
}

fn capabilities(order: &Order) -> CapabilitySet {
    match order {
        // As long as an overlay is mounted, the kernel works on its directories with the capabilities of the process
        // that mounted it.
        Order::Mount { options, .. } if options.kind == "overlay" => CapabilitySet::all(),
        // A directory on the way to a bind's source may belong to another user.
        _ => CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_READ_SEARCH,
    }
}
