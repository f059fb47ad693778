//! What a container uses.
//!
//! Kernels differ in the files that they have (no swap accounting, no counter of kernel memory, no peak before 5.19): a
//! file or a line that is missing is "not measured" or zero, never an error.

use std::{fs::File, io, os::unix::fs::FileExt};

use super::{Groups, Mode, field};

/// Use of the processors since the container's group was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// Nanoseconds of all cores together.
    pub total_ns: u64,
    /// Part of it that programs used.
    pub user_ns: u64,
    /// Part of it that the kernel used for them.
    pub system_ns: u64,
    /// Periods in which the container was stopped by its quota.
    pub throttled_periods: u64,
    /// Nanoseconds for which it was stopped.
    pub throttled_ns: u64,
}

/// Use of memory now, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// All that counts towards the limit.
    pub usage: u64,
    /// Memory of processes that no file stands behind.
    pub rss: u64,
    /// Memory that files stand behind.
    pub cache: u64,
    /// Memory that was moved out.
    pub swap: u64,
    /// The highest usage so far.
    pub max_usage: Option<u64>,
    /// The kernel's own memory for the container.
    pub kernel: Option<u64>,
    /// The highest of it so far.
    pub kernel_max: Option<u64>,
}

/// What a container uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Processors.
    pub cpu: CpuStats,
    /// Memory.
    pub memory: MemoryStats,
    /// Measured by control groups of version 2.
    pub cgroup_v2: bool,
    /// How often the kernel killed a process for want of memory.
    pub oom_kills: u64,
    /// Processes and threads.
    pub pids: u64,
}

/// The counters' files of one container, opened once: a reading is one pread(2) for each.
#[derive(Debug)]
pub(crate) struct Counters {
    mode: Mode,
    /// By name, which is the same in no two controllers.
    files: Vec<(&'static str, File)>,
}

const V1_FILES: [(&str, &str); 12] = [
    ("cpuacct", "cpuacct.usage"),
    ("cpuacct", "cpuacct.usage_user"),
    ("cpuacct", "cpuacct.usage_sys"),
    ("cpuacct", "cpuacct.stat"),
    ("cpu", "cpu.stat"),
    ("memory", "memory.stat"),
    ("memory", "memory.usage_in_bytes"),
    ("memory", "memory.max_usage_in_bytes"),
    ("memory", "memory.kmem.usage_in_bytes"),
    ("memory", "memory.kmem.max_usage_in_bytes"),
    ("memory", "memory.oom_control"),
    ("pids", "pids.current"),
];

const V2_FILES: [(&str, &str); 7] = [
    ("cpu", "cpu.stat"),
    ("memory", "memory.stat"),
    ("memory", "memory.current"),
    ("memory", "memory.swap.current"),
    ("memory", "memory.peak"),
    ("memory", "memory.events"),
    ("pids", "pids.current"),
];

impl Counters {
    /// Opens those that are there.
    pub fn open(groups: &Groups) -> Self {
        let names: &[_] = match groups.mode {
            Mode::V1 => &V1_FILES,
            Mode::V2 => &V2_FILES,
        };
        let open = |(controller, name): &(&str, &'static str)| {
            Some((*name, File::open(groups.of(controller)?.join(name)).ok()?))
        };
        Self { mode: groups.mode, files: names.iter().filter_map(open).collect() }
    }

    /// Reads them all.
    pub fn read(&self) -> Stats {
        let file = |_: &str, name: &str| {
            let (_, file) = self.files.iter().find(|(known, _)| *known == name)?;
            whole(file).ok()
        };
        let (cpu, memory, oom) = match self.mode {
            Mode::V1 => (cpu_v1(file), memory_v1(file), file("memory", "memory.oom_control")),
            Mode::V2 => (cpu_v2(file), memory_v2(file), file("memory", "memory.events")),
        };
        Stats {
            cpu,
            memory,
            cgroup_v2: self.mode == Mode::V2,
            oom_kills: oom.and_then(|text| field(&text, "oom_kill")).unwrap_or(0),
            pids: number(file("pids", "pids.current")).unwrap_or(0),
        }
    }
}

/// What a file of the kernel's holds now, from its beginning.
fn whole(file: &File) -> io::Result<String> {
    let mut text = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        match file.read_at(&mut buffer, text.len() as u64)? {
            0 => return String::from_utf8(text).map_err(io::Error::other),
            length => text.extend_from_slice(buffer.get(..length).unwrap_or_default()),
        }
    }
}

