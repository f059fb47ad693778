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
        Mode::V1 => Ok(mounted(&fs::read_to_string("/proc/self/cgroup")?, is_v1)),
    }
}

fn is_v1(directory: &Path) -> bool {
    const CGROUP_SUPER_MAGIC: u64 = 0x0027_e0eb;
    rustix::fs::statfs(directory).is_ok_and(|found| found.f_type as u64 == CGROUP_SUPER_MAGIC)
}

/// The v1 hierarchies of a membership text (`/proc/self/cgroup`) that are mounted where everybody looks for them: in a directory with the names of
/// all their controllers, or of one of them. The table of mounts would say it too, but grows with what runs on the machine.
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

/// Our own group in the hierarchy of a controller (`""`: the unified one), by `/proc/self/cgroup`.
pub(super) fn own_path(text: &str, controller: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
}

/// A group's directory: an absolute path below the mount point.
pub(super) fn below(mount_point: &Path, path: &str) -> PathBuf {
    mount_point.join(path.trim_start_matches('/'))
}

/// Gives a cpuset group that has none the cores and memory nodes of its parent, without which it takes no process.
pub(super) fn inherit_cpuset(group: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if fs::read_to_string(group.join(file))?.trim().is_empty()
            && let Some(parent) = group.parent()
        {
            // The hierarchy's root has all of them.
            inherit_cpuset(parent)?;
            fs::write(group.join(file), fs::read_to_string(parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_hierarchies_are_found_where_they_are_mounted() {
        let text = "5:net_cls,net_prio:/\n4:memory:/a:b\n3:cpu,cpuacct:/\n2:pids:/x\n1:name=systemd:/init\n0::/u\n";
        let there = ["cpu,cpuacct", "memory", "net_prio", "name=systemd"].map(|name| Path::new(ROOT).join(name));
        let found = mounted(text, |path| there.iter().any(|one| one == path));
        let points: Vec<_> = found.iter().map(|one| one.mount_point.to_str().expect("text")).collect();
        assert_eq!(points, ["net_prio", "memory", "cpu,cpuacct"].map(|name| format!("{ROOT}/{name}")));
        assert_eq!(found[2].controllers, ["cpu", "cpuacct"]);
    }

    #[test]
    fn own_groups() {
        let text = "3:cpu,cpuacct:/a:b\n2:pids:/x\n1:name=systemd:/init\n0::/u\n";
        assert_eq!(own_path(text, "cpuacct").as_deref(), Some("/a:b"));
        assert_eq!(own_path(text, "").as_deref(), Some("/u"));
        assert_eq!(own_path(text, "memory"), None);
    }
}
