//! A task's resource use in Nomad's units: rates between two readings of the cgroup's counters.

use std::time::Instant;

use runtime::{CpuStats, Stats};

use crate::plan::Compute;

/// CPU use since the previous reading. Percent of one core: 200 is the capacity of two cores.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CpuRates {
    /// User and system mode together.
    pub percent: f64,
    /// In user mode.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
    /// MHz used.
    pub ticks: f64,
}

/// The last reading.
#[derive(Default)]
pub struct Sampler {
    last: Option<(Instant, CpuStats)>,
}

impl Sampler {
    /// Rates since the last reading; all zero for the first one.
    pub fn rates(&mut self, now: Instant, stats: &Stats, compute: Compute) -> CpuRates {
        let Some((before, last)) = self.last.replace((now, stats.cpu)) else { return CpuRates::default() };
        let wall = now.duration_since(before).as_nanos() as f64;
        if wall <= 0.0 {
            return CpuRates::default();
        }
        let share = |current: u64, past: u64| current.saturating_sub(past) as f64 / wall * 100.0;
        let percent = share(stats.cpu.total_ns, last.total_ns);
        let mhz_per_core = if compute.cores == 0 { 0.0 } else { compute.total_mhz as f64 / compute.cores as f64 };
        CpuRates {
            percent,
            user: share(stats.cpu.user_ns, last.user_ns),
            system: share(stats.cpu.system_ns, last.system_ns),
            ticks: percent / 100.0 * mhz_per_core,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use runtime::{CpuStats, Stats};

    use super::{CpuRates, Sampler};
    use crate::plan::Compute;

    fn used(total_ms: u64, user_ms: u64) -> Stats {
        let (total_ns, user_ns) = (total_ms * 1_000_000, user_ms * 1_000_000);
        let cpu = CpuStats { total_ns, user_ns, system_ns: total_ns - user_ns, ..CpuStats::default() };
        Stats { cpu, ..Stats::default() }
    }

    #[test]
    fn rates_are_per_wall_clock_and_start_at_zero() {
        let compute = Compute { total_mhz: 8000, cores: 4 };
        let began = Instant::now();
        let mut sampler = Sampler::default();
        assert_eq!(sampler.rates(began, &used(1000, 600), compute), CpuRates::default());
        let rates = sampler.rates(began + Duration::from_secs(1), &used(2500, 1600), compute);
        assert_eq!(rates, CpuRates { percent: 150.0, user: 100.0, system: 50.0, ticks: 3000.0 });
    }

    #[test]
    fn a_decreasing_counter_counts_as_no_use() {
        let began = Instant::now();
        let mut sampler = Sampler::default();
        sampler.rates(began, &used(1000, 600), Compute::default());
        let rates = sampler.rates(began + Duration::from_secs(1), &used(0, 0), Compute::default());
        assert_eq!(rates, CpuRates::default());
    }
}
