//! Ending containers and removing everything that was made for them.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::retry_on_intr,
    time::Timespec,
};

use super::{runtime::Runtime, status::process};
use crate::{
    cgroup::{Cgroups, kill_cgroup},
    error::{Context, RuntimeError},
    hooks::{self, HookPlan},
    installed::InstalledContainer,
    plan::{ContainerId, HookStage},
    process::{ProcessRecord, ProcessRef},
    resctrl::{self, ClassPlan},
    role::{HookMoment, HooksArgs, Role},
    rootfs::WritableLayer,
    state::{CGROUP, CONTAINER, ContainerRecord, MONITOR, PLAN, RELAY, TaskDir, TaskLock},
};

/// Killed processes may take this long to end. A process that hangs longer in the kernel (a dead network file system)
/// is reported.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A removal waits this long for a log relay that still delivers output.
const DELIVERY: Duration = Duration::from_secs(2);

impl Runtime {
    /// Kills all processes of a container, waits for their end, and removes everything that was made for it. It is no
    /// error if the container is gone.
    pub fn destroy(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let task = self.task(id);
        match TaskLock::acquire(&task).context(|| format!("locking {}", task.path().display()))? {
            Some(lock) => self.remove(id, &task, lock),
            None => WritableLayer::of(&self.inner.data_dir, id.as_str()).remove(),
        }
    }

