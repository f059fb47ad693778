//! The life of the monitor's process.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    process::ExitCode,
    time::SystemTime,
};

use rustix::{
    io::{fcntl_dupfd_cloexec, retry_on_intr},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, WaitOptions, WaitStatus, getpid, set_child_subreaper, setsid, umask, waitpid},
};
use serde::{Deserialize, de::IgnoredAny};

use super::{
    confine::confine,
    console::Terminal,
    create::{self, Job},
    guard::{self, GuardedLayers},
    relay::Relay,
    report::{CreatedContainer, StartOutcome},
    watch::{self, RunningContainer},
};
use crate::{
    console_socket::ConsoleSocket,
    error::{Context, RuntimeError, StartError},
    hooks,
    logs::Outputs,
    plan::{ContainerId, Hook, HookStage, Output},
    process::ProcessRef,
    report_pipe::{read_report, write_report},
    role::{HookMoment, MonitorArgs},
    state::{CONTAINER, ContainerRecord, MONITOR, PLAN, TaskDir},
    sys::{self, Fork},
};

/// The part of a plan that the monitor itself needs.
#[derive(Debug, Deserialize)]
struct MonitorPlan {
    id: ContainerId,
    output: Output,
    terminal: bool,
    /// Only whether there is one.
    #[serde(default)]
    delivery: Option<IgnoredAny>,
    /// The same.
    #[serde(default)]
    runtime: Option<IgnoredAny>,
    #[serde(default)]
    hooks: Vec<Hook>,
}

