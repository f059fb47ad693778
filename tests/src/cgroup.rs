//! Cgroups as a Nomad client makes them for a task, on v1 and v2.
//!
//! The client's own groups (`nomad`, `nomad.slice`) are shared by all nodes of all tests, and perhaps with a real agent. A
//! [`Hold`] keeps them: the first one makes what is missing and notes it, the last one takes away what was noted.

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

/// The v1 hierarchies in which a client makes a group for each task.
const V1: [&str; 3] = ["freezer", "cpu", "memory"];
/// Controllers that a client hands down on v2.
const V2_CONTROLLERS: &str = "+cpuset +cpu +io +memory +pids";

/// The client's groups are there as long as this lives.
///
/// Holding is sharing a lock on the note, so any number may hold at once, in one process or in many. Only making and taking away
/// is done one at a time, under a lock that nobody keeps.
#[derive(Debug)]
pub struct Hold {
    note: File,
}

impl Hold {
    /// Makes the client's groups where they are missing.
    pub fn take() -> Self {
        let _alone = alone();
        let note = open(&note_path());
        flock(&note, FlockOperation::LockShared).must("share the note of shared cgroups");
        for group in parents() {
            if !group.exists() {
                make_parent(&group).must(&format!("make {}", group.display()));
                writeln!(&note, "{}", group.display()).must("note a shared cgroup");
            }
        }
        Self { note }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _alone = alone();
        // Somebody else still holds them: the last one cleans.
        if flock(&self.note, FlockOperation::NonBlockingLockExclusive).is_err() || agent_is_running() {
            return;
        }
        let noted = fs::read_to_string(note_path()).unwrap_or_default();
        for group in noted.lines().rev() {
            cgroup::remove(Path::new(group)).ok();
        }
        self.note.set_len(0).ok();
    }
}

/// Nobody else makes or takes away groups while the file lives.
fn alone() -> File {
    let guard = open(&note_path().with_extension("cgroups-guard"));
    flock(&guard, FlockOperation::LockExclusive).must("lock the guard of shared cgroups");
    guard
}

fn open(path: &Path) -> File {
    File::options().create(true).append(true).read(true).open(path).must("open the note of shared cgroups")
}

fn note_path() -> PathBuf {
    std::env::temp_dir().join("oci-rs-kit.cgroups")
}

/// A real agent may have come to rely on groups that we made before it started.
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

/// A v1 cpuset takes no process before it has processors and memory nodes.
fn inherit_cpuset(group: &Path) -> io::Result<()> {
    let parent = group.parent().unwrap_or(Path::new(ROOT));
    for file in ["cpuset.cpus", "cpuset.mems"] {
        fs::write(group.join(file), fs::read(parent.join(file))?)?;
    }
    Ok(())
}

/// The groups of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskGroups {
    /// All groups that belong to this task alone.
    pub own: Vec<PathBuf>,
    /// What the client sends as `cpuset_cgroup`.
    pub cpuset: PathBuf,
}

impl TaskGroups {
    /// Makes the groups for a task; with `reserve` it gets cores of its own.
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
            // The client widens this part as cores are reserved.
            let reserve = root.join("cpuset/nomad/reserve");
            for file in ["cpuset.cpus", "cpuset.mems"] {
                fs::write(reserve.join(file), fs::read(root.join("cpuset/nomad").join(file))?)?;
            }
            let mems = fs::read(root.join("cpuset/nomad/cpuset.mems"))?;
            fs::write(groups.cpuset.join("cpuset.mems"), mems)?;
        }
        Ok(groups)
    }

    /// The group of one controller.
    pub fn of(&self, controller: &str) -> PathBuf {
        match mode() {
            Mode::V1 => {
                let base = Path::new(ROOT).join(controller);
                self.own.iter().find(|group| group.starts_with(&base)).cloned().must(&format!("a {controller} group"))
            }
            Mode::V2 => self.cpuset.clone(),
        }
    }

    /// A file of the group, trimmed; the name is the one of the mode in use.
    pub fn read(&self, controller: &str, file: &str) -> String {
        let path = self.of(controller).join(file);
        fs::read_to_string(&path).must(&format!("read {}", path.display())).trim().to_owned()
    }

    /// Processes in any of the groups.
    pub fn members(&self) -> Vec<i32> {
        self.own.iter().flat_map(|group| members(group)).collect()
    }

    /// What the client does when a task is over for good: kill members, remove the groups. Groups that cannot be removed
    /// (because a driver left children in them) come back.
    pub fn remove(&self) -> Vec<PathBuf> {
        let leftover = |group: &&PathBuf| fs::remove_dir(group).is_err() && group.exists();
        self.own.iter().filter(leftover).cloned().collect()
    }

    /// Freezes everything in the groups, as an operator or a checkpoint does.
    pub fn freeze(&self) {
        self.write_freezer("FROZEN", "1").must("freeze the task");
    }

    /// Whether everything is frozen.
    pub fn is_frozen(&self) -> bool {
        match mode() {
            Mode::V1 => self.read("freezer", "freezer.state") == "FROZEN",
            Mode::V2 => self.read("freezer", "cgroup.events").contains("frozen 1"),
        }
    }

    fn write_freezer(&self, v1: &str, v2: &str) -> io::Result<()> {
        let (file, state) = match mode() {
            Mode::V1 => ("freezer.state", v1),
            Mode::V2 => ("cgroup.freeze", v2),
        };
        fs::write(self.of("freezer").join(file), state)
    }

    /// Removes the groups with all that is in and below them.
    pub fn destroy(&self) {
        // What was killed while it was frozen dies now.
        self.write_freezer("THAWED", "0").ok();
        for group in &self.own {
            cgroup::remove(group).ok();
        }
    }
}
