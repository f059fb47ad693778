//! The limit of bytes per second for data that no read waits for. Pure.

use std::time::{Duration, Instant};

/// A pause makes up for at most this much of an idle time: bytes that were not fetched cannot be saved up.
const SLACK: Duration = Duration::from_millis(100);

/// When the next bytes may come.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes per second; `None`: no limit.
    rate: Option<u64>,
    /// When all bytes that were fetched so far are paid for.
    due: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.map(|rate| rate.max(1)), due: None }
    }

    /// Notes bytes that came at `now`. Returns when the next ones may come.
    pub(crate) fn spend(&mut self, now: Instant, bytes: u64) -> Option<Instant> {
        let cost = Duration::from_secs_f64(bytes as f64 / self.rate? as f64);
        let earliest = now.checked_sub(SLACK).unwrap_or(now);
        let due = self.due.map_or(now, |due| due.max(earliest)) + cost;
        self.due = Some(due);
        Some(due).filter(|due| *due > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_limit_nothing_waits() {
        assert_eq!(Pace::new(None).spend(Instant::now(), u64::MAX), None);
    }

    #[test]
    fn the_bytes_of_a_second_take_a_second_however_they_come() {
        for piece in [1, 10, 100, 1000] {
            let (mut pace, begin) = (Pace::new(Some(1000)), Instant::now());
            let mut now = begin;
            for _ in 0..1000 / piece {
                now = pace.spend(now, piece).unwrap_or(now);
            }
            let took = now - begin;
            assert!(took >= Duration::from_millis(990) && took <= Duration::from_millis(1010), "{piece}: {took:?}");
        }
    }

    #[test]
    fn an_idle_time_is_not_saved_up() {
        let (mut pace, begin) = (Pace::new(Some(1000)), Instant::now());
        pace.spend(begin, 1000);
        let later = begin + Duration::from_secs(60);
        let due = pace.spend(later, 1000).unwrap();
        assert_eq!(due - later, Duration::from_secs(1) - SLACK);
    }
}
