//! Waiting for a container's end, and writing down how it came.

use rustix::process::{Pid, WaitOptions, waitpid};

use super::Started;
use crate::{
    cgroup::Groups,
    error::{Context, RuntimeError},
    process::ProcessRef,
    state::{CGROUP, EXIT},
    sys::{EndedChild, peek_ended_child},
};

/// Sees a container to its end. The record is written before the process is reaped: whoever finds the process gone finds
/// the record.
pub(super) fn until_end(started: Started) -> Result<(), RuntimeError> {
    if let Some(terminal) = &started.terminal {
        terminal
            .copy_until_end(&started.outputs.stdout, &started.init)
            .context(|| format!("copying the output of {}", started.id))?;
    }
    failpoint::at("monitor-before-wait");
    let ended = wait_for(started.init.pid).context(|| format!("waiting for the end of {}", started.id))?;
    let groups: Option<Groups> = started.task.read(CGROUP)?;
    let record = ended.end.record(groups.as_ref(), started.hits_before, started.started_at);
    failpoint::at("monitor-before-exit");
    started.task.commit(EXIT, &record)?;
    failpoint::at("monitor-before-reap");
    reap(started.init.pid).context(|| format!("reaping {}", started.id))
}

/// Waits for one child's end without reaping it; others (libcontainer's intermediate process) are reaped on the way.
fn wait_for(pid: i32) -> std::io::Result<EndedChild> {
    loop {
        match peek_ended_child(true)? {
            Some(child) if child.pid == pid => return Ok(child),
            Some(other) => reap(other.pid)?,
            None => {}
        }
    }
}

fn reap(pid: i32) -> std::io::Result<()> {
    waitpid(Pid::from_raw(pid), WaitOptions::empty())?;
    Ok(())
}

/// Ends a container that must not run; what cannot be killed or reaped here is for whoever removes the container.
pub(super) fn kill_and_reap(init: &ProcessRef) {
    if init.signal(libc::SIGKILL).is_ok() && wait_for(init.pid).is_ok() {
        drop(reap(init.pid));
    }
}
