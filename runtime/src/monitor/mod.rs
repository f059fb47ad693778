//! The monitor: one process per container, which makes it, owns it, and writes down how it ended.
//!
//! It has one thread and does nothing but wait. Everything that needs memory (the plan, the spec, libcontainer) happens in
//! its *creator*, a fork that ends as soon as the container runs. The container does not depend on it: its output goes
//! straight to the log FIFOs, and it survives the monitor being killed.
//!
//! Standard output is where the plugin waits for the one message that says whether the container runs.

mod create;
mod drain;
mod terminal;
mod watch;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::PathBuf,
    process::ExitCode,
    time::SystemTime,
};

use rustix::{
    io::fcntl_dupfd_cloexec,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, WaitOptions, setsid, umask, waitpid},
};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup::CgroupEvents,
    error::{Context, RuntimeError, StartError},
    logs::Outputs,
    plan::{ContainerId, Output},
    process::ProcessRef,
    report_pipe::read_report,
    state::{CONTAINER, ContainerRecord, MONITOR, PLAN, TaskDir},
    sys::{self, Fork},
    user::ResolvedUser,
};

/// What the plugin is told, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Started,
    Failed(StartError),
}

/// The little of a plan that the monitor itself needs.
#[derive(Debug, Deserialize)]
struct Essentials {
    id: ContainerId,
    output: Output,
    terminal: bool,
}

/// What the creator tells about a container that it has made.
#[derive(Debug, Serialize, Deserialize)]
struct Created {
    init: i32,
    user: ResolvedUser,
    private_pid: bool,
    events_before: CgroupEvents,
}

/// What the monitor is told by whoever starts it.
struct Args {
    task: TaskDir,
    data_dir: PathBuf,
    /// Where the empty mount namespace is.
    empty: String,
    /// Where the plugin has mounted those of the layers that are images, if any is.
    images: Option<String>,
}

impl Args {
    fn of(args: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut args = args.into_iter();
        let task = TaskDir::at(args.next()?.into());
        let (data_dir, empty) = (args.next()?.into(), args.next()?.into_string().ok()?);
        let images = args.next().map(OsString::into_string).transpose().ok()?;
        Some(Self { task, data_dir, empty, images })
    }
}

/// The role `monitor`: `args` are the task's directory, the data directory, and the addresses of an empty mount namespace and of the layers that
/// are mounted images. Called before the process has any other thread.
pub fn monitor_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let Some(args) = Args::of(args) else { return ExitCode::from(2) };
    match settle().map(|plugin| (plugin, serve(args))) {
        Ok((plugin, Ok(started))) => finish(plugin, started),
        Ok((plugin, Err(error))) => {
            // Nobody listening means that the plugin died: its successor finds a container that never ran.
            drop(tell(plugin, &Outcome::Failed(error)));
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}

/// Becomes a process of its own, which no terminal, no parent and no descriptor ties to the plugin; the plugin's pipe.
fn settle() -> io::Result<File> {
    sys::close_descriptors(3, u32::MAX)?;
    let plugin = fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    // The plugin made us no group leader, and if somebody did, we lead a session already.
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

/// A container whose command runs.
struct Started {
    task: TaskDir,
    id: ContainerId,
    init: ProcessRef,
    started_at: SystemTime,
    events_before: CgroupEvents,
    outputs: Outputs,
    terminal: Option<terminal::Terminal>,
}

fn serve(args: Args) -> Result<Started, StartError> {
    let task = &args.task;
    let record = |_: ()| -> io::Result<_> { ProcessRef::open(std::process::id() as i32)?.record() };
    let own = record(()).context(|| "looking at our own process".to_owned())?;
    failpoint::at("monitor-before-record");
    task.commit(MONITOR, &own)?;
    let_go_of_lock().context(|| "letting go of the directory".to_owned())?;
    let plan: Essentials =
        task.read(PLAN)?.ok_or_else(|| StartError::internal(format!("{} is missing", task.file(PLAN).display())))?;
    let outputs = Outputs::open(&plan.output)?;
    let console = plan.terminal.then(|| terminal::Console::listen(task)).transpose()?;
    let (report, report_writer) = pipe()?;
    let (created, created_writer) = pipe()?;
    failpoint::at("monitor-before-creator");
    let monitor = rustix::process::getpid();
    let creator = match sys::fork().context(|| "forking the creator".to_owned())? {
        Fork::Child => {
            drop((report, created));
            create::main(&args, &outputs, console, report_writer, created_writer, monitor)
        }
        Fork::Parent(pid) => pid,
    };
    drop((report_writer, created_writer));
    let created = await_creator(task, creator, created)?;
    let init = ProcessRef::open(created.init).context(|| "opening the container's first process".to_owned())?;
    let run = || -> Result<_, StartError> {
        let terminal = console.map(|console| console.accept()).transpose()?;
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
    };
    match run() {
        Ok((terminal, started_at)) => {
            let events_before = created.events_before;
            Ok(Started { task: args.task, id: plan.id, init, started_at, events_before, outputs, terminal })
        }
        Err(error) => {
            watch::kill_and_reap(&init);
            Err(error)
        }
    }
}

/// Standard input is the directory under its lock. We can be found now, so whoever wants to remove the directory need not wait any more.
fn let_go_of_lock() -> io::Result<()> {
    Ok(rustix::stdio::dup2_stdin(&File::open("/dev/null")?)?)
}

fn pipe() -> Result<(File, OwnedFd), RuntimeError> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context(|| "making a pipe".to_owned())?;
    Ok((File::from(reader), writer))
}

/// Waits for the creator's end; what it has to tell.
fn await_creator(task: &TaskDir, creator: Pid, mut told: File) -> Result<Created, StartError> {
    let process = ProcessRef::open(creator.as_raw_nonzero().get()).context(|| "opening the creator".to_owned())?;
    let text = read_report(&mut told, &process).context(|| "listening to the creator".to_owned())?;
    let status = loop {
        match waitpid(Some(creator), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other.context(|| "waiting for the creator".to_owned())?,
        }
    };
    match serde_json::from_slice::<Result<Created, StartError>>(&text) {
        Ok(told) => told,
        Err(_) => Err(StartError::internal(format!(
            "the container's creator ended without a word ({status:?}); see {}",
            task.monitor_log().display()
        ))),
    }
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

/// Tells the plugin, sees the container to its end and writes that down.
fn finish(plugin: File, started: Started) -> ExitCode {
    failpoint::at("monitor-before-answer");
    // A plugin that is gone has told nobody of this container: it must not stay.
    if tell(plugin, &Outcome::Started).is_err() {
        drop(started.init.signal(libc::SIGKILL));
    }
    match watch::until_end(started) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log of last resort; the plugin reports the missing record.
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    }
}

fn tell(mut plugin: File, outcome: &Outcome) -> io::Result<()> {
    plugin.write_all(&serde_json::to_vec(outcome)?)
}
