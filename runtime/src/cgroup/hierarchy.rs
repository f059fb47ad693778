//! Where control group hierarchies are mounted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::Mode;

/// Where everything about control groups is mounted.
pub(super) const ROOT: &str = "/sys/fs/cgroup";

/// The v1 controllers that a container's processes are placed in. The engine places them in these, by the same list.
const CONTROLLERS: [&str; 12] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "devices",
    "hugetlb",
    "memory",
    "net_cls",
    "net_prio",
    "perf_event",
    "blkio",
    "pids",
    "freezer",
];

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub mount_point: PathBuf,
    /// Empty on the unified hierarchy.
    pub controllers: Vec<String>,
}

/// The hierarchies that containers live in.
pub(crate) fn hierarchies(mode: Mode) -> io::Result<Vec<Hierarchy>> {
    match mode {
        Mode::V2 => Ok(vec![Hierarchy { mount_point: PathBuf::from(ROOT), controllers: Vec::new() }]),
        Mode::V1 => Ok(parse_mounts(&fs::read_to_string("/proc/self/mountinfo")?)),
    }
}

/// The v1 hierarchies in a mountinfo text, each once.
fn parse_mounts(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, file_system)) = line.split_once(" - ") else { continue };
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next(), file_system.nth(1));
        let (Some("cgroup"), Some(options)) = (kind, options) else { continue };
        let Some(mount_point) = mount.split(' ').nth(4) else { continue };
        let controllers: Vec<String> =
            options.split(',').filter(|name| CONTROLLERS.contains(name)).map(str::to_owned).collect();
        let known = found.iter().any(|other| other.controllers == controllers);
        if !controllers.is_empty() && !known {
            found.push(Hierarchy { mount_point: PathBuf::from(mount_point), controllers });
        }
    }
    found
}

/// Our own group in the hierarchy of a controller (`""`: the unified one), by `/proc/self/cgroup`.
pub(super) fn own_path(text: &str, controller: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
}

/// A group's folder: an absolute path below the mount point.
pub(super) fn below(mount_point: &Path, path: &str) -> PathBuf {
    mount_point.join(path.trim_start_matches('/'))
}

/// Gives a new cpuset group the cores and memory nodes of its parent, without which it takes no process.
pub(super) fn inherit_cpuset(group: &Path) -> io::Result<()> {
    let Some(parent) = group.parent() else { return Ok(()) };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if fs::read_to_string(group.join(file))?.trim().is_empty() {
            fs::write(group.join(file), fs::read_to_string(parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_hierarchies_are_found_once_and_named_ones_are_not() {
        let text = "\
25 1 0:1 / / rw - ext4 /dev/vda rw\n\
26 25 0:2 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
27 25 0:3 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
28 25 0:4 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
29 25 0:4 / /elsewhere/memory rw - cgroup cgroup rw,memory\n\
30 25 0:5 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = parse_mounts(text);
        let points: Vec<_> = found.iter().map(|one| one.mount_point.to_str().expect("text")).collect();
        assert_eq!(points, ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"]);
        assert_eq!(found[0].controllers, ["cpu", "cpuacct"]);
    }

    #[test]
    fn own_groups() {
        let text = "3:cpu,cpuacct:/a:b\n2:pids:/x\n1:name=systemd:/init\n0::/u\n";
        assert_eq!(own_path(text, "cpuacct").as_deref(), Some("/a:b"));
        assert_eq!(own_path(text, "").as_deref(), Some("/u"));
        assert_eq!(own_path(text, "memory"), None);
    }
}
