//! Interfaces of the kernel that are not for containers.

use std::{fs, os::fd::AsRawFd};

use super::tools::{c, given, given_number};
use crate::{
    attempt::{Attempt, Refusal, Tried},
    sys::call,
};

const QUOTA_ON: u32 = 0x8000_0200;
const OWN: &str = "it reaches only the caller";

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::new("load a BPF program", || {
        let mut attributes = [0_u8; 128];
        attributes[0] = 1;
        call!(libc::SYS_bpf, 5, &attributes, 128)
    }),
    Attempt::new("make a BPF map", || {
        let mut attributes = [0_u8; 128];
        for (index, value) in [(0, 2), (4, 4), (8, 4), (12, 1)] {
            attributes[index] = value;
        }
        call!(libc::SYS_bpf, 0, &attributes, 128)
    }),
    Attempt::new("observe the kernel (perf_event_open)", || {
        let mut event = [0_u8; 128];
        (event[0], event[4]) = (1, 128);
        call!(libc::SYS_perf_event_open, &event, 0, -1, -1, 0)
    }),
    Attempt::new("observe all processes of a processor (perf_event_open)", || {
        let mut event = [0_u8; 128];
        (event[0], event[4]) = (1, 128);
        call!(libc::SYS_perf_event_open, &event, -1, 0, -1, 0)
    }),
    Attempt::new("delay the kernel's page faults (userfaultfd)", || call!(libc::SYS_userfaultfd, 0)),
    Attempt::new("delay its own page faults (userfaultfd)", || call!(libc::SYS_userfaultfd, 1)),
    Attempt::new("use io_uring", || call!(libc::SYS_io_uring_setup, 1, &[0_u8; 120])),
    Attempt::new("read the session's keys (keyctl)", || call!(libc::SYS_keyctl, 6, -3, &[0_u8; 64], 64)),
    Attempt::new("join another session's keys (keyctl)", || call!(libc::SYS_keyctl, 1, c"_ses.0")),
    Attempt::new("keep a key (add_key)", || call!(libc::SYS_add_key, c"user", c"escape", c"x", 1, -2)),
    Attempt::new("ask for a key (request_key)", || call!(libc::SYS_request_key, c"user", c"escape", 0, 0)),
    Attempt::new("load another kernel (kexec_load)", || call!(libc::SYS_kexec_load, 0, 0, 0, 0xffff)),
    Attempt::new("load another kernel (kexec_file_load)", || call!(libc::SYS_kexec_file_load, -1, -1, 0, 0, 0xffff)),
    Attempt::new("load a module (init_module)", || call!(libc::SYS_init_module, c"", 0, c"")),
    Attempt::new("load a module (finit_module)", || {
        let file = fs::File::open("/etc/passwd")?;
        call!(libc::SYS_finit_module, file.as_raw_fd(), c"", 0)
    }),
    Attempt::new("remove a module (delete_module)", || call!(libc::SYS_delete_module, c"no_such_module", 0)),
    Attempt::new("trace a process of the node (ptrace)", || {
        call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, given_number("ESCAPE_PID"), 0, 0)
    }),
    Attempt::new("signal a process of the node", || call!(libc::SYS_kill, given_number("ESCAPE_PID"), 0)),
    Attempt::new("read memory of a process of the node (process_vm_readv)", || memory(libc::SYS_process_vm_readv)),
    Attempt::new("write memory of a process of the node (process_vm_writev)", || memory(libc::SYS_process_vm_writev)),
    Attempt::new("take a descriptor of another process (pidfd_getfd)", || {
        let process = call!(libc::SYS_pidfd_open, 1, 0)?;
        call!(libc::SYS_pidfd_getfd, process, 0, 0)
    }),
    Attempt::new("compare kernel objects of processes (kcmp)", || call!(libc::SYS_kcmp, 1, 1, 0, 0, 0)),
    Attempt::new("advise on memory of another process (process_madvise)", || {
        let process = call!(libc::SYS_pidfd_open, 1, 0)?;
        call!(libc::SYS_process_madvise, process, &[0_u8; 16], 1, libc::MADV_COLD, 0)
    }),
    Attempt::new("open the root of a disk by its handle (shocker)", || {
        // The handle of inode 2 of a file system like ext4: length, type FILEID_INO32_GEN, inode, generation.
        let mut handle = [0_u8; 136];
        (handle[0], handle[4], handle[8]) = (8, 1, 2);
        let file = fs::File::open("/alloc")?;
        call!(libc::SYS_open_by_handle_at, file.as_raw_fd(), &handle, libc::O_RDONLY)
    }),
    Attempt::new("learn handles of files (name_to_handle_at)", || {
        let mut handle = [0_u8; 136];
        handle[0] = 128;
        call!(libc::SYS_name_to_handle_at, libc::AT_FDCWD, c"/etc/passwd", &handle, &[0_u8; 8], 0)
    })
    .harmless("a handle opens nothing without open_by_handle_at"),
    Attempt::new("open a namespace by its handle", || {
        let mut handle = [0_u8; 136];
        (handle[0], handle[4]) = (16, 0xf1);
        call!(libc::SYS_open_by_handle_at, -10003, &handle, libc::O_RDONLY)
    }),
    Attempt::new("use I/O ports (iopl)", || call!(libc::SYS_iopl, 3)),
    Attempt::new("use I/O ports (ioperm)", || call!(libc::SYS_ioperm, 0x80, 1, 1)),
    Attempt::new("add swap (swapon)", || call!(libc::SYS_swapon, c"/no-such-file", 0)),
    Attempt::new("remove swap (swapoff)", || call!(libc::SYS_swapoff, c"/no-such-file")),
    Attempt::new("restart the node (reboot)", || call!(libc::SYS_reboot, 0, 0, 0, 0)),
    Attempt::new("set the clock (settimeofday)", || call!(libc::SYS_settimeofday, &[0xff_u8; 16], 0)),
    Attempt::new("set the clock (clock_settime)", || call!(libc::SYS_clock_settime, 0, &[0xff_u8; 16])),
    Attempt::new("tune the clock (adjtimex)", || {
        let mut change = [0_u8; 208];
        change[1] = 0x40;
        call!(libc::SYS_adjtimex, &change)
    }),
    Attempt::new("tune the clock (clock_adjtime)", || {
        let mut change = [0_u8; 208];
        change[1] = 0x40;
        call!(libc::SYS_clock_adjtime, 0, &change)
    }),
    Attempt::new("wake the node from sleep (CLOCK_REALTIME_ALARM)", || {
        call!(libc::SYS_timerfd_create, 8, libc::TFD_CLOEXEC)
    }),
    Attempt::new("read the kernel's log (syslog)", || call!(libc::SYS_syslog, 3, &[0_u8; 256], 256)),
    Attempt::new("read the size of the kernel's log (syslog)", || call!(libc::SYS_syslog, 10, 0, 0)),
    Attempt::new("change quotas (quotactl)", || call!(libc::SYS_quotactl, QUOTA_ON, c"/dev/vda", 0, 0)),
    Attempt::new("change quotas (quotactl_fd)", || {
        let file = fs::File::open("/alloc")?;
        call!(libc::SYS_quotactl_fd, file.as_raw_fd(), QUOTA_ON, 0, 0)
    }),
    Attempt::new("account processes (acct)", || call!(libc::SYS_acct, c"/no-such-file")),
    Attempt::new("turn off address randomization (personality)", || call!(libc::SYS_personality, 0x004_0000)),
    Attempt::new("make readable memory executable (personality)", || call!(libc::SYS_personality, 0x040_0000)),
    Attempt::new("map page zero (personality)", || call!(libc::SYS_personality, 0x010_0000)),
    Attempt::new("add a segment to the descriptor table (modify_ldt)", || {
        let mut segment = [0_u8; 16];
        segment[12] = 0x51;
        call!(libc::SYS_modify_ldt, 1, &segment, 16)
    })
    .harmless(OWN),
    Attempt::new("hang up the terminal (vhangup)", || call!(libc::SYS_vhangup)),
    Attempt::new("watch all files (fanotify_init)", || call!(libc::SYS_fanotify_init, 4, libc::O_RDONLY)),
    Attempt::new("watch its own files (fanotify_init)", || call!(libc::SYS_fanotify_init, 0x200, libc::O_RDONLY)),
    Attempt::new("learn names of profiled files (lookup_dcookie)", || {
        call!(libc::SYS_lookup_dcookie, 1, &[0_u8; 64], 64)
    }),
    Attempt::new("list kinds of file systems (sysfs)", || call!(libc::SYS_sysfs, 3)),
    Attempt::new("learn about a mounted disk (ustat)", || call!(libc::SYS_ustat, 0x801, &[0_u8; 32])),
    Attempt::new("load a library (uselib)", || call!(libc::SYS_uselib, c"/etc/passwd")),
    Attempt::new("change kernel parameters (_sysctl)", || call!(libc::SYS__sysctl, &[0_u8; 80])),
    Attempt::new("serve files from the kernel (nfsservctl)", || call!(libc::SYS_nfsservctl, 0, 0, 0)),
    Attempt::new("place memory on a NUMA node (mbind)", || call!(libc::SYS_mbind, 0, 0, 1, 0, 0, 0)),
    Attempt::new("choose a NUMA policy (set_mempolicy)", || call!(libc::SYS_set_mempolicy, 0, 0, 0)),
    Attempt::new("move pages of a process of the node (move_pages)", || {
        call!(libc::SYS_move_pages, given_number("ESCAPE_PID"), 0, 0, 0, 0, 0)
    }),
    Attempt::new("move memory between NUMA nodes (migrate_pages)", || {
        call!(libc::SYS_migrate_pages, 0, 1, &[1_u8, 0, 0, 0, 0, 0, 0, 0], &[1_u8, 0, 0, 0, 0, 0, 0, 0])
    }),
    Attempt::new("get real-time priority (sched_setscheduler)", || {
        call!(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &[1_u8, 0, 0, 0])
    }),
    Attempt::new("get priority over others (setpriority)", || call!(libc::SYS_setpriority, 0, 0, -20)),
    Attempt::new("get priority at disks (ioprio_set)", || call!(libc::SYS_ioprio_set, 1, 0, 1 << 13)),
    Attempt::new("raise a hard limit (prlimit)", || {
        call!(libc::SYS_prlimit64, 0, libc::RLIMIT_MEMLOCK, &[0xff_u8; 16], 0)
    }),
    Attempt::new("add capabilities (capset)", || {
        // Version 3, this process; all capabilities, effective and permitted.
        let header = [0x22_u8, 0x05, 0x08, 0x20, 0, 0, 0, 0];
        let mut sets = [0xff_u8; 24];
        sets[8..12].fill(0);
        sets[20..].fill(0);
        call!(libc::SYS_capset, &header, &sets)
    }),
    Attempt::new("keep capabilities for every program (securebits)", || {
        call!(libc::SYS_prctl, libc::PR_SET_SECUREBITS, 1, 0, 0, 0)
    })
    .harmless("it only changes how the process's own capabilities pass through execve"),
    Attempt::new("get an ambient capability", || call!(libc::SYS_prctl, libc::PR_CAP_AMBIENT, 2, 21, 0, 0)),
    Attempt::new("clear no_new_privs", || call!(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)),
    Attempt::new("name another program as its own (PR_SET_MM)", || {
        let file = fs::File::open("/etc/passwd")?;
        call!(libc::SYS_prctl, libc::PR_SET_MM, 13, file.as_raw_fd(), 0, 0)
    }),
    Attempt::new("remove the filter (seccomp)", || call!(libc::SYS_prctl, libc::PR_SET_SECCOMP, 0, 0, 0, 0)),
    Attempt::new("set a security label (lsm_set_self_attr)", || call!(460, 100, &[0_u8; 64], 64, 0)),
    Attempt::new("make a system call of x32 (mount)", || call!(0x4000_0000 + 165, 0, 0, 0, 0, 0)),
    Attempt::new("make a system call that no kernel has", || call!(1_000_000)),
    Attempt::new("use shared memory of the node (shmget)", || {
        call!(libc::SYS_shmget, given_number("ESCAPE_SHM"), 1, 0)
    }),
    Attempt::new("use a message queue of the node (mq_open)", || {
        call!(libc::SYS_mq_open, &*c(given("ESCAPE_QUEUE")), libc::O_RDONLY, 0, 0)
    }),
    Attempt::new("use POSIX shared memory of the node (/dev/shm)", || -> Tried {
        fs::File::open(format!("/dev/shm/{}", given("ESCAPE_QUEUE")))?;
        Ok(0)
    }),
    Attempt::new("set the attributes of an LSM of process 1", || -> Tried {
        match fs::write("/proc/1/attr/current", "system_u:system_r:init_t:s0") {
            Ok(()) => Ok(0),
            Err(error) => Err(Refusal::from(error)),
        }
    }),
];

/// Copies 8 bytes from or to a process of the node.
fn memory(number: i64) -> Tried {
    let local = [0_u8; 8];
    let mut place = [0_u8; 16];
    place[..8].copy_from_slice(&(local.as_ptr() as u64).to_ne_bytes());
    place[8] = 8;
    call!(number, given_number("ESCAPE_PID"), &place, 1, &place, 1, 0)
}
