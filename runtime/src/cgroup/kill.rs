//! Killing all processes of a cgroup, and removing cgroups.

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

use super::version::Version;

/// Kills every process of a cgroup and of the cgroups below it, and waits until they have ended, at most for `limit`.
/// Returns whether all have ended.
pub(crate) fn kill_cgroup(version: Version, cgroup: &Path, limit: Duration) -> Result<bool, RuntimeError> {
    let deadline = Instant::now() + limit;
    loop {
        let processes = processes_in(cgroup).context(|| format!("reading the processes of {}", cgroup.display()))?;
        if processes.is_empty() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        match version {
            Version::V2 => write_existing(&cgroup.join("cgroup.kill"), "1"),
            Version::V1 => kill_frozen(cgroup, &processes),
        }
        .context(|| format!("killing the processes of {}", cgroup.display()))?;
        for process in &processes {
            process
                .wait_for(Some(deadline.saturating_duration_since(Instant::now())))
                .context(|| format!("waiting for the end of process {}", process.pid))?;
        }
    }
}

/// Kills processes while they are frozen, so that they cannot fork meanwhile. The signal takes effect when they thaw.
fn kill_frozen(cgroup: &Path, processes: &[ProcessRef]) -> io::Result<()> {
    let state = cgroup.join("freezer.state");
    write_existing(&state, "FROZEN")?;
    let killed = processes
        .iter()
        .try_for_each(|process| process.signal(libc::SIGKILL))
        .and_then(|()| processes_in(cgroup)?.iter().try_for_each(|process| process.signal(libc::SIGKILL)));
    thaw(cgroup).and(killed)
}

/// Thaws a cgroup v1 and the cgroups below it, which can be frozen on their own.
pub(super) fn thaw(cgroup: &Path) -> io::Result<()> {
    directories_in(cgroup)?.iter().try_for_each(|directory| write_existing(&directory.join("freezer.state"), "THAWED"))
}

/// Whether the processes of one of these cgroups are frozen, or are about to be. A frozen parent counts.
pub(crate) fn is_frozen(cgroups: &[PathBuf]) -> io::Result<bool> {
    let says = |cgroup: &Path, file: &str, frozen: fn(&str) -> bool| match fs::read_to_string(cgroup.join(file)) {
        Ok(text) => Ok(frozen(&text)),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    };
    for cgroup in cgroups {
        if says(cgroup, "freezer.state", |state| state.trim() != "THAWED")?
            || says(cgroup, "cgroup.freeze", |wanted| wanted.trim() == "1")?
            || says(cgroup, "cgroup.events", |events| events.lines().any(|event| event == "frozen 1"))?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn write_existing(path: &Path, text: &str) -> io::Result<()> {
    match fs::OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => io::Write::write_all(&mut file?, text.as_bytes()),
    }
}

/// The running processes of a cgroup and of all cgroups below it. None if the cgroup does not exist.
pub(crate) fn processes_in(cgroup: &Path) -> io::Result<Vec<ProcessRef>> {
    let mut processes = Vec::new();
    for directory in directories_in(cgroup)? {
        let text = match fs::read_to_string(directory.join("cgroup.procs")) {
            Ok(text) => text,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        for pid in text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0) {
            match ProcessRef::without_start_time(pid) {
                Ok(process) if process.ended() => {}
                Ok(process) => processes.push(process),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(processes)
}

/// The directories of a cgroup and of all cgroups below it, parents first. None if the cgroup does not exist.
fn directories_in(cgroup: &Path) -> io::Result<Vec<PathBuf>> {
    let mut directories = Vec::new();
    let mut unvisited = vec![cgroup.to_owned()];
    while let Some(directory) = unvisited.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if is_gone(&error) => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                unvisited.push(entry.path());
            }
        }
        directories.push(directory);
    }
    Ok(directories)
}

/// Whether an error means that the cgroup was removed, maybe after its directory was opened (ENODEV).
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
}

/// Removes a cgroup and all cgroups below it. A missing cgroup is no error.
pub(super) fn remove_cgroup(cgroup: &Path) -> Result<(), RuntimeError> {
    remove_directories(cgroup, true)
}

/// Removes all cgroups below a cgroup that stays.
pub(super) fn remove_children(cgroup: &Path) -> Result<(), RuntimeError> {
    remove_directories(cgroup, false)
}

fn remove_directories(cgroup: &Path, itself: bool) -> Result<(), RuntimeError> {
    let mut directories = directories_in(cgroup).context(|| format!("looking into {}", cgroup.display()))?;
    if !itself && !directories.is_empty() {
        directories.remove(0);
    }
    for directory in directories.iter().rev() {
        remove_directory(directory).context(|| format!("removing the control group {}", directory.display()))?;
    }
    Ok(())
}

/// How often the removal of a cgroup that should be empty is tried.
const ATTEMPTS: u32 = 20;

/// Removes one cgroup. If the cgroup is busy, the removal is tried again, because the kernel can report the end of a
/// process a moment before the process leaves its cgroup. A cgroup that still has processes then is used by another
/// container (a successor), and stays.
fn remove_directory(directory: &Path) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        match rustix::fs::rmdir(directory) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) => wait_for_change(directory)?,
            Err(error) => return Err(error.into()),
        }
    }
    if processes_in(directory)?.is_empty() {
        return Err(Errno::BUSY.into());
    }
    tracing::warn!(group = %directory.display(), "a control group that other processes use was not removed");
    Ok(())
}

/// Waits until the number of processes in the cgroup may have changed, for a few milliseconds at most.
fn wait_for_change(directory: &Path) -> io::Result<()> {
    let limit = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    match fs::File::open(directory.join("cgroup.events")) {
        Ok(events) => poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&limit)).map(drop)?,
        Err(_) => poll(&mut [], Some(&limit)).map(drop)?,
    }
    Ok(())
}
