//! Assigns the ids of user namespaces.
//!
//! Always true:
//!
//! - A range of ids is in use if and only if the plan in a task's directory names it. There is no second record of it
//!   that a kill could leave behind.
//! - Ranges are assigned under a lock of the state directory, which is held until the plan is written. So processes
//!   that overlap never assign the same range, and ranges that are in use never overlap.
//!
//! The plans are read once. From then on this process remembers the ranges in use, until another process has assigned
//! one: the locked file names the process that was the last to do so. The same file has the range that was assigned
//! last, so that a freed range is used again as late as possible. Without the file, the search begins at the first
//! range.

use std::{
    collections::BTreeMap,
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use host::lock::{Locked, Wait, lock};
use serde::Deserialize;

use crate::{
    directory_watch,
    error::{Context, RuntimeError, StartError, StartErrorKind},
    plan::{ContainerId, IDS_PER_CONTAINER, IdPool, IdRange, UserNamespace},
    state::{self, CONTAINER, PLAN, TaskDir},
};

/// The name of the locked file in the state directory.
const FILE: &str = "user-namespaces";

/// The first ids of the ranges in use, each with its container.
type InUse = BTreeMap<u32, ContainerId>;

/// The ranges of the containers of one state directory.
#[derive(Debug)]
pub(super) struct IdRanges {
    state_dir: PathBuf,
    /// A number that names this process.
    process: u64,
    in_use: Mutex<Option<InUse>>,
}

/// The content of the locked file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Last {
    /// The process that assigned a range last.
    process: Option<u64>,
    /// The first id of that range.
    first: Option<u32>,
}

/// The part of a plan that tells the container's ids.
#[derive(Deserialize)]
struct PlanIds {
    #[serde(default)]
    user_namespace: Option<UserNamespace>,
}

impl IdRanges {
    /// Reads and makes nothing.
    pub fn new(state_dir: &Path) -> Self {
        let process = RandomState::new().build_hasher().finish();
        Self { state_dir: state_dir.to_owned(), process, in_use: Mutex::default() }
    }

    /// Assigns a range of the pool to a container. `record` writes the plan that names it.
    pub fn assign(
        &self,
        container: &ContainerId,
        pool: IdPool,
        record: impl FnOnce(IdRange) -> Result<(), StartError>,
    ) -> Result<(), StartError> {
        let mut remembered = self.remembered();
        let path = self.state_dir.join(FILE);
        let mut file = locked_file(&path).context(|| format!("locking {}", path.display()))?;
        let last = Last::read(&mut file);
        let known = remembered.take().filter(|_| last.process == Some(self.process));
        let unknown = |error: RuntimeError| StartError::new(StartErrorKind::UserNamespace, error.to_string());
        let mut in_use = known.map_or_else(|| self.read().map_err(unknown), Ok)?;
        let mut chosen = choose(pool, last.first, &in_use);
        if chosen.is_none() {
            // Another process may have removed a container.
            in_use = self.read().map_err(unknown)?;
            chosen = choose(pool, last.first, &in_use);
        }
        let Some(range) = chosen else {
            *remembered = Some(in_use);
            let text = format!(
                "containers have all {} ranges of ids for user namespaces; extend the range in the plugin's `userns` \
                 block",
                pool.ranges().count()
            );
            return Err(StartError::new(StartErrorKind::UserNamespace, text));
        };
        // Before the plan, so that another process reads the plan.
        Last { process: Some(self.process), first: Some(range.first) }
            .write(&mut file)
            .context(|| format!("writing {}", path.display()))?;
        failpoint::at("start-before-ids");
        // If writing fails, the plan may be on disk all the same, so the next call reads the plans again.
        record(range)?;
        in_use.insert(range.first, container.clone());
        *remembered = Some(in_use);
        Ok(())
    }

    /// Forgets the range of a container. Its directory must have been removed before.
    pub fn release(&self, container: &ContainerId) {
        let mut remembered = self.remembered();
        let Some(in_use) = remembered.as_mut().filter(|in_use| in_use.values().any(|holder| holder == container))
        else {
            return;
        };
        match TaskDir::new(&self.state_dir, container).read::<PlanIds>(PLAN) {
            Ok(None) => in_use.retain(|_, holder| holder != container),
            // A new start of the same id has a range already. The next assignment reads all plans again.
            _ => *remembered = None,
        }
    }

    fn remembered(&self) -> MutexGuard<'_, Option<InUse>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the ranges in use.
    fn read(&self) -> Result<InUse, RuntimeError> {
        let directory = state::tasks(&self.state_dir);
        let names = directory_watch::list(&directory).context(|| format!("listing {}", directory.display()))?;
        let mut in_use = InUse::new();
        for id in names.iter().filter_map(|name| name.parse::<ContainerId>().ok()) {
            let task = TaskDir::new(&self.state_dir, &id);
            match task.read::<PlanIds>(PLAN) {
                Ok(plan) => {
                    let ids = plan.and_then(|plan| plan.user_namespace).and_then(|namespace| namespace.ids);
                    in_use.extend(ids.map(|ids| (ids.first, id)));
                }
                // Its container may run with any of the ids.
                Err(error) if task.file(CONTAINER).exists() => return Err(error),
                Err(error) => tracing::warn!(container = %id, %error, "the plan is damaged, and has no container"),
            }
        }
        Ok(in_use)
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

/// Opens the file, and waits for its lock.
fn locked_file(path: &Path) -> io::Result<File> {
    let open = || File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    match lock(path, Wait::Forever, true, open)? {
        Locked::Held(file) => Ok(file),
        Locked::Missing | Locked::Busy => Err(io::Error::other("the file was removed while it was locked")),
    }
}

impl Last {
    /// The content of the file. If it is damaged, no process and no range.
    fn read(file: &mut File) -> Self {
        let mut text = String::new();
        if file.read_to_string(&mut text).is_err() {
            return Self::default();
        }
        let mut words = text.split_whitespace();
        let process = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        Self { process, first: words.next().and_then(|word| word.parse().ok()) }
    }

    fn write(self, file: &mut File) -> io::Result<()> {
        let line = format!("{:016x} {}\n", self.process.unwrap_or_default(), self.first.unwrap_or_default());
        file.rewind()?;
        file.write_all(line.as_bytes())?;
        file.set_len(line.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, thread};

    use serde_json::json;

    use super::*;

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
        fs::write(state.0.path().join(FILE), b"\xff what").expect("damage");
        fs::create_dir(state::tasks(state.0.path()).join("damaged")).expect("a directory");
        fs::write(state::tasks(state.0.path()).join("damaged/plan.json"), "{").expect("damage");
        let assigned: BTreeSet<u32> = ["b", "c", "d"].map(|id| state.assign(&ranges, id).expect("a range")).into();
        assert_eq!(assigned.len(), 3);
        assert!(state.assign(&ranges, "e").is_err(), "all four are in use");
    }
}
