//! All counters of a container's cgroups, read once: for metrics.
//!
//! To open and close a file takes the kernel three times as long as to read it. So the files that are open for the
//! agent's statistics are used, and those that only metrics show are opened beside them. If a recent reading for the
//! agent tells enough of a file, it is not read again: the kernel needs longest for `memory.stat`. Without the agent's
//! statistics, all files are opened for each reading, and closed. A missing file or line means "not measured" or zero,
//! never an error, as in [`stats`](super::stats).

use std::fs::File;

use super::{
    container::Cgroups,
    stats::{Counters, MemoryStats, Source, Stats, Texts, limit_v2, read_whole, stats_of},
    version::Version,
};

/// Everything that the cgroups of a container count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU, memory and processes.
    pub stats: Stats,
    /// Block devices.
    pub block: BlockIo,
    /// Stalls for lack of a resource. `None` on cgroup v1, and on a kernel without PSI.
    pub pressure: Option<Pressure>,
}

/// The requests to all block devices together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockIo {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests for reading.
    pub reads: u64,
    /// Requests for writing.
    pub writes: u64,
}

/// The stalls of a container since its cgroup was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// For lack of CPU time.
    pub cpu: Stall,
    /// For lack of memory.
    pub memory: Stall,
    /// For block devices.
    pub io: Stall,
}

/// The stalls for lack of one resource, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stall {
    /// At least one thread waited.
    pub some_us: u64,
    /// All threads waited.
    pub full_us: u64,
}

/// Files of v1 that are not read for metrics: these show no kernel memory of v1. The agent's statistics do.
const UNUSED: [&str; 2] = ["memory.kmem.usage_in_bytes", "memory.kmem.max_usage_in_bytes"];

/// Controllers and files that only metrics show. A task that makes requests to devices has one more on v1.
const MORE_V1: [(&str, &str); 1] = [("blkio", BLOCK_BYTES_V1)];
const MORE_V2: [(&str, &str); 5] = [
    ("memory", "memory.max"),
    ("io", "io.stat"),
    ("cpu", "cpu.pressure"),
    ("memory", "memory.pressure"),
    ("io", "io.pressure"),
];
const BLOCK_BYTES_V1: &str = "blkio.throttle.io_service_bytes_recursive";

impl Cgroups {
    /// Reads all counters. `open` are files of this container that are open already.
    pub fn usage(&self, open: Option<&Counters>) -> Usage {
        let more: &[_] = match self.version {
            Version::V1 => &MORE_V1,
            Version::V2 => &MORE_V2,
        };
        let read = |controller: &str, name: &str, buffer: &mut Vec<u8>| {
            if UNUSED.contains(&name) {
                return 0;
            }
            if let Some(file) = open.and_then(|open| open.file(name, self, more)) {
                return read_whole(file, buffer);
            }
            let path = self.path_of(controller).map(|directory| directory.join(name));
            path.and_then(|path| File::open(path).ok()).map_or(0, |file| read_whole(&file, buffer))
        };
        usage_of(self.version, &mut Texts::new(read), open.and_then(Counters::recent))
    }
}

/// The usage that these files tell, and a recent reading for the agent.
fn usage_of(version: Version, texts: &mut Texts<impl Source>, recent: Option<Stats>) -> Usage {
    let (block, pressure) = match version {
        Version::V1 => (block_v1(texts), None),
        Version::V2 => (block_v2(texts), pressure(texts)),
    };
    let recent = recent.map(|stats| Stats { memory: shown(version, texts, stats.memory), ..stats });
    Usage { stats: stats_of(version, texts, recent), block, pressure }
}

/// The memory as metrics show it, from a reading for the agent: without [`UNUSED`] files, and with the limit.
fn shown(version: Version, texts: &mut Texts<impl Source>, memory: MemoryStats) -> MemoryStats {
    match version {
        Version::V1 => MemoryStats { kernel: None, kernel_max: None, ..memory },
        Version::V2 => MemoryStats { limit: limit_v2(texts), ..memory },
    }
}

/// Lines such as `8:0 Read 4096`. A container that has made no request to a device has none of them in either file.
fn block_v1(texts: &mut Texts<impl Source>) -> BlockIo {
    let sum = |text: &str, operation: &str| {
        let numbers = text.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            (words.next()? == operation).then(|| words.next()?.parse::<u64>().ok()).flatten()
        });
        numbers.fold(0, u64::saturating_add)
    };
    let bytes = texts.get("blkio", BLOCK_BYTES_V1);
    if !bytes.contains(':') {
        return BlockIo::default();
    }
    let (read_bytes, written_bytes) = (sum(bytes, "Read"), sum(bytes, "Write"));
    let requests = texts.get("blkio", "blkio.throttle.io_serviced_recursive");
    BlockIo { read_bytes, written_bytes, reads: sum(requests, "Read"), writes: sum(requests, "Write") }
}

/// Lines such as `8:0 rbytes=4096 wbytes=0 rios=1 wios=0`.
fn block_v2(texts: &mut Texts<impl Source>) -> BlockIo {
    let text = texts.get("io", "io.stat");
    let sum = |key: &str| {
        let values = text.split_ascii_whitespace().filter_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
        values.fold(0, u64::saturating_add)
    };
    BlockIo { read_bytes: sum("rbytes="), written_bytes: sum("wbytes="), reads: sum("rios="), writes: sum("wios=") }
}

fn pressure(texts: &mut Texts<impl Source>) -> Option<Pressure> {
    let mut stall = |resource: &str, file: &str| {
        let text = texts.get(resource, file);
        (!text.is_empty()).then(|| Stall { some_us: total(text, "some"), full_us: total(text, "full") })
    };
    let (cpu, memory) = (stall("cpu", "cpu.pressure")?, stall("memory", "memory.pressure")?);
    Some(Pressure { cpu, memory, io: stall("io", "io.pressure")? })
}

