//! The tasks that this process knows, by Nomad's id.
//!
//! An id is registered under the lock, so two starts of one id cannot both pass. A task is registered before its
//! start touches the host, and forgotten after its removal.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use runtime::plan::ContainerId;

use super::{
    info::TaskInfo,
    starts::StartCounts,
    task_ref::{self, OwnerChannels, TaskRef},
};
use crate::{
    error::TaskError,
    name::DriverName,
    plan::{self, NomadTask},
};

/// All known tasks of a driver.
#[derive(Clone)]
pub struct Tasks {
    driver: DriverName,
    by_id: Arc<Mutex<HashMap<String, TaskRef>>>,
    starts: Arc<StartCounts>,
}

impl Tasks {
    /// No tasks.
    pub fn new(driver: DriverName) -> Self {
        Self { driver, by_id: Arc::default(), starts: Arc::default() }
    }

    /// A known task.
    pub fn get(&self, task_id: &str) -> Result<TaskRef, TaskError> {
        self.lock().get(task_id).cloned().ok_or_else(|| TaskError::Unknown(task_id.to_owned()))
    }

    /// All known tasks.
    pub fn list(&self) -> Vec<TaskRef> {
        self.lock().values().cloned().collect()
    }

    /// Counts a start of a task. Returns the number of earlier ones in its allocation.
    pub fn count_start(&self, task: &NomadTask) -> u64 {
        self.starts.another(&task.alloc_id, &task.name)
    }

    /// Whether this is the container of a known task. A task that is starting counts.
    pub fn knows(&self, container: &ContainerId) -> bool {
        self.lock().keys().any(|task_id| plan::container_id(task_id, self.driver) == *container)
    }

    /// Does work about a container that belongs to no known task. No task can register for that container meanwhile.
    pub fn unless_known(&self, container: &str, work: impl FnOnce() -> Result<(), TaskError>) -> Result<(), TaskError> {
        let tasks = self.lock();
        let known = tasks.keys().any(|task_id| plan::container_id(task_id, self.driver).as_str() == container);
        if known { Ok(()) } else { work() }
    }

    /// Registers a task. Fails if its id is registered already.
    pub fn register(&self, task: &NomadTask) -> Result<(TaskRef, OwnerChannels), TaskError> {
        let mut tasks = self.lock();
        if tasks.contains_key(&task.id) {
            return Err(TaskError::AlreadyStarted(task.id.clone()));
        }
        let (reference, channels) = task_ref::channels(TaskInfo::new(task));
        tasks.insert(task.id.clone(), reference.clone());
        Ok((reference, channels))
    }

    /// Forgets a task. Its id is free again.
    pub fn forget(&self, task_id: &str) {
        self.lock().remove(task_id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, TaskRef>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
