//! Classes of cache and memory bandwidth: groups of the kernel's file system resctrl (Intel RDT, AMD QoS).
//!
//! The rules are those of the OCI runtime specification for `intelRdt`. A class that a plan names may exist already,
//! and stays. A class without a name belongs to one container, has its name, and is removed with it. So is the group
//! that monitors a container. Names follow from the plan, so no record is needed.

mod decide;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use self::decide::{Step, step};
use crate::{
    error::{Context, RuntimeError, StartError},
    mountinfo::mount_of_type,
    plan::{CacheClass, ContainerId},
};

/// The type of the file system.
const RESCTRL: &str = "resctrl";

/// The file of a group with its processes.
const TASKS: &str = "tasks";
/// The file of a class with its limits.
const SCHEMATA: &str = "schemata";

/// The open groups of a container that has no process yet.
pub(crate) struct ClassMembership {
    tasks: Vec<(PathBuf, File)>,
}

/// The part of a plan that names the groups of its container. The plan itself may be of another build.
#[derive(Deserialize)]
pub(crate) struct ClassPlan {
    id: ContainerId,
    #[serde(default)]
    cache_class: Option<CacheClass>,
}

/// The groups of a container below the mount point of the file system.
struct Groups {
    class: PathBuf,
    monitor: Option<PathBuf>,
}

impl Groups {
    fn of(mount: &Path, wanted: &CacheClass, container: &ContainerId) -> Self {
        let class = match wanted.name.as_deref() {
            Some("/") => mount.to_owned(),
            Some(name) => mount.join(name),
            None => mount.join(container.as_str()),
        };
        let monitor = wanted.monitored.then(|| class.join("mon_groups").join(container.as_str()));
        Self { class, monitor }
    }

    fn tasks(&self) -> Vec<PathBuf> {
        [Some(&self.class), self.monitor.as_ref()].into_iter().flatten().map(|group| group.join(TASKS)).collect()
    }
}

impl ClassMembership {
    /// Makes the groups of a container, or finds them. The caller is in the host's mount namespace.
    pub fn prepare(wanted: &CacheClass, container: &ContainerId) -> Result<Self, StartError> {
        Self::prepare_at(&mount_point()?, wanted, container)
    }

    fn prepare_at(mount: &Path, wanted: &CacheClass, container: &ContainerId) -> Result<Self, StartError> {
        let groups = Groups::of(mount, wanted, container);
        let failed = |what: &str, path: &Path, error: io::Error| {
            let status = fs::read_to_string(mount.join("info/last_cmd_status")).unwrap_or_default();
            let status = status.trim();
            let status = if status.is_empty() || status == "ok" { String::new() } else { format!(" ({status})") };
            of_spec(format!("{what} {}: {error}{status}", path.display()))
        };
        let existing = match fs::read_to_string(groups.class.join(SCHEMATA)) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(failed("reading", &groups.class, error)),
        };
        let step = step(wanted, existing.as_deref()).map_err(of_spec)?;
        if step == Step::Make {
            make(&groups.class).map_err(|error| failed("making the class", &groups.class, error))?;
        }
        if step != Step::Join
            && let Err(error) = write_schemata(&groups.class, &wanted.schemata)
        {
            let error = failed("limiting the class", &groups.class, error);
            if step == Step::Make {
                remove(&groups.class).map_err(|error| failed("removing the class", &groups.class, error))?;
            }
            return Err(error);
        }
        if let Some(monitor) = &groups.monitor {
            make(monitor).map_err(|error| failed("making the monitoring group", monitor, error))?;
        }
        let open = |path: PathBuf| match OpenOptions::new().write(true).open(&path) {
            Ok(file) => Ok((path, file)),
            Err(error) => Err(failed("opening", &path, error)),
        };
        Ok(Self { tasks: groups.tasks().into_iter().map(open).collect::<Result<_, _>>()? })
    }

    /// Adds a process. Its children will be members too.
    pub fn add(mut self, pid: i32) -> Result<(), StartError> {
        for (path, file) in &mut self.tasks {
            let written = file.write_all(pid.to_string().as_bytes());
            written.map_err(|error| of_spec(format!("adding the command to {}: {error}", path.display())))?;
        }
        Ok(())
    }
}

/// Adds this process to the groups of a running container. Without the file system it has none.
pub(crate) fn join(wanted: &CacheClass, container: &ContainerId) -> io::Result<()> {
    let Some(mount) = mounted()? else { return Ok(()) };
    for tasks in Groups::of(&mount, wanted, container).tasks() {
        // 0 is the process that writes.
        OpenOptions::new().write(true).open(tasks)?.write_all(b"0")?;
    }
    Ok(())
}

/// Removes the groups that are a container's alone. `plan` is the part of its plan.
pub(crate) fn remove_groups(plan: &ClassPlan) -> Result<(), RuntimeError> {
    let Some(wanted) = &plan.cache_class else { return Ok(()) };
    let mount = mounted().context(|| "finding the file system resctrl".to_owned())?;
    mount.map_or(Ok(()), |mount| remove_at(&mount, wanted, &plan.id))
}

fn remove_at(mount: &Path, wanted: &CacheClass, container: &ContainerId) -> Result<(), RuntimeError> {
    let groups = Groups::of(mount, wanted, container);
    let own_class = wanted.name.is_none().then_some(&groups.class);
    for group in groups.monitor.iter().chain(own_class) {
        remove(group).context(|| format!("removing the group {}", group.display()))?;
    }
    Ok(())
}

