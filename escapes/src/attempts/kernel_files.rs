//! Files of the kernel: `/proc`, `/sys` and cgroups.

use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use super::tools::{any, each, given, listed, nodes_file_below, processes, readable, writable};
use crate::attempt::{Attempt, Refusal, Tried};

const COUNTS: &str = "root of the node may read these numbers, as with docker; a user namespace refuses it";

/// The attempts of this area.
pub const ALL: &[Attempt] = &[
    Attempt::new("write to /proc/sysrq-trigger", || writable("/proc/sysrq-trigger")),
    Attempt::new("write to kernel/core_pattern", || writable("/proc/sys/kernel/core_pattern")),
    Attempt::new("write to kernel/modprobe", || writable("/proc/sys/kernel/modprobe")),
    Attempt::new("write to kernel/usermodehelper/bset", || writable("/proc/sys/kernel/usermodehelper/bset")),
    Attempt::new("write to kernel/panic", || writable("/proc/sys/kernel/panic")),
    Attempt::new("write to kernel/randomize_va_space", || writable("/proc/sys/kernel/randomize_va_space")),
    Attempt::new("write to kernel/unprivileged_bpf_disabled", || {
        writable("/proc/sys/kernel/unprivileged_bpf_disabled")
    }),
    Attempt::new("write to kernel/perf_event_paranoid", || writable("/proc/sys/kernel/perf_event_paranoid")),
    Attempt::new("write to kernel/kptr_restrict", || writable("/proc/sys/kernel/kptr_restrict")),
    Attempt::new("write to kernel/pid_max", || writable("/proc/sys/kernel/pid_max")),
    Attempt::new("write to kernel/ns_last_pid", || writable("/proc/sys/kernel/ns_last_pid")),
    Attempt::new("write to kernel/shmmax", || writable("/proc/sys/kernel/shmmax")),
    Attempt::new("write to kernel/hostname", || writable("/proc/sys/kernel/hostname")),
    Attempt::new("write to kernel/keys/maxkeys", || writable("/proc/sys/kernel/keys/maxkeys")),
    Attempt::new("write to vm/overcommit_memory", || writable("/proc/sys/vm/overcommit_memory")),
    Attempt::new("write to vm/drop_caches", || writable("/proc/sys/vm/drop_caches")),
    Attempt::new("write to vm/mmap_min_addr", || writable("/proc/sys/vm/mmap_min_addr")),
    Attempt::new("write to fs/protected_symlinks", || writable("/proc/sys/fs/protected_symlinks")),
    Attempt::new("write to fs/suid_dumpable", || writable("/proc/sys/fs/suid_dumpable")),
    Attempt::new("write to fs/binfmt_misc/register", || writable("/proc/sys/fs/binfmt_misc/register")),
    Attempt::new("write to user/max_user_namespaces", || writable("/proc/sys/user/max_user_namespaces")),
    Attempt::new("write to net/ipv4/ip_forward", || writable("/proc/sys/net/ipv4/ip_forward")),
    Attempt::new("write to net/core/bpf_jit_enable", || writable("/proc/sys/net/core/bpf_jit_enable")),
    Attempt::new("write to /proc/irq/default_smp_affinity", || writable("/proc/irq/default_smp_affinity")),
    Attempt::new("write to a device by /proc/bus/pci", || {
        any(each("/proc/bus/pci", "").into_iter().flat_map(|bus| each(&bus.to_string_lossy(), "")), |path| {
            writable(path)
        })
    }),
    Attempt::new("write to /proc/mtrr", || writable("/proc/mtrr")),
    Attempt::new("write to /proc/fs", || any(walk("/proc/fs", 3), |path| writable(path))),
    Attempt::new("read the kernel's memory (kcore)", || readable("/proc/kcore")),
    Attempt::new("read addresses of the kernel (kallsyms)", || addresses("/proc/kallsyms")),
    Attempt::new("read physical addresses (iomem)", || addresses("/proc/iomem")),
    Attempt::new("read allocations of the kernel (vmallocinfo)", || readable("/proc/vmallocinfo")).harmless(COUNTS),
    Attempt::new("read caches of the kernel (slabinfo)", || readable("/proc/slabinfo")).harmless(COUNTS),
    Attempt::new("read keys (keys)", || readable("/proc/keys")),
    Attempt::new("read timers of all processes (timer_list)", || readable("/proc/timer_list")),
    Attempt::new("read the scheduler's processes (sched_debug)", || readable("/proc/sched_debug")),
    Attempt::new("read latencies (latency_stats)", || readable("/proc/latency_stats")),
    Attempt::new("read the kernel's log (kmsg)", || readable("/proc/kmsg")),
    Attempt::new("read owners of physical pages (kpagecgroup)", || readable("/proc/kpagecgroup")).harmless(COUNTS),
    Attempt::new("read flags of physical pages (kpageflags)", || readable("/proc/kpageflags")).harmless(COUNTS),
    Attempt::new("read physical addresses of its own pages (pagemap)", || {
        let mut numbers = fs::File::open("/proc/self/pagemap")?;
        let mut entry = [0; 8];
        let page = entry.as_ptr() as u64 / 4096;
        numbers.seek(SeekFrom::Start(page * 8))?;
        numbers.read_exact(&mut entry)?;
        match u64::from_ne_bytes(entry) & ((1 << 55) - 1) {
            0 => Err(Refusal::Nothing("no number")),
            _ => Ok(0),
        }
    }),
    Attempt::new("read tables of ACPI (/proc/acpi)", || listed("/proc/acpi")),
    Attempt::new("read SCSI devices (/proc/scsi)", || readable("/proc/scsi/scsi")),
    Attempt::new("read tables of the firmware (/sys/firmware)", || listed("/sys/firmware")),
    Attempt::new("read power of the processor (powercap)", || listed("/sys/devices/virtual/powercap")),
    Attempt::new("use debugfs (/sys/kernel/debug)", || listed("/sys/kernel/debug")),
    Attempt::new("use tracefs (/sys/kernel/tracing)", || listed("/sys/kernel/tracing")),
    Attempt::new("use securityfs (/sys/kernel/security)", || listed("/sys/kernel/security")),
    Attempt::new("use programs of others (/sys/fs/bpf)", || listed("/sys/fs/bpf")),
    Attempt::new("use pstore (/sys/fs/pstore)", || listed("/sys/fs/pstore")),
    Attempt::new("write to /sys/kernel/uevent_helper", || writable("/sys/kernel/uevent_helper")),
    Attempt::new("write to /sys/kernel/mm/ksm/run", || writable("/sys/kernel/mm/ksm/run")),
    Attempt::new("write to the number of huge pages", || {
        any(each("/sys/kernel/mm/hugepages", "nr_hugepages"), |path| writable(path))
    }),
    Attempt::new("write to /sys/power/state", || writable("/sys/power/state")),
    Attempt::new("write to parameters of modules", || {
        any(each("/sys/module", "parameters").into_iter().flat_map(|path| each(&path.to_string_lossy(), "")), |path| {
            writable(path)
        })
    }),
    Attempt::new("send an event of a device (uevent)", || any(each("/sys/class/net", "uevent"), |path| writable(path))),
    Attempt::new("unbind a driver", || {
        let drivers = each("/sys/bus", "drivers").into_iter().flat_map(|path| each(&path.to_string_lossy(), "unbind"));
        any(drivers, |path| writable(path))
    }),
    Attempt::new("write to a disk's queue", || any(each("/sys/block", "queue/scheduler"), |path| writable(path))),
    Attempt::new("take a processor off", || writable("/sys/devices/system/cpu/cpu1/online")),
    Attempt::new("set a cgroup's release_agent", || cgroup("release_agent")),
    Attempt::new("set a cgroup's notify_on_release", || cgroup("notify_on_release")),
    Attempt::new("move processes between cgroups", || cgroup("cgroup.procs")),
    Attempt::new("raise its memory limit", || {
        any(["memory/memory.limit_in_bytes", "memory.max"].map(below_cgroups), |path| writable(path))
    }),
    Attempt::new("raise its limit of processes", || {
        any(["pids/pids.max", "pids.max"].map(below_cgroups), |path| writable(path))
    }),
    Attempt::new("make a cgroup", || {
        let parents = each("/sys/fs/cgroup", "");
        any(parents.into_iter().map(|path| path.join("escape")), |path| {
            fs::create_dir(path)?;
            fs::remove_dir(path)?;
            Ok(0)
        })
    }),
    Attempt::new("see cgroups of other tasks", || {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let paths = own.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let outside = paths.filter(|path| *path != "/" && path.starts_with("/.."));
        if outside.count() > 0 { Ok(0) } else { Err(Refusal::Nothing("none")) }
    }),
    Attempt::new("escape the killer of memory (oom_score_adj)", || written("/proc/self/oom_score_adj", b"-1000")),
    Attempt::new("change the audit identity (loginuid)", || written("/proc/self/loginuid", b"0"))
        .harmless("the kernel lets a process set its own identity once, if the agent has none"),
    Attempt::new("choose a security label for programs (attr/exec)", || {
        written("/proc/self/attr/exec", b"system_u:system_r:init_t:s0")
    }),
    Attempt::new("choose its security label (attr/current)", || {
        written("/proc/self/attr/current", b"system_u:system_r:init_t:s0")
    }),
    Attempt::new("write to memory of process 1 (mem)", || writable("/proc/1/mem"))
        .harmless("process 1 is the task's own"),
    Attempt::new("read the node's files by /proc/1/root", || nodes_file_below("/proc/1/root")),
    Attempt::new("read the node's files by /proc/self/root/..", || nodes_file_below("/proc/self/root/../..")),
    Attempt::new("read the node's files by /proc/1/cwd", || nodes_file_below("/proc/1/cwd/../../../..")),
    Attempt::new("read the node's files by any process's root", || {
        any(processes().into_iter().map(|path| path.join("root")), |root| nodes_file_below(&root.to_string_lossy()))
    }),
    Attempt::new("read the node's files by any process's descriptor", || {
        let descriptors = processes().into_iter().flat_map(|path| each(&path.join("fd").to_string_lossy(), ""));
        any(descriptors, |path| nodes_file_below(&format!("{}/{}", path.display(), "../".repeat(20))))
    }),
    Attempt::new("hold a descriptor of the node (CVE-2024-21626)", || match super::tools::leaked() {
        0 => Err(Refusal::Nothing("none")),
        count => Ok(count as i64),
    }),
    Attempt::new("see the node's process by its number", || {
        fs::metadata(format!("/proc/{}", given("ESCAPE_PID")))?;
        Ok(0)
    }),
    Attempt::new("see paths of the node in its own mount table", || {
        let text = fs::read_to_string("/proc/self/mountinfo")?;
        let directory = given("ESCAPE_AGENT");
        if text.contains(&directory) { Ok(0) } else { Err(Refusal::Nothing("none")) }
    })
    .harmless("the kernel shows the sources of binds; a path alone gives no access"),
];

fn below_cgroups(name: &str) -> PathBuf {
    Path::new("/sys/fs/cgroup").join(name)
}

/// Opens a file of the container's own cgroups for writing.
fn cgroup(file: &str) -> Tried {
    any(each("/sys/fs/cgroup", file).into_iter().chain([below_cgroups(file)]), |path| writable(path))
}

fn written(path: &str, text: &[u8]) -> Tried {
    fs::OpenOptions::new().write(true).open(path)?.write_all(text)?;
    Ok(0)
}

/// A file whose lines begin with addresses: hidden ones are zero.
fn addresses(path: &str) -> Tried {
    let text = fs::read_to_string(path)?;
    let known = |line: &str| line.trim_start().chars().take_while(char::is_ascii_hexdigit).any(|digit| digit != '0');
    if text.lines().any(known) { Ok(0) } else { Err(Refusal::Nothing("zeros")) }
}

/// Regular files below a directory.
fn walk(directory: &str, depth: usize) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in each(directory, "") {
        if path.is_dir() && depth > 0 {
            files.extend(walk(&path.to_string_lossy(), depth - 1));
        } else if path.is_file() {
            files.push(path);
        }
    }
    files
}