fn number(text: Option<String>) -> Option<u64> {
    text?.trim().parse().ok()
}

/// Nanoseconds in one unit of `cpuacct.stat`, which counts in the hundredths of a second of the system's interface.
const TICK_NS: u64 = 10_000_000;
const MICROSECOND_NS: u64 = 1000;

/// Gives the text of a controller's file.
trait Files: Fn(&str, &str) -> Option<String> {}
impl<F: Fn(&str, &str) -> Option<String>> Files for F {}

fn cpu_v1(file: impl Files) -> CpuStats {
    let mut user_ns = number(file("cpuacct", "cpuacct.usage_user")).unwrap_or(0);
    let mut system_ns = number(file("cpuacct", "cpuacct.usage_sys")).unwrap_or(0);
    if user_ns + system_ns == 0 {
        // Kernels that account by ticks keep the split here only.
        let ticks = file("cpuacct", "cpuacct.stat").unwrap_or_default();
        user_ns = field(&ticks, "user").unwrap_or(0) * TICK_NS;
        system_ns = field(&ticks, "system").unwrap_or(0) * TICK_NS;
    }
    let throttling = file("cpu", "cpu.stat").unwrap_or_default();
    CpuStats {
        total_ns: number(file("cpuacct", "cpuacct.usage")).unwrap_or(user_ns + system_ns),
        user_ns,
        system_ns,
        throttled_periods: field(&throttling, "nr_throttled").unwrap_or(0),
        throttled_ns: field(&throttling, "throttled_time").unwrap_or(0),
    }
}

fn cpu_v2(file: impl Files) -> CpuStats {
    let stat = file("cpu", "cpu.stat").unwrap_or_default();
    let nanoseconds = |name: &str| field(&stat, name).unwrap_or(0) * MICROSECOND_NS;
    CpuStats {
        total_ns: nanoseconds("usage_usec"),
        user_ns: nanoseconds("user_usec"),
        system_ns: nanoseconds("system_usec"),
        throttled_periods: field(&stat, "nr_throttled").unwrap_or(0),
        throttled_ns: nanoseconds("throttled_usec"),
    }
}

fn memory_v1(file: impl Files) -> MemoryStats {
    let stat = file("memory", "memory.stat").unwrap_or_default();
    // The totals are those of the groups below as well.
    let with_children = |name: &str| field(&stat, &format!("total_{name}")).or_else(|| field(&stat, name)).unwrap_or(0);
    MemoryStats {
        usage: number(file("memory", "memory.usage_in_bytes")).unwrap_or(0),
        rss: with_children("rss"),
        cache: with_children("cache"),
        swap: with_children("swap"),
        max_usage: number(file("memory", "memory.max_usage_in_bytes")),
        kernel: number(file("memory", "memory.kmem.usage_in_bytes")),
        kernel_max: number(file("memory", "memory.kmem.max_usage_in_bytes")),
    }
}

