//! Waiting for an idle machine for a limited time, and recording how idle it was.

use std::{
    fmt, fs,
    time::{Duration, Instant},
};

use crate::report::median;

/// The highest busy share of all processors that counts as quiet, in percent.
const CALM: f64 = 10.0;
/// The limit of the waiting time of a whole run.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(250);

/// The busy shares before each round.
#[derive(Debug, Default)]
pub struct Quiet {
    waited: Duration,
    busy: Vec<f64>,
}

impl Quiet {
    /// Waits until the machine is quiet, or until the limit of the whole run is reached.
    pub async fn wait(&mut self) {
        let begun = Instant::now();
        loop {
            let before = ticks();
            tokio::time::sleep(LOOK).await;
            let busy = share(before, ticks());
            if busy <= CALM || self.waited + begun.elapsed() > PATIENCE {
                self.busy.push(busy);
                self.waited += begun.elapsed();
                return;
            }
        }
    }
}

impl fmt::Display for Quiet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calm = self.busy.iter().filter(|busy| **busy <= CALM).count();
        let middle = median(&self.busy).unwrap_or_default();
        write!(
            f,
            "\nBefore {calm} of {} rounds the machine was quiet (at most {CALM} % busy); median {middle:.0} % busy. \
             Load average at the end: {}",
            self.busy.len(),
            fs::read_to_string("/proc/loadavg").unwrap_or_default().trim()
        )
    }
}

/// Ticks of all processors since boot: busy and idle.
pub fn ticks() -> (u64, u64) {
    parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse(stat: &str) -> (u64, u64) {
    let fields: Vec<u64> =
        stat.lines().next().unwrap_or("").split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let at = |index: usize| fields.get(index).copied().unwrap_or(0);
    // The fields: user nice system idle iowait irq softirq steal. The time of guests is part of user.
    (at(0) + at(1) + at(2) + at(5) + at(6) + at(7), at(3) + at(4))
}

fn share(before: (u64, u64), after: (u64, u64)) -> f64 {
    let (busy, idle) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    100.0 * busy as f64 / (busy + idle).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_not_idle() {
        let before = parse("cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 1 1 1 1\n");
        assert_eq!(before, (20, 100));
        assert!((share(before, (45, 175)) - 25.0).abs() < 1e-9);
        assert!(share(before, before).abs() < 1e-9);
    }
}
