//! Starting a container.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags, open},
    pipe::{PipeFlags, pipe_with},
};

use super::{removal::PATIENCE, runtime::Runtime, status::Running, user_namespace::check_user_namespace};
use crate::{
    address::DescriptorAddress,
    cgroup,
    error::{Context, RuntimeError, StartError, StartErrorKind},
    monitor::StartOutcome,
    plan::{ContainerId, ContainerPlan, SelinuxLabels, UserNamespace},
    process::ProcessRef,
    report_pipe::read_report,
    role::{MonitorArgs, Role},
    state::{CONTAINER, ContainerRecord, PLAN, TaskDir, TaskLock},
};

/// What a start needs beside the plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct StartOptions<'a> {
    /// A start that takes longer is ended: a volume's server may not answer.
    pub limit: Option<Duration>,
    /// The group that announces reads of the container's incomplete layers. The container's processes hold it, and the
    /// kernel ends the container with its monitor.
    pub layer_group: Option<BorrowedFd<'a>>,
}

impl Runtime {
    /// Creates and starts a container; blocks until the command has been executed or could not be. After an error
    /// nothing of the container is left.
    pub fn start(&self, plan: &ContainerPlan) -> Result<Running, StartError> {
        self.start_with(plan, StartOptions::default())
    }

    /// Like [`Self::start`].
    pub fn start_with(&self, plan: &ContainerPlan, options: StartOptions<'_>) -> Result<Running, StartError> {
        check_user_namespace(plan)?;
        let task = self.task(&plan.id);
        let lock = TaskLock::create(&task).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                StartError::new(StartErrorKind::Exists, format!("container {} exists already", plan.id))
            }
            _ => StartError::internal(format!("making {}: {error}", task.path().display())),
        })?;
        let started = self.launch(&task, plan, &lock, options).and_then(|running| {
            failpoint::at("start-before-unmark");
            // The caller is about to give out a handle: from now on a later plugin must keep the container.
            lock.unmark(&task).context(|| format!("taking over {}", task.path().display()))?;
            Ok(running)
        });
        if let Err(error) = started {
            return Err(match self.remove(&plan.id, &task, lock) {
                Ok(()) => error,
                Err(left) => {
                    StartError { message: format!("{}; cleaning up failed too: {left}", error.message), ..error }
                }
            });
        }
        started
    }

    /// Like [`Self::start_with`]. A container that cannot have a user namespace of its own is started in the node's;
    /// the second part of the result is the reason.
    pub fn start_in_any_user_namespace(
        &self,
        plan: &ContainerPlan,
        options: StartOptions<'_>,
    ) -> Result<(Running, Option<String>), StartError> {
        // The logs' reader ends when their last writer is gone. It must not end after the first attempt.
        let _logs = plan.user_namespace.map(|_| hold_logs(plan));
        match self.start_with(plan, options) {
            Err(error) if error.kind == StartErrorKind::UserNamespace => {
                let plan = ContainerPlan { user_namespace: None, ..plan.clone() };
                let started = self.start_with(&plan, options).map_err(|second| {
                    let message = format!("{}; before that, with a user namespace: {}", second.message, error.message);
                    StartError { message, ..second }
                });
                Ok((started?, Some(error.message)))
            }
            started => Ok((started?, None)),
        }
    }

    /// Starts the monitor and waits for its outcome.
    fn launch(
        &self,
        task: &TaskDir,
        plan: &ContainerPlan,
        lock: &TaskLock,
        options: StartOptions<'_>,
    ) -> Result<Running, StartError> {
        // Concurrent with all steps before the engine, which would wait for the migration otherwise. Not earlier: the
        // effect lasts about one RCU grace period (tens of milliseconds), so a pull or the setup of a network ends it.
        cgroup::warm_up();
        failpoint::at("start-before-plan");
        self.commit_plan(task, plan)?;
        let (outcome, writer) = pipe_with(PipeFlags::CLOEXEC).context(|| "making a pipe".to_owned())?;
        let log = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(task.monitor_log());
        let log = log.context(|| "opening the monitor's log".to_owned())?;
        // The monitor shares the task lock until it has recorded itself. If this process is killed, the removal of the
        // directory therefore waits until it can find the monitor.
        let stdio = [lock.as_fd(), writer.as_fd(), log.as_fd()];
        let role = self.monitor_role(plan, options.layer_group)?;
        failpoint::at("start-before-monitor");
        let monitor = self.inner.launcher.spawn(&role, stdio).context(|| "executing the monitor".to_owned())?;
        drop(writer);
        failpoint::at("start-before-outcome");
        let mut outcome = File::from(outcome);
        if let Err(error) = await_outcome(task, &mut outcome, &monitor, options.limit) {
            return Err(match self.end_launch(&plan.id, outcome, &monitor) {
                Ok(()) => error,
                Err(left) => {
                    StartError { message: format!("{}; ending it failed too: {left}", error.message), ..error }
                }
            });
        }
        failpoint::at("start-before-container");
        let record: ContainerRecord =
            task.read(CONTAINER)?.ok_or_else(|| StartError::internal("the monitor left no record of the container"))?;
        let init = ProcessRef::find(&record.init).context(|| "looking at the container's first process".to_owned())?;
        // It may have ended already. Then the record of its end exists, or the monitor is about to write it.
        let init = init.map_or_else(|| ProcessRef::gone(&record.init), Ok).context(|| "making an event".to_owned())?;
        Ok(Running { monitor, init, started_at: record.started_at, installed: plan.runtime.is_some() })
    }

    /// Ends the monitor of a container that did not start, and its forks.
    fn end_launch(&self, id: &ContainerId, outcome: File, monitor: &ProcessRef) -> Result<(), RuntimeError> {
        self.end_forks(id, outcome)?;
        // The monitor is our child and about to end. It may have ended before it recorded itself.
        let ended = monitor.wait_for(Some(PATIENCE)).and_then(|_| monitor.reap());
        ended.context(|| "ending the monitor".to_owned())
    }

    /// Writes the plan, with ids for a user namespace and with SELinux categories if it has them.
    fn commit_plan(&self, task: &TaskDir, plan: &ContainerPlan) -> Result<(), StartError> {
        let Some(namespace) = plan.user_namespace else { return self.commit_labelled(task, plan) };
        self.inner.ids.assign(&plan.id, namespace.pool, |ids| {
            let user_namespace = Some(UserNamespace { ids: Some(ids), ..namespace });
            self.commit_labelled(task, &ContainerPlan { user_namespace, ..plan.clone() })
        })
    }

    fn commit_labelled(&self, task: &TaskDir, plan: &ContainerPlan) -> Result<(), StartError> {
        let Some(labels) = plan.selinux.as_ref().filter(|labels| labels.own_categories) else {
            return Ok(task.commit(PLAN, plan)?);
        };
        self.inner.categories.assign(&plan.id, (), |pair| {
            let selinux = Some(SelinuxLabels { categories: Some(pair), ..labels.clone() });
            Ok(task.commit(PLAN, &ContainerPlan { selinux, ..plan.clone() })?)
        })
    }

    /// The role of the monitor that creates this container.
    pub fn monitor_role(
        &self,
        plan: &ContainerPlan,
        layer_group: Option<BorrowedFd<'_>>,
    ) -> Result<Role, RuntimeError> {
        let own = |group: BorrowedFd<'_>| DescriptorAddress { pid: std::process::id(), descriptor: group.as_raw_fd() };
        Ok(Role::Monitor(MonitorArgs {
            task: self.task(&plan.id).path().to_owned(),
            data_dir: self.inner.data_dir.clone(),
            empty_mounts: self.empty_mounts()?,
            layer_mounts: self.inner.images.address(&plan.all_layers()),
            layer_group: layer_group.map(own),
        }))
    }
}