/// The mount point of the file system.
fn mount_point() -> Result<PathBuf, StartError> {
    let mounted = mounted().context(|| "finding the file system resctrl".to_owned())?;
    mounted.ok_or_else(|| of_spec(unavailable(&fs::read_to_string("/proc/filesystems").unwrap_or_default()).to_owned()))
}

fn mounted() -> io::Result<Option<PathBuf>> {
    Ok(mount_of_type(&fs::read("/proc/self/mountinfo")?, RESCTRL))
}

/// Why the file system cannot be used, from the text of `/proc/filesystems`.
fn unavailable(file_systems: &str) -> &'static str {
    if file_systems.lines().any(|line| line.split_whitespace().last() == Some(RESCTRL)) {
        "the file system resctrl is not mounted on this node: mount it with `mount -t resctrl resctrl /sys/fs/resctrl`"
    } else {
        "the kernel of this node has no file system resctrl (Intel RDT, AMD QoS): use a device without `intelRdt`"
    }
}

fn of_spec(problem: String) -> StartError {
    StartError::invalid(format!("`intelRdt` of a device's spec: {problem}"))
}

/// Makes a group. One of an interrupted start is used again.
fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn write_schemata(class: &Path, schemata: &[String]) -> io::Result<()> {
    if schemata.is_empty() {
        return Ok(());
    }
    let text = schemata.iter().map(|line| format!("{line}\n")).collect::<String>();
    // The kernel takes all lines of one call or none.
    OpenOptions::new().write(true).open(class.join(SCHEMATA))?.write_all(text.as_bytes())
}

/// Removes a group. Its processes become members of the group above it.
fn remove(group: &Path) -> io::Result<()> {
    match fs::remove_dir(group) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTAINER: &str = "web";

    fn wanted(name: Option<&str>, schemata: &[&str], monitored: bool) -> CacheClass {
        let schemata = schemata.iter().map(|line| (*line).to_owned()).collect();
        CacheClass { name: name.map(str::to_owned), schemata, monitored }
    }

    /// A group as the kernel makes it: with its files.
    fn group(path: &Path, schemata: &str) {
        fs::create_dir_all(path.join("mon_groups")).unwrap();
        fs::write(path.join(SCHEMATA), schemata).unwrap();
        fs::write(path.join(TASKS), "").unwrap();
    }

    #[test]
    fn a_container_joins_the_classes_that_exist() {
        let mount = tempfile::tempdir().unwrap();
        let id: ContainerId = CONTAINER.parse().unwrap();
        let at = |name: &str| mount.path().join(name);
        group(mount.path(), "L3:0=7ff\n");
        group(&at("fast"), "    L3:0=00f\n    MB:0=100\n");
        for name in [Some("fast"), Some("/"), None] {
            // A directory of an interrupted start.
            group(&at(CONTAINER), "L3:0=7ff\n");
            let class = name.map_or(at(CONTAINER), |name| if name == "/" { mount.path().into() } else { at(name) });
            group(&class.join("mon_groups").join(CONTAINER), "");
            let lines: &[&str] = if name == Some("fast") { &["L3:0=f"] } else { &[] };
            let wanted = wanted(name, lines, true);
            ClassMembership::prepare_at(mount.path(), &wanted, &id).unwrap().add(4711).unwrap();
            for group in [class.clone(), class.join("mon_groups").join(CONTAINER)] {
                assert_eq!(fs::read_to_string(group.join(TASKS)).unwrap(), "4711", "{name:?}");
            }
            fs::remove_dir_all(class.join("mon_groups")).unwrap();
            fs::remove_dir_all(at(CONTAINER)).unwrap();
            remove_at(mount.path(), &wanted, &id).unwrap();
        }
        assert!(at("fast").exists(), "the class is the operator's");
        fs::create_dir(at(CONTAINER)).unwrap();
        remove_at(mount.path(), &wanted(None, &[], false), &id).unwrap();
        assert!(!at(CONTAINER).exists(), "the class is the container's");
    }

    #[test]
    fn a_class_that_cannot_be_used_is_named_and_what_was_made_is_removed() {
        let mount = tempfile::tempdir().unwrap();
        let id: ContainerId = CONTAINER.parse().unwrap();
        group(&mount.path().join("fast"), "L3:0=00f\n");
        fs::create_dir(mount.path().join("info")).unwrap();
        fs::write(mount.path().join("info/last_cmd_status"), "Mask out of range\n").unwrap();
        for (name, schemata, expected) in [
            ("missing", &[][..], "the class \"missing\" does not exist"),
            ("fast", &["L3:0=1f"], "the class \"fast\" exists with other limits: L3:0=1f is not in L3:0=00f"),
            // The directory has none of the files that the kernel makes.
            ("new", &["L3:0=fffff"], "(Mask out of range)"),
        ] {
            let error = ClassMembership::prepare_at(mount.path(), &wanted(Some(name), schemata, false), &id).err();
            let text = error.unwrap().message;
            assert!(text.starts_with("`intelRdt` of a device's spec: ") && text.contains(expected), "{text}");
        }
        assert!(!mount.path().join("new").exists());
    }

    #[test]
    fn the_reason_tells_an_old_kernel_from_a_missing_mount() {
        assert!(unavailable("nodev\tsysfs\n\text4\n").contains("the kernel of this node has no file system resctrl"));
        assert!(unavailable("nodev\tresctrl\n").contains("is not mounted on this node"));
    }
}
