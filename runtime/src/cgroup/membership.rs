//! The membership of the creating process in a container's cgroups v1, while it creates the container.
//!
//! libcontainer would move the container's first process through `cgroup.procs`, which takes a slow lock (see
//! [`join()`](super::join())). So the creator is a member of the cgroups while it creates the container, and
//! libcontainer is told so ([`BuildRequest`](crate::engine::BuildRequest)). The creator's children are then members
//! from the beginning.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use super::{
    container::Cgroups,
    device_rules::{DeviceRule, allow_line, standard_rules},
    hierarchy,
    join::cgroups_of_process,
    version::Version,
};
use crate::{
    error::{Context, RuntimeError},
    plan::{CgroupPlacement, Resources},
};

/// The cgroups of a container: they exist and have their limits. Of the devices, only those of every container are
/// allowed. Any thread can make them.
#[must_use]
pub(crate) struct PreparedCgroups {
    /// The directories, in the order of the members.
    directories: Vec<PathBuf>,
    /// The open files through which a process joins them.
    tasks: Vec<File>,
    guard: MembershipGuard,
}

/// The membership of this process, which must have one thread, in the cgroups of a container.
#[must_use]
pub(crate) struct MembershipGuard {
    /// The open files through which the process returns to its own cgroups.
    own_cgroups: Vec<File>,
    /// The limits that are written after the process has left, because they would count it, and after the container is
    /// built, because they would slow that down.
    deferred: Vec<Setting>,
}

/// A limit with the file to which it is written.
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

/// Limits that apply to the container's command only, not to the creator.
const DEFERRED: [&str; 3] = ["cpu.shares", "cpu.cfs_quota_us", "pids.max"];

impl PreparedCgroups {
    /// Creates the missing cgroups, and sets the limits of all. Does nothing on v2.
    pub fn prepare(cgroups: &Cgroups, placement: &CgroupPlacement, limits: &Resources) -> Result<Self, RuntimeError> {
        let mut guard = MembershipGuard { own_cgroups: Vec::new(), deferred: Vec::new() };
        if cgroups.version == Version::V2 {
            return Ok(Self { directories: Vec::new(), tasks: Vec::new(), guard });
        }
        guard.own_cgroups = open_own_cgroups().context(|| "looking at our own control groups".to_owned())?;
        let directories = create_directories(cgroups, placement)?;
        for (controller, file, value) in settings(limits, cgroups.accounts_swap()) {
            let setting = open_setting(cgroups, &directories, controller, file, value)?;
            if DEFERRED.contains(&file) {
                guard.deferred.push(setting);
            } else {
                setting.write()?;
            }
        }
        for (file, line) in standard_device_settings() {
            open_setting(cgroups, &directories, "devices", file, line)?.write()?;
        }
        let tasks = open_tasks(&directories).context(|| "opening the container's control groups".to_owned())?;
        Ok(Self { directories, tasks, guard })
    }

    /// Allows the devices of the rules, and lets this process join the cgroups. Does nothing on v2. Without rules all
    /// devices are allowed.
    pub fn enter(self, cgroups: &Cgroups, rules: Option<&[DeviceRule]>) -> Result<MembershipGuard, RuntimeError> {
        let Self { directories, tasks, guard } = self;
        if cgroups.version == Version::V1 {
            for (file, line) in device_settings(rules) {
                open_setting(cgroups, &directories, "devices", file, line)?.write()?;
            }
            join_by(&tasks).context(|| "joining the container's control groups".to_owned())?;
        }
        Ok(guard)
    }
}

impl MembershipGuard {
    /// Returns to the own cgroups. Processes that were forked meanwhile stay in the container's cgroups.
    pub fn leave(self) -> Result<DeferredLimits, RuntimeError> {
        join_by(&self.own_cgroups).context(|| "leaving the container's control groups".to_owned())?;
        Ok(DeferredLimits(self.deferred))
    }
}

/// Limits that are written when the container is built, because they would slow the building down.
#[must_use]
pub(crate) struct DeferredLimits(Vec<Setting>);

impl DeferredLimits {
    /// Writes the limits.
    pub fn write(self) -> Result<(), RuntimeError> {
        self.0.iter().try_for_each(Setting::write)
    }
}

/// Creates the missing cgroups. Returns the directories of all, in the order of the members.
fn create_directories(cgroups: &Cgroups, placement: &CgroupPlacement) -> Result<Vec<PathBuf>, RuntimeError> {
    let mut directories = Vec::with_capacity(cgroups.members.len());
    for cgroup in &cgroups.members {
        let has_cpuset = cgroup.has_controller("cpuset");
        // A container with reserved cores has a separate cpuset cgroup, which the caller has chosen.
        let reserved = placement.cpuset_v1.as_ref().filter(|_| has_cpuset);
        let directory = reserved.unwrap_or(&cgroup.path).clone();
        let create = || match has_cpuset {
            true => fs::create_dir_all(&directory).and_then(|()| hierarchy::inherit_cpuset(&directory)),
            false => fs::create_dir_all(&directory),
        };
        create().context(|| format!("making the control group {}", directory.display()))?;
        directories.push(directory);
    }
    Ok(directories)
}

