//! System calls that several processes of the driver make. Each process adds its own.
//!
//! The lists name what the code and the C library call, on all architectures. `open` and `stat` stand beside `openat`
//! and `newfstatat` because the C library uses the older ones where they exist.

use seccomp::{CheckedCall, Values};

/// Memory, reading and writing of open files, waiting, signals that arrive, and the end.
#[rustfmt::skip]
pub const BASE: &[&str] = &[
    "brk", "clock_gettime", "clock_nanosleep", "close", "exit", "exit_group", "fcntl", "fstat", "futex", "getpid",
    "getrandom", "gettid", "lseek", "madvise", "mremap", "munmap", "nanosleep", "poll", "ppoll", "read", "readv",
    "restart_syscall", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sched_yield", "sigaltstack", "tgkill",
    "tkill", "write", "writev",
    // A failpoint of a development build kills its process.
    #[cfg(debug_assertions)]
    "kill",
];

/// Opening files and looking at them. Which ones is up to the user and to Landlock.
pub const FILES: &[&str] = &[
    "getdents64",
    "lstat",
    "newfstatat",
    "open",
    "openat",
    "pread64",
    "pwrite64",
    "readlink",
    "readlinkat",
    "stat",
    "statx",
];

/// Writing a file, and moving it to its place.
pub const COMMIT: &[&str] = &["fdatasync", "flock", "fsync", "rename", "renameat", "renameat2", "unlink", "unlinkat"];

/// Other processes: looking for their end, and signals to them.
pub const PROCESSES: &[&str] = &["pidfd_open", "pidfd_send_signal", "wait4", "waitid"];

/// Restricting itself once more, for a process that is started by a restricted one.
pub const CONFINING: &[&str] =
    &["capget", "capset", "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "seccomp"];

/// The operations of prctl(2) that need no right: the name of a thread, giving up rights, and the kernel's description
/// of the process, by which a library finds the fast clock.
const PRCTL: &[u32] = &[
    libc::PR_SET_NAME as u32,
    libc::PR_SET_NO_NEW_PRIVS as u32,
    libc::PR_CAPBSET_DROP as u32,
    // PR_GET_AUXV, for which the C library has no name.
    0x4155_5856,
];

/// No process of the driver maps memory that can be executed.
pub const CHECKED: &[CheckedCall] = &[
    CheckedCall { name: "mmap", argument: 2, values: Values::Without(libc::PROT_EXEC as u32) },
    CheckedCall { name: "prctl", argument: 0, values: Values::OneOf(PRCTL) },
    CheckedCall { name: "mprotect", argument: 2, values: Values::Without(libc::PROT_EXEC as u32) },
];