/// Opens the logs for writing, if they are FIFOs. The start itself reports a log that cannot be opened.
fn hold_logs(plan: &ContainerPlan) -> Vec<OwnedFd> {
    // Not for reading: the monitor counts what no process reads. A FIFO without a reader has none that could end.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let logs = [&plan.output.stdout, &plan.output.stderr];
    logs.iter().filter_map(|log| open(log.as_path(), flags, Mode::empty()).ok()).collect()
}

/// Waits for the monitor's one message. A monitor that says nothing in time is killed, and its creator with it.
fn await_outcome(
    task: &TaskDir,
    pipe: &mut File,
    monitor: &ProcessRef,
    limit: Option<Duration>,
) -> Result<(), StartError> {
    let text = match read_report(pipe, monitor, limit) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            monitor.signal(libc::SIGKILL).context(|| "killing the monitor".to_owned())?;
            return Err(StartError::new(
                StartErrorKind::TimedOut,
                format!(
                    "the container did not start within {} seconds: the server or device of a volume answers too \
                     slowly or not at all; see `volume_options` in `mount`, or raise `mount_timeout` in the plugin \
                     block `volumes`",
                    limit.unwrap_or_default().as_secs()
                ),
            ));
        }
        text => text.context(|| "listening to the monitor".to_owned())?,
    };
    match serde_json::from_slice(&text) {
        Ok(StartOutcome::Started) => Ok(()),
        Ok(StartOutcome::Failed(error)) => Err(error),
        Err(_) => {
            let log = fs::read_to_string(task.monitor_log()).unwrap_or_default();
            Err(StartError::internal(format!("the container's monitor died: {}", log.trim())))
        }
    }
}