/// Opens the file of a limit in the directory of its controller.
fn open_setting(
    cgroups: &Cgroups,
    directories: &[PathBuf],
    controller: &str,
    file: &str,
    value: String,
) -> Result<Setting, RuntimeError> {
    let unmounted = || io::Error::other("no control group hierarchy of that name is mounted");
    let index = cgroups.members.iter().position(|cgroup| cgroup.has_controller(controller));
    let directory = index.map(|index| &directories[index]).ok_or_else(unmounted);
    let path = directory.context(|| format!("limiting {controller}"))?.join(file);
    let file = open(&path).context(|| format!("opening {}", path.display()))?;
    Ok(Setting { path, file, value })
}

fn open_own_cgroups() -> io::Result<Vec<File>> {
    let own = std::process::id() as i32;
    open_tasks(&cgroups_of_process(own)?)
}

/// Opens the files through which a process joins cgroups.
fn open_tasks(directories: &[PathBuf]) -> io::Result<Vec<File>> {
    directories.iter().map(|directory| open(&directory.join("tasks"))).collect()
}

/// Moves this process, which must have one thread, to the cgroups of these open files. Zero means the writing thread.
fn join_by(tasks: &[File]) -> io::Result<()> {
    tasks.iter().try_for_each(|mut tasks| tasks.write_all(b"0"))
}

fn open(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().write(true).open(path)
}

/// The text of a number that is not zero. Zero means that the limit is not set.
fn nonzero<N: ToString + Default + PartialEq>(number: Option<N>) -> Option<String> {
    number.filter(|number| *number != N::default()).map(|number| number.to_string())
}

/// Controllers, files and values, in the order in which the values are written.
fn settings(limits: &Resources, accounts_swap: bool) -> Vec<(&'static str, &'static str, String)> {
    let mut list = Vec::new();
    let mut set = |controller, file, value: Option<String>| {
        list.extend(value.map(|value| (controller, file, value)));
    };
    let memory = nonzero(limits.memory_limit);
    set("memory", "memory.limit_in_bytes", memory.clone());
    // The limit of memory and swap together is the memory limit, so the container cannot use swap.
    set("memory", "memory.memsw.limit_in_bytes", memory.filter(|_| accounts_swap));
    set("memory", "memory.soft_limit_in_bytes", nonzero(limits.memory_reservation));
    // The only way to forbid swap for a task without a limit, or on a kernel that does not account swap.
    set("memory", "memory.swappiness", Some("0".to_owned()));
    set("cpu", "cpu.shares", nonzero(limits.cpu_shares));
    set("cpu", "cpu.cfs_period_us", nonzero(limits.cpu_period));
    set("cpu", "cpu.cfs_quota_us", nonzero(limits.cpu_quota));
    set("pids", "pids.max", nonzero(limits.pids_limit.filter(|limit| *limit > 0)));
    set("cpuset", "cpuset.cpus", limits.cpuset_cpus.clone());
    set("cpuset", "cpuset.mems", limits.cpuset_mems.clone());
    list
}

/// The files of the devices of every container and the lines for them, in their order.
fn standard_device_settings() -> Vec<(&'static str, String)> {
    let allowed = standard_rules().map(|rule| ("devices.allow", allow_line(&rule)));
    [("devices.deny", "a".to_owned())].into_iter().chain(allowed).collect()
}

/// The same for the devices that a container has beside them. Without rules all devices are allowed.
fn device_settings(rules: Option<&[DeviceRule]>) -> Vec<(&'static str, String)> {
    let lines = rules.map_or_else(|| vec!["a".to_owned()], |rules| rules.iter().map(allow_line).collect());
    lines.into_iter().map(|line| ("devices.allow", line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requested_limits_are_written() {
        let files = |limits: &Resources, swap| -> Vec<_> {
            settings(limits, swap).into_iter().map(|(_, file, value)| format!("{file} {value}")).collect()
        };
        let mut limits = Resources { pids_limit: Some(-1), cpu_shares: Some(0), ..Resources::default() };
        assert_eq!(files(&limits, true), ["memory.swappiness 0"]);
        limits.memory_limit = Some(4096);
        limits.cpu_quota = Some(-1);
        limits.cpuset_cpus = Some("0-1".to_owned());
        let memory = "memory.limit_in_bytes 4096";
        let rest = ["memory.swappiness 0", "cpu.cfs_quota_us -1", "cpuset.cpus 0-1"];
        assert_eq!(files(&limits, false), [&[memory], &rest[..]].concat());
        assert_eq!(files(&limits, true), [&[memory, "memory.memsw.limit_in_bytes 4096"], &rest[..]].concat());
    }

    #[test]
    fn all_devices_are_denied_before_some_are_allowed() {
        let list = [standard_device_settings(), device_settings(Some(&[]))].concat();
        assert_eq!(list[0], ("devices.deny", "a".to_owned()));
        assert!(list.len() > 5 && list[1..].iter().all(|(file, _)| *file == "devices.allow"));
        assert_eq!(device_settings(None), [("devices.allow", "a".to_owned())]);
    }
}
