//! The resource usage of a container.
//!
//! Kernels differ in their files: some have no swap accounting, no counter of kernel memory, or no peak (before 5.19).
//! A missing file or line means "not measured" or zero, never an error.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use super::{
    container::Cgroups,
    flat_keyed::{field, fields},
    version::Version,
};

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
    files: Vec<NamedFile>,
    /// Files that only metrics show. The first reading for metrics opens them.
    more: OnceLock<Vec<NamedFile>>,
    /// The last reading for the agent.
    last: Mutex<Option<(Instant, Stats)>>,
}

/// A reading for the agent, which usually asks once a second, serves metrics for this time.
const RECENT: Duration = Duration::from_secs(2);

/// A file by its name, which is unique over all controllers.
type NamedFile = (&'static str, File);

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
        Self {
            version: cgroups.version,
            files: open_all(cgroups, names),
            more: OnceLock::new(),
            last: Mutex::default(),
        }
    }

    /// Reads the files for the agent's statistics.
    pub fn read(&self) -> Stats {
        let read = |_: &str, name: &str, buffer: &mut Vec<u8>| {
            find(&self.files, name).map_or(0, |file| read_whole(file, buffer))
        };
        let stats = stats_of(self.version, &mut Texts::new(read), None);
        *self.last() = Some((Instant::now(), stats));
        stats
    }

    /// The last reading for the agent, if that was recent.
    pub(super) fn recent(&self) -> Option<Stats> {
        self.last().and_then(|(read_at, stats)| (read_at.elapsed() < RECENT).then_some(stats))
    }

    /// The last reading was long ago.
    #[cfg(test)]
    pub(super) fn forget(&self) {
        *self.last() = None;
    }

    fn last(&self) -> MutexGuard<'_, Option<(Instant, Stats)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open file with this name. The first call also opens the files that only metrics show.
    pub(super) fn file(&self, name: &str, cgroups: &Cgroups, more: &[(&str, &'static str)]) -> Option<&File> {
        find(&self.files, name).or_else(|| find(self.more.get_or_init(|| open_all(cgroups, more)), name))
    }
}

/// Opens those of the files that exist.
fn open_all(cgroups: &Cgroups, names: &[(&str, &'static str)]) -> Vec<NamedFile> {
    let open = |(controller, name): &(&str, &'static str)| {
        Some((*name, File::open(cgroups.path_of(controller)?.join(name)).ok()?))
    };
    names.iter().filter_map(open).collect()
}

fn find<'f>(files: &'f [NamedFile], name: &str) -> Option<&'f File> {
    files.iter().find(|(known, _)| *known == name).map(|(_, file)| file)
}

/// The usage that these files tell. What rises and falls is taken from a recent reading, where an older value serves as
/// well, and so is a counter that was still zero. Of other counters, an older value would make the rates wrong that are
/// computed from it.
pub(super) fn stats_of(version: Version, texts: &mut Texts<impl Source>, recent: Option<Stats>) -> Stats {
    let cpu = match (version, recent) {
        (Version::V1, Some(Stats { cpu, .. })) if cpu.throttled_periods == 0 => times_v1(texts),
        (Version::V1, _) => cpu_v1(texts),
        (Version::V2, _) => cpu_v2(texts),
    };
    let (memory, pids) = match recent {
        Some(recent) => (recent.memory, recent.pids),
        None => (memory(version, texts), number(texts.get("pids", "pids.current")).unwrap_or(0)),
    };
    let oom_kills = match recent {
        Some(Stats { oom_kills: 0, .. }) => 0,
        _ => oom_kills(version, texts),
    };
    Stats { cpu, memory, cgroup_v2: version == Version::V2, oom_kills, pids }
}

fn memory(version: Version, texts: &mut Texts<impl Source>) -> MemoryStats {
    match version {
        Version::V1 => memory_v1(texts),
        Version::V2 => memory_v2(texts),
    }
}

fn oom_kills(version: Version, texts: &mut Texts<impl Source>) -> u64 {
    let file = match version {
        Version::V1 => "memory.oom_control",
        Version::V2 => "memory.events",
    };
    field(texts.get("memory", file), "oom_kill").unwrap_or(0)
}

/// A function that reads the file of a controller into a buffer, and returns the length of its text. Without the file,
/// that is 0.
pub(super) trait Source: Fn(&str, &str, &mut Vec<u8>) -> usize {}
impl<F: Fn(&str, &str, &mut Vec<u8>) -> usize> Source for F {}

/// The texts of a container's files, read one after the other into the same memory: a scrape of metrics reads
/// thousands of files on several threads, which would wait for each other to allocate memory.
pub(super) struct Texts<S> {
    source: S,
    buffer: Vec<u8>,
}

impl<S: Source> Texts<S> {
    pub fn new(source: S) -> Self {
        Self { source, buffer: Vec::new() }
    }

    /// The current text of a file; empty if the file is missing.
    pub fn get(&mut self, controller: &str, name: &str) -> &str {
        let length = (self.source)(controller, name, &mut self.buffer);
        self.buffer.get(..length).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default()
    }
}

/// Reads a kernel file from its beginning into the buffer, which grows as needed, and returns the length of the text.
/// The kernel makes the text of such a file at once, so a read that does not fill the buffer has reached the end.
pub(super) fn read_whole(file: &File, buffer: &mut Vec<u8>) -> usize {
    const CHUNK: usize = 8192;
    let mut length = 0;
    loop {
        if buffer.len() == length {
            buffer.resize(length + CHUNK, 0);
        }
        let Ok(read) = file.read_at(buffer.get_mut(length..).unwrap_or_default(), length as u64) else { return 0 };
        length += read;
        if length < buffer.len() {
            return length;
        }
    }
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Nanoseconds in one tick of `cpuacct.stat`. A tick is 1/100 s in every interface to user space (USER_HZ).
const TICK_NS: u64 = 10_000_000;
const MICROSECOND_NS: u64 = 1000;

fn cpu_v1(texts: &mut Texts<impl Source>) -> CpuStats {
    let [periods, throttled] = fields(texts.get("cpu", "cpu.stat"), ["nr_throttled", "throttled_time"]);
    CpuStats { throttled_periods: periods.unwrap_or(0), throttled_ns: throttled.unwrap_or(0), ..times_v1(texts) }
}

/// The whole time is exact. The split is in ticks: since Linux 5.17 scaled to the whole time, before only sampled.
/// `cpuacct.usage_user` and `cpuacct.usage_sys` are sampled on every kernel, and their sum can be half or twice the
/// whole time of a task that runs for short moments.
fn times_v1(texts: &mut Texts<impl Source>) -> CpuStats {
    let [user, system] = fields(texts.get("cpuacct", "cpuacct.stat"), ["user", "system"]);
    let (user_ns, system_ns) = (user.unwrap_or(0) * TICK_NS, system.unwrap_or(0) * TICK_NS);
    let total_ns = number(texts.get("cpuacct", "cpuacct.usage")).unwrap_or(user_ns + system_ns);
    CpuStats { total_ns, user_ns, system_ns, ..CpuStats::default() }
}

fn cpu_v2(texts: &mut Texts<impl Source>) -> CpuStats {
    let names = ["usage_usec", "user_usec", "system_usec", "throttled_usec", "nr_throttled"];
    let [total, user, system, throttled, periods] = fields(texts.get("cpu", "cpu.stat"), names).map(|n| n.unwrap_or(0));
    CpuStats {
        total_ns: total * MICROSECOND_NS,
        user_ns: user * MICROSECOND_NS,
        system_ns: system * MICROSECOND_NS,
        throttled_periods: periods,
        throttled_ns: throttled * MICROSECOND_NS,
    }
}

fn memory_v1(texts: &mut Texts<impl Source>) -> MemoryStats {
    // The values with the prefix `total_` include the cgroups below.
    let names = ["total_rss", "rss", "total_cache", "cache", "total_swap", "swap", "hierarchical_memory_limit"];
    let [total_rss, rss, total_cache, cache, total_swap, swap, limit] =
        fields(texts.get("memory", "memory.stat"), names);
    MemoryStats {
        usage: number(texts.get("memory", "memory.usage_in_bytes")).unwrap_or(0),
        rss: total_rss.or(rss).unwrap_or(0),
        cache: total_cache.or(cache).unwrap_or(0),
        swap: total_swap.or(swap).unwrap_or(0),
        max_usage: number(texts.get("memory", "memory.max_usage_in_bytes")),
        kernel: number(texts.get("memory", "memory.kmem.usage_in_bytes")),
        kernel_max: number(texts.get("memory", "memory.kmem.max_usage_in_bytes")),
        // Without a limit, the kernel shows the largest number of whole pages.
        limit: limit.filter(|limit| *limit < u64::MAX >> 2),
    }
}

fn memory_v2(texts: &mut Texts<impl Source>) -> MemoryStats {
    let [anon, file, kernel] = fields(texts.get("memory", "memory.stat"), ["anon", "file", "kernel"]);
    MemoryStats {
        usage: number(texts.get("memory", "memory.current")).unwrap_or(0),
        rss: anon.unwrap_or(0),
        cache: file.unwrap_or(0),
        swap: number(texts.get("memory", "memory.swap.current")).unwrap_or(0),
        max_usage: number(texts.get("memory", "memory.peak")),
        kernel,
        kernel_max: None,
        limit: limit_v2(texts),
    }
}

/// The limit of memory, which only metrics show on v2.
pub(super) fn limit_v2(texts: &mut Texts<impl Source>) -> Option<u64> {
    number(texts.get("memory", "memory.max"))
}

/// Texts by their names, for tests.
#[cfg(test)]
pub(super) fn texts<'a>(all: &'a [(&'a str, &'a str)]) -> Texts<impl Source + 'a> {
    Texts::new(move |_: &str, name: &str, buffer: &mut Vec<u8>| {
        let text = all.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| *text);
        text.as_bytes().clone_into(buffer);
        text.len()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_files_are_parsed() {
        let all = [
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
        ];
        let expected = CpuStats {
            total_ns: 5_000_000_001,
            user_ns: 3_000_000_000,
            system_ns: 2_000_000_000,
            throttled_periods: 3,
            throttled_ns: 777,
        };
        assert_eq!(cpu_v1(&mut texts(&all)), expected);
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
        assert_eq!(memory_v1(&mut texts(&all)), expected);
    }

    #[test]
    fn a_text_of_any_length_is_read_whole_into_a_used_buffer() {
        let directory = tempfile::tempdir().unwrap();
        let mut buffer = Vec::new();
        for length in [10, 8191, 8192, 8193, 30_000, 0, 3] {
            let text: Vec<u8> = (0..length).map(|at: u32| at as u8).collect();
            std::fs::write(directory.path().join("file"), &text).unwrap();
            let file = File::open(directory.path().join("file")).unwrap();
            let read = read_whole(&file, &mut buffer);
            assert_eq!(buffer[..read], text);
        }
    }

    #[test]
    fn v1_files_without_totals_are_parsed() {
        let memory = memory_v1(&mut texts(&[("memory.stat", "cache 1\nrss 2\nswap 3\n")]));
        assert_eq!((memory.rss, memory.cache, memory.swap), (2, 1, 3));
    }

    #[test]
    fn v2_files_are_parsed() {
        let all = [
            (
                "cpu.stat",
                "usage_usec 50\nuser_usec 30\nsystem_usec 20\nnr_periods 4\nnr_throttled 2\nthrottled_usec 9\n",
            ),
            ("memory.current", "4096\n"),
            ("memory.swap.current", "12\n"),
            ("memory.peak", "8192\n"),
            ("memory.max", "1048576\n"),
            ("memory.stat", "anon 7\nfile 8\nkernel 9\nkernel_stack 1\n"),
        ];
        let cpu =
            CpuStats { total_ns: 50_000, user_ns: 30_000, system_ns: 20_000, throttled_periods: 2, throttled_ns: 9000 };
        assert_eq!(cpu_v2(&mut texts(&all)), cpu);
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
        assert_eq!(memory_v2(&mut texts(&all)), memory);
    }

    #[test]
    fn missing_and_invalid_values_are_not_measured() {
        let invalid = [("memory.peak", "max\n"), ("memory.current", "-1"), ("cpu.stat", "usage_usec x\nuser_usec\n")];
        for all in [&[][..], &invalid] {
            assert_eq!((cpu_v1(&mut texts(all)), cpu_v2(&mut texts(all))), Default::default());
            assert_eq!((memory_v1(&mut texts(all)), memory_v2(&mut texts(all))), Default::default());
        }
        let cgroups = Cgroups { version: Version::V2, members: Vec::new() };
        assert_eq!(Counters::open(&cgroups).read(), Stats { cgroup_v2: true, ..Stats::default() });
    }
}
