//! The default profile: the system calls that a container may make. It has the meaning of docker's default profile.
//!
//! A system call without a name here fails: it gives access to the kernel as a whole, or a way around the isolation of
//! the container. A system call that needs a capability is allowed only for containers that hold the capability.

use std::collections::BTreeMap;

/// Whether a container may make a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    /// It may.
    Allow,
    /// The system call fails with this errno.
    Errno(i32),
    /// It may if at least one rule matches. Otherwise the system call fails with EPERM.
    AllowIf(Vec<ArgumentRule>),
}

/// A condition on the first argument of a system call. The kernel uses only the lower 32 bits of that argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentRule {
    /// It has this value.
    Equals(u32),
    /// It has none of these values.
    NoneOf(&'static [u32]),
    /// None of these bits is set.
    BitsClear(u32),
}

/// Users, groups and rights of the process itself; landlock and seccomp can only take rights away.
#[rustfmt::skip]
const IDENTITY: &[&str] = &[
    "capget", "capset", "getegid", "getegid32", "geteuid", "geteuid32", "getgid", "getgid32", "getgroups",
    "getgroups32", "getresgid", "getresgid32", "getresuid", "getresuid32", "getuid", "getuid32", "landlock_add_rule",
    "landlock_create_ruleset", "landlock_restrict_self", "prctl", "seccomp", "setfsgid", "setfsgid32", "setfsuid",
    "setfsuid32", "setgid", "setgid32", "setgroups", "setgroups32", "setregid", "setregid32", "setresgid",
    "setresgid32", "setresuid", "setresuid32", "setreuid", "setreuid32", "setuid", "setuid32",
];

/// Clocks, timers, sleeping, times of files, and the calls that take 64-bit times on 32-bit machines.
#[rustfmt::skip]
const TIME: &[&str] = &[
    "adjtimex", "alarm", "clock_adjtime", "clock_adjtime64", "clock_getres", "clock_getres_time64", "clock_gettime",
    "clock_gettime64", "clock_nanosleep", "clock_nanosleep_time64", "futex_time64", "futimesat", "getitimer",
    "gettimeofday", "io_pgetevents_time64", "mq_timedreceive_time64", "mq_timedsend_time64", "nanosleep",
    "ppoll_time64", "pselect6_time64", "recvmmsg_time64", "rt_sigtimedwait_time64", "sched_rr_get_interval_time64",
    "semtimedop_time64", "setitimer", "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime",
    "timer_gettime64", "timer_settime", "timer_settime64", "timerfd_create", "timerfd_gettime", "timerfd_gettime64",
    "timerfd_settime", "timerfd_settime64", "times", "utime", "utimensat", "utimensat_time64", "utimes",
];

/// Signals and waiting for children.
#[rustfmt::skip]
const SIGNALS: &[&str] = &[
    "kill", "pause", "pidfd_open", "pidfd_send_signal", "restart_syscall", "rt_sigaction", "rt_sigpending",
    "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo",
    "sigaltstack", "signalfd", "signalfd4", "sigprocmask", "sigreturn", "tgkill", "tkill", "wait4", "waitid",
    "waitpid",
];

/// Memory of the process itself and of processes that it may trace.
#[rustfmt::skip]
const MEMORY: &[&str] = &[
    "brk", "madvise", "map_shadow_stack", "membarrier", "memfd_create", "memfd_secret", "mincore", "mlock", "mlock2",
    "mlockall", "mmap", "mmap2", "modify_ldt", "mprotect", "mremap", "mseal", "msync", "munlock", "munlockall",
    "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect", "process_mrelease", "process_vm_readv",
    "process_vm_writev", "remap_file_pages",
];

/// System V IPC and POSIX message queues.
#[rustfmt::skip]
const IPC: &[&str] = &[
    "ipc", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl",
    "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmdt", "shmget",
];

/// Sockets, except for `socket`. On i386 `socketcall` can create a socket too, and a filter cannot see its arguments.
#[rustfmt::skip]
const SOCKETS: &[&str] = &[
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom",
    "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown", "socketcall", "socketpair",
];

/// Waiting for descriptors, asynchronous I/O, notification.
#[rustfmt::skip]
const EVENTS: &[&str] = &[
    "_newselect", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2",
    "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "fanotify_mark", "futex", "futex_requeue", "futex_wait",
    "futex_waitv", "futex_wake", "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch",
    "io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit", "poll", "ppoll", "pselect6",
    "select",
];

/// Processes, threads, scheduling and limits.
#[rustfmt::skip]
const PROCESSES: &[&str] = &[
    "arch_prctl", "execve", "execveat", "exit", "exit_group", "fork", "get_robust_list", "get_thread_area", "getcpu",
    "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getrandom", "getrlimit", "getrusage", "getsid",
    "gettid", "ioprio_get", "ioprio_set", "prlimit64", "ptrace", "rseq", "sched_get_priority_max",
    "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler",
    "sched_rr_get_interval", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler",
    "sched_yield", "set_robust_list", "set_thread_area", "set_tid_address", "setpgid", "setpriority", "setrlimit",
    "setsid", "sysinfo", "ugetrlimit", "umask", "uname", "uretprobe", "vfork",
];

