//! The resource usage of a container.
//!
//! Kernels differ in their files: some have no swap accounting, no counter of kernel memory, or no peak (before 5.19).
//! A missing file or line means "not measured" or zero, never an error.

use std::{fs::File, io, os::unix::fs::FileExt};

use super::{container::Cgroups, flat_keyed::field, version::Version};

/// CPU usage since the container's cgroup was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// Nanoseconds on all cores together.
    pub total_ns: u64,
    /// The part in user mode.
    pub user_ns: u64,
    /// The part in kernel mode.
    pub system_ns: u64,
    /// The number of periods in which the quota throttled the container.
    pub throttled_periods: u64,
    /// Nanoseconds for which the quota throttled the container.
    pub throttled_ns: u64,
}

/// Current memory usage, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// All memory that counts towards the limit.
    pub usage: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// The page cache.
    pub cache: u64,
    /// Memory in swap.
    pub swap: u64,
    /// The highest usage so far.
    pub max_usage: Option<u64>,
    /// Kernel memory that is charged to the container.
    pub kernel: Option<u64>,
    /// The highest usage of kernel memory so far.
    pub kernel_max: Option<u64>,
    /// The hard limit; `None` if there is none.
    pub limit: Option<u64>,
}

/// The resource usage of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// CPU usage.
    pub cpu: CpuStats,
    /// Memory usage.
    pub memory: MemoryStats,
    /// Whether it was measured on cgroup v2.
    pub cgroup_v2: bool,
    /// The number of processes that the OOM killer killed.
    pub oom_kills: u64,
    /// The number of processes and threads.
    pub pids: u64,
}

/// The open files with the counters of one container. Reading all of them takes one pread(2) per file.
#[derive(Debug)]
pub(crate) struct Counters {
    version: Version,
    /// Files by their names, which are unique over all controllers.
    files: Vec<(&'static str, File)>,
}

/// Controllers and files of cgroup v1.
const V1_FILES: [(&str, &str); 10] = [
    ("cpuacct", "cpuacct.usage"),
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

/// Controllers and files of cgroup v2.
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
    /// Opens the files that exist.
    pub fn open(cgroups: &Cgroups) -> Self {
        let names: &[_] = match cgroups.version {
            Version::V1 => &V1_FILES,
            Version::V2 => &V2_FILES,
        };
        let open = |(controller, name): &(&str, &'static str)| {
            Some((*name, File::open(cgroups.path_of(controller)?.join(name)).ok()?))
        };
        Self { version: cgroups.version, files: names.iter().filter_map(open).collect() }
    }

    /// Reads all files.
    pub fn read(&self) -> Stats {
        stats_of(self.version, &|_: &str, name: &str| self.text(name))
    }

    /// The current content of one of the files.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let (_, file) = self.files.iter().find(|(known, _)| *known == name)?;
        read_whole(file).ok()
    }
}

/// The usage that these files tell.
pub(super) fn stats_of(version: Version, file: &impl Files) -> Stats {
    let (cpu, memory, oom) = match version {
        Version::V1 => (cpu_v1(file), memory_v1(file), file("memory", "memory.oom_control")),
        Version::V2 => (cpu_v2(file), memory_v2(file), file("memory", "memory.events")),
    };
    Stats {
        cpu,
        memory,
        cgroup_v2: version == Version::V2,
        oom_kills: oom.and_then(|text| field(&text, "oom_kill")).unwrap_or(0),
        pids: number(file("pids", "pids.current")).unwrap_or(0),
    }
}

/// The current content of a kernel file, from its beginning. The kernel makes the text of such a file at once, so a
/// read that does not fill the buffer has reached the end.
pub(super) fn read_whole(file: &File) -> io::Result<String> {
    let mut text = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let length = file.read_at(&mut buffer, text.len() as u64)?;
        text.extend_from_slice(buffer.get(..length).unwrap_or_default());
        if length < buffer.len() {
            return String::from_utf8(text).map_err(io::Error::other);
        }
    }
}

fn number(text: Option<String>) -> Option<u64> {
    text?.trim().parse().ok()
}

/// Nanoseconds in one tick of `cpuacct.stat`. A tick is 1/100 s in every interface to user space (USER_HZ).
const TICK_NS: u64 = 10_000_000;
const MICROSECOND_NS: u64 = 1000;

/// A function from a controller and a file name to the text of the file.
pub(super) trait Files: Fn(&str, &str) -> Option<String> {}
impl<F: Fn(&str, &str) -> Option<String>> Files for F {}

/// The whole time is exact. The split is in ticks: since Linux 5.17 scaled to the whole time, before only sampled.
/// `cpuacct.usage_user` and `cpuacct.usage_sys` are sampled on every kernel, and their sum can be half or twice the
/// whole time of a task that runs for short moments.
fn cpu_v1(file: &impl Files) -> CpuStats {
    let ticks = file("cpuacct", "cpuacct.stat").unwrap_or_default();
    let user_ns = field(&ticks, "user").unwrap_or(0) * TICK_NS;
    let system_ns = field(&ticks, "system").unwrap_or(0) * TICK_NS;
    let throttling = file("cpu", "cpu.stat").unwrap_or_default();
    CpuStats {
        total_ns: number(file("cpuacct", "cpuacct.usage")).unwrap_or(user_ns + system_ns),
        user_ns,
        system_ns,
        throttled_periods: field(&throttling, "nr_throttled").unwrap_or(0),
        throttled_ns: field(&throttling, "throttled_time").unwrap_or(0),
    }
}

