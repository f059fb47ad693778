//! `oci-rs logs`: the output of a task, from the files in which Nomad keeps it.
//!
//! Tasks of an allocation share its directory with Nomad's files. So the directory is opened without following a link,
//! and only regular files in it are read.

mod stream;

use std::{
    io::{self, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use runtime::{ProcessRef, plan::ContainerPlan};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init},
    io::Errno,
    time::Timespec,
};

use self::stream::LogStream;
use super::{arguments::LogsArguments, failure::Failure, tasks::Task};
use crate::log_directory;

/// Nomad's log collector writes the last output of a task after the task's end. When it has written nothing for this
/// time, there is no more.
const QUIET: Duration = Duration::from_millis(300);

/// Where a stream of a task goes.
struct Output {
    stream: LogStream,
    to_stderr: bool,
}

/// Runs the command.
pub fn run(arguments: &LogsArguments) -> Result<(), Failure> {
    let task = Task::find(&arguments.node, &arguments.task)?;
    let plan = task.view.plan.as_ref().ok_or_else(|| {
        Failure::Failed(format!("the plan of task {} cannot be read, so its log files are unknown", task.name()))
    })?;
    let directory = open_directory(plan, &task)?;
    let mut outputs = Vec::new();
    for (wanted, path, to_stderr) in
        [(!arguments.stderr, &plan.output.stdout, false), (!arguments.stdout, &plan.output.stderr, true)]
    {
        if let Some(name) = stream::base_name(path).filter(|_| wanted) {
            let directory = directory.try_clone().map_err(Failure::of)?;
            outputs.push(Output { stream: LogStream::new(directory, name), to_stderr });
        }
    }
    if outputs.is_empty() {
        return Err(Failure::Failed(format!("Nomad collects no output of task {} (logs {{ disabled }})", task.name())));
    }
    // The watch begins before the files are read, so that no output is missed.
    let changes = if arguments.follow { Some(watch(&directory)?) } else { None };
    for output in &mut outputs {
        if let Some(lines) = arguments.tail {
            output.stream.skip_to_last(lines).map_err(Failure::of)?;
        }
    }
    copy(&mut outputs)?;
    match changes {
        Some(changes) => follow(&changes, task.pid(), &mut outputs),
        None => Ok(()),
    }
}

/// Nomad's log directory of the task's allocation.
fn open_directory(plan: &ContainerPlan, task: &Task) -> Result<OwnedFd, Failure> {
    let of_task = |error: io::Error| Failure::Failed(format!("the log directory of task {}: {error}", task.name()));
    let confined = plan.confined.as_ref();
    let alloc_dir = confined.map(|confined| confined.directory.as_path()).unwrap_or(Path::new(""));
    log_directory::open_nomad(alloc_dir).map_err(of_task)
}

/// Writes everything that there is now. Returns the number of bytes.
fn copy(outputs: &mut [Output]) -> Result<u64, Failure> {
    let mut copied = 0;
    for Output { stream, to_stderr } in outputs {
        let written = if *to_stderr { stream.copy(&mut io::stderr()) } else { stream.copy(&mut io::stdout()) };
        copied += written?;
    }
    io::stdout().flush()?;
    Ok(copied)
}

/// Changes of files in the directory.
fn watch(directory: &OwnedFd) -> Result<OwnedFd, Failure> {
    use std::os::fd::AsRawFd;
    let watching = || -> Result<OwnedFd, Errno> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // The directory itself, also if its path leads to another one now.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        add_watch(&inotify, path, WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
        Ok(inotify)
    };
    watching().map_err(|error| Failure::Failed(format!("watching the log directory: {error}")))
}

/// Writes new output until the task has ended and its last output is written.
fn follow(changes: &OwnedFd, pid: Option<i32>, outputs: &mut [Output]) -> Result<(), Failure> {
    // A task that has ended since its records were read has no process.
    let process = pid.and_then(|pid| ProcessRef::open(pid).ok());
    let mut ended = process.is_none();
    let mut last = Instant::now();
    let quiet = Timespec::try_from(QUIET).map_err(Failure::of)?;
    loop {
        let mut events = vec![PollFd::from_borrowed_fd(changes.as_fd(), PollFlags::IN)];
        if let (Some(process), false) = (&process, ended) {
            events.push(PollFd::from_borrowed_fd(process.pidfd.as_fd(), PollFlags::IN));
        }
        match poll(&mut events, if ended { Some(&quiet) } else { None }) {
            Err(Errno::INTR) => continue,
            Err(error) => return Err(Failure::of(error)),
            Ok(_) => {}
        };
        let was_running = !ended;
        ended |= events.get(1).is_some_and(|event| !event.revents().is_empty());
        forget(changes);
        let copied = copy(outputs)?;
        if copied > 0 || was_running {
            last = Instant::now();
        }
        // Other tasks of the allocation may still write into this directory.
        if ended && last.elapsed() >= QUIET {
            return Ok(());
        }
    }
}

/// Takes all reports of changes. Which files changed does not matter.
fn forget(changes: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(changes, &mut buffer);
    while reader.next().is_ok() {}
}