/// Files, directories, descriptors and extended attributes.
#[rustfmt::skip]
const FILES: &[&str] = &[
    "_llseek", "access", "cachestat", "chdir", "chmod", "chown", "chown32", "close", "close_range",
    "copy_file_range", "creat", "dup", "dup2", "dup3", "faccessat", "faccessat2", "fadvise64", "fadvise64_64",
    "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchown32", "fchownat", "fcntl", "fcntl64",
    "fdatasync", "fgetxattr", "flistxattr", "flock", "fremovexattr", "fsetxattr", "fstat", "fstat64", "fstatat64",
    "fstatfs", "fstatfs64", "fsync", "ftruncate", "ftruncate64", "getcwd", "getdents", "getdents64", "getxattr",
    "getxattrat", "ioctl", "lchown", "lchown32", "lgetxattr", "link", "linkat", "listmount", "listxattr",
    "listxattrat", "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "lstat64", "mkdir", "mkdirat",
    "mknod", "mknodat", "name_to_handle_at", "newfstatat", "open", "openat", "openat2", "pipe", "pipe2", "pread64",
    "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv",
    "removexattr", "removexattrat", "rename", "renameat", "renameat2", "rmdir", "sendfile", "sendfile64", "setxattr",
    "setxattrat", "splice", "stat", "stat64", "statfs", "statfs64", "statmount", "statx", "symlink", "symlinkat",
    "sync", "sync_file_range", "syncfs", "tee", "truncate", "truncate64", "unlink", "unlinkat", "vmsplice", "write",
    "writev",
];

/// System calls that need a capability, by capability.
#[rustfmt::skip]
const WITH_CAPABILITY: &[(&str, &[&str])] = &[
    ("CAP_BPF", &["bpf"]),
    ("CAP_DAC_READ_SEARCH", &["open_by_handle_at"]),
    ("CAP_PERFMON", &["perf_event_open"]),
    ("CAP_SYSLOG", &["syslog"]),
    ("CAP_SYS_ADMIN", &[
        "bpf", "clone", "clone3", "fanotify_init", "fsconfig", "fsmount", "fsopen", "fspick", "lookup_dcookie",
        "lsm_get_self_attr", "lsm_list_modules", "lsm_set_self_attr", "mount", "mount_setattr", "move_mount",
        "open_tree", "perf_event_open", "quotactl", "quotactl_fd", "setdomainname", "sethostname", "setns", "syslog",
        "umount", "umount2", "unshare",
    ]),
    ("CAP_SYS_BOOT", &["reboot"]),
    ("CAP_SYS_CHROOT", &["chroot"]),
    ("CAP_SYS_MODULE", &["delete_module", "finit_module", "init_module"]),
    ("CAP_SYS_NICE", &["get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"]),
    ("CAP_SYS_PACCT", &["acct"]),
    ("CAP_SYS_PTRACE", &["kcmp", "pidfd_getfd", "process_madvise"]),
    ("CAP_SYS_RAWIO", &["ioperm", "iopl"]),
    ("CAP_SYS_TIME", &["clock_settime", "clock_settime64", "settimeofday", "stime"]),
    ("CAP_SYS_TTY_CONFIG", &["vhangup"]),
];

/// The namespaces that clone(2) can create. CLONE_NEWTIME is missing, because only clone3 and unshare support it.
const NEW_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP;

/// Linux and 32-bit Linux, each with and without UNAME26, and the query (0xffffffff). Other flags of personality(2)
/// switch protections off.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// AF_ALG gives access to the kernel's cryptography, which had many vulnerabilities. AF_VSOCK gives access to the
/// hypervisor, because network namespaces do not isolate it.
const REFUSED_FAMILIES: [u32; 2] = [libc::AF_ALG as u32, libc::AF_VSOCK as u32];

/// The permissions of a container with these capabilities, by system call. All other system calls fail with EPERM.
pub fn default_profile(capabilities: &[String]) -> BTreeMap<&'static str, Permission> {
    let holds = |name: &str| capabilities.iter().any(|held| held == name);
    let always = [FILES, MEMORY, PROCESSES, IDENTITY, SIGNALS, EVENTS, TIME, IPC, SOCKETS];
    let mut permissions: BTreeMap<&str, Permission> =
        always.into_iter().flatten().map(|name| (*name, Permission::Allow)).collect();
    permissions.insert("socket", Permission::AllowIf(vec![ArgumentRule::NoneOf(&REFUSED_FAMILIES)]));
    permissions.insert("personality", Permission::AllowIf(PERSONALITIES.map(ArgumentRule::Equals).to_vec()));
    permissions.insert("clone", Permission::AllowIf(vec![ArgumentRule::BitsClear(NEW_NAMESPACES as u32)]));
    // A filter cannot read its flags, because they are in memory. After ENOSYS the C library falls back to clone.
    permissions.insert("clone3", Permission::Errno(libc::ENOSYS));
    for (capability, names) in WITH_CAPABILITY {
        for name in *names {
            if holds(capability) {
                permissions.insert(name, Permission::Allow);
            } else {
                permissions.entry(name).or_insert(Permission::Errno(libc::EPERM));
            }
        }
    }
    permissions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{arch::Arch, syscalls::number};

    #[test]
    fn every_name_is_a_system_call_of_some_architecture() {
        for name in default_profile(&[]).keys() {
            let known = [Arch::X86_64, Arch::I386, Arch::Aarch64].into_iter().any(|arch| number(arch, name).is_some());
            assert!(known, "{name}");
        }
    }

    #[test]
    fn a_capability_allows_its_system_calls_and_no_others() {
        let none = default_profile(&[]);
        let boot = default_profile(&["CAP_SYS_BOOT".to_owned()]);
        let changed: Vec<_> = none.iter().filter(|(name, permission)| boot[*name] != **permission).collect();
        assert_eq!(changed, [(&"reboot", &Permission::Errno(libc::EPERM))]);
    }
}
