//! Reads this process: CPU time, memory, threads, descriptors.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    sync::OnceLock,
    time::{SystemTime, UNIX_EPOCH},
};

use rustix::process::{Resource, getrlimit};

use crate::metrics::ProcessSample;

/// Clock ticks in a second, in every interface to user space (USER_HZ).
const TICKS: f64 = 100.0;

static STARTED_AT: OnceLock<f64> = OnceLock::new();

/// Reads `/proc/self`. A value that cannot be read is zero.
pub fn read() -> ProcessSample {
    let [stat, status, uptime] = ["/proc/self/stat", "/proc/self/status", "/proc/uptime"]
        .map(|file| fs::read_to_string(file).unwrap_or_default());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let sample = parse(&stat, &status, &uptime, now);
    let max_files = getrlimit(Resource::Nofile).current.unwrap_or(0);
    // Computed again, it would differ by the clock's corrections, as if the process had been restarted.
    let started_at = *STARTED_AT.get_or_init(|| sample.started_at);
    ProcessSample { open_files: open_files(), max_files, started_at, ..sample }
}

/// The number of descriptors, which the kernel tells as the size of the directory (Linux 6.2).
fn open_files() -> u64 {
    let directory = "/proc/self/fd";
    match fs::metadata(directory).map(|meta| meta.size()) {
        Ok(size) if size > 0 => size,
        _ => fs::read_dir(directory).map(|entries| entries.count() as u64).unwrap_or(0),
    }
}

/// Reads `/proc/self/stat` (proc_pid_stat(5)) and `/proc/self/status`.
fn parse(stat: &str, status: &str, uptime: &str, now: f64) -> ProcessSample {
    // The name of the process, in parentheses, may contain spaces. The state, which is field 3, follows it.
    let fields: Vec<&str> = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect()).unwrap_or_default();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let since_boot = uptime.split(' ').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    let resident: u64 = resident.and_then(|kibibytes| kibibytes.parse().ok()).unwrap_or(0);
    ProcessSample {
        cpu_seconds: (field(14) + field(15)) as f64 / TICKS,
        threads: field(20),
        started_at: now - since_boot + field(22) as f64 / TICKS,
        resident_bytes: resident.saturating_mul(1024),
        ..ProcessSample::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let sample = read();
        assert!(sample.threads >= 1 && sample.resident_bytes > 1 << 20 && sample.open_files >= 3, "{sample:?}");
        assert!(sample.max_files >= sample.open_files, "{sample:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(sample.started_at > now - 3600.0 && sample.started_at < now + 1.0, "{sample:?}");
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_is_skipped() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 1 0 0 0 150 50 0 0 20 0 9 0 1000 5 3 18446744073709551615";
        let sample = parse(stat, "Name:\ta) b\nVmRSS:\t   12 kB\n", "100.00 7.00\n", 1000.0);
        assert_eq!((sample.cpu_seconds, sample.threads, sample.started_at), (2.0, 9, 910.0));
        assert_eq!(sample.resident_bytes, 12 * 1024);
    }
}
