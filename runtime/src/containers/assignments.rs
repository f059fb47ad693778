//! Assigns to each container something of which no other container may have the same: a range of ids, a pair of SELinux
//! categories.
//!
//! Always true:
//!
//! - A value is in use if and only if the plan in a task's directory names it. There is no second record of it that a
//!   kill could leave behind.
//! - Values are assigned under a lock of the state directory, which is held until the plan is written. So processes
//!   that overlap never assign the same value.
//!
//! The plans are read once. From then on this process remembers the values in use, until another process has assigned
//! one: the locked file names the process that was the last to do so. The same file has the value that was assigned
//! last.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Read, Seek, Write},
    marker::PhantomData,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use host::lock::{Locked, Wait, lock};
use serde::Deserialize;

use crate::{
    directory_watch,
    error::{Context, RuntimeError, StartError, StartErrorKind},
    plan::{ContainerId, SelinuxLabels, UserNamespace},
    state::{self, CONTAINER, PLAN, TaskDir},
};

/// The values in use, as numbers, each with its container.
pub(super) type InUse = BTreeMap<u32, ContainerId>;

/// The values of one kind.
pub(super) trait Kind {
    /// The values from which one is chosen.
    type Pool: Copy;
    /// A value.
    type Value: Copy;
    /// The name of the locked file in the state directory.
    const FILE: &'static str;
    /// The error of a start that gets no value.
    const FAILURE: StartErrorKind;

    /// The value of a plan.
    fn of_plan(plan: PlannedValues) -> Option<Self::Value>;

    /// A value as a number.
    fn number(value: Self::Value) -> u32;

    /// A value of the pool that is not in use.
    fn choose(pool: Self::Pool, last: Option<u32>, in_use: &InUse) -> Option<Self::Value>;

    /// The error if all values are in use.
    fn exhausted(pool: Self::Pool) -> String;
}

/// The part of a plan that tells the container's values.
#[derive(Deserialize)]
pub(super) struct PlannedValues {
    #[serde(default)]
    pub user_namespace: Option<UserNamespace>,
    #[serde(default)]
    pub selinux: Option<SelinuxLabels>,
}

/// The values of one kind of the containers of one state directory.
pub(super) struct Assignments<K> {
    state_dir: PathBuf,
    /// A number that names this process.
    process: u64,
    in_use: Mutex<Option<InUse>>,
    kind: PhantomData<fn() -> K>,
}

/// The content of the locked file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Last {
    /// The process that assigned a value last.
    process: Option<u64>,
    /// That value, as a number.
    number: Option<u32>,
}

/// A number that no other call returns, in all likelihood.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl<K> fmt::Debug for Assignments<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assignments").field("in_use", &self.in_use).finish_non_exhaustive()
    }
}

impl<K: Kind> Assignments<K> {
    /// Reads and makes nothing.
    pub fn new(state_dir: &Path) -> Self {
        Self { state_dir: state_dir.to_owned(), process: random(), in_use: Mutex::default(), kind: PhantomData }
    }

    /// Assigns a value of the pool to a container. `record` writes the plan that names it.
    pub fn assign(
        &self,
        container: &ContainerId,
        pool: K::Pool,
        record: impl FnOnce(K::Value) -> Result<(), StartError>,
    ) -> Result<(), StartError> {
        let mut remembered = self.remembered();
        let path = self.state_dir.join(K::FILE);
        let mut file = locked_file(&path).context(|| format!("locking {}", path.display()))?;
        let last = Last::read(&mut file);
        let known = remembered.take().filter(|_| last.process == Some(self.process));
        let unknown = |error: RuntimeError| StartError::new(K::FAILURE, error.to_string());
        let mut in_use = known.map_or_else(|| self.read().map_err(unknown), Ok)?;
        let mut chosen = K::choose(pool, last.number, &in_use);
        if chosen.is_none() {
            // Another process may have removed a container.
            in_use = self.read().map_err(unknown)?;
            chosen = K::choose(pool, last.number, &in_use);
        }
        let Some(value) = chosen else {
            *remembered = Some(in_use);
            return Err(StartError::new(K::FAILURE, K::exhausted(pool)));
        };
        // Before the plan, so that another process reads the plan.
        Last { process: Some(self.process), number: Some(K::number(value)) }
            .write(&mut file)
            .context(|| format!("writing {}", path.display()))?;
        failpoint::at("start-before-ids");
        // If writing fails, the plan may be on disk all the same, so the next call reads the plans again.
        record(value)?;
        in_use.insert(K::number(value), container.clone());
        *remembered = Some(in_use);
        Ok(())
    }

    /// Forgets the value of a container. Its directory must have been removed before.
    pub fn release(&self, container: &ContainerId) {
        let mut remembered = self.remembered();
        let Some(in_use) = remembered.as_mut().filter(|in_use| in_use.values().any(|holder| holder == container))
        else {
            return;
        };
        match TaskDir::new(&self.state_dir, container).read::<PlannedValues>(PLAN) {
            Ok(None) => in_use.retain(|_, holder| holder != container),
            // A new start of the same id has a value already. The next assignment reads all plans again.
            _ => *remembered = None,
        }
    }

    fn remembered(&self) -> MutexGuard<'_, Option<InUse>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The values in use, as the plans name them.
    #[cfg(test)]
    pub fn known(&self) -> Result<InUse, RuntimeError> {
        self.read()
    }

    /// Reads the values in use.
    fn read(&self) -> Result<InUse, RuntimeError> {
        let directory = state::tasks(&self.state_dir);
        let names = directory_watch::list(&directory).context(|| format!("listing {}", directory.display()))?;
        let mut in_use = InUse::new();
        for id in names.iter().filter_map(|name| name.parse::<ContainerId>().ok()) {
            let task = TaskDir::new(&self.state_dir, &id);
            match task.read::<PlannedValues>(PLAN) {
                Ok(plan) => in_use.extend(plan.and_then(K::of_plan).map(|value| (K::number(value), id))),
                // Its container may run with any of the values.
                Err(error) if task.file(CONTAINER).exists() => return Err(error),
                Err(error) => tracing::warn!(container = %id, %error, "the plan is damaged, and has no container"),
            }
        }
        Ok(in_use)
    }
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
    /// The content of the file. If it is damaged, no process and no value.
    fn read(file: &mut File) -> Self {
        let mut text = String::new();
        if file.read_to_string(&mut text).is_err() {
            return Self::default();
        }
        let mut words = text.split_whitespace();
        let process = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        Self { process, number: words.next().and_then(|word| word.parse().ok()) }
    }

    fn write(self, file: &mut File) -> io::Result<()> {
        let line = format!("{:016x} {}\n", self.process.unwrap_or_default(), self.number.unwrap_or_default());
        file.rewind()?;
        file.write_all(line.as_bytes())?;
        file.set_len(line.len() as u64)
    }
}
