//! Joining the groups that another process is in.

use std::{fs, io, path::PathBuf};

use super::{
    Mode,
    hierarchy::{Hierarchy, below, hierarchies, own_path},
    mode,
};

/// The groups of a process in the hierarchies that containers live in.
pub(crate) fn groups_of(pid: i32) -> io::Result<Vec<PathBuf>> {
    let mode = mode()?;
    Ok(paths(mode, &hierarchies(mode)?, &fs::read_to_string(format!("/proc/{pid}/cgroup"))?))
}

fn paths(mode: Mode, hierarchies: &[Hierarchy], membership: &str) -> Vec<PathBuf> {
    let path = |hierarchy: &Hierarchy| {
        let controller = match mode {
            Mode::V1 => hierarchy.controllers.first()?,
            Mode::V2 => "",
        };
        Some(below(&hierarchy.mount_point, &own_path(membership, controller)?))
    };
    hierarchies.iter().filter_map(path).collect()
}

/// Moves this process, which must have one thread only, into groups.
///
/// A thread that moves itself needs no lock against threads of its process that come and go, which every fork on the machine takes part
/// in and which costs a grace period of RCU, 5 to 13 ms, when nobody has moved for a while. Version 2 has no file for threads in groups like these.
pub(crate) fn join(groups: &[PathBuf]) -> io::Result<()> {
    let file = match mode()? {
        Mode::V1 => "tasks",
        Mode::V2 => "cgroup.procs",
    };
    // Zero is whoever writes.
    groups.iter().try_for_each(|group| fs::write(group.join(file), "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_in_every_hierarchy() {
        let hierarchy = |mount_point: &str, controllers: &[&str]| Hierarchy {
            mount_point: PathBuf::from(mount_point),
            controllers: controllers.iter().map(|&name| name.to_owned()).collect(),
        };
        let v1 = [hierarchy("/c/cpu,cpuacct", &["cpu", "cpuacct"]), hierarchy("/c/memory", &["memory"])];
        let text = "4:memory:/nomad/a:b\n3:cpu,cpuacct:/nomad/x\n1:name=systemd:/n\n0::/u\n";
        let expected = ["/c/cpu,cpuacct/nomad/x", "/c/memory/nomad/a:b"].map(PathBuf::from);
        assert_eq!(paths(Mode::V1, &v1, text), expected);
        let v2 = [hierarchy("/c", &[])];
        assert_eq!(paths(Mode::V2, &v2, "0::/nomad.slice/x.scope\n"), [PathBuf::from("/c/nomad.slice/x.scope")]);
    }
}
