//! The cgroups of one container: where they are, and their creation and removal.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::{
    device_program,
    device_rules::DeviceRule,
    hierarchy::{Hierarchy, below, hierarchies},
    kill,
    version::{ROOT, Version, version},
};
use crate::{
    error::{Context, RuntimeError},
    mountinfo::mounts_below,
    plan::CgroupPlacement,
};

/// The cgroups of one container. This is the content of `cgroup.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cgroups {
    #[serde(rename = "mode")]
    pub version: Version,
    /// On v1 one per hierarchy, on v2 a single one.
    pub members: Vec<Cgroup>,
}

/// One cgroup of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cgroup {
    /// The controllers of its hierarchy. Empty on v2.
    pub controllers: Vec<String>,
    pub path: PathBuf,
    /// Whether it did not exist before the container, so that it is removed with the container.
    #[serde(rename = "ours")]
    pub created: bool,
}

impl Cgroup {
    /// Whether its hierarchy has this controller.
    pub fn has_controller(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }
}

impl Cgroups {
    /// Moves this process, which has one thread, to the cgroup of version 2. On version 1 it does nothing.
    pub fn join_unified(&self) -> io::Result<()> {
        match (self.version, self.members.first()) {
            (Version::V2, Some(group)) => fs::write(group.path.join("cgroup.procs"), "0"),
            _ => Ok(()),
        }
    }

    /// Finds the paths of a container's cgroups, and which of them exist already. Creates none.
    pub fn locate(placement: &CgroupPlacement) -> Result<Self, RuntimeError> {
        let version = version().context(|| format!("looking at {ROOT}"))?;
        let all = hierarchies(version).context(|| "reading the mounted control group hierarchies".to_owned())?;
        let mut members = Vec::new();
        for Hierarchy { mount_point, controllers } in all {
            let path = below(&mount_point, &placement.path);
            let created = !path.is_dir();
            members.push(Cgroup { controllers, path, created });
        }
        Ok(Self { version, members })
    }

    /// Creates the parent cgroups on v2. The engine would fail if another process created one of them at the same
    /// moment.
    pub fn create_parents(&self) -> Result<(), RuntimeError> {
        let cgroups = self.members.iter().filter(|_| self.version == Version::V2);
        for parent in cgroups.filter_map(|cgroup| cgroup.path.parent()) {
            fs::create_dir_all(parent).context(|| format!("making the control group {}", parent.display()))?;
        }
        Ok(())
    }

    /// The directory of the cgroup with the files of this controller.
    pub fn path_of(&self, controller: &str) -> Option<&Path> {
        self.members
            .iter()
            .find(|cgroup| self.version == Version::V2 || cgroup.has_controller(controller))
            .map(|cgroup| cgroup.path.as_path())
    }

    /// Whether the kernel accounts swap, so that a limit on it can be set.
    pub fn accounts_swap(&self) -> bool {
        let root = Path::new(ROOT);
        match (self.version, self.members.iter().find(|cgroup| !cgroup.created)) {
            (Version::V1, _) => root.join("memory/memory.memsw.limit_in_bytes").exists(),
            (Version::V2, Some(existing)) => existing.path.join("memory.swap.max").exists(),
            // The root cgroup has no limits. Its children have this one if the kernel has swap and the memory
            // controller.
            (Version::V2, None) => {
                let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
                Path::new("/proc/swaps").exists() && controllers.split_whitespace().any(|name| name == "memory")
            }
        }
    }

    /// Unmounts the hierarchies in which the container has no cgroup, in this process's mount namespace. A runtime
    /// would make cgroups in all that it finds.
    pub fn hide_other_hierarchies(&self) -> Result<(), RuntimeError> {
        let mounts = fs::read("/proc/self/mountinfo").context(|| "reading the table of mounts".to_owned())?;
        let root = Path::new(ROOT);
        for mount in mounts_below(&mounts, root).iter().rev() {
            if self.members.iter().all(|member| !member.path.starts_with(mount)) {
                let hidden = unmount(mount, UnmountFlags::DETACH).map_err(io::Error::from);
                hidden.context(|| format!("hiding {}", mount.display()))?;
            }
        }
        Ok(())
    }

    /// Thaws frozen processes. On v1 a frozen process does not even die of SIGKILL; on v2 it does.
    pub fn thaw(&self) -> Result<(), RuntimeError> {
        match self.path_of("freezer").filter(|_| self.version == Version::V1) {
            Some(cgroup) => kill::thaw(cgroup).context(|| format!("thawing {}", cgroup.display())),
            None => Ok(()),
        }
    }

    /// Restricts the devices of the container on v2 to the standard devices and those of these rules.
    pub fn restrict_devices(&self, rules: &[DeviceRule]) -> Result<(), RuntimeError> {
        match self.path_of("devices").filter(|_| self.version == Version::V2) {
            Some(cgroup) => device_program::restrict_devices(cgroup, rules),
            None => Ok(()),
        }
    }

    /// Removes the cgroups that were created for the container. In the others it removes all child cgroups and our
    /// device program.
    pub fn remove(&self) -> Result<(), RuntimeError> {
        for cgroup in &self.members {
            if cgroup.created {
                kill::remove_cgroup(&cgroup.path)?;
            } else {
                kill::remove_children(&cgroup.path)?;
                if self.version == Version::V2 {
                    device_program::release_devices(&cgroup.path)?;
                }
            }
        }
        Ok(())
    }
}
