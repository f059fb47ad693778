//! Cgroups as a Nomad client makes them for a task, on v1 and v2.
//!
//! All tests, and perhaps a real agent, share the client's own cgroups (`nomad`, `nomad.slice`). [`ClientGroups`]
//! counts their users: the first one makes the missing cgroups and records them in a file, the last one removes the
//! recorded cgroups.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use fixtures::{
    cgroup::{self, Mode, ROOT, members, mode},
    must::Must,
};

/// The v1 hierarchies in which a client makes a cgroup for each task.
const V1: [&str; 3] = ["freezer", "cpu", "memory"];
/// The controllers that a client enables on v2.
const V2_CONTROLLERS: &str = "+cpuset +cpu +io +memory +pids";

/// Keeps the client's cgroups.
///
/// Each user has a shared lock on the record file, in one process or in many. A second, short lock serializes making
/// and removing.
#[derive(Debug)]
pub struct ClientGroups {
    record: File,
}

impl ClientGroups {
    /// Makes the missing cgroups.
    pub fn acquire() -> Self {
        let _guard = serialize();
        let record = open(&record_path());
        flock(&record, FlockOperation::LockShared).must("share the record of the client's cgroups");
        for group in parents() {
            if !group.exists() {
                make_parent(&group).must(&format!("make {}", group.display()));
                writeln!(&record, "{}", group.display()).must("record a cgroup");
            }
        }
        Self { record }
    }
}

impl Drop for ClientGroups {
    fn drop(&mut self) {
        let _guard = serialize();
        // The lock fails while another user exists. The last user removes the cgroups.
        if flock(&self.record, FlockOperation::NonBlockingLockExclusive).is_err() || agent_is_running() {
            return;
        }
        let recorded = fs::read_to_string(record_path()).unwrap_or_default();
        for group in recorded.lines().rev() {
            cgroup::remove(Path::new(group)).ok();
        }
        self.record.set_len(0).ok();
    }
}

/// No other process makes or removes the client's cgroups while the returned file is open.
fn serialize() -> File {
    let guard = open(&record_path().with_extension("cgroups-guard"));
    flock(&guard, FlockOperation::LockExclusive).must("lock the client's cgroups");
    guard
}

fn open(path: &Path) -> File {
    File::options().create(true).append(true).read(true).open(path).must("open the record of the client's cgroups")
}

fn record_path() -> PathBuf {
    std::env::temp_dir().join("oci-rs-kit.cgroups")
}

/// A real agent that started later may use cgroups that a test made.
fn agent_is_running() -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return false;
    };
    processes
        .flatten()
        .any(|entry| fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == "nomad"))
}

fn parents() -> Vec<PathBuf> {
    let below = |path: &str| Path::new(ROOT).join(path);
    match mode() {
        Mode::V1 => {
            let mut all: Vec<_> = V1.iter().map(|controller| below(controller).join("nomad")).collect();
            all.extend([below("cpuset/nomad"), below("cpuset/nomad/share"), below("cpuset/nomad/reserve")]);
            all
        }
        Mode::V2 => ["nomad.slice", "nomad.slice/share.slice", "nomad.slice/reserve.slice"].map(below).into(),
    }
}

fn make_parent(group: &Path) -> io::Result<()> {
    fs::create_dir(group)?;
    match mode() {
        Mode::V1 if group.starts_with(Path::new(ROOT).join("cpuset")) => inherit_cpuset(group),
        Mode::V1 => Ok(()),
        Mode::V2 => {
            let parent = group.parent().unwrap_or(Path::new(ROOT));
            fs::write(parent.join("cgroup.subtree_control"), V2_CONTROLLERS).or(Ok::<(), io::Error>(()))?;
            fs::write(group.join("cgroup.subtree_control"), V2_CONTROLLERS).or(Ok(()))
        }
    }
}

