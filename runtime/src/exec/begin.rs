//! Making a command: the helper's part.

use std::{io, os::fd::OwnedFd, time::Instant};

use super::{
    enter::{self, DebugRootPlan, EnteringProcess},
    identity,
    installed::{self, Target},
    namespaces::foreign_namespaces,
    protocol::{CommandRequest, EnterReport},
    refusal::Refusal,
    running::RunningCommand,
    waiting::{END_OF_CONTAINER, ENTERING, children, end_children, is_readable, wait_for},
};
use crate::{
    cgroup::{Cgroups, cgroups_of_process, is_frozen},
    command::{compiled_filter, confined_command, held_capabilities},
    installed::InstalledContainer,
    packets::{connection, receive},
    plan::ContainerPlan,
    process::ProcessRef,
    state::{CGROUP, CONTAINER, ContainerRecord, PLAN, TaskDir},
    sys::{self, Fork},
};

/// Looks the container up, and makes the command through an entering process. The result is the command and the master
/// side of its terminal. Gives up when the plugin closes the connection.
pub(super) fn begin(
    task: &TaskDir,
    request: CommandRequest,
    stdio: Option<[OwnedFd; 3]>,
    plugin: &OwnedFd,
) -> Result<(RunningCommand, Option<OwnedFd>), Refusal> {
    let (Some(plan), Some(container)) = (task.read::<ContainerPlan>(PLAN)?, task.read::<ContainerRecord>(CONTAINER)?)
    else {
        return Err(Refusal::ContainerGone);
    };
    let init = ProcessRef::find(&container.init)?.ok_or(Refusal::ContainerGone)?;
    if plan.runtime.is_some() {
        let made = InstalledContainer::find(task)?.ok_or(Refusal::ContainerGone)?;
        return installed::begin(
            Target { task, container: made, plan, record: container, init },
            request,
            stdio,
            plugin,
        );
    }
    let cgroups = task.read::<Cgroups>(CGROUP)?;
    let entering = entering_process(task, plan, container, init, request, stdio)?;
    let (ours, theirs) = connection()?;
    let child = match sys::fork()? {
        Fork::Child => enter::run(entering, theirs),
        Fork::Parent(pid) => pid,
    };
    drop(theirs);
    let deadline = Instant::now() + ENTERING;
    let process = ProcessRef::open(child.as_raw_nonzero().get())?;
    let reported = is_readable(&ours, plugin, deadline)?.then(|| receive(&ours)).transpose()?;
    if reported.is_none() || !is_readable(&process.pidfd, plugin, deadline)? {
        end_children()?;
        return Err(Refusal::Failed(format!(
            "the container stopped the command before it began, for {} seconds",
            ENTERING.as_secs()
        )));
    }
    let killed = "the process that entered the container was killed; the container may be at its memory limit";
    let reason = match (reported.flatten(), wait_for(child)?) {
        (Some((EnterReport::Entered, mut descriptors)), Some(0)) => {
            let command = children()?.first().copied().ok_or_else(|| io::Error::other("the command is gone"))?;
            return Ok((RunningCommand::adopt(command.as_raw_nonzero().get(), cgroups)?, descriptors.pop()));
        }
        (Some((EnterReport::Failed(reason), _)), _) => reason,
        (Some((EnterReport::Entered, _)), Some(status)) => enter::fork_failure(status),
        (Some((EnterReport::Entered, _)), None) | (None, _) => killed.to_owned(),
    };
    // In a container that is about to end, any step may fail. So the end of the container explains the failure better.
    let gone = entering.init.wait_for(Some(END_OF_CONTAINER))?;
    Err(if gone { Refusal::ContainerGone } else { Refusal::Failed(reason) })
}

/// The inputs of the entering process, from the container's records and from the host's kernel.
fn entering_process(
    task: &TaskDir,
    plan: ContainerPlan,
    container: ContainerRecord,
    init: ProcessRef,
    request: CommandRequest,
    stdio: Option<[OwnedFd; 3]>,
) -> Result<EnteringProcess, Refusal> {
    // These were read by the pid. They are the container's if the container still runs afterwards.
    let found = cgroups_of_process(init.pid).and_then(|cgroups| Ok((cgroups, foreign_namespaces(init.pid)?)));
    if init.ended() {
        return Err(Refusal::ContainerGone);
    }
    let (cgroups, namespaces) = found.map_err(|error| match error.kind() {
        // The container is about to end: its namespaces are gone already.
        io::ErrorKind::NotFound => Refusal::ContainerGone,
        _ => error.into(),
    })?;
    // A process that joins a frozen cgroup is frozen too, and on v1 it could not even be killed.
    if is_frozen(&cgroups)? {
        return Err(Refusal::Failed("the container is frozen: thaw its control group (freezer) first".to_owned()));
    }
    let options = request.options;
    let plan = ContainerPlan { args: request.args, init: false, terminal: false, ..plan };
    let held = held_capabilities();
    let mut command = confined_command(&plan, &container.user, held, compiled_filter(&plan, held)?, -1)?;
    let mut user = container.user;
    if let Some(other) = options.user {
        user = identity::become_other(Some(&init), &user, command.bounding, &other)?;
        command = confined_command(&plan, &user, held, command.filter.take(), -1)?;
    }
    command.loopback = false;
    let debug_root = options.debug_image.map(|image| {
        // Set-user-id programs of the debug image must not give rights that the container does not have.
        command.no_new_privileges = true;
        command.env.retain(|(name, _)| name != "PATH");
        command.env.extend(image.path.map(|path| ("PATH".to_owned(), path)));
        DebugRootPlan { layers: image.layers, directory: task.file("tools"), target: task.file("rootfs") }
    });
    if request.terminal.is_some() && !command.env.iter().any(|(name, _)| name == "TERM") {
        command.env.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    Ok(EnteringProcess {
        init,
        namespaces,
        ids: plan.id_range(),
        cgroups,
        class: plan.cache_class.clone().map(|class| (class, plan.id.clone())),
        oom_score_adj: plan.oom_score_adj,
        apparmor: plan.security.apparmor.clone(),
        selinux: plan.selinux.clone(),
        user,
        cwd: plan.cwd,
        other_cwd: options.cwd,
        debug_root,
        whole_tree: options.whole_tree,
        terminal: request.terminal,
        stdio,
        command,
    })
}