/// The total of a line such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=12`.
fn total(text: &str, kind: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(kind));
    let total = line.and_then(|line| line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total=")));
    total.and_then(|total| total.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cgroup::{container::Cgroup, stats::texts};

    /// Files that were replaced show which of them are read.
    #[test]
    fn open_files_are_used_and_others_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            fs::write(directory.path().join("new"), text).unwrap();
            fs::rename(directory.path().join("new"), directory.path().join(name)).unwrap();
        };
        write("pids.current", "1\n");
        write("memory.current", "4096\n");
        let path = directory.path().to_owned();
        let members = vec![Cgroup { controllers: Vec::new(), path, created: true }];
        let cgroups = Cgroups { version: Version::V2, members };
        let open = Counters::open(&cgroups);
        write("pids.current", "2\n");
        write("memory.max", "8192\n");
        write("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4\n");
        let read = |open: Option<&Counters>| {
            let Usage { stats, block, .. } = cgroups.usage(open);
            (stats.pids, stats.memory.usage, stats.memory.limit, block.writes)
        };
        assert_eq!(read(Some(&open)), (1, 4096, Some(8192), 4));
        write("memory.max", "4096\n");
        assert_eq!(read(Some(&open)).2, Some(8192), "the first reading opened it");
        assert_eq!(read(None), (2, 4096, Some(4096), 4));
    }

    /// The files of a cgroup change after a reading for the agent.
    #[test]
    fn counters_are_read_again_and_levels_and_zeros_are_the_agents() {
        for version in [Version::V1, Version::V2] {
            let directory = tempfile::tempdir().unwrap();
            let write = |level: u64, used: u64, [throttled, kills]: [u64; 2]| {
                let level = format!("{level}\n");
                for (name, text) in [
                    ("memory.usage_in_bytes", &level),
                    ("memory.current", &level),
                    ("memory.max", &level),
                    ("memory.kmem.usage_in_bytes", &level),
                    ("pids.current", &level),
                    ("memory.oom_control", &format!("oom_kill {kills}\n")),
                    ("memory.events", &format!("oom_kill {kills}\n")),
                    ("cpuacct.usage", &format!("{used}\n")),
                    ("cpu.stat", &format!("usage_usec {used}\nnr_throttled {throttled}\n")),
                ] {
                    fs::write(directory.path().join(name), text).unwrap();
                }
            };
            let controllers = ["memory", "cpuacct", "cpu", "pids"].map(str::to_owned).to_vec();
            let members = vec![Cgroup { controllers, path: directory.path().to_owned(), created: true }];
            let cgroups = Cgroups { version, members };
            write(1, 1000, [0, 0]);
            let open = Counters::open(&cgroups);
            let unit = if version == Version::V1 { 1000 } else { 1_000_000 };
            let read = || {
                let Stats { cpu, memory, oom_kills, pids, .. } = cgroups.usage(Some(&open)).stats;
                ((memory.usage, pids), cpu.total_ns / unit, [cpu.throttled_periods, oom_kills])
            };
            assert_eq!(read(), ((1, 1), 1, [0, 0]), "nothing was read for the agent");
            open.read();
            write(2, 2000, [3, 4]);
            // The counter of v2 is in the same file as the time.
            let throttled = if version == Version::V1 { 0 } else { 3 };
            assert_eq!(read(), ((1, 1), 2, [throttled, 0]), "{version:?}");
            let memory = cgroups.usage(Some(&open)).stats.memory;
            assert_eq!((memory.kernel, memory.limit), (None, (version == Version::V2).then_some(2)));
            open.read();
            write(3, 3000, [5, 6]);
            assert_eq!(read(), ((2, 2), 3, [5, 6]), "{version:?}: what has begun to count is read");
            open.forget();
            assert_eq!(read(), ((3, 3), 3, [5, 6]), "{version:?}");
        }
    }

    #[test]
    fn the_requests_of_all_devices_are_added() {
        let expected = BlockIo { read_bytes: 4097, written_bytes: 8, reads: 3, writes: 1 };
        let v1 = [
            (BLOCK_BYTES_V1, "8:0 Read 4096\n8:0 Write 8\n8:0 Sync 7\n8:0 Total 4104\n8:16 Read 1\nTotal 4105\n"),
            ("blkio.throttle.io_serviced_recursive", "8:0 Read 2\n8:0 Write 1\n8:16 Read 1\nTotal 4\n"),
        ];
        assert_eq!(usage_of(Version::V1, &mut texts(&v1), None).block, expected);
        let v2 = [(
            "io.stat",
            "8:0 rbytes=4096 wbytes=8 rios=2 wios=1 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=0 rios=1 wios=0\n",
        )];
        assert_eq!(usage_of(Version::V2, &mut texts(&v2), None).block, expected);
        assert_eq!(usage_of(Version::V1, &mut texts(&[]), None), Usage::default());
    }

    #[test]
    fn pressure_is_measured_if_the_kernel_counts_it() {
        const STALL: &str =
            "some avg10=1.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        let v2 = [("cpu.pressure", STALL), ("memory.pressure", STALL), ("io.pressure", "some total=x\n")];
        let pressure = usage_of(Version::V2, &mut texts(&v2), None).pressure.expect("pressure");
        assert_eq!((pressure.cpu, pressure.io), (Stall { some_us: 12, full_us: 5 }, Stall::default()));
        assert_eq!(usage_of(Version::V2, &mut texts(&[("cpu.pressure", STALL)]), None).pressure, None);
    }
}