/// Copies processors and memory nodes from the parent: without them a v1 cpuset accepts no process.
fn inherit_cpuset(group: &Path) -> io::Result<()> {
    let parent = group.parent().unwrap_or(Path::new(ROOT));
    for file in ["cpuset.cpus", "cpuset.mems"] {
        fs::write(group.join(file), fs::read(parent.join(file))?)?;
    }
    Ok(())
}

/// The cgroups of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskGroups {
    /// The cgroups that belong to this task alone.
    pub own: Vec<PathBuf>,
    /// The value that the client sends as `cpuset_cgroup`.
    pub cpuset: PathBuf,
}

impl TaskGroups {
    /// Makes the cgroups of a task; with `reserve` for reserved cores.
    pub fn make(alloc: &str, task: &str, reserve: bool) -> io::Result<Self> {
        let name = format!("{alloc}.{task}");
        let part = if reserve { "reserve" } else { "share" };
        let root = Path::new(ROOT);
        let groups = match mode() {
            Mode::V1 => {
                let mut own: Vec<_> =
                    V1.iter().map(|controller| root.join(controller).join("nomad").join(&name)).collect();
                let part = root.join("cpuset/nomad").join(part);
                let cpuset = if reserve { part.join(&name) } else { part };
                if reserve {
                    own.push(cpuset.clone());
                }
                Self { own, cpuset }
            }
            Mode::V2 => {
                let scope = root.join("nomad.slice").join(format!("{part}.slice")).join(format!("{name}.scope"));
                Self { own: vec![scope.clone()], cpuset: scope }
            }
        };
        for group in &groups.own {
            fs::create_dir_all(group)?;
        }
        if mode() == Mode::V1 && reserve {
            // The client adds reserved cores to this cgroup.
            let reserve = root.join("cpuset/nomad/reserve");
            for file in ["cpuset.cpus", "cpuset.mems"] {
                fs::write(reserve.join(file), fs::read(root.join("cpuset/nomad").join(file))?)?;
            }
            let mems = fs::read(root.join("cpuset/nomad/cpuset.mems"))?;
            fs::write(groups.cpuset.join("cpuset.mems"), mems)?;
        }
        Ok(groups)
    }

    /// The cgroup of one controller.
    pub fn of(&self, controller: &str) -> PathBuf {
        match mode() {
            Mode::V1 => {
                let base = Path::new(ROOT).join(controller);
                self.own.iter().find(|group| group.starts_with(&base)).cloned().must(&format!("a {controller} group"))
            }
            Mode::V2 => self.cpuset.clone(),
        }
    }

    /// The trimmed content of a file of one controller's cgroup. The file's name depends on the mode.
    pub fn read(&self, controller: &str, file: &str) -> String {
        let path = self.of(controller).join(file);
        fs::read_to_string(&path).must(&format!("read {}", path.display())).trim().to_owned()
    }

    /// The processes in all cgroups of the task.
    pub fn members(&self) -> Vec<i32> {
        self.own.iter().flat_map(|group| members(group)).collect()
    }

    /// Removes the cgroups as a client does after a task's end. Returns the cgroups that cannot be removed, because the
    /// driver has left a process or a child in them.
    pub fn remove(&self) -> Vec<PathBuf> {
        let leftover = |group: &&PathBuf| fs::remove_dir(group).is_err() && group.exists();
        self.own.iter().filter(leftover).cloned().collect()
    }

    /// Freezes the task, as an operator or a checkpoint does.
    pub fn freeze(&self) {
        let (file, state) = match mode() {
            Mode::V1 => ("freezer.state", "FROZEN"),
            Mode::V2 => ("cgroup.freeze", "1"),
        };
        fs::write(self.of("freezer").join(file), state).must("freeze the task");
    }

    /// Whether the task is frozen.
    pub fn is_frozen(&self) -> bool {
        match mode() {
            Mode::V1 => self.read("freezer", "freezer.state") == "FROZEN",
            Mode::V2 => self.read("freezer", "cgroup.events").contains("frozen 1"),
        }
    }
}
