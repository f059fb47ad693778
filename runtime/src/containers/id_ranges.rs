//! The ranges of ids of user namespaces. Ranges that are in use never overlap. A freed range is used again as late as
//! possible.

use super::assignments::{Assignments, InUse, Kind, PlannedValues};
use crate::{
    error::StartErrorKind,
    plan::{IDS_PER_CONTAINER, IdPool, IdRange},
};

/// The ranges of the containers of one state directory.
pub(super) type IdRanges = Assignments<Ranges>;

/// Ranges of ids.
pub(super) struct Ranges;

impl Kind for Ranges {
    type Pool = IdPool;
    type Value = IdRange;
    const FILE: &'static str = "user-namespaces";
    const FAILURE: StartErrorKind = StartErrorKind::UserNamespace;

    fn of_plan(plan: PlannedValues) -> Option<IdRange> {
        plan.user_namespace.and_then(|namespace| namespace.ids)
    }

    fn number(range: IdRange) -> u32 {
        range.first
    }

    fn choose(pool: IdPool, last: Option<u32>, in_use: &InUse) -> Option<IdRange> {
        choose(pool, last, in_use)
    }

    fn exhausted(pool: IdPool) -> String {
        format!(
            "containers have all {} ranges of ids for user namespaces; extend the range in the plugin's `userns` block",
            pool.ranges().count()
        )
    }
}

/// The first free range of the pool after the range that was assigned last.
fn choose(pool: IdPool, last: Option<u32>, in_use: &InUse) -> Option<IdRange> {
    let is_free = |range: &IdRange| {
        let overlapping = range.first.saturating_sub(IDS_PER_CONTAINER - 1)..range.first + IDS_PER_CONTAINER;
        in_use.range(overlapping).next().is_none()
    };
    let after = |range: &IdRange| last.is_none_or(|last| range.first > last);
    pool.ranges().filter(after).find(is_free).or_else(|| pool.ranges().find(is_free))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, thread};

    use serde_json::json;

    use super::*;
    use crate::{
        error::StartError,
        plan::{ContainerId, UserNamespace},
        state::{self, CONTAINER, PLAN, TaskDir},
    };

    const POOL: IdPool = IdPool { first: 100_000, count: 4 * IDS_PER_CONTAINER };

    struct State(tempfile::TempDir);

    impl State {
        fn new() -> Self {
            let state = Self(tempfile::tempdir().expect("a directory"));
            fs::create_dir(state::tasks(state.0.path())).expect("a directory");
            state
        }

        /// The ranges as a process knows them.
        fn process(&self) -> IdRanges {
            IdRanges::new(self.0.path())
        }

        fn assign_from(&self, process: &IdRanges, container: &str, pool: IdPool) -> Result<u32, StartError> {
            let id: ContainerId = container.parse().expect("an id");
            let task = TaskDir::new(self.0.path(), &id);
            task.create().expect("a directory");
            let mut assigned = 0;
            process.assign(&id, pool, |ids| {
                assigned = ids.first;
                let namespace = UserNamespace { pool, ids: Some(ids) };
                Ok(task.commit(PLAN, &json!({ "id": id, "user_namespace": namespace }))?)
            })?;
            Ok(assigned)
        }

        fn assign(&self, process: &IdRanges, container: &str) -> Result<u32, StartError> {
            self.assign_from(process, container, POOL)
        }

        fn remove(&self, container: &str) {
            fs::remove_dir_all(state::tasks(self.0.path()).join(container)).expect("a task's directory");
        }
    }

    #[test]
    fn a_freed_range_is_used_again_after_all_others() {
        let state = State::new();
        let ranges = state.process();
        let assign = |container| (state.assign(&ranges, container).expect("a range") - POOL.first) / IDS_PER_CONTAINER;
        assert_eq!([assign("a"), assign("b")], [0, 1]);
        state.remove("a");
        ranges.release(&"a".parse().expect("an id"));
        assert_eq!([assign("c"), assign("d"), assign("e")], [2, 3, 0]);
        let full = state.assign(&ranges, "f").expect_err("no range");
        assert_eq!(full.kind, StartErrorKind::UserNamespace);
        assert!(full.message.contains("all 4 ranges"), "{full}");
        // Another process has removed a container.
        state.remove("d");
        state.remove("f");
        assert_eq!(assign("f"), 3);
    }

    #[test]
    fn the_end_of_a_former_container_does_not_free_the_range_of_the_next_one() {
        let state = State::new();
        let ranges = state.process();
        let assign = |container| (state.assign(&ranges, container).expect("a range") - POOL.first) / IDS_PER_CONTAINER;
        assert_eq!(assign("a"), 0);
        state.remove("a");
        assert_eq!(assign("a"), 1, "before the former range is free");
        ranges.release(&"a".parse().expect("an id"));
        assert_eq!([assign("b"), assign("c"), assign("d")], [2, 3, 0]);
    }

    #[test]
    fn unknown_ids_of_a_container_prevent_an_assignment() {
        let state = State::new();
        state.assign(&state.process(), "a").expect("a range");
        let task = state::tasks(state.0.path()).join("a");
        fs::write(task.join(PLAN), "{").expect("damage");
        fs::write(task.join(CONTAINER), "{}").expect("a record");
        assert!(state.assign(&state.process(), "b").is_err());
    }

    #[test]
    fn processes_that_overlap_never_assign_the_same_range() {
        let state = State::new();
        let (one, other) = (state.process(), state.process());
        let assigned: BTreeSet<u32> = thread::scope(|scope| {
            let assign = |process, container| {
                let state = &state;
                scope.spawn(move || state.assign(process, container).expect("a range"))
            };
            let threads = [assign(&one, "a"), assign(&other, "b"), assign(&one, "c"), assign(&other, "d")];
            threads.map(|thread| thread.join().expect("the other thread")).into()
        });
        assert_eq!(assigned.len(), 4);
    }

    #[test]
    fn ranges_of_another_pool_are_not_overlapped() {
        let state = State::new();
        let ranges = state.process();
        assert_eq!(state.assign(&ranges, "a").expect("a range"), 100_000);
        let shifted = IdPool { first: 100_000 - 1, count: 3 * IDS_PER_CONTAINER };
        let next = state.assign_from(&state.process(), "b", shifted).expect("a range");
        assert_eq!(next, 99_999 + 2 * IDS_PER_CONTAINER, "two ranges of this pool contain ids of the other container");
    }

    #[test]
    fn a_failed_record_assigns_nothing_and_damage_is_tolerated() {
        let state = State::new();
        let ranges = state.process();
        let failed = ranges.assign(&"x".parse().expect("an id"), POOL, |_| Err(StartError::internal("full")));
        assert!(failed.is_err());
        state.assign(&ranges, "a").expect("a range");
        fs::write(state.0.path().join(Ranges::FILE), b"\xff what").expect("damage");
        fs::create_dir(state::tasks(state.0.path()).join("damaged")).expect("a directory");
        fs::write(state::tasks(state.0.path()).join("damaged/plan.json"), "{").expect("damage");
        let assigned: BTreeSet<u32> = ["b", "c", "d"].map(|id| state.assign(&ranges, id).expect("a range")).into();
        assert_eq!(assigned.len(), 3);
        assert!(state.assign(&ranges, "e").is_err(), "all four are in use");
    }
}
