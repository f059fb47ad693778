//! The log relay: delivers the output of one container to a log server, and passes it on to the container's logs.
//!
//! Only a container whose plan has a delivery has a relay. Its command writes into FIFOs in the task's directory
//! instead of Nomad's. The relay reads these, writes every byte to Nomad's FIFOs, and sends the lines to the server.
//! The monitor starts the relay before the container, holds both ends of all four FIFOs, and starts the relay again if
//! it was killed. So no end of a process ends the command by SIGPIPE or blocks it for ever. A relay outlives plugin and
//! monitor.
//!
//! The first relay of a container connects to the server before the container starts, so that a wrong address fails the
//! start. The relay ends when all writers have closed the FIFOs and everything is delivered, at the latest ten seconds
//! after that.
//!
//! When it relays, it gives up all rights but those to write to the task's directory and to connect again (`confine`).
//!
//! One thread, the `pump`, moves bytes and never waits for the server. The other one, the `sender`, does. Between them
//! is the `queue`.

mod confine;
mod pump;
mod queue;
mod sender;

use std::{
    fs::{self, File},
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Instant,
};

use log_drivers::Sink;
use rustix::fs::OFlags;
use serde::Deserialize;

pub(crate) use self::confine::{CALLS, CHECKED};
use self::{
    confine::confine,
    pump::{DRAIN, Pump},
    queue::Queue,
    sender::Undelivered,
};
use crate::{
    error::{Context, StartError},
    logs::{DroppedBytes, OutputStream, Outputs},
    plan::{Delivery, Output},
    process::ProcessRef,
    report_pipe::write_report,
    role::RelayArgs,
    state::{PLAN, RELAY, TaskDir},
    sys,
};

/// The relay's message to the monitor: whether it relays.
pub(crate) type RelayOutcome = Result<(), StartError>;

/// The part of a plan that the relay needs.
#[derive(Debug, Deserialize)]
struct RelayPlan {
    output: Output,
    delivery: Delivery,
}

/// A relay that is about to work.
struct Relay {
    task: TaskDir,
    /// The FIFOs into which the container writes.
    sources: [(OutputStream, OwnedFd); 2],
    /// The container's logs.
    logs: Outputs,
    delivery: Delivery,
    sink: Sink,
}

/// The role `relay`. Called before the process has any other thread.
pub(crate) fn main(args: &RelayArgs) -> ExitCode {
    let prepared = Relay::prepare(args);
    // Telling fails if the monitor has ended. Then the FIFOs tell whether the container lives.
    drop(tell(&prepared.as_ref().map(drop).map_err(Clone::clone)));
    let Ok(relay) = prepared else { return ExitCode::FAILURE };
    match relay.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is the monitor's log.
            drop(writeln!(io::stderr(), "log relay: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Sends the outcome, and closes the pipe to the monitor.
fn tell(outcome: &RelayOutcome) -> io::Result<()> {
    write_report(io::stdout(), outcome)?;
    Ok(rustix::stdio::dup2_stdout(&File::open("/dev/null")?)?)
}

impl Relay {
    fn prepare(args: &RelayArgs) -> Result<Self, StartError> {
        let task = TaskDir::at(args.task.clone());
        sys::close_descriptors(3, u32::MAX).context(|| "closing descriptors".to_owned())?;
        rustix::thread::set_name(c"oci-rs:relay").map_err(io::Error::from).context(|| "naming a thread".to_owned())?;
        let own = || ProcessRef::open(std::process::id() as i32)?.record();
        task.note(RELAY, &own().context(|| "looking at our own process".to_owned())?)?;
        let plan: RelayPlan = task
            .read(PLAN)?
            .ok_or_else(|| StartError::internal(format!("{} is missing", task.file(PLAN).display())))?;
        let source = |stream| -> Result<(OutputStream, OwnedFd), StartError> {
            let path = task.relayed(stream);
            Ok((stream, open_source(&path).context(|| format!("opening {}", path.display()))?))
        };
        let sources = [source(OutputStream::Stdout)?, source(OutputStream::Stderr)?];
        let mut logs = Outputs::open(&plan.output)?;
        let made = fs::metadata(task.file(PLAN)).and_then(|plan| plan.modified());
        let made = made.context(|| "looking at the plan".to_owned())?;
        let mut sink = Sink::new(plan.delivery.destination.clone(), made);
        if !args.again {
            sink.connect().map_err(|error| {
                let destination = &plan.delivery.destination;
                StartError::internal(format!(
                    "logging: cannot connect to {destination}: {error} (check the options of `logging`)"
                ))
            })?;
        }
        logs.hold_writers().context(|| "holding the logs".to_owned())?;
        confine(&task, &plan.delivery.destination).context(|| "giving up rights of the log relay".to_owned())?;
        Ok(Self { task, sources, logs, delivery: plan.delivery, sink })
    }

    /// Relays until the container has ended and its output is delivered.
    fn run(self) -> io::Result<()> {
        let Self { task, sources, logs, delivery, mut sink } = self;
        let queue = Arc::new(Queue::new(delivery.mode)?);
        let undelivered = Arc::new(Undelivered::new(&task, &delivery.destination)?);
        let (taken, failed) = (Arc::clone(&queue), Arc::clone(&undelivered));
        // It is never joined: it may wait for the server for ever.
        let _sender = thread::Builder::new().name("sender".to_owned()).spawn(move || {
            while let Some(message) = taken.next() {
                if let Err(error) = sink.send(&message) {
                    failed.count(1, &error.to_string());
                }
            }
        })?;
        let mut pump = Pump::new(sources, &logs, &queue);
        let ended = pump.run(
            |dropped| undelivered.count(dropped, "`max-buffer-size` bytes wait already"),
            || undelivered.set_left(queue.left()),
        );
        let (deadline, mark) = *ended.as_ref().unwrap_or(&(Instant::now() + DRAIN, Instant::now()));
        for (stream, bytes) in pump.left() {
            DroppedBytes::open(&task.dropped(stream))?.add(bytes)?;
        }
        drop(pump);
        // From here on the reader of the logs sees their end as soon as the monitor has closed them too.
        for (stream, bytes) in logs.close()? {
            DroppedBytes::open(&task.dropped(stream))?.add(bytes)?;
        }
        queue.close();
        // The monitor records the end of the container soon, and a removal of the task kills this process then. So the
        // count is written before, and corrected later.
        for time in [mark, deadline] {
            undelivered.set_left(queue.wait_empty(time));
        }
        ended.map(drop)
    }
}

/// Opens a FIFO for reading alone: that makes this process its reader. The monitor or the container has it open for
/// writing, unless both have ended.
fn open_source(path: &std::path::Path) -> io::Result<OwnedFd> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
    Ok(File::options().read(true).custom_flags(flags.bits() as i32).open(path)?.into())
}
