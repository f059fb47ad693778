//! The driver's name: `oci-rs`, or `docker` where the executable stands in for Nomad's docker driver.
//!
//! The name follows the executable's file, because Nomad asks for it before it sends a configuration. Two plugins with
//! different names may share their directories. Container ids tell whose a container is, so everything with a
//! container's id in its name (state directories, leases, networks) belongs to exactly one name.

use std::{ffi::OsStr, fmt, path::Path};

/// The name of the device plugin. An executable of this name is a device plugin and no driver.
pub const DEVICE_PLUGIN: &str = "oci-rs-cdi";

/// Ends the container ids of the driver `docker`.
const DOCKERS_SUFFIX: &str = ".docker";

/// Whether this process is the device plugin, by its first argument.
pub fn is_device_plugin() -> bool {
    std::env::args_os().next().is_some_and(|program| is_named(&program, DEVICE_PLUGIN))
}

fn is_named(program: &OsStr, name: &str) -> bool {
    Path::new(program).file_name().is_some_and(|file| file == name)
}

/// The value of `driver` in jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DriverName {
    /// The driver's own name.
    #[default]
    OciRs,
    /// The name of Nomad's docker driver, which the agent then does not use.
    Docker,
}

impl DriverName {
    /// The name of this process.
    pub fn of_process() -> Self {
        Self::of_program(&std::env::args_os().next().unwrap_or_default())
    }

    /// The name of a process by its first argument. An agent passes the path in its `plugin_dir`, also for a link.
    pub fn of_program(program: &OsStr) -> Self {
        if is_named(program, Self::Docker.as_str()) { Self::Docker } else { Self::OciRs }
    }

    /// The name that a command line gives.
    pub fn parse(name: &str) -> Result<Self, String> {
        let names = [Self::OciRs, Self::Docker];
        names.into_iter().find(|known| known.as_str() == name).ok_or_else(|| "is neither oci-rs nor docker".to_owned())
    }

    /// The name to which a container with this id belongs.
    pub fn of_container(container: &str) -> Self {
        if Self::Docker.owns(container) { Self::Docker } else { Self::OciRs }
    }

    /// The name as jobs write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OciRs => "oci-rs",
            Self::Docker => "docker",
        }
    }

    /// The version for Nomad. Nomad prefers its internal docker driver, whose version is 0.1.0, to a plugin with a
    /// lower version.
    pub const fn plugin_version(self) -> &'static str {
        match self {
            Self::OciRs => env!("CARGO_PKG_VERSION"),
            Self::Docker => concat!("1.0.0+oci-rs.", env!("CARGO_PKG_VERSION")),
        }
    }

    /// The end of all container ids of this name.
    pub const fn container_suffix(self) -> &'static str {
        match self {
            Self::OciRs => "",
            Self::Docker => DOCKERS_SUFFIX,
        }
    }

    /// Whether a container with this id belongs to this name.
    pub fn owns(self, container: &str) -> bool {
        container.ends_with(DOCKERS_SUFFIX) == (self == Self::Docker)
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::DriverName::{self, Docker, OciRs};

    #[test]
    fn the_name_follows_the_file() {
        for (program, expected) in [
            ("/opt/nomad/plugins/docker", Docker),
            ("docker", Docker),
            ("/opt/nomad/plugins/oci-rs", OciRs),
            ("/opt/docker/oci-rs", OciRs),
            ("/opt/nomad/plugins/docker-2", OciRs),
            ("", OciRs),
        ] {
            assert_eq!(DriverName::of_program(program.as_ref()), expected, "{program}");
        }
    }

    #[test]
    fn nomad_never_prefers_its_internal_docker_driver() {
        let numbers = |version: &str| {
            let release = version.split(['-', '+']).next().unwrap_or_default();
            release.split('.').map(|number| number.parse().unwrap()).collect::<Vec<u32>>()
        };
        assert!(numbers(Docker.plugin_version()) > numbers("0.1.0"));
        // A version with a suffix such as `-dev` would be lower than the one without.
        assert!(!Docker.plugin_version().split('+').next().unwrap().contains('-'));
        assert!(Docker.plugin_version().ends_with(OciRs.plugin_version()), "the real version is visible");
    }

    #[test]
    fn a_container_belongs_to_one_name() {
        assert!(OciRs.owns("alloc.web.01234567") && !Docker.owns("alloc.web.01234567"));
        assert!(Docker.owns("alloc.web.01234567.docker") && !OciRs.owns("alloc.web.01234567.docker"));
    }
}
