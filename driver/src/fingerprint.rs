//! The node's fingerprint: its health, and the attributes that jobs can constrain on.

use std::{collections::BTreeMap, path::Path};

use network::Networks;
use runtime::cgroup::Version;

use crate::{
    config::{PluginConfig, RootChoice},
    node_info,
};

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A boolean.
    Flag(bool),
}

/// The driver's fingerprint of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Values by attribute name.
    pub attributes: BTreeMap<String, Value>,
    /// Why no container can run here. `None` is healthy.
    pub problem: Option<String>,
}

/// Findings about the host. They are separate from their judgement, so that the judgement is testable on any host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostFindings {
    root: bool,
    cgroup: Option<&'static str>,
    overlay_problem: Option<String>,
    kernel: String,
    seccomp: bool,
    apparmor: bool,
    opened: Result<(), String>,
    /// Missing programs that the driver's bridge needs.
    missing: Vec<String>,
}

/// Inspects the node. `opened` is the result of opening the directories: why images cannot be mounted there, or the
/// error.
pub fn fingerprint(config: &PluginConfig, opened: Result<Option<String>, String>) -> Fingerprint {
    judge(config, inspect(config, opened))
}

fn inspect(config: &PluginConfig, opened: Result<Option<String>, String>) -> HostFindings {
    HostFindings {
        missing: Networks::missing_programs(&config.policy.network),
        root: rustix::process::geteuid().is_root(),
        cgroup: cgroup_version(),
        overlay_problem: opened.clone().unwrap_or_default(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        seccomp: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
        apparmor: node_info::uses_apparmor(),
        opened: opened.map(drop),
    }
}

fn judge(config: &PluginConfig, host: HostFindings) -> Fingerprint {
    let text = |value: &str| Value::Text(value.to_owned());
    let policy = &config.policy;
    let attributes = [
        ("version", text(env!("CARGO_PKG_VERSION"))),
        ("cgroup", text(host.cgroup.unwrap_or("none"))),
        ("kernel", Value::Text(host.kernel.clone())),
        ("seccomp", Value::Flag(host.seccomp)),
        ("apparmor", Value::Flag(host.apparmor)),
        ("privileged.enabled", Value::Flag(policy.allow_privileged)),
        ("volumes.enabled", Value::Flag(policy.volumes_enabled)),
        ("runtime", text("libcontainer")),
        ("network.bridge", Value::Flag(host.missing.is_empty())),
        ("network.bridge.ipv6", Value::Flag(host.missing.is_empty() && policy.network.subnet_ipv6.is_some())),
        ("rootfs", text(if copies_images(policy.rootfs, &host) { "copy" } else { "overlay" })),
    ];
    let attributes = attributes.into_iter().map(|(name, value)| (format!("driver.oci-rs.{name}"), value)).collect();
    Fingerprint { attributes, problem: problem(policy.rootfs, host) }
}

/// Whether images are copied and not mounted.
fn copies_images(rootfs: RootChoice, host: &HostFindings) -> bool {
    rootfs == RootChoice::Copy || rootfs == RootChoice::Auto && host.overlay_problem.is_some()
}

fn problem(rootfs: RootChoice, host: HostFindings) -> Option<String> {
    if !host.root {
        return Some("oci-rs needs root: run the Nomad agent as root".to_owned());
    }
    if host.cgroup.is_none() {
        return Some("no cgroup file system at /sys/fs/cgroup: mount cgroup v2 or the v1 controllers there".to_owned());
    }
    if let (RootChoice::Overlay, Some(problem)) = (rootfs, host.overlay_problem) {
        return Some(format!("{problem}: move data_dir, or set rootfs = \"auto\" in the plugin block"));
    }
    if !host.seccomp {
        return Some("the kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)".to_owned());
    }
    host.opened.err()
}

/// The cgroup version that enforces limits on this node, if there is one.
fn cgroup_version() -> Option<&'static str> {
    match runtime::cgroup::version().ok()? {
        Version::V2 => Some("v2"),
        Version::V1 => Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists().then_some("v1"),
    }
}

#[cfg(test)]
mod tests {
    use super::{HostFindings, Value, copies_images, judge, problem};
    use crate::config::{PluginConfig, RootChoice};

    fn healthy() -> HostFindings {
        HostFindings {
            root: true,
            cgroup: Some("v2"),
            overlay_problem: None,
            kernel: "6.1".into(),
            seccomp: true,
            apparmor: false,
            opened: Ok(()),
            missing: Vec::new(),
        }
    }

    #[test]
    fn a_node_without_cni_plugins_is_healthy_without_a_bridge() {
        let host = HostFindings { missing: vec!["CNI plugin portmap".into()], ..healthy() };
        for (host, expected) in [(healthy(), true), (host, false)] {
            let fingerprint = judge(&PluginConfig::default(), host);
            assert_eq!(fingerprint.attributes["driver.oci-rs.network.bridge"], Value::Flag(expected));
            assert_eq!(fingerprint.attributes["driver.oci-rs.network.bridge.ipv6"], Value::Flag(false));
            assert_eq!(fingerprint.problem, None);
        }
    }

    #[test]
    fn a_problem_names_its_remedy() {
        assert_eq!(problem(RootChoice::Overlay, healthy()), None);
        let nfs = || HostFindings { overlay_problem: Some("data_dir is on NFS".into()), ..healthy() };
        assert!(problem(RootChoice::Overlay, nfs()).unwrap().contains("rootfs = \"auto\""));
        assert!(problem(RootChoice::Auto, nfs()).is_none() && copies_images(RootChoice::Auto, &nfs()));
        assert!(copies_images(RootChoice::Copy, &healthy()) && !copies_images(RootChoice::Auto, &healthy()));
        for (host, part) in [
            (HostFindings { root: false, ..healthy() }, "as root"),
            (HostFindings { cgroup: None, ..healthy() }, "mount cgroup"),
            (HostFindings { opened: Err("data_dir is read-only".into()), ..healthy() }, "data_dir"),
        ] {
            assert!(problem(RootChoice::Auto, host).unwrap().contains(part), "{part}");
        }
    }
}