fn cpu_v2(file: &impl Files) -> CpuStats {
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

fn memory_v1(file: &impl Files) -> MemoryStats {
    let stat = file("memory", "memory.stat").unwrap_or_default();
    // The values with the prefix `total_` include the cgroups below.
    let with_children = |name: &str| field(&stat, &format!("total_{name}")).or_else(|| field(&stat, name)).unwrap_or(0);
    MemoryStats {
        usage: number(file("memory", "memory.usage_in_bytes")).unwrap_or(0),
        rss: with_children("rss"),
        cache: with_children("cache"),
        swap: with_children("swap"),
        max_usage: number(file("memory", "memory.max_usage_in_bytes")),
        kernel: number(file("memory", "memory.kmem.usage_in_bytes")),
        kernel_max: number(file("memory", "memory.kmem.max_usage_in_bytes")),
        // Without a limit, the kernel shows the largest number of whole pages.
        limit: field(&stat, "hierarchical_memory_limit").filter(|limit| *limit < u64::MAX >> 2),
    }
}

fn memory_v2(file: &impl Files) -> MemoryStats {
    let stat = file("memory", "memory.stat").unwrap_or_default();
    MemoryStats {
        usage: number(file("memory", "memory.current")).unwrap_or(0),
        rss: field(&stat, "anon").unwrap_or(0),
        cache: field(&stat, "file").unwrap_or(0),
        swap: number(file("memory", "memory.swap.current")).unwrap_or(0),
        max_usage: number(file("memory", "memory.peak")),
        kernel: field(&stat, "kernel"),
        kernel_max: None,
        limit: number(file("memory", "memory.max")),
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
    fn v1_files_are_parsed() {
        let all = files(&[
            ("cpuacct.usage", "5000000001\n"),
            ("cpuacct.stat", "user 300\nsystem 200\n"),
            ("cpu.stat", "nr_periods 10\nnr_throttled 3\nthrottled_time 777\n"),
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.max_usage_in_bytes", "2000\n"),
            ("memory.kmem.usage_in_bytes", "30\n"),
            (
                "memory.stat",
                "cache 1\nrss 2\nrss_huge 9\nswap 3\nhierarchical_memory_limit 4096\n\
                 total_cache 11\ntotal_rss 12\ntotal_rss_huge 9\ntotal_swap 13\n",
            ),
        ]);
        let expected = CpuStats {
            total_ns: 5_000_000_001,
            user_ns: 3_000_000_000,
            system_ns: 2_000_000_000,
            throttled_periods: 3,
            throttled_ns: 777,
        };
        assert_eq!(cpu_v1(&all), expected);
        let expected = MemoryStats {
            usage: 1000,
            rss: 12,
            cache: 11,
            swap: 13,
            max_usage: Some(2000),
            kernel: Some(30),
            kernel_max: None,
            limit: Some(4096),
        };
        assert_eq!(memory_v1(&all), expected);
    }

    #[test]
    fn v1_files_without_totals_are_parsed() {
        let memory = memory_v1(&files(&[("memory.stat", "cache 1\nrss 2\nswap 3\n")]));
        assert_eq!((memory.rss, memory.cache, memory.swap), (2, 1, 3));
    }

    #[test]
    fn v2_files_are_parsed() {
        let all = files(&[
            (
                "cpu.stat",
                "usage_usec 50\nuser_usec 30\nsystem_usec 20\nnr_periods 4\nnr_throttled 2\nthrottled_usec 9\n",
            ),
            ("memory.current", "4096\n"),
            ("memory.swap.current", "12\n"),
            ("memory.peak", "8192\n"),
            ("memory.max", "1048576\n"),
            ("memory.stat", "anon 7\nfile 8\nkernel 9\nkernel_stack 1\n"),
        ]);
        let cpu =
            CpuStats { total_ns: 50_000, user_ns: 30_000, system_ns: 20_000, throttled_periods: 2, throttled_ns: 9000 };
        assert_eq!(cpu_v2(&all), cpu);
        let memory = MemoryStats {
            usage: 4096,
            rss: 7,
            cache: 8,
            swap: 12,
            max_usage: Some(8192),
            kernel: Some(9),
            kernel_max: None,
            limit: Some(1 << 20),
        };
        assert_eq!(memory_v2(&all), memory);
    }

    #[test]
    fn missing_and_invalid_values_are_not_measured() {
        for all in [
            files(&[]),
            files(&[("memory.peak", "max\n"), ("memory.current", "-1"), ("cpu.stat", "usage_usec x\nuser_usec\n")]),
        ] {
            assert_eq!((cpu_v1(&all), cpu_v2(&all)), Default::default());
            assert_eq!((memory_v1(&all), memory_v2(&all)), Default::default());
        }
        let cgroups = Cgroups { version: Version::V2, members: Vec::new() };
        assert_eq!(Counters::open(&cgroups).read(), Stats { cgroup_v2: true, ..Stats::default() });
    }
}