    /// Like [`Runtime::destroy`], if `wanted` is true when the task lock is held; whether the container was removed.
    pub fn destroy_if(&self, id: &ContainerId, wanted: impl FnOnce() -> bool) -> Result<bool, RuntimeError> {
        let task = self.task(id);
        match TaskLock::acquire(&task).context(|| format!("locking {}", task.path().display()))? {
            Some(lock) if wanted() => self.remove(id, &task, lock).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Removes a container under its lock. Every step is idempotent: an interrupted removal is repeated from its
    /// beginning.
    pub(super) fn remove(&self, id: &ContainerId, task: &TaskDir, lock: TaskLock) -> Result<(), RuntimeError> {
        failpoint::at("destroy-before-mark");
        if let Err(error) = lock.mark(task) {
            // For example, the disk is full. The removal frees space. Without the mark, leftovers stay only if the
            // removal is interrupted.
            tracing::warn!(container = %id, %error, "removal not marked");
        }
        failpoint::at("destroy-before-kill");
        self.kill_all(id)?;
        failpoint::at("destroy-before-monitor");
        self.end_monitor(id, task)?;
        failpoint::at("destroy-before-relay");
        self.end_relay(id, task)?;
        // The monitor may have started processes meanwhile.
        self.kill_all(id)?;
        delete_installed(id, task)?;
        failpoint::at("destroy-before-groups");
        if let Some(groups) = task.read::<Cgroups>(CGROUP)? {
            groups.remove()?;
        }
        if let Some(plan) = task.read::<ClassPlan>(PLAN)? {
            resctrl::remove_groups(&plan)?;
        }
        self.run_last_hooks(id, task);
        failpoint::at("destroy-before-layer");
        WritableLayer::of(&self.inner.data_dir, id.as_str()).remove()?;
        failpoint::at("destroy-before-directory");
        lock.remove(task).context(|| format!("removing {}", task.path().display()))?;
        self.inner.ids.release(id);
        self.inner.categories.release(id);
        Ok(())
    }

    /// Runs the hooks of the stage `poststop`. A removal that is repeated runs them again.
    fn run_last_hooks(&self, id: &ContainerId, task: &TaskDir) {
        let failed = match self.last_hooks(task) {
            Ok(failure) => failure,
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = failed {
            tracing::warn!(container = %id, error, "a hook after the container's end failed");
        }
    }

    /// Runs these hooks, if there are some. The result is why one of them failed.
    fn last_hooks(&self, task: &TaskDir) -> Result<Option<String>, RuntimeError> {
        let Some(plan) = task.read::<HookPlan>(PLAN)? else { return Ok(None) };
        if hooks::of_stages(&plan.hooks, &[HookStage::Poststop]).next().is_none() {
            return Ok(None);
        }
        let action = || "running hooks".to_owned();
        let null = File::options().read(true).write(true).open("/dev/null").context(action)?;
        let role = Role::Hooks(HooksArgs { task: task.path().to_owned(), moment: HookMoment::Removed });
        let stdio = [null.as_fd(), null.as_fd(), null.as_fd()];
        let runner = self.inner.launcher.spawn(&role, stdio).context(action)?;
        // Each hook has a deadline.
        runner.wait_for(None).and_then(|_| runner.reap()).context(action)?;
        Ok(hooks::failure(task).map(|error| error.message))
    }

    /// Waits for the monitor, which ends with its container. Kills it if it does not end.
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
        // A child of this process stays a zombie until it is reaped, and `find` does not find zombies.
        match ProcessRef::open(record.pid) {
            Ok(zombie) if zombie.start_time == record.start_time => zombie.reap().context(action),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).context(action),
        }
    }

    /// Waits a while for the log relay, which ends by itself when it has delivered the output. Then kills it.
    fn end_relay(&self, id: &ContainerId, task: &TaskDir) -> Result<(), RuntimeError> {
        let Some(relay) = process(task, RELAY)? else { return Ok(()) };
        let action = || format!("ending the log relay of {id}");
        if !relay.wait_for(Some(DELIVERY)).context(action)? {
            relay.signal(libc::SIGKILL).context(action)?;
            if !relay.wait_for(Some(PATIENCE)).context(action)? {
                return Err(RuntimeError::StillAlive(id.clone(), PATIENCE.as_secs()));
            }
        }
        Ok(())
    }

    /// Kills all processes of the container and waits for their end. Removes nothing.
    pub fn kill_all(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let task = self.task(id);
        let installed = InstalledContainer::find(&task)?;
        if let Some(installed) = installed.as_ref().filter(|installed| !installed.dialect().pid_is_container())
            && let Err(error) = installed.kill(libc::SIGKILL)
        {
            // The processes of the runtime are killed below.
            tracing::warn!(container = %id, %error, "the runtime did not kill its container");
        }
        let container = task.read::<ContainerRecord>(CONTAINER)?;
        if let Some(record) = &container {
            let init = ProcessRef::find(&record.init).context(|| format!("looking for {id}"))?;
            if let Some(init) = init {
                init.signal(libc::SIGKILL).context(|| format!("killing {id}"))?;
                // If the task is frozen, the signal takes effect when it is thawed.
                let groups = task.read::<Cgroups>(CGROUP)?;
                groups.as_ref().map_or(Ok(()), Cgroups::thaw)?;
                if !init.wait_for(Some(PATIENCE)).context(|| format!("waiting for the end of {id}"))? {
                    return Err(RuntimeError::StillAlive(id.clone(), PATIENCE.as_secs()));
                }
            }
        }
        // In a pid namespace of its own all processes have ended with the first one. The cgroup may already be used by
        // a later container, so its processes are killed only where no pid namespace ends them. An installed runtime
        // can have further processes.
        if container.is_some_and(|record| record.private_pid) && installed.is_none() {
            return Ok(());
        }
        let Some(groups) = task.read::<Cgroups>(CGROUP)? else { return Ok(()) };
        let Some(group) = groups.path_of("freezer") else { return Ok(()) };
        if !kill_cgroup(groups.version, group, PATIENCE)? {
            return Err(RuntimeError::StillAlive(id.clone(), PATIENCE.as_secs()));
        }
        Ok(())
    }

    /// Ends all forks of a monitor that did not become the command. Each of them holds the other end of the pipe, and
    /// has joined the container's cgroup or is about to.
    pub(super) fn end_forks(&self, id: &ContainerId, outcome: File) -> Result<(), RuntimeError> {
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

/// Lets an installed runtime remove what it made. Its state is in the task's directory, and its processes and cgroups
/// are removed by us, so an error is no obstacle: for example, a runtime that was killed has no such container.
fn delete_installed(id: &ContainerId, task: &TaskDir) -> Result<(), RuntimeError> {
    if let Some(installed) = InstalledContainer::find(task)?
        && let Err(error) = installed.delete()
    {
        tracing::warn!(container = %id, %error, "the runtime did not delete its container");
    }
    Ok(())
}

/// Whether the pipe has no writer any more; waits a moment for that.
fn is_closed(pipe: &File) -> io::Result<bool> {
    const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut events = [PollFd::new(pipe, PollFlags::empty())];
    retry_on_intr(|| poll(&mut events, Some(&MOMENT)))?;
    Ok(events[0].revents().contains(PollFlags::HUP))
}
