//! What is left behind: processes, mounts, cgroups, network namespaces, firewall rules, folders.
//!
//! Only what carries the name of an agent's folder or of one of its allocations counts, so that others can use the machine.

use std::{
    fs,
    path::Path,
    process::{Command, id},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    mount::{UnmountFlags, unmount},
    process::Signal,
};

use crate::process::{self, Process};

/// Asks until nothing is left, or gives up after some seconds: the kernel and Nomad take things down in the background.
#[must_use]
pub fn settle(look: impl Fn() -> Vec<String>) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        let found = look();
        if found.is_empty() || Instant::now() > deadline {
            return found;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// What is left of jobs that are over while their agent still runs.
#[must_use]
pub fn of_jobs(folder: &Path, allocs: &[String]) -> Vec<String> {
    let mut found: Vec<String> = processes(folder, allocs)
        .into_iter()
        .filter(|process| !is_agent(process, folder))
        .map(|process| format!("process {}: {}", process.pid, process.command))
        .collect();
    found.extend(
        mounts(folder)
            .into_iter()
            .filter(|mount| !mount.contains("/client/alloc/"))
            .map(|mount| format!("mount {mount}")),
    );
    found.extend(cgroups(allocs));
    for alloc in allocs {
        if Path::new("/run/netns").join(alloc).exists() {
            found.push(format!("network namespace /run/netns/{alloc}"));
        }
    }
    found.extend(firewall_rules(allocs));
    for inside in ["state/tasks", "data/containers"] {
        let entries = fs::read_dir(folder.join(inside)).into_iter().flatten().flatten();
        found.extend(entries.map(|entry| format!("folder {}", entry.path().display())));
    }
    found
}

/// What is left when the agent is gone too.
#[must_use]
pub fn of_agent(folder: &Path, allocs: &[String]) -> Vec<String> {
    let mut found = of_jobs(folder, allocs);
    let left = processes(folder, allocs).into_iter().filter(|process| is_agent(process, folder));
    found.extend(left.map(|process| format!("process {}: {}", process.pid, process.command)));
    found.extend(
        mounts(folder)
            .into_iter()
            .filter(|mount| mount.contains("/client/alloc/"))
            .map(|mount| format!("mount {mount}")),
    );
    found
}

/// Mount points below a folder.
#[must_use]
pub fn mounts(folder: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let prefix = format!("{}/", folder.display());
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| point.starts_with(&prefix)).map(str::to_owned).collect()
}

/// Ends and unmounts whatever is left; says what it could not undo.
pub(crate) fn remove_by_force(folder: &Path, allocs: &[String]) -> Vec<String> {
    let mut trouble = Vec::new();
    for process in processes(folder, allocs) {
        process::signal(process.pid, Signal::KILL);
        if !process::wait_gone(process.pid, Duration::from_secs(5)).unwrap_or(false) {
            trouble.push(format!("process {} does not end: {}", process.pid, process.command));
        }
    }
    // Inner mounts come later in the table than what they are mounted on.
    for mount in mounts(folder).into_iter().rev() {
        if let Err(error) = unmount(&mount, UnmountFlags::DETACH) {
            trouble.push(format!("{mount}: {error}"));
        }
    }
    for alloc in allocs {
        let netns = Path::new("/run/netns").join(alloc);
        if netns.exists() {
            unmount(&netns, UnmountFlags::DETACH).ok();
            fs::remove_file(&netns).ok();
        }
    }
    trouble
}

/// Everything that runs from the folder, names it, or is a task of one of the allocations.
fn processes(folder: &Path, allocs: &[String]) -> Vec<Process> {
    let folder = folder.display().to_string();
    let mut found = process::find(|process| {
        process.command.contains(&folder)
            || process.exe.starts_with(&folder)
            || process::alloc_of(process.pid).is_some_and(|alloc| allocs.contains(&alloc))
    });
    found.retain(|process| process.pid != id().cast_signed());
    found
}

/// Server, client and the plugin that serves it, which are to live longer than jobs.
fn is_agent(process: &Process, folder: &Path) -> bool {
    Path::new(&process.exe) == folder.join("plugins/oci-rs")
        || process.command.contains(&format!("agent -config {}/", folder.display()))
}

fn cgroups(allocs: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new("/sys/fs/cgroup").to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if allocs.iter().any(|alloc| name.contains(alloc)) {
                found.push(format!("cgroup {}", entry.path().display()));
            } else {
                folders.push(entry.path());
            }
        }
    }
    found
}

fn firewall_rules(allocs: &[String]) -> Vec<String> {
    let rules = Command::new("iptables-save").output().map(|output| output.stdout).unwrap_or_default();
    let rules = String::from_utf8_lossy(&rules).into_owned();
    let ours = |line: &&str| allocs.iter().any(|alloc| line.contains(alloc));
    rules.lines().filter(ours).map(|line| format!("firewall rule {line}")).collect()
}
