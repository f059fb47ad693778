//! The resource usage of tasks, for people and programs.

use std::time::{Duration, SystemTime};

use runtime::{CpuStats, LayerUse, Stats, StatsReader};

use super::{format, tasks::Task};

/// The usage of a running task at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// The counters.
    pub stats: Stats,
    /// Percent of one core.
    pub cpu_percent: f64,
    /// The hard limit on memory in bytes.
    pub memory_limit: Option<u64>,
    /// The writable layer, if it has a limit.
    pub layer: Option<LayerUse>,
}

/// The open counters of a task.
pub struct Meter {
    reader: StatsReader,
    memory_limit: Option<u64>,
}

impl Meter {
    /// Opens the counters; `None` if the task does not run.
    pub fn open(task: &Task) -> Option<Self> {
        let reader = task.place.observer.stats(&task.view.id).ok()?;
        let memory_limit = task.view.plan.as_ref().and_then(|plan| plan.resources.memory_limit);
        Some(Self { reader, memory_limit })
    }

    /// Reads the counters; `None` if the task has ended. CPU usage is the average since the earlier reading.
    pub fn read(&self, earlier: CpuStats, passed: Duration) -> Option<Usage> {
        let stats = self.reader.read().ok()?;
        let cpu_percent = percent(earlier, stats.cpu, passed);
        Some(Usage { stats, cpu_percent, memory_limit: self.memory_limit, layer: self.reader.layer_use() })
    }
}

/// The usage of a task now, with its average CPU usage since its start.
pub fn since_start(task: &Task, now: SystemTime) -> Option<Usage> {
    let age = task.age(now)?;
    Meter::open(task)?.read(CpuStats::default(), age)
}

/// CPU usage between two readings in percent of one core.
fn percent(earlier: CpuStats, later: CpuStats, passed: Duration) -> f64 {
    if passed.is_zero() {
        return 0.0;
    }
    later.total_ns.saturating_sub(earlier.total_ns) as f64 / passed.as_nanos() as f64 * 100.0
}

impl Usage {
    /// CPU usage, as in `12.5%`.
    pub fn cpu(&self) -> String {
        format!("{:.1}%", self.cpu_percent)
    }

    /// Memory without the limit, as in `12.0 MiB`.
    pub fn memory(&self) -> String {
        format::size(self.stats.memory.usage)
    }

    /// Memory and its limit, as in `12.0 MiB / 64.0 MiB`.
    pub fn memory_and_limit(&self) -> String {
        let limit = self.memory_limit.map_or_else(|| "-".to_owned(), format::size);
        format!("{} / {limit}", self.memory())
    }

    /// Memory in percent of the limit.
    pub fn memory_percent(&self) -> Option<f64> {
        self.memory_limit.filter(|limit| *limit > 0).map(|limit| self.stats.memory.usage as f64 / limit as f64 * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime::CpuStats;

    use super::percent;

    #[test]
    fn usage_is_in_percent_of_one_core() {
        let at = |total_ns| CpuStats { total_ns, ..CpuStats::default() };
        let second = Duration::from_secs(1);
        for (from, to, passed, expected) in [
            (0, 500_000_000, second, 50.0),
            (10, 2_000_000_010, second, 200.0),
            (5, 3, second, 0.0),
            (0, 9, Duration::ZERO, 0.0),
        ] {
            assert!((percent(at(from), at(to), passed) - expected).abs() < 1e-9);
        }
    }
}
