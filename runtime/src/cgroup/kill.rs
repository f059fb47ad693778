//! Ending everything in a group and removing it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    time::Timespec,
};

use crate::{
    error::{Context, RuntimeError},
    process::ProcessRef,
};

use super::Mode;

/// Kills every process of a group and of the groups below it, and waits until they have ended; whether they have.
pub(crate) fn kill_group(mode: Mode, group: &Path, limit: Duration) -> Result<bool, RuntimeError> {
    let deadline = Instant::now() + limit;
    loop {
        let processes = processes_below(group).context(|| format!("reading the processes of {}", group.display()))?;
        if processes.is_empty() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        match mode {
            Mode::V2 => write_existing(&group.join("cgroup.kill"), "1"),
            Mode::V1 => kill_frozen(group, &processes),
        }
        .context(|| format!("killing the processes of {}", group.display()))?;
        for process in &processes {
            process
                .wait_for(Some(deadline.saturating_duration_since(Instant::now())))
                .context(|| format!("waiting for the end of process {}", process.pid))?;
        }
    }
}

/// Frozen, processes cannot fork away from the kill; the signal works as soon as they thaw.
fn kill_frozen(group: &Path, processes: &[ProcessRef]) -> io::Result<()> {
    let state = group.join("freezer.state");
    write_existing(&state, "FROZEN")?;
    let killed = processes
        .iter()
        .try_for_each(|process| process.signal(libc::SIGKILL))
        .and_then(|()| processes_below(group)?.iter().try_for_each(|process| process.signal(libc::SIGKILL)));
    thaw(group).and(killed)
}

/// Thaws a v1 group and the groups below it, which can be frozen by themselves.
pub(super) fn thaw(group: &Path) -> io::Result<()> {
    directories_below(group)?
        .iter()
        .try_for_each(|directory| write_existing(&directory.join("freezer.state"), "THAWED"))
}

fn write_existing(path: &Path, text: &str) -> io::Result<()> {
    match fs::OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => io::Write::write_all(&mut file?, text.as_bytes()),
    }
}

/// The processes of a group and of all groups below; none when there is no such group.
pub(crate) fn processes_below(group: &Path) -> io::Result<Vec<ProcessRef>> {
    let mut found = Vec::new();
    for directory in directories_below(group)? {
        let text = match fs::read_to_string(directory.join("cgroup.procs")) {
            Ok(text) => text,
            Err(error) if gone(&error) => continue,
            Err(error) => return Err(error),
        };
        for pid in text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0) {
            match ProcessRef::open(pid) {
                Ok(process) if process.ended() => {}
                Ok(process) => found.push(process),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found)
}

/// A group and the groups below it, parents first; none when it does not exist.
fn directories_below(group: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![group.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if gone(&error) => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
        found.push(directory);
    }
    Ok(found)
}

fn gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// Removes a group and the groups below it; none is fine.
pub(crate) fn remove_group(group: &Path) -> Result<(), RuntimeError> {
    remove_directories(group, true)
}

/// Removes the groups below a group that stays.
pub(super) fn remove_children(group: &Path) -> Result<(), RuntimeError> {
    remove_directories(group, false)
}

fn remove_directories(group: &Path, itself: bool) -> Result<(), RuntimeError> {
    let mut directories = directories_below(group).context(|| format!("looking into {}", group.display()))?;
    if !itself && !directories.is_empty() {
        directories.remove(0);
    }
    for directory in directories.iter().rev() {
        remove_directory(directory).context(|| format!("removing the control group {}", directory.display()))?;
    }
    Ok(())
}

/// How often a group that should be empty is asked again.
const TRIES: u32 = 20;

/// Removes one group. One that seems to have processes is tried again: the kernel can see a process leave its group a
/// moment after it told of its end. One that keeps them is somebody else's by now (a successor's) and stays.
fn remove_directory(directory: &Path) -> io::Result<()> {
    for _ in 0..TRIES {
        match rustix::fs::rmdir(directory) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) => wait_for_change(directory)?,
            Err(error) => return Err(error.into()),
        }
    }
    if processes_below(directory)?.is_empty() {
        return Err(Errno::BUSY.into());
    }
    tracing::warn!(group = %directory.display(), "a control group that is used by others stays");
    Ok(())
}

/// Waits until the group's population changes, a few milliseconds at most.
fn wait_for_change(directory: &Path) -> io::Result<()> {
    let limit = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    match fs::File::open(directory.join("cgroup.events")) {
        Ok(events) => poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&limit)).map(drop)?,
        Err(_) => poll(&mut [], Some(&limit)).map(drop)?,
    }
    Ok(())
}
