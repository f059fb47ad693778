//! Ending containers and taking away what is left of them, by those who are done with them and after those who were killed.

use std::{
    fs::File,
    io,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
    time::Timespec,
};

use super::Runtime;
use crate::{
    cgroup::{Cgroups, kill_cgroup},
    error::{Context, RuntimeError},
    plan::ContainerId,
    process::{ProcessRecord, ProcessRef},
    rootfs::WritableLayer,
    state::{self, CGROUP, CONTAINER, ContainerRecord, MONITOR, PLAN, TaskDir, TaskLock},
};

/// What finding an owner's containers needs of a plan.
#[derive(serde::Deserialize)]
struct Owned {
    #[serde(default)]
    owner: Option<String>,
}

/// How long killed processes may take to end. One that hangs in the kernel longer (a dead network file system) is reported.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

impl Runtime {
    /// Kills whatever is left of a container, waits for its end and removes everything that we made for it. A container
    /// that is gone is fine.
    pub fn destroy(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let task = self.task(id);
        match TaskLock::acquire(&task).context(|| format!("locking {}", task.path().display()))? {
            Some(lock) => self.remove(id, &task, lock),
            None => WritableLayer::of(&self.inner.data_dir, id.as_str()).remove(),
        }
    }

    /// The same, if `wanted` says yes once nobody else can make or remove the container; whether it was removed.
    pub fn destroy_if(&self, id: &ContainerId, wanted: impl FnOnce() -> bool) -> Result<bool, RuntimeError> {
        let task = self.task(id);
        match TaskLock::acquire(&task).context(|| format!("locking {}", task.path().display()))? {
            Some(lock) if wanted() => self.remove(id, &task, lock).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Containers that this owner asked for at least so long ago.
    pub fn owned_by(&self, owner: &str, age: Duration) -> Result<Vec<ContainerId>, RuntimeError> {
        let mut owned = Vec::new();
        for id in self.list()? {
            let task = self.task(&id);
            match task.read::<Owned>(PLAN) {
                Ok(Some(plan)) if plan.owner.as_deref() == Some(owner) && task.is_older(PLAN, age) => owned.push(id),
                Ok(_) => {}
                // The others are told all the same.
                Err(error) => tracing::warn!(container = %id, %error, "nobody knows whose container this is"),
            }
        }
        Ok(owned)
    }

    /// The same under the lock. Each step can be repeated, so a removal that was cut short is done again from its beginning.
    pub(super) fn remove(&self, id: &ContainerId, task: &TaskDir, lock: TaskLock) -> Result<(), RuntimeError> {
        failpoint::at("destroy-before-mark");
        if let Err(error) = lock.mark(task) {
            // A full disk, say: the removal makes room. Only if it is cut short as well does something stay.
            tracing::warn!(container = %id, %error, "removal not marked");
        }
        failpoint::at("destroy-before-kill");
        self.kill_all(id)?;
        failpoint::at("destroy-before-monitor");
        self.end_monitor(id, task)?;
        // What the monitor was just making.
        self.kill_all(id)?;
        failpoint::at("destroy-before-groups");
        if let Some(groups) = task.read::<Cgroups>(CGROUP)? {
            groups.remove()?;
        }
        failpoint::at("destroy-before-layer");
        WritableLayer::of(&self.inner.data_dir, id.as_str()).remove()?;
        failpoint::at("destroy-before-directory");
        lock.remove(task).context(|| format!("removing {}", task.path().display()))
    }

    /// Removes the containers whose start or removal was cut short by the death of the process that worked on it; says which.
    /// `held` are left alone: somebody works on them now. Waits for whoever else makes or removes one.
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
                // The others are swept all the same.
                Err(error) => tracing::warn!(container = %id, %error, "leftover not removed"),
            }
        }
        Ok(swept)
    }

    /// Nobody asks for it: it is marked so, or its command never ran and nobody is left to run it.
    fn is_abandoned(&self, task: &TaskDir, lock: &TaskLock) -> Result<bool, RuntimeError> {
        let never_ran = || Ok(!task.file(CONTAINER).exists() && self.process(task, MONITOR)?.is_none());
        if lock.is_marked(task) { Ok(true) } else { never_ran() }
    }

    /// Removes what containers left whose state is gone, as after a restart of the machine: their writable layers. Says whose.
    pub fn sweep(&self) -> Result<Vec<String>, RuntimeError> {
        WritableLayer::remove_empty(&self.inner.data_dir)?;
        let mut swept = Vec::new();
        for name in WritableLayer::list(&self.inner.data_dir, &self.inner.state_dir)? {
            // A container's directory is made before its layer and removed after it.
            if !state::tasks(&self.inner.state_dir).join(&name).exists() {
                WritableLayer::of(&self.inner.data_dir, &name).remove()?;
                swept.push(name);
            }
        }
        Ok(swept)
    }

    /// The monitor ends with its container; one that does not is killed.
    fn end_monitor(&self, id: &ContainerId, task: &TaskDir) -> Result<(), RuntimeError> {
        let Some(record) = task.read::<ProcessRecord>(MONITOR)? else { return Ok(()) };
        let action = || format!("ending the monitor of {id}");
        let ends = |monitor: &ProcessRef| monitor.wait_for(Some(PATIENCE)).context(action);
        if let Some(monitor) = ProcessRef::find(&record).context(action)?
            && !ends(&monitor)?
        {
            monitor.signal(libc::SIGKILL).context(action)?;
            if !ends(&monitor)? {
                return Err(RuntimeError::StillAlive(id.clone(), PATIENCE.as_secs()));
            }
        }
        // Our own child stays a zombie until it is waited for; `find` does not see those.
        match ProcessRef::open(record.pid) {
            Ok(zombie) if zombie.start_time == record.start_time => zombie.reap().context(action),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).context(action),
        }
    }

    /// Kills everything in the container and waits for its end. Removes nothing.
    pub fn kill_all(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let task = self.task(id);
        let container = task.read::<ContainerRecord>(CONTAINER)?;
        if let Some(record) = &container {
            let init = ProcessRef::find(&record.init).context(|| format!("looking for {id}"))?;
            if let Some(init) = init {
                init.signal(libc::SIGKILL).context(|| format!("killing {id}"))?;
                // Somebody may have frozen the task: the signal works as soon as it thaws.
                let groups = task.read::<Cgroups>(CGROUP)?;
                groups.as_ref().map_or(Ok(()), Cgroups::thaw)?;
                if !init.wait_for(Some(PATIENCE)).context(|| format!("waiting for the end of {id}"))? {
                    return Err(RuntimeError::StillAlive(id.clone(), PATIENCE.as_secs()));
                }
            }
        }
        // In a pid namespace of its own everything has ended with the first process. The group may by now be used by a
        // successor of this container; it is asked only where nothing else knows.
        if container.is_some_and(|record| record.private_pid) {
            return Ok(());
        }
        let Some(groups) = task.read::<Cgroups>(CGROUP)? else { return Ok(()) };
        let Some(group) = groups.path_of("freezer") else { return Ok(()) };
        if !kill_cgroup(groups.version, group, PATIENCE)? {
            return Err(RuntimeError::StillAlive(id.clone(), PATIENCE.as_secs()));
        }
        Ok(())
    }

    /// Ends everything that a monitor forked and that has not become the command. All of it holds the pipe's other end, and
    /// what has not joined the container's group yet is about to.
    pub(super) fn end_family(&self, id: &ContainerId, outcome: File) -> Result<(), RuntimeError> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            self.kill_all(id)?;
            if is_closed(&outcome).context(|| format!("waiting for what made {id}"))? {
                return Ok(());
            }
        }
        Err(RuntimeError::StillAlive(id.clone(), PATIENCE.as_secs()))
    }
}

/// Whether nobody writes to a pipe any more; waits a moment for that.
fn is_closed(pipe: &File) -> io::Result<bool> {
    const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut events = [PollFd::new(pipe, PollFlags::empty())];
    retry_on_intr(|| poll(&mut events, Some(&MOMENT)))?;
    Ok(events[0].revents().contains(PollFlags::HUP))
}
