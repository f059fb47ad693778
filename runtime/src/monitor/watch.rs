//! Waiting for the end of a container, and recording it.

use std::{
    io::{self, Write},
    time::SystemTime,
};

use rustix::process::{Pid, WaitOptions, waitpid};

use super::{
    console::Terminal,
    drain::{Helpers, LogDrain},
    guard::GuardedLayers,
    relay::Relay,
};
use crate::{
    cgroup::{CgroupEvents, Cgroups},
    error::{Context, RuntimeError},
    logs::{DroppedBytes, Outputs},
    plan::ContainerId,
    process::ProcessRef,
    state::{CGROUP, EXIT, ExitRecord, TaskDir},
    sys::{EndedChild, peek_ended_child},
};

/// A container with a running command.
pub(super) struct RunningContainer {
    pub task: TaskDir,
    pub id: ContainerId,
    /// The process that created the container. It has reported, and is ending.
    pub creator: Pid,
    /// The container's first process.
    pub init: ProcessRef,
    pub started_at: SystemTime,
    /// The events that the container's cgroups had counted before it started.
    pub events_before: CgroupEvents,
    pub outputs: Outputs,
    /// The log relay, if the plan has a delivery.
    pub relay: Option<Relay>,
    pub terminal: Option<Terminal>,
    /// The group of incomplete layers, and its guard.
    pub layers: Option<GuardedLayers>,
}

/// Waits for the end of a container and records it. The record is written before the process is reaped: a process that
/// finds the container's first process gone finds the record.
pub(super) fn until_end(mut running: RunningContainer) -> Result<(), RuntimeError> {
    // An error of the output does not prevent the record of the end.
    if let Err(error) = serve_output(&mut running) {
        drop(writeln!(io::stderr(), "looking after the output of {}: {error}", running.id));
    }
    failpoint::at("monitor-before-wait");
    let ended = wait_for(running.init.pid).context(|| format!("waiting for the end of {}", running.id))?;
    let groups: Option<Cgroups> = running.task.read(CGROUP)?;
    let record = ExitRecord::of(ended.end, groups.as_ref(), running.events_before, running.started_at);
    if let Some(relay) = &mut running.relay {
        relay.before_end();
    }
    // Before the record of the end: a plugin that finds that record reports the lost output.
    if let Err(error) = count_unread(&running.task, running.outputs) {
        drop(writeln!(io::stderr(), "counting the lost output of {}: {error}", running.id));
    }
    if let Some(relay) = running.relay
        && let Err(error) = relay.await_end()
    {
        drop(writeln!(io::stderr(), "waiting for the log relay of {}: {error}", running.id));
    }
    failpoint::at("monitor-before-exit");
    running.task.commit(EXIT, &record)?;
    failpoint::at("monitor-before-reap");
    reap(running.init.pid).context(|| format!("reaping {}", running.id))?;
    let guard = running.layers.map_or(Ok(()), GuardedLayers::await_end);
    guard.context(|| format!("waiting for the guard of {}", running.id))
}

/// Counts the output in FIFOs without a reader.
fn count_unread(task: &TaskDir, outputs: Outputs) -> io::Result<()> {
    for (stream, bytes) in outputs.close()? {
        DroppedBytes::open(&task.dropped(stream))?.add(bytes)?;
    }
    Ok(())
}

/// Copies the terminal's output to the log, and drains the logs, until the container has ended.
fn serve_output(running: &mut RunningContainer) -> io::Result<()> {
    // Another child may be the guard of incomplete layers.
    while let Some(other) = peek_ended_child(false)?.filter(|child| child.pid != running.init.pid) {
        match &mut running.layers {
            // The plugin may have ended it already, as the layers are complete.
            Some(layers) if layers.is_guard(other.pid) => layers.renew(&running.init),
            _ => reap(other.pid)?,
        }
    }
    let relay = running.relay.as_mut().map(Relay::parts);
    let helpers = Helpers { relay, layers: running.layers.as_mut() };
    let mut drain = LogDrain::new(&running.task, &running.init, &running.outputs, helpers);
    if let Some(terminal) = &running.terminal {
        terminal.copy_until_end(&running.outputs.stdout, &running.init, &mut drain)?;
    }
    drain.until_end()
}

/// Waits for the end of one child without reaping it. Other children that end meanwhile are reaped.
fn wait_for(pid: i32) -> io::Result<EndedChild> {
    loop {
        match peek_ended_child(true)? {
            Some(child) if child.pid == pid => return Ok(child),
            Some(other) => reap(other.pid)?,
            None => {}
        }
    }
}

fn reap(pid: i32) -> io::Result<()> {
    waitpid(Pid::from_raw(pid), WaitOptions::empty())?;
    Ok(())
}

/// Ends a container that must not run. If that fails, the removal of the container ends it.
pub(super) fn kill_and_reap(init: &ProcessRef) {
    if init.signal(libc::SIGKILL).is_ok() && wait_for(init.pid).is_ok() {
        drop(reap(init.pid));
    }
}
