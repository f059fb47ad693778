//! The rights of a monitor after the command has begun.
//!
//! From then on it waits, copies a terminal's output, counts, and writes the exit record. Everything that needs more is
//! done before: it holds the log FIFOs open, also for writing alone, because they may belong to the container's user.

use std::{io, path::Path};

use confinement::{Access, CheckedCall, Confinement, Files, OwnCalls, Place, Values, calls};
use rustix::thread::CapabilitySet;

use super::{guard, watch::RunningContainer};
use crate::{
    cgroup::Cgroups,
    error::{Context, RuntimeError},
    relay,
    state::CGROUP,
};

const CALLS: &[&str] = &[
    // Reads from a FIFO are told by a signal. A FIFO's content is discarded without a copy.
    "rt_sigtimedwait",
    "splice",
];

/// For a relay that was killed: the monitor starts another one, which has the monitor's restrictions and its own.
const START: &[&str] = &[
    "arch_prctl",
    "clone",
    "close_range",
    "dup2",
    "dup3",
    "execve",
    "open_tree",
    "pipe2",
    "set_robust_list",
    "set_tid_address",
    "umask",
    "vfork",
];

/// Whether there is content in a FIFO.
const FIONREAD: CheckedCall =
    CheckedCall { name: "ioctl", argument: 1, values: Values::OneOf(&[libc::FIONREAD as u32]) };

/// Gives up everything that the monitor of a running container does not need.
pub(super) fn confine(running: &mut RunningContainer) -> Result<(), RuntimeError> {
    let holding = || "holding the logs".to_owned();
    running.outputs.hold_writers().context(holding)?;
    if let Some(relay) = &mut running.relay {
        relay.logs.hold_writers().context(holding)?;
    }
    let cgroups: Option<Cgroups> = running.task.read(CGROUP)?;
    restrict(running, cgroups.as_ref()).context(|| "giving up rights".to_owned())
}

fn restrict(running: &RunningContainer, cgroups: Option<&Cgroups>) -> io::Result<()> {
    let mut places = vec![
        (Place::Path(running.task.path()), Access::Write),
        (Place::Path(Path::new("/proc")), Access::Read),
        (Place::Path(Path::new("/dev/null")), Access::Write),
        (Place::Path(Path::new("/dev/kmsg")), Access::Read),
    ];
    let counted = ["memory", "pids"].into_iter().filter_map(|controller| cgroups?.path_of(controller));
    places.extend(counted.map(|path| (Place::Path(path), Access::Read)));
    let logs = running.relay.iter().map(|relay| &relay.logs).chain([&running.outputs]);
    places.extend(logs.flat_map(|logs| logs.handles()).map(|log| (Place::Open(log), Access::Write)));
    let mut any = vec![calls::BASE, calls::FILES, calls::COMMIT, calls::PROCESSES, CALLS];
    let mut checked = [calls::CHECKED, &[FIONREAD]].concat();
    // The kernel's log may be restricted (`kernel.dmesg_restrict`). It names the process that ran out of memory.
    // The directory of states may lie below one of another user.
    let mut capabilities = CapabilitySet::SYSLOG | CapabilitySet::DAC_READ_SEARCH;
    if running.relay.is_some() {
        // A relay that was killed is started again.
        places.push((Place::Path(Path::new("/")), Access::Read));
        any.extend([START, relay::CALLS, calls::CONFINING]);
        checked.extend(relay::CHECKED);
        capabilities |= CapabilitySet::DAC_OVERRIDE;
    }
    // The kernel sends the parent-death signal in the name of the monitor, with the monitor's rights.
    let ends_container = running.layers.is_some();
    if ends_container {
        // A guard that was killed is started again.
        any.extend([guard::CALLS, calls::CONFINING]);
        capabilities |= CapabilitySet::KILL;
    }
    let files = Files { places, tcp: running.relay.is_some(), signals: ends_container };
    Confinement { capabilities, calls: OwnCalls { any: &any, checked: &checked }, files: Some(files) }.apply()
}
