//! The role `exec`: sees one command to its end.
//!
//! One thread, in the host's namespaces, in nobody's session but its own. Standard input is the connection to the
//! plugin.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process::ExitCode,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, fcntl_dupfd_cloexec},
    process::{
        DumpableBehavior, Pid, Signal, WaitId, WaitIdOptions, WaitOptions, set_dumpable_behavior, setsid, waitid,
        waitpid,
    },
    time::Timespec,
};

use super::{
    entrant::{self, Entry, ToolsRoot, foreign_namespaces, null},
    identity,
    protocol::{Entered, Order, Reply, Request, read_request},
    session::Session,
};
use crate::{
    cgroup::{Cgroups, cgroups_of_process},
    command::{confined_command, held_capabilities},
    packets::{clip, connection, receive, send},
    plan::ContainerPlan,
    process::ProcessRef,
    role::ExecArgs,
    state::{CGROUP, CONTAINER, ContainerRecord, PLAN, TaskDir},
    sys::{self, Fork},
};

/// How long a session may take to end by itself when it is hung up.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a container whose first process is ending may take to do so: the kernel ends all others before it.
const END_OF_CONTAINER: Duration = Duration::from_millis(200);

/// The role `exec`. Called before the process has any other thread.
pub(crate) fn main(args: ExecArgs) -> ExitCode {
    let served = settle().and_then(|plugin| serve(&TaskDir::at(args.task), &plugin));
    // Nobody is left to be told: the plugin sees our end.
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Becomes a process of its own; the connection to the plugin.
fn settle() -> io::Result<OwnedFd> {
    sys::close_descriptors(3, u32::MAX)?;
    // Whatever the container sees of us, it cannot trace it or look into it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let plugin = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(&null()?)?;
    // Whoever leads a session already has one of its own.
    if let Err(error) = setsid()
        && error != Errno::PERM
    {
        return Err(error.into());
    }
    rustix::thread::set_name(c"oci-rs:exec")?;
    // Not the plugin's: whoever is in it may read and change the keys.
    sys::join_new_session_keyring()?;
    std::env::set_current_dir("/")?;
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2] {
        sys::ignore_signal(signal)?;
    }
    Ok(plugin)
}

fn serve(task: &TaskDir, plugin: &OwnedFd) -> io::Result<()> {
    let Some((Order::Run, mut descriptors)) = receive(plugin)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if descriptors.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let request = read_request(descriptors.remove(0))?;
    let stdio = descriptors.try_into().ok();
    match begin(task, request, stdio) {
        Ok((command, terminal)) => {
            let descriptors: Vec<_> = terminal.iter().map(AsFd::as_fd).collect();
            // A plugin that is gone is noticed below, with the command's end as its consequence.
            let told = send(plugin, &Reply::Running, &descriptors);
            drop(terminal);
            command.watch(plugin)?;
            told.and(send(plugin, &command.reap()?, &[]))
        }
        Err(Refusal::ContainerGone) => send(plugin, &Reply::ContainerGone, &[]),
        Err(Refusal::Failed(reason)) => send(plugin, &Reply::Failed(clip(reason)), &[]),
    }
}

/// Why there is no command.
enum Refusal {
    ContainerGone,
    Failed(String),
}

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Looks the container up and sends somebody in.
fn begin(task: &TaskDir, request: Request, stdio: Option<[OwnedFd; 3]>) -> Result<(Command, Option<OwnedFd>), Refusal> {
    let (Some(plan), Some(container)) = (task.read::<ContainerPlan>(PLAN)?, task.read::<ContainerRecord>(CONTAINER)?)
    else {
        return Err(Refusal::ContainerGone);
    };
    let init = ProcessRef::find(&container.init)?.ok_or(Refusal::ContainerGone)?;
    let groups = task.read::<Cgroups>(CGROUP)?;
    let entry = entry(task, plan, container, init, request, stdio)?;
    let (ours, theirs) = connection()?;
    let entrant = match sys::fork()? {
        Fork::Child => {
            drop(ours);
            entrant::run(entry, &theirs)
        }
        Fork::Parent(pid) => pid,
    };
    drop(theirs);
    let entered = receive(&ours);
    wait_for(entrant)?;
    let reason = match entered? {
        Some((Entered::Running { pid }, mut descriptors)) => {
            return Ok((Command::adopt(pid, groups)?, descriptors.pop()));
        }
        Some((Entered::Failed(reason), _)) => reason,
        None => {
            "the process that entered the container was killed; the container may be at its memory limit".to_owned()
        }
    };
    // In a container that is about to end, everything fails in some way: nothing can be made in its pid namespace,
    // files are gone.
    Err(if entry.init.wait_for(Some(END_OF_CONTAINER))? { Refusal::ContainerGone } else { Refusal::Failed(reason) })
}

