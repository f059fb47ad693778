//! The differences between runtimes.

use std::path::{Path, PathBuf};

use crate::{
    cgroup::{Access, DeviceRule, Version},
    plan::{InstalledRuntime, Network},
};

/// The runtimes whose command lines differ. Any other runtime is called as runc is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Runc,
    Crun,
    /// gVisor.
    Runsc,
    /// Kata Containers 1. Later versions have no command line of OCI runtimes.
    Kata,
}

impl Dialect {
    /// The dialect of an executable, by its name.
    pub fn of(runtime: &InstalledRuntime) -> Self {
        let name = runtime.path.file_name().unwrap_or_default().to_string_lossy();
        let known = [("crun", Self::Crun), ("runsc", Self::Runsc), ("kata", Self::Kata)];
        known.into_iter().find(|(part, _)| name.contains(part)).map_or(Self::Runc, |(_, dialect)| dialect)
    }

    /// The options before the command. On version 1 the container's processes are members of the task's cgroups from
    /// their first moment, and the limits are ours. So a runtime that can leave cgroups alone does.
    pub fn options(self, version: Version, network: &Network) -> Vec<&'static str> {
        let mut options = Vec::new();
        match (self, version) {
            (Self::Crun, Version::V1) => options.push("--cgroup-manager=disabled"),
            (Self::Runsc, Version::V1) => options.push("--ignore-cgroups"),
            _ => {}
        }
        if self == Self::Runsc {
            options.push(match network {
                Network::Private => "--network=none",
                // The kernel's network of the namespace. A network stack of the sandbox would take the addresses away
                // from the other tasks of the group, and from the next start of this one.
                Network::Host | Network::Path(_) => "--network=host",
            });
        }
        options
    }

    /// The path of the container's cgroup in the spec. On version 1 a relative path is below the runtime's own cgroups,
    /// which are the task's.
    pub fn cgroups_path(self, version: Version, task: &Path) -> Option<PathBuf> {
        match (self, version) {
            (_, Version::V2) => Some(task.to_owned()),
            (Self::Crun | Self::Runsc, Version::V1) => None,
            (Self::Runc | Self::Kata, Version::V1) => Some(PathBuf::from("runtime")),
        }
    }

    /// Whether commands must be made in the container's cgroups, because the runtime does not move them there.
    pub fn joins_no_cgroup(self, version: Version) -> bool {
        self == Self::Crun && version == Version::V1
    }

    /// Whether the processes of the container are processes of the node.
    pub fn shares_kernel(self) -> bool {
        matches!(self, Self::Runc | Self::Crun)
    }

    /// Whether the process of the pid file ends with the container's first process. Signals to it reach that process.
    pub fn pid_is_container(self) -> bool {
        self != Self::Kata
    }

    /// The devices of the node that the runtime itself needs, beside those of the container; `None`: it may need any.
    pub fn devices(self) -> Option<Vec<DeviceRule>> {
        /// The major number of `/dev/net/tun` and `/dev/kvm`.
        const MISC: u32 = 10;
        let misc = |minor, access| {
            let access = Access::from_letters(access);
            Some(vec![DeviceRule { block: false, major: Some(MISC), minor: Some(minor), access }])
        };
        match self {
            // The cgroup that runc makes allows `/dev/net/tun`, so the one above it must.
            Self::Runc => misc(200, "rwm"),
            Self::Crun => Some(Vec::new()),
            Self::Runsc => misc(232, "rw"),
            Self::Kata => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dialect_follows_from_the_executable() {
        for (path, expected) in [
            ("/usr/sbin/runc", Dialect::Runc),
            ("/usr/bin/crun", Dialect::Crun),
            ("/opt/crun-1.20/bin/crun-static", Dialect::Crun),
            ("/usr/bin/runsc", Dialect::Runsc),
            ("/opt/kata/bin/kata-runtime", Dialect::Kata),
            ("/usr/bin/nvidia-container-runtime", Dialect::Runc),
            ("/opt/crun/youki", Dialect::Runc),
        ] {
            let runtime = InstalledRuntime { name: "x".to_owned(), path: path.into(), args: Vec::new() };
            assert_eq!(Dialect::of(&runtime), expected, "{path}");
        }
    }

    #[test]
    fn on_version_1_no_runtime_has_a_cgroup_outside_of_the_tasks() {
        let task = Path::new("/nomad/alloc.web");
        for (dialect, options, path) in [
            (Dialect::Runc, vec![], Some("runtime")),
            (Dialect::Crun, vec!["--cgroup-manager=disabled"], None),
            (Dialect::Runsc, vec!["--ignore-cgroups", "--network=host"], None),
            (Dialect::Kata, vec![], Some("runtime")),
        ] {
            assert_eq!(dialect.options(Version::V1, &Network::Host), options, "{dialect:?}");
            assert_eq!(dialect.cgroups_path(Version::V1, task), path.map(PathBuf::from), "{dialect:?}");
            assert_eq!(dialect.cgroups_path(Version::V2, task).as_deref(), Some(task), "{dialect:?}");
            let own: Vec<&str> = options.into_iter().filter(|option| option.starts_with("--network")).collect();
            assert_eq!(dialect.options(Version::V2, &Network::Host), own, "{dialect:?}");
        }
        let shared = Dialect::Runsc.options(Version::V2, &Network::Path("/run/netns/a".into()));
        assert_eq!(shared, ["--network=host"]);
        assert_eq!(Dialect::Runsc.options(Version::V2, &Network::Private), ["--network=none"]);
    }
}
