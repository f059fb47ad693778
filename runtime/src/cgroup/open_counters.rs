//! The counters that are open now. The agent's statistics open them, and metrics read them too.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use super::{container::Cgroups, stats::Counters};

/// The counters that are open now, by the container's first process: an id can be used again. All readers of a
/// container share its files. They close with the last reader.
#[derive(Debug, Default)]
pub(crate) struct OpenCounters(Mutex<HashMap<Init, Weak<Counters>>>);

/// Pid and start time of a container's first process.
type Init = (i32, u64);

impl OpenCounters {
    /// The open counters of a container; `None` if it has no reader.
    pub fn get(&self, init: Init) -> Option<Arc<Counters>> {
        self.lock().get(&init)?.upgrade()
    }

    /// The counters of a container, opened if it has no reader.
    pub fn open(&self, init: Init, groups: &Cgroups) -> Arc<Counters> {
        let mut known = self.lock();
        if let Some(open) = known.get(&init).and_then(Weak::upgrade) {
            return open;
        }
        known.retain(|_, counters| counters.strong_count() > 0);
        let opened = Arc::new(Counters::open(groups));
        known.insert(init, Arc::downgrade(&opened));
        opened
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Init, Weak<Counters>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::version::Version;

    #[test]
    fn readers_of_a_container_share_its_files_until_the_last_one_ends() {
        let open = OpenCounters::default();
        let groups = Cgroups { version: Version::V2, members: Vec::new() };
        assert!(open.get((7, 100)).is_none());
        let (one, two) = (open.open((7, 100), &groups), open.open((7, 100), &groups));
        assert!(Arc::ptr_eq(&one, &two));
        // Another process with the same pid.
        let later = open.open((7, 200), &groups);
        assert!(!Arc::ptr_eq(&one, &later));
        drop(one);
        assert!(open.get((7, 100)).is_some_and(|found| Arc::ptr_eq(&found, &two)));
        drop(two);
        assert!(open.get((7, 100)).is_none());
        let known = open.open((8, 1), &groups);
        assert_eq!(open.lock().len(), 2, "those without readers are forgotten");
        drop((known, later));
    }
}
