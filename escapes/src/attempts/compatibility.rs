//! The same by system calls of i386, which have their own numbers and, for sockets, arguments in memory.

use crate::{
    attempt::{Attempt, Tried},
    sys::{call32, low},
};

const IN_MEMORY: &str = "a filter does not see arguments in memory; refusing all of socketcall breaks 32-bit programs";
const NO_REQUESTS: &str = "the kernel refuses each request of a process without CAP_AUDIT_CONTROL";

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::new("mount (i386)", || call32(21, [0, 0, 0, 0, 0])),
    Attempt::new("unmount (i386)", || call32(52, [low(b"/proc/sys\0")?, 2, 0, 0, 0])),
    Attempt::new("make a user namespace (i386)", || call32(310, [libc::CLONE_NEWUSER as u32, 0, 0, 0, 0])),
    Attempt::new("make a mount namespace (i386)", || call32(310, [libc::CLONE_NEWNS as u32, 0, 0, 0, 0])),
    Attempt::new("join a namespace (i386)", || call32(346, [0, 0, 0, 0, 0])),
    Attempt::new("exchange the root (i386)", || call32(217, [low(b"/tmp\0")?, low(b"/tmp\0")?, 0, 0, 0])),
    Attempt::new("load a module (i386)", || call32(128, [0, 0, 0, 0, 0])),
    Attempt::new("restart the node (i386)", || call32(88, [0, 0, 0, 0, 0])),
    Attempt::new("set the clock (stime of i386)", || call32(25, [0, 0, 0, 0, 0])),
    Attempt::new("set the clock (i386)", || call32(79, [low(&[0xff; 8])?, 0, 0, 0, 0])),
    Attempt::new("load a BPF program (i386)", || call32(357, [5, low(&[1; 64])?, 64, 0, 0])),
    Attempt::new("observe the kernel (i386)", || call32(336, [low(&[0; 128])?, 0, u32::MAX, u32::MAX, 0])),
    Attempt::new("use io_uring (i386)", || call32(425, [1, low(&[0; 120])?, 0, 0, 0])),
    Attempt::new("delay page faults (i386)", || call32(374, [0, 0, 0, 0, 0])),
    Attempt::new("keep a key (i386)", || call32(286, [low(b"user\0")?, low(b"e\0")?, low(b"x")?, 1, -2_i32 as u32])),
    Attempt::new("open by handle (i386)", || call32(342, [-10003_i32 as u32, low(&[0; 136])?, 0, 0, 0])),
    Attempt::new("use I/O ports (i386)", || call32(110, [3, 0, 0, 0, 0])),
    Attempt::new("run virtual 8086 code (vm86)", || call32(166, [0, 0, 0, 0, 0])),
    Attempt::new("run virtual 8086 code (vm86old)", || call32(113, [0, 0, 0, 0, 0])),
    Attempt::new("turn off address randomization (i386)", || call32(136, [0x004_0000, 0, 0, 0, 0])),
    Attempt::new("socket to the hypervisor (AF_VSOCK, i386)", || socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    Attempt::new("socket to the kernel's cryptography (AF_ALG, i386)", || {
        socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)
    }),
    Attempt::new("socketcall to the hypervisor (AF_VSOCK)", || socketcall(libc::AF_VSOCK, libc::SOCK_STREAM, 0))
        .harmless(IN_MEMORY),
    Attempt::new("socketcall to the kernel's cryptography (AF_ALG)", || {
        socketcall(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)
    })
    .harmless(IN_MEMORY),
    Attempt::new("socketcall for packets (AF_PACKET)", || socketcall(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    Attempt::new("socketcall for raw IP (SOCK_RAW)", || socketcall(libc::AF_INET, libc::SOCK_RAW, 1)),
    Attempt::new("socketcall to the audit of the kernel (NETLINK_AUDIT)", || {
        socketcall(libc::AF_NETLINK, libc::SOCK_RAW, 9)
    })
    .harmless(NO_REQUESTS),
];

fn socket(family: i32, kind: i32, protocol: u32) -> Tried {
    call32(359, [family as u32, kind as u32, protocol, 0, 0])
}

/// `socket` as it was called before Linux 4.3.
fn socketcall(family: i32, kind: i32, protocol: u32) -> Tried {
    let arguments = [family as u32, kind as u32, protocol].map(u32::to_ne_bytes).concat();
    call32(102, [1, low(&arguments)?, 0, 0, 0])
}
