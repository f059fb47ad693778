//! Making a command: the helper's part.

use std::{
    fs, io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
    time::Timespec,
};

use super::{
    enter::{self, DebugRootPlan, EnteringProcess},
    identity,
    namespaces::foreign_namespaces,
    protocol::{CommandRequest, EnterReport},
    running::RunningCommand,
};
use crate::{
    cgroup::{Cgroups, cgroups_of_process},
    command::{confined_command, held_capabilities},
    packets::{connection, receive},
    plan::ContainerPlan,
    process::ProcessRef,
    state::{CGROUP, CONTAINER, ContainerRecord, PLAN, TaskDir},
    sys::{self, Fork},
};

/// A container may take this long to end while its first process is ending: the kernel ends all other processes before
/// it.
const END_OF_CONTAINER: Duration = Duration::from_millis(200);

/// The entering process may take this long. The container can stop the command before it begins, and the entering
/// process waits for the command.
const ENTERING: Duration = Duration::from_secs(30);

/// Why there is no command.
pub(super) enum Refusal {
    /// The container has ended.
    ContainerGone,
    /// Any other reason.
    Failed(String),
}

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

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
    let cgroups = task.read::<Cgroups>(CGROUP)?;
    let entering = entering_process(task, plan, container, init, request, stdio)?;
    let (ours, theirs) = connection()?;
    let child = match sys::fork()? {
        Fork::Child => {
            drop(ours);
            enter::run(entering, &theirs)
        }
        Fork::Parent(pid) => pid,
    };
    drop(theirs);
    if !has_reported(&ours, plugin)? {
        end_children()?;
        return Err(Refusal::Failed(format!(
            "the container stopped the command before it began, for {} seconds",
            ENTERING.as_secs()
        )));
    }
    let report = receive(&ours);
    wait_for(child)?;
    let reason = match report? {
        Some((EnterReport::Running { pid }, mut descriptors)) => {
            return Ok((RunningCommand::adopt(pid, cgroups)?, descriptors.pop()));
        }
        Some((EnterReport::Failed(reason), _)) => reason,
        None => {
            "the process that entered the container was killed; the container may be at its memory limit".to_owned()
        }
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
    let options = request.options;
    let plan = ContainerPlan { args: request.args, init: false, terminal: false, ..plan };
    let held = held_capabilities();
    let mut command = confined_command(&plan, &container.user, held, -1)?;
    let mut user = container.user;
    if let Some(other) = options.user {
        user = identity::become_other(&init, &user, command.bounding, &other)?;
        command = confined_command(&plan, &user, held, -1)?;
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
        oom_score_adj: plan.oom_score_adj,
        apparmor: plan.security.apparmor.clone(),
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

/// Waits for the report of the entering process, or for its end. False if the time is over or the plugin is gone.
fn has_reported(entering: &OwnedFd, plugin: &OwnedFd) -> io::Result<bool> {
    let deadline = Instant::now() + ENTERING;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        // Without a wanted event, the plugin's connection only tells that it was closed.
        let mut events = [PollFd::new(entering, PollFlags::IN), PollFd::new(plugin, PollFlags::empty())];
        match poll(&mut events, Some(&limit)) {
            Ok(_) if !events[0].revents().is_empty() => return Ok(true),
            Ok(_) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills and reaps the entering process and, if it has made one, the command. A stopped process ends too.
fn end_children() -> io::Result<()> {
    let own = std::process::id();
    loop {
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children"))?;
        let children = children.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
        let mut ended = true;
        for child in children {
            ended = false;
            kill_process(child, Signal::KILL)?;
            wait_for(child)?;
        }
        // The entering process may have made the command meanwhile.
        if ended {
            return Ok(());
        }
    }
}

/// Reaps a child.
fn wait_for(child: Pid) -> io::Result<()> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}
