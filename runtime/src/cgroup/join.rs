//! Moving this process into cgroups, and finding those of another process.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    hierarchy::{Hierarchy, below, hierarchies, path_in},
    version::{ROOT, Version, version},
};

/// The cgroups of a process in the hierarchies in which containers have cgroups.
pub(crate) fn cgroups_of_process(pid: i32) -> io::Result<Vec<PathBuf>> {
    let version = version()?;
    Ok(paths(version, &hierarchies(version)?, &fs::read_to_string(format!("/proc/{pid}/cgroup"))?))
}

fn paths(version: Version, hierarchies: &[Hierarchy], membership: &str) -> Vec<PathBuf> {
    let path = |hierarchy: &Hierarchy| {
        let controller = match version {
            Version::V1 => hierarchy.controllers.first()?,
            Version::V2 => "",
        };
        Some(below(&hierarchy.mount_point, &path_in(membership, controller)?))
    };
    hierarchies.iter().filter_map(path).collect()
}

/// Moves this process into cgroups. It must have one thread.
///
/// On v1 it writes to `tasks`, not to `cgroup.procs`. Moving a whole process takes a lock that every fork on the
/// machine takes too. After a pause without migrations that lock costs an RCU grace period, 5 to 13 ms. A thread that
/// moves itself needs no such lock. On v2 these cgroups have no file for threads.
pub(crate) fn join(cgroups: &[PathBuf]) -> io::Result<()> {
    let file = match version()? {
        Version::V1 => "tasks",
        Version::V2 => "cgroup.procs",
    };
    // Zero means the writing process.
    cgroups.iter().try_for_each(|cgroup| fs::write(cgroup.join(file), "0"))
}

/// On v2, starts a thread that moves this process from its cgroup to the same cgroup.
///
/// The first migration after a pause waits several milliseconds in the kernel, later ones do not. An early call of this
/// function takes that wait out of a container's start. It changes nothing else, so its errors are only logged. On v1
/// it does nothing, because a container's first process is created in its cgroups.
pub fn warm_up() {
    fn migrate() -> io::Result<()> {
        let own = path_in(&fs::read_to_string("/proc/self/cgroup")?, "");
        let procs = own.map(|own| below(Path::new(ROOT), &own).join("cgroup.procs"));
        procs.map_or(Ok(()), |procs| fs::write(procs, std::process::id().to_string()))
    }
    let log = |error: io::Error| tracing::debug!(%error, "no early control group migration");
    if version().is_ok_and(|version| version == Version::V2) {
        let thread = std::thread::Builder::new().spawn(move || migrate().unwrap_or_else(log));
        thread.map(drop).unwrap_or_else(log);
    }
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
        assert_eq!(paths(Version::V1, &v1, text), expected);
        let v2 = [hierarchy("/c", &[])];
        assert_eq!(paths(Version::V2, &v2, "0::/nomad.slice/x.scope\n"), [PathBuf::from("/c/nomad.slice/x.scope")]);
    }
}
