//! Control groups: which version rules here, where a container's groups are, and how they end.
//!
//! Groups that were there before the container (Nomad's) are used and stay; groups that we made go with the container,
//! with everything below them. Which is which is written down before the first one is made.

mod devices;
mod hierarchy;
mod hits;
mod join;
mod kill;
mod limits;
pub mod stats;
mod stay;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

pub(crate) use devices::{Access, DeviceRule, restrict_devices};
pub(crate) use hierarchy::{Hierarchy, hierarchies};
pub use hits::{LimitHits, OutOfMemory, Victim};
pub(crate) use join::{groups_of, join};
pub(crate) use kill::{kill_group, processes_below, remove_group};
pub(crate) use limits::reset_limits;
pub(crate) use stay::Stay;

use crate::{
    error::{Context, RuntimeError},
    plan::CgroupPlacement,
};

/// Which generation of control groups enforces limits on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One hierarchy per controller, also when an empty unified one is mounted beside them.
    V1,
    /// The unified hierarchy.
    V2,
}

/// Finds the mode by the kind of file system on `/sys/fs/cgroup`.
pub fn mode() -> io::Result<Mode> {
    const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
    let file_system = rustix::fs::statfs(hierarchy::ROOT)?;
    Ok(if file_system.f_type as u64 == CGROUP2_SUPER_MAGIC { Mode::V2 } else { Mode::V1 })
}

/// Moves this process from its control group to the same one, on version 2, beside what the caller does next.
///
/// The first migration after a pause waits milliseconds for the kernel, later ones do not: calling this early takes the wait out
/// of a container's start. Nothing else changes, so failing is harmless. On version 1 nobody waits: a container is born in its groups.
pub fn warm_up() {
    fn migrate() -> io::Result<()> {
        let own = hierarchy::own_path(&fs::read_to_string("/proc/self/cgroup")?, "");
        let procs = own.map(|own| hierarchy::below(Path::new(hierarchy::ROOT), &own).join("cgroup.procs"));
        procs.map_or(Ok(()), |procs| fs::write(procs, std::process::id().to_string()))
    }
    let tell = |error: io::Error| tracing::debug!(%error, "no early control group migration");
    if mode().is_ok_and(|mode| mode == Mode::V2) {
        let thread = std::thread::Builder::new().spawn(move || migrate().unwrap_or_else(tell));
        thread.map(drop).unwrap_or_else(tell);
    }
}

/// The groups of one container, as `cgroup.json` remembers them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Groups {
    pub mode: Mode,
    /// By controller; one without a name on the unified hierarchy.
    pub members: Vec<Group>,
}

/// One group of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    /// The controllers of its hierarchy.
    pub controllers: Vec<String>,
    pub path: PathBuf,
    /// It was not there before.
    pub ours: bool,
}

impl Group {
    /// Whether it is a controller's group.
    fn holds(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }
}

impl Groups {
    /// Looks where a container's groups will be, and which of them are there already.
    pub fn plan(placement: &CgroupPlacement) -> Result<Self, RuntimeError> {
        let mode = mode().context(|| format!("looking at {}", hierarchy::ROOT))?;
        let all = hierarchies(mode).context(|| "reading the mounted control group hierarchies".to_owned())?;
        let mut members = Vec::new();
        for Hierarchy { mount_point, controllers } in all {
            let path = hierarchy::below(&mount_point, &placement.path);
            let ours = !path.is_dir();
            members.push(Group { controllers, path, ours });
        }
        Ok(Self { mode, members })
    }

    /// Makes the groups above on v2, where the engine fails if somebody else makes one of them at the same moment.
    pub fn make_parents(&self) -> Result<(), RuntimeError> {
        for parent in self.members.iter().filter(|_| self.mode == Mode::V2).filter_map(|group| group.path.parent()) {
            fs::create_dir_all(parent).context(|| format!("making the control group {}", parent.display()))?;
        }
        Ok(())
    }

    /// The group that a controller's files are in.
    pub fn of(&self, controller: &str) -> Option<&Path> {
        self.members
            .iter()
            .find(|group| self.mode == Mode::V2 || group.holds(controller))
            .map(|group| group.path.as_path())
    }

    /// Whether a limit on swap can be written to them, once they are there.
    pub fn count_swap(&self) -> bool {
        let root = Path::new(hierarchy::ROOT);
        match (self.mode, self.members.iter().find(|group| !group.ours)) {
            (Mode::V1, _) => root.join("memory/memory.memsw.limit_in_bytes").exists(),
            (Mode::V2, Some(there)) => there.path.join("memory.swap.max").exists(),
            // The root has no limits. Groups below it will have this one if the kernel has swap and counts memory at all.
            (Mode::V2, None) => {
                let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
                Path::new("/proc/swaps").exists() && controllers.split_whitespace().any(|name| name == "memory")
            }
        }
    }

    /// How often the kernel has killed a process here for want of memory; 0 when nobody counts.
    pub fn oom_kills(&self) -> u64 {
        let file = match self.mode {
            Mode::V1 => "memory.oom_control",
            Mode::V2 => "memory.events",
        };
        self.of("memory")
            .and_then(|group| fs::read_to_string(group.join(file)).ok())
            .and_then(|text| field(&text, "oom_kill"))
            .unwrap_or(0)
    }

    /// Makes the groups again that were there before. On version 2 libcontainer removes the group of a container that it could not make.
    pub fn restore(&self) -> Result<(), RuntimeError> {
        for group in self.members.iter().filter(|group| self.mode == Mode::V2 && !group.ours) {
            fs::create_dir_all(&group.path).context(|| format!("making {} again", group.path.display()))?;
        }
        Ok(())
    }

    /// Lets frozen processes go on. On v1 they do not even die before; on v2 a kill goes through.
    pub fn thaw(&self) -> Result<(), RuntimeError> {
        match self.of("freezer").filter(|_| self.mode == Mode::V1) {
            Some(group) => kill::thaw(group).context(|| format!("thawing {}", group.display())),
            None => Ok(()),
        }
    }

    /// Removes the groups that we made.
    pub fn remove(&self) -> Result<(), RuntimeError> {
        for group in &self.members {
            if group.ours {
                remove_group(&group.path)?;
            } else {
                kill::remove_children(&group.path)?;
                if self.mode == Mode::V2 {
                    devices::release_devices(&group.path)?;
                }
            }
        }
        Ok(())
    }
}

/// The number in the line `name number`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_flat_keyed_file() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(field(text, "oom_kill"), Some(3));
        assert_eq!(field("low 0\noom 1\noom_kill 2\noom_group_kill 0", "oom_kill"), Some(2));
        assert_eq!(field("", "oom_kill"), None);
    }
}
