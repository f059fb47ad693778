//! How a container's first process comes into its groups of version 1: it is born there.
//!
//! libcontainer would move it, through `cgroup.procs` and its lock (see [`join`]). It is shown no hierarchies instead
//! (`rootfs::view`), and the creator, of whose kind everything in the container is, stays in the groups while it builds.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use host::IoError;

use super::{DeviceRule, Groups, Mode, devices, hierarchy, join};
use crate::{
    error::{Context, RuntimeError},
    plan::{CgroupPlacement, Resources},
};

/// A stay of this process, which must have one thread only, in the groups of a container.
pub(crate) struct Stay {
    /// Files by which it gets back to the groups that it came from.
    home: Vec<File>,
    /// What is written when it has gone: it would be counted and slowed down itself.
    late: Vec<Setting>,
}

/// A limit about to be written.
struct Setting {
    path: PathBuf,
    file: File,
    value: String,
}

impl Setting {
    fn write(&self) -> Result<(), RuntimeError> {
        let written = (&self.file).write_all(self.value.as_bytes());
        written.context(|| format!("writing {:?} to {}", self.value, self.path.display()))
    }
}

/// Limits that are for the command alone, not for whoever builds the container.
const LATE: [&str; 3] = ["cpu.shares", "cpu.cfs_quota_us", "pids.max"];

impl Stay {
    /// Makes the groups that are missing, limits all of them and joins them; nothing on version 2. Without rules every device may be used.
    pub fn begin(
        groups: &Groups,
        placement: &CgroupPlacement,
        limits: &Resources,
        rules: Option<&[DeviceRule]>,
    ) -> Result<Self, RuntimeError> {
        if groups.mode == Mode::V2 {
            return Ok(Self { home: Vec::new(), late: Vec::new() });
        }
        let home = open_home().context(|| "looking at our own control groups".to_owned())?;
        let directories: Vec<PathBuf> = groups
            .members
            .iter()
            .map(|group| match &placement.cpuset_v1 {
                // The cores that the caller gave this container are a group of their own.
                Some(cpuset) if group.holds("cpuset") => cpuset.clone(),
                _ => group.path.clone(),
            })
            .collect();
        for (directory, group) in directories.iter().zip(&groups.members) {
            let make = || match group.holds("cpuset") {
                true => fs::create_dir_all(directory).and_then(|()| hierarchy::inherit_cpuset(directory)),
                false => fs::create_dir_all(directory),
            };
            make().context(|| format!("making the control group {}", directory.display()))?;
        }
        let mut late = Vec::new();
        for (controller, file, value) in settings(limits, groups.count_swap(), rules) {
            let at = groups.members.iter().position(|group| group.holds(controller));
            let path = at.map(|at| directories[at].join(file)).ok_or_else(|| IoError {
                action: format!("limiting {controller}"),
                source: io::Error::other("no control group hierarchy of that name is mounted"),
            })?;
            let opened = open(&path).context(|| format!("opening {}", path.display()))?;
            let setting = Setting { path, file: opened, value };
            if LATE.contains(&file) {
                late.push(setting);
            } else {
                setting.write()?;
            }
        }
        join(&directories).context(|| "joining the container's control groups".to_owned())?;
        Ok(Self { home, late })
    }

    /// Goes back. Everything that was forked meanwhile stays.
    pub fn end(self) -> Result<(), RuntimeError> {
        let left = self.home.iter().try_for_each(|mut group| group.write_all(b"0"));
        left.context(|| "leaving the container's control groups".to_owned())?;
        self.late.iter().try_for_each(Setting::write)
    }
}

fn open_home() -> io::Result<Vec<File>> {
    let own = std::process::id() as i32;
    join::groups_of(own)?.iter().map(|group| open(&group.join("tasks"))).collect()
}

fn open(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().write(true).open(path)
}

/// A number to be written; zero means that nobody asked for one.
fn given<N: ToString + Default + PartialEq>(number: Option<N>) -> Option<String> {
    number.filter(|number| *number != N::default()).map(|number| number.to_string())
}

/// What is written to which controller's files, in this order.
fn settings(limits: &Resources, swap: bool, rules: Option<&[DeviceRule]>) -> Vec<(&'static str, &'static str, String)> {
    let mut list = Vec::new();
    let mut set = |controller, file, value: Option<String>| {
        list.extend(value.map(|value| (controller, file, value)));
    };
    let memory = given(limits.memory_limit);
    set("memory", "memory.limit_in_bytes", memory.clone());
    // Memory and swap together: no swap beyond the limit.
    set("memory", "memory.memsw.limit_in_bytes", memory.filter(|_| swap));
    set("memory", "memory.soft_limit_in_bytes", given(limits.memory_reservation));
    // The one way to say that nothing is moved out to disk for a task without a limit, or where the kernel does not count swap.
    set("memory", "memory.swappiness", Some("0".to_owned()));
    set("cpu", "cpu.shares", given(limits.cpu_shares));
    set("cpu", "cpu.cfs_period_us", given(limits.cpu_period));
    set("cpu", "cpu.cfs_quota_us", given(limits.cpu_quota));
    set("pids", "pids.max", given(limits.pids_limit.filter(|limit| *limit > 0)));
    set("cpuset", "cpuset.cpus", limits.cpuset_cpus.clone());
    set("cpuset", "cpuset.mems", limits.cpuset_mems.clone());
    match rules {
        None => set("devices", "devices.allow", Some("a".to_owned())),
        Some(rules) => {
            set("devices", "devices.deny", Some("a".to_owned()));
            devices::allow_lines(rules).for_each(|line| set("devices", "devices.allow", Some(line)));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_but_what_was_asked_for() {
        let files = |limits: &Resources, swap| -> Vec<_> {
            settings(limits, swap, None).into_iter().map(|(_, file, value)| format!("{file} {value}")).collect()
        };
        let mut limits = Resources { pids_limit: Some(-1), cpu_shares: Some(0), ..Resources::default() };
        assert_eq!(files(&limits, true), ["memory.swappiness 0", "devices.allow a"]);
        limits.memory_limit = Some(4096);
        limits.cpu_quota = Some(-1);
        limits.cpuset_cpus = Some("0-1".to_owned());
        let memory = "memory.limit_in_bytes 4096";
        let rest = ["memory.swappiness 0", "cpu.cfs_quota_us -1", "cpuset.cpus 0-1", "devices.allow a"];
        assert_eq!(files(&limits, false), [&[memory], &rest[..]].concat());
        assert_eq!(files(&limits, true), [&[memory, "memory.memsw.limit_in_bytes 4096"], &rest[..]].concat());
    }

    #[test]
    fn all_devices_are_denied_before_some_are_allowed() {
        let list = settings(&Resources::default(), true, Some(&[]));
        let at = list.iter().position(|(_, file, _)| *file == "devices.deny").expect("a denial");
        assert_eq!(list[at].2, "a");
        assert!(list.len() > at + 5 && list[at + 1..].iter().all(|(_, file, _)| *file == "devices.allow"));
    }
}