/// Everything that is to be known of the container, from its records and from the host's kernel.
fn entry(
    task: &TaskDir,
    plan: ContainerPlan,
    container: ContainerRecord,
    init: ProcessRef,
    request: Request,
    stdio: Option<[OwnedFd; 3]>,
) -> Result<Entry, Refusal> {
    // What is read by the pid was the container's if that still runs afterwards.
    let facts = cgroups_of_process(init.pid).and_then(|groups| Ok((groups, foreign_namespaces(init.pid)?)));
    if init.ended() {
        return Err(Refusal::ContainerGone);
    }
    let (groups, namespaces) = facts.map_err(|error| match error.kind() {
        // It is about to end: its namespaces are gone already.
        io::ErrorKind::NotFound => Refusal::ContainerGone,
        _ => error.into(),
    })?;
    let options = request.options;
    let command = ContainerPlan { args: request.args, init: false, terminal: false, ..plan };
    let held = held_capabilities();
    let mut launch = confined_command(&command, &container.user, held, -1)?;
    let mut user = container.user;
    if let Some(other) = options.user {
        user = identity::become_other(&init, &user, launch.bounding, &other)?;
        launch = confined_command(&command, &user, held, -1)?;
    }
    launch.loopback = false;
    let tools = options.tools.map(|image| {
        // Its set-user-id programs must not give what the container's own image does not give.
        launch.no_new_privileges = true;
        launch.env.retain(|(name, _)| name != "PATH");
        launch.env.extend(image.path.map(|path| ("PATH".to_owned(), path)));
        ToolsRoot { layers: image.layers, directory: task.file("tools"), target: task.file("rootfs") }
    });
    if request.terminal.is_some() && !launch.env.iter().any(|(name, _)| name == "TERM") {
        launch.env.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    Ok(Entry {
        init,
        namespaces,
        groups,
        oom_score_adj: command.oom_score_adj,
        apparmor: command.security.apparmor.clone(),
        user,
        cwd: command.cwd,
        other_cwd: options.cwd,
        tools,
        whole_tree: options.whole_tree,
        terminal: request.terminal,
        stdio,
        command: launch,
    })
}

fn wait_for(child: Pid) -> io::Result<()> {
    loop {
        match waitpid(Some(child), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// A command that runs, our child.
struct Command {
    process: ProcessRef,
    session: Session,
}

/// What to do with a command that is not wanted any more.
enum Ending {
    NotYet,
    HungUp { until: Instant },
    Killed,
}

impl Command {
    /// A pid is believed only if it is a child of ours.
    fn adopt(pid: i32, groups: Option<Cgroups>) -> io::Result<Self> {
        let process = ProcessRef::open(pid)?;
        let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::PidFd(process.pidfd.as_fd()), flags)?;
        Ok(Self { session: Session::new(pid, groups), process })
    }

    /// Waits for the command's end, and ends it when the plugin wants that or is gone.
    fn watch(&self, plugin: &OwnedFd) -> io::Result<()> {
        let mut ending = Ending::NotYet;
        loop {
            let limit = match &ending {
                Ending::HungUp { until } => Some(until.saturating_duration_since(Instant::now())),
                _ => None,
            };
            let listening = matches!(ending, Ending::NotYet);
            let (ended, told) = wait(&self.process, listening.then_some(plugin), limit)?;
            if ended {
                if !listening {
                    self.session.kill()?;
                }
                return Ok(());
            }
            ending = match ending {
                Ending::NotYet if told => match receive(plugin) {
                    Ok(Some((Order::Hangup, _))) => {
                        self.session.hang_up()?;
                        Ending::NotYet
                    }
                    Ok(Some((Order::Run, _))) => Ending::NotYet,
                    Ok(Some((Order::Kill, _))) => {
                        self.session.kill()?;
                        Ending::Killed
                    }
                    Ok(Some((Order::End, _)) | None) | Err(_) => {
                        self.session.hang_up()?;
                        Ending::HungUp { until: Instant::now() + PATIENCE }
                    }
                },
                Ending::HungUp { until } if Instant::now() >= until => {
                    self.session.kill()?;
                    Ending::Killed
                }
                other => other,
            };
        }
    }

    /// Takes the status of the command, which has ended.
    fn reap(&self) -> io::Result<Reply> {
        let status = waitid(WaitId::PidFd(self.process.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        let status = status.ok_or(io::ErrorKind::NotFound)?;
        let signal = status.terminating_signal().unwrap_or(0);
        Ok(Reply::Exited { exit_code: status.exit_status().unwrap_or(128 + signal), signal })
    }
}

/// Waits for the command's end, for the plugin, or for the time; which of the first two it was.
fn wait(process: &ProcessRef, plugin: Option<&OwnedFd>, limit: Option<Duration>) -> io::Result<(bool, bool)> {
    let limit = limit.map(Timespec::try_from).transpose().map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut events = vec![PollFd::new(&process.pidfd, PollFlags::IN)];
    events.extend(plugin.map(|plugin| PollFd::new(plugin, PollFlags::IN)));
    match poll(&mut events, limit.as_ref()) {
        Ok(_) => Ok((!events[0].revents().is_empty(), events.get(1).is_some_and(|event| !event.revents().is_empty()))),
        Err(Errno::INTR) => Ok((false, false)),
        Err(error) => Err(error.into()),
    }
}
