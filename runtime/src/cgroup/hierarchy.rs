//! The mounted cgroup hierarchies, and paths of cgroups in them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::version::{ROOT, Version};

/// The v1 controllers. A container has a cgroup in the hierarchy of each of them. The engine has the same list.
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
pub(super) struct Hierarchy {
    pub mount_point: PathBuf,
    /// Empty on v2.
    pub controllers: Vec<String>,
}

/// The hierarchies in which containers have cgroups.
pub(super) fn hierarchies(version: Version) -> io::Result<Vec<Hierarchy>> {
    match version {
        Version::V2 => Ok(vec![Hierarchy { mount_point: PathBuf::from(ROOT), controllers: Vec::new() }]),
        Version::V1 => Ok(mounted(&fs::read_to_string("/proc/self/cgroup")?, is_v1)),
    }
}

fn is_v1(directory: &Path) -> bool {
    const CGROUP_SUPER_MAGIC: u64 = 0x0027_e0eb;
    rustix::fs::statfs(directory).is_ok_and(|file_system| file_system.f_type as u64 == CGROUP_SUPER_MAGIC)
}

/// The v1 hierarchies in a text like `/proc/self/cgroup` that are mounted at the usual places: a directory named after
/// all their controllers, or after one of them. The table of mounts has the same information, but it grows with the
/// number of containers on the machine.
fn mounted(membership: &str, is_v1: impl Fn(&Path) -> bool) -> Vec<Hierarchy> {
    let hierarchy = |line: &str| {
        let all = line.split(':').nth(1)?;
        let controllers: Vec<String> =
            all.split(',').filter(|name| CONTROLLERS.contains(name)).map(str::to_owned).collect();
        let names = [all].into_iter().chain(controllers.iter().map(String::as_str));
        let mount_point =
            names.filter(|name| !name.is_empty()).map(|name| Path::new(ROOT).join(name)).find(|path| is_v1(path))?;
        (!controllers.is_empty()).then_some(Hierarchy { mount_point, controllers })
    };
    membership.lines().filter_map(hierarchy).collect()
}

/// The path of the cgroup in the hierarchy of a controller (`""`: the unified one), from a text like
/// `/proc/self/cgroup`.
pub(super) fn path_in(text: &str, controller: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
}

/// The directory of a cgroup: `path` below the mount point.
pub(super) fn below(mount_point: &Path, path: &str) -> PathBuf {
    mount_point.join(path.trim_start_matches('/'))
}

/// Copies the cores and memory nodes of the parent to a cpuset cgroup that has none. Without them it accepts no
/// process.
pub(super) fn inherit_cpuset(cgroup: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if fs::read_to_string(cgroup.join(file))?.trim().is_empty()
            && let Some(parent) = cgroup.parent()
        {
            // The recursion ends at the root of the hierarchy, which has all cores and nodes.
            inherit_cpuset(parent)?;
            fs::write(cgroup.join(file), fs::read_to_string(parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_hierarchies_are_found_at_the_usual_mount_points() {
        let text = "5:net_cls,net_prio:/\n4:memory:/a:b\n3:cpu,cpuacct:/\n2:pids:/x\n1:name=systemd:/init\n0::/u\n";
        let mounts = ["cpu,cpuacct", "memory", "net_prio", "name=systemd"].map(|name| Path::new(ROOT).join(name));
        let found = mounted(text, |path| mounts.iter().any(|mount| mount == path));
        let points: Vec<_> = found.iter().map(|hierarchy| hierarchy.mount_point.to_str().expect("text")).collect();
        assert_eq!(points, ["net_prio", "memory", "cpu,cpuacct"].map(|name| format!("{ROOT}/{name}")));
        assert_eq!(found[2].controllers, ["cpu", "cpuacct"]);
    }

    #[test]
    fn the_path_in_a_hierarchy_is_that_of_its_controller() {
        let text = "3:cpu,cpuacct:/a:b\n2:pids:/x\n1:name=systemd:/init\n0::/u\n";
        assert_eq!(path_in(text, "cpuacct").as_deref(), Some("/a:b"));
        assert_eq!(path_in(text, "").as_deref(), Some("/u"));
        assert_eq!(path_in(text, "memory"), None);
    }
}
