//! Removing leftovers of killed processes and of earlier boots.

use std::{path::Path, time::Duration};

use super::{runtime::Runtime, status::process};
use crate::{
    error::{Context, RuntimeError},
    plan::ContainerId,
    rootfs::{VolumeImport, WritableLayer},
    state::{self, CONTAINER, MONITOR, PLAN, TaskDir, TaskLock},
};

/// The part of a plan that tells the container's owner.
#[derive(serde::Deserialize)]
struct OwnedPlan {
    #[serde(default)]
    owner: Option<String>,
}

impl Runtime {
    /// The containers of this owner with a plan that was written at least `age` ago.
    pub fn owned_by(&self, owner: &str, age: Duration) -> Result<Vec<ContainerId>, RuntimeError> {
        let mut owned = Vec::new();
        for id in self.list()? {
            let task = self.task(&id);
            match task.read::<OwnedPlan>(PLAN) {
                Ok(Some(plan)) if plan.owner.as_deref() == Some(owner) && task.is_older(PLAN, age) => owned.push(id),
                Ok(_) => {}
                // The other containers are still listed.
                Err(error) => tracing::warn!(container = %id, %error, "the owner of this container is unknown"),
            }
        }
        Ok(owned)
    }

    /// Those of [`Runtime::owned_by`] whose caller has not shown that it received the answer to their start.
    pub fn unanswered(&self, owner: &str, age: Duration) -> Result<Vec<ContainerId>, RuntimeError> {
        let mut owned = self.owned_by(owner, age)?;
        owned.retain(|id| state::is_unanswered(&self.task(id)));
        Ok(owned)
    }

    /// The caller has shown that it received the answer to the container's start.
    pub fn answered(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let task = self.task(id);
        state::mark_answered(&task).context(|| format!("removing a mark in {}", task.path().display()))
    }

    /// Removes the containers that a killed process left half started or half removed; their ids. Skips those for which
    /// `held` is true: this process works on them. Waits for other processes that work on one.
    pub fn sweep_abandoned(&self, held: impl Fn(&ContainerId) -> bool) -> Result<Vec<ContainerId>, RuntimeError> {
        let mut swept = Vec::new();
        for id in self.list()?.into_iter().filter(|id| !held(id)) {
            let task = self.task(&id);
            let removed =
                TaskLock::acquire(&task).context(|| format!("locking {}", task.path().display())).and_then(|lock| {
                    match lock {
                        Some(lock) if self.is_abandoned(&task, &lock)? => self.remove(&id, &task, lock).map(|()| true),
                        _ => Ok(false),
                    }
                });
            match removed {
                Ok(true) => swept.push(id),
                Ok(false) => {}
                // The other containers are still swept.
                Err(error) => tracing::warn!(container = %id, %error, "leftover not removed"),
            }
        }
        Ok(swept)
    }

    /// Whether no caller has a handle to the container: it is marked as incomplete, or its command never ran and its
    /// monitor does not live.
    fn is_abandoned(&self, task: &TaskDir, lock: &TaskLock) -> Result<bool, RuntimeError> {
        let never_ran = || Ok(!task.file(CONTAINER).exists() && process(task, MONITOR)?.is_none());
        if lock.is_marked(task) { Ok(true) } else { never_ran() }
    }

    /// Removes the writable layers of containers without a task directory, as after a restart of the machine; their
    /// names. A layer that cannot be removed does not keep the others. Unfinished copies of other programs' volumes are
    /// removed too.
    pub fn sweep(&self) -> Result<Vec<String>, RuntimeError> {
        if let Err(error) = VolumeImport::sweep(&self.inner.data_dir.join("volumes")) {
            tracing::warn!(%error, "unfinished copies of volumes not removed");
        }
        WritableLayer::remove_empty(&self.inner.data_dir)?;
        let mut swept = Vec::new();
        for name in orphaned_layers(&self.inner.data_dir, &self.inner.state_dir)? {
            match WritableLayer::of(&self.inner.data_dir, &name).remove() {
                Ok(()) => swept.push(name),
                Err(error) => tracing::warn!(container = name, %error, "writable layer not removed"),
            }
        }
        Ok(swept)
    }
}

/// The writable layers of this state directory that have no container.
pub(super) fn orphaned_layers(data_dir: &Path, state_dir: &Path) -> Result<Vec<String>, RuntimeError> {
    let mut names = WritableLayer::list(data_dir, state_dir)?;
    // A container's directory is created before its layer and removed after it.
    names.retain(|name| !state::tasks(state_dir).join(name).exists());
    Ok(names)
}
