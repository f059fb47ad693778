//! How often each task of an allocation was started: the restarts that metrics show.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// Nomad never says that an allocation is gone for good, so the oldest entries are forgotten.
const LIMIT: usize = 8192;

/// An allocation and the name of a task in it.
type Key = (String, String);

/// Counts starts.
#[derive(Debug, Default)]
pub struct StartCounts(Mutex<HashMap<Key, (u64, Instant)>>);

impl StartCounts {
    /// Counts a start. Returns the number of earlier ones.
    pub fn another(&self, alloc_id: &str, task_name: &str) -> u64 {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= LIMIT {
            forget_older_half(&mut counts);
        }
        let (count, last) = counts.entry((alloc_id.to_owned(), task_name.to_owned())).or_insert((0, Instant::now()));
        let earlier = *count;
        (*count, *last) = (earlier + 1, Instant::now());
        earlier
    }
}

fn forget_older_half(counts: &mut HashMap<Key, (u64, Instant)>) {
    let mut times: Vec<Instant> = counts.values().map(|(_, last)| *last).collect();
    times.sort_unstable();
    let Some(middle) = times.get(times.len() / 2).copied() else { return };
    counts.retain(|_, (_, last)| *last > middle);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_counted_by_allocation_and_task() {
        let counts = StartCounts::default();
        assert_eq!(["a", "a", "b"].map(|task| counts.another("alloc", task)), [0, 1, 0]);
        assert_eq!(counts.another("other", "a"), 0);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let counts = StartCounts::default();
        for number in 0..LIMIT {
            assert_eq!(counts.another("alloc", &number.to_string()), 0);
        }
        assert_eq!(counts.another("alloc", "new"), 0);
        assert!(counts.0.lock().unwrap().len() <= LIMIT / 2 + 1);
        assert_eq!(counts.another("alloc", &(LIMIT - 1).to_string()), 1, "the newest are kept");
    }
}