/// The role `monitor`. Called before the process has any other thread.
pub(crate) fn main(args: MonitorArgs) -> ExitCode {
    match settle().map(|plugin| (plugin, start(&args))) {
        Ok((plugin, Ok(running))) => finish(plugin, running),
        Ok((plugin, Err(error))) => {
            // Sending fails if the plugin died. The next plugin finds a container that never ran.
            drop(write_report(plugin, &StartOutcome::Failed(error)));
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Detaches this process from the plugin: no terminal, session, parent or descriptor connects the two, except the
/// returned pipe to the plugin.
fn settle() -> io::Result<File> {
    sys::close_descriptors(3, u32::MAX)?;
    let plugin = fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    // setsid(2) fails with EPERM for the leader of a process group. The plugin starts the monitor as no such leader; if
    // another caller did, the monitor leads a session already.
    match setsid() {
        Ok(_) | Err(rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    rustix::thread::set_name(c"oci-rs:monitor")?;
    std::env::set_current_dir("/")?;
    umask(rustix::fs::Mode::from_raw_mode(0o077));
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2] {
        sys::ignore_signal(signal)?;
    }
    Ok(File::from(plugin))
}

/// Creates and starts the container.
fn start(args: &MonitorArgs) -> Result<RunningContainer, StartError> {
    let task = TaskDir::at(args.task.clone());
    record_self(&task)?;
    let plan: MonitorPlan =
        task.read(PLAN)?.ok_or_else(|| StartError::internal(format!("{} is missing", task.file(PLAN).display())))?;
    let layer_group = args.layer_group.map(guard::take_group).transpose()?;
    let logs = Outputs::open(&plan.output)?;
    let (outputs, relay) = match plan.delivery {
        None => (logs, None),
        Some(_) => Relay::start(&task, logs).map(|(outputs, relay)| (outputs, Some(relay)))?,
    };
    let console = plan.terminal.then(|| ConsoleSocket::listen(task.path())).transpose();
    let console = console.context(|| "making the terminal's socket".to_owned())?;
    if plan.runtime.is_some() {
        // The container's first process is a child of the runtime, which ends before it.
        set_child_subreaper(Some(getpid())).context(|| "becoming the subreaper".to_owned())?;
    }
    let (report, report_writer) = pipe()?;
    let report_writer = closed_first(report_writer)?;
    let (created, created_writer) = pipe()?;
    failpoint::at("monitor-before-creator");
    let monitor = getpid();
    let creator = match sys::fork().context(|| "forking the creator".to_owned())? {
        Fork::Child => {
            drop((report, created));
            let job = Job { args, task: &task, outputs: &outputs, console: console.as_ref(), report: &report_writer };
            create::main(&job, created_writer, monitor)
        }
        Fork::Parent(pid) => pid,
    };
    drop((report_writer, created_writer));
    let created = await_creator(&task, creator, created)?;
    if let Some(console) = console.as_ref().filter(|_| plan.runtime.is_some()) {
        // The runtime has ended before the creator's report.
        console.expect_now().context(|| "receiving the container's terminal".to_owned())?;
    }
    let init = ProcessRef::open(created.init).context(|| "opening the container's first process".to_owned())?;
    let layers = layer_group.map(|group| GuardedLayers::begin(&task, &init, group)).transpose();
    let started = layers.and_then(|layers| {
        let (terminal, started_at) = await_start(&task, &init, &created, console, report)?;
        run_first_hooks(&task, &plan.hooks)?;
        Ok((terminal, started_at, layers))
    });
    match started {
        Ok((terminal, started_at, layers)) => Ok(RunningContainer {
            id: plan.id,
            task,
            creator,
            init,
            started_at,
            events_before: created.events_before,
            outputs,
            relay,
            terminal,
            layers,
        }),
        Err(error) => {
            let ended = reap_creator(creator);
            watch::kill_and_reap(&init);
            ended.map_err(StartError::from).and(Err(error))
        }
    }
}

/// Runs the hooks of the stage `poststart`.
fn run_first_hooks(task: &TaskDir, hooks: &[Hook]) -> Result<(), StartError> {
    match hooks::of_stages(hooks, &[HookStage::Poststart]).next() {
        Some(_) => hooks::run_here(task, HookMoment::Started, b""),
        None => Ok(()),
    }
}

/// Records this process. From then on other processes find it, so the task lock is not needed any more.
fn record_self(task: &TaskDir) -> Result<(), StartError> {
    let own = || ProcessRef::open(std::process::id() as i32)?.record();
    let own = own().context(|| "looking at our own process".to_owned())?;
    failpoint::at("monitor-before-record");
    task.commit(MONITOR, &own)?;
    Ok(release_task_lock().context(|| "letting go of the directory".to_owned())?)
}

/// Standard input is the locked directory: closing it releases the lock.
fn release_task_lock() -> io::Result<()> {
    Ok(rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?)
}

/// Moves the pipe by which the command tells that it was executed to a high number. The kernel ends the open files of a
/// process that executes a program in the reverse order of their numbers, and the end of detached mounts takes time.
fn closed_first(pipe: OwnedFd) -> Result<OwnedFd, RuntimeError> {
    // The last one of a table of files that has not grown.
    fcntl_dupfd_cloexec(pipe, 63).context(|| "moving a pipe".to_owned())
}

fn pipe() -> Result<(File, OwnedFd), RuntimeError> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context(|| "making a pipe".to_owned())?;
    Ok((File::from(reader), writer))
}

/// Waits for the creator's message. Its end, which gives back its memory and its mounts, is not waited for.
fn await_creator(task: &TaskDir, creator: Pid, mut created: File) -> Result<CreatedContainer, StartError> {
    let process = ProcessRef::open(creator.as_raw_nonzero().get()).context(|| "opening the creator".to_owned())?;
    let text = read_report(&mut created, &process, None).context(|| "listening to the creator".to_owned())?;
    match serde_json::from_slice::<Result<CreatedContainer, StartError>>(&text) {
        Ok(Ok(created)) => Ok(created),
        // The mounts of a creator that failed are gone when it has ended, before the container is removed.
        Ok(Err(error)) => reap_creator(creator).map_err(StartError::from).and(Err(error)),
        Err(_) => {
            let status = reap_creator(creator)?;
            Err(StartError::internal(format!(
                "the container's creator ended without a word ({status:?}); see {}",
                task.monitor_log().display()
            )))
        }
    }
}

/// Waits for the creator's end.
fn reap_creator(creator: Pid) -> Result<Option<WaitStatus>, RuntimeError> {
    let ended = retry_on_intr(|| waitpid(Some(creator), WaitOptions::empty()));
    Ok(ended.context(|| "waiting for the creator".to_owned())?.map(|(_, status)| status))
}

/// Waits until the command has been executed, and records the container.
fn await_start(
    task: &TaskDir,
    init: &ProcessRef,
    created: &CreatedContainer,
    console: Option<ConsoleSocket>,
    report: File,
) -> Result<(Option<Terminal>, SystemTime), StartError> {
    let terminal = console.map(|console| Terminal::new(console.accept()?)).transpose();
    let terminal = terminal.context(|| "receiving the container's terminal".to_owned())?;
    await_command(report)?;
    failpoint::at("monitor-before-container");
    let started_at = SystemTime::now();
    let record = ContainerRecord {
        init: init.record().context(|| "looking at the container's first process".to_owned())?,
        started_at,
        user: created.user.clone(),
        private_pid: created.private_pid,
        events_before: Some(created.events_before),
    };
    task.commit(CONTAINER, &record)?;
    Ok((terminal, started_at))
}

/// Waits until the command has been executed, or could not be.
fn await_command(mut report: File) -> Result<(), StartError> {
    let mut text = Vec::new();
    report.read_to_end(&mut text).context(|| "waiting for the command".to_owned())?;
    if text.is_empty() {
        return Ok(());
    }
    Err(serde_json::from_slice(&text).unwrap_or_else(|_| StartError::internal("the command could not be executed")))
}

/// Tells the plugin, gives up rights, waits for the end of the container, and records it.
fn finish(plugin: File, mut running: RunningContainer) -> ExitCode {
    failpoint::at("monitor-before-answer");
    // If the plugin is gone, no caller has a handle to this container: it must not stay.
    if write_report(plugin, &StartOutcome::Started).is_err() {
        drop(running.init.signal(libc::SIGKILL));
    }
    // It is ending since its report. If it were not reaped, it would stay a zombie as long as the container runs.
    if let Err(error) = reap_creator(running.creator) {
        drop(writeln!(io::stderr(), "{}: {error}", running.id));
    }
    // After the answer, so that the start does not wait. The record of the end is worth more than a restriction.
    if let Err(error) = confine(&mut running) {
        drop(writeln!(io::stderr(), "the monitor of {} keeps rights: {error}", running.id));
    }
    match watch::until_end(running) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is the monitor's log. The plugin reports that the record is missing.
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}