fn memory_v2(file: impl Files) -> MemoryStats {
    let stat = file("memory", "memory.stat").unwrap_or_default();
    MemoryStats {
        usage: number(file("memory", "memory.current")).unwrap_or(0),
        rss: field(&stat, "anon").unwrap_or(0),
        cache: field(&stat, "file").unwrap_or(0),
        swap: number(file("memory", "memory.swap.current")).unwrap_or(0),
        max_usage: number(file("memory", "memory.peak")),
        kernel: field(&stat, "kernel"),
        kernel_max: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files by controller and name.
    fn files<'a>(all: &'a [(&'a str, &'a str)]) -> impl Files + Copy + 'a {
        move |_: &str, name: &str| all.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
    }

    #[test]
    fn version_1() {
        let all = files(&[
            ("cpuacct.usage", "5000000000\n"),
            ("cpuacct.usage_user", "3000000000\n"),
            ("cpuacct.usage_sys", "2000000000\n"),
            ("cpuacct.stat", "user 1\nsystem 1\n"),
            ("cpu.stat", "nr_periods 10\nnr_throttled 3\nthrottled_time 777\n"),
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.max_usage_in_bytes", "2000\n"),
            ("memory.kmem.usage_in_bytes", "30\n"),
            (
                "memory.stat",
                "cache 1\nrss 2\nrss_huge 9\nswap 3\ntotal_cache 11\ntotal_rss 12\ntotal_rss_huge 9\ntotal_swap 13\n",
            ),
        ]);
        let expected = CpuStats {
            total_ns: 5_000_000_000,
            user_ns: 3_000_000_000,
            system_ns: 2_000_000_000,
            throttled_periods: 3,
            throttled_ns: 777,
        };
        assert_eq!(cpu_v1(all), expected);
        let expected = MemoryStats {
            usage: 1000,
            rss: 12,
            cache: 11,
            swap: 13,
            max_usage: Some(2000),
            kernel: Some(30),
            kernel_max: None,
        };
        assert_eq!(memory_v1(all), expected);
    }

    #[test]
    fn version_1_that_accounts_by_ticks() {
        let all = files(&[
            ("cpuacct.usage", "1000000001\n"),
            ("cpuacct.usage_user", "0\n"),
            ("cpuacct.usage_sys", "0\n"),
            ("cpuacct.stat", "user 70\nsystem 30\n"),
            ("memory.stat", "cache 1\nrss 2\nswap 3\n"),
        ]);
        let cpu = cpu_v1(all);
        assert_eq!((cpu.total_ns, cpu.user_ns, cpu.system_ns), (1_000_000_001, 700_000_000, 300_000_000));
        let memory = memory_v1(all);
        assert_eq!((memory.rss, memory.cache, memory.swap), (2, 1, 3));
    }

    #[test]
    fn version_2() {
        let all = files(&[
            (
                "cpu.stat",
                "usage_usec 50\nuser_usec 30\nsystem_usec 20\nnr_periods 4\nnr_throttled 2\nthrottled_usec 9\n",
            ),
            ("memory.current", "4096\n"),
            ("memory.swap.current", "12\n"),
            ("memory.peak", "8192\n"),
            ("memory.stat", "anon 7\nfile 8\nkernel 9\nkernel_stack 1\n"),
        ]);
        let cpu =
            CpuStats { total_ns: 50_000, user_ns: 30_000, system_ns: 20_000, throttled_periods: 2, throttled_ns: 9000 };
        assert_eq!(cpu_v2(all), cpu);
        let memory = MemoryStats {
            usage: 4096,
            rss: 7,
            cache: 8,
            swap: 12,
            max_usage: Some(8192),
            kernel: Some(9),
            kernel_max: None,
        };
        assert_eq!(memory_v2(all), memory);
    }

    #[test]
    fn what_is_missing_or_unreadable_is_not_measured() {
        for all in [
            files(&[]),
            files(&[("memory.peak", "max\n"), ("memory.current", "-1"), ("cpu.stat", "usage_usec x\nuser_usec\n")]),
        ] {
            assert_eq!((cpu_v1(all), cpu_v2(all)), Default::default());
            assert_eq!((memory_v1(all), memory_v2(all)), Default::default());
        }
        let groups = Groups { mode: Mode::V2, members: Vec::new() };
        assert_eq!(Counters::open(&groups).read(), Stats { cgroup_v2: true, ..Stats::default() });
    }
}
