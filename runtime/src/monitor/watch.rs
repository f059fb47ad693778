//! Waiting for a container's end, and writing down how it came.

use std::io::{self, Write};

use rustix::process::{Pid, WaitOptions, waitpid};

use super::{Started, drain::LogDrain};
use crate::{
    cgroup::Cgroups,
    error::{Context, RuntimeError},
    process::ProcessRef,
    state::{CGROUP, EXIT, ExitRecord},
    sys::{EndedChild, peek_ended_child},
};

/// Sees a container to its end. The record is written before the process is reaped: whoever finds the process gone finds
/// the record.
pub(super) fn until_end(started: Started) -> Result<(), RuntimeError> {
    // The end matters more than the output: it is waited for and told in any case.
    if let Err(error) = look_after_output(&started) {
        drop(writeln!(io::stderr(), "looking after the output of {}: {error}", started.id));
    }
    failpoint::at("monitor-before-wait");
    let ended = wait_for(started.init.pid).context(|| format!("waiting for the end of {}", started.id))?;
    let groups: Option<Cgroups> = started.task.read(CGROUP)?;
    let record = ExitRecord::of(ended.end, groups.as_ref(), started.events_before, started.started_at);
    failpoint::at("monitor-before-exit");
    started.task.commit(EXIT, &record)?;
    failpoint::at("monitor-before-reap");
    reap(started.init.pid).context(|| format!("reaping {}", started.id))
}

fn look_after_output(started: &Started) -> io::Result<()> {
    // libcontainer's intermediate process, which has ended long before the command was executed.
    while let Some(other) = peek_ended_child(false)?.filter(|child| child.pid != started.init.pid) {
        reap(other.pid)?;
    }
    let mut drain = LogDrain::new(&started.task, &started.init, &started.outputs);
    if let Some(terminal) = &started.terminal {
        terminal.copy_until_end(&started.outputs.stdout, &started.init, &mut drain)?;
    }
    drain.until_end()
}

/// Waits for one child's end without reaping it; others are reaped on the way.
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

/// Ends a container that must not run; what cannot be killed or reaped here is for whoever removes the container.
pub(super) fn kill_and_reap(init: &ProcessRef) {
    if init.signal(libc::SIGKILL).is_ok() && wait_for(init.pid).is_ok() {
        drop(reap(init.pid));
    }
}
