//! What the node offers: health with its reason, and the attributes that jobs can constrain on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use network::Networks;
use runtime::{cgroup::Version, plan::CAPABILITIES};

use crate::{
    config::{PluginConfig, RootChoice},
    plan::{Compute, NodeInfo},
};

/// One attribute's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// Yes or no.
    Flag(bool),
}

/// The driver's state on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Attribute name to value.
    pub attributes: BTreeMap<String, Value>,
    /// Why no container can run here; healthy without a reason.
    pub problem: Option<String>,
}

/// What was found on the host; separate from its judgement so that the judgement can be tested anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Host {
    root: bool,
    cgroup: Option<&'static str>,
    overlay_problem: Option<String>,
    kernel: String,
    seccomp: bool,
    apparmor: bool,
    engine: Result<(), String>,
    /// Programs that the driver's own bridge needs.
    missing: Vec<String>,
}

/// Looks at the node. `engine` tells whether the directories could be opened, and why images cannot be mounted there.
pub fn fingerprint(config: &PluginConfig, engine: Result<Option<String>, String>) -> Fingerprint {
    judge(config, look(config, engine))
}

fn look(config: &PluginConfig, engine: Result<Option<String>, String>) -> Host {
    Host {
        missing: Networks::missing_programs(&config.policy.network),
        root: rustix::process::geteuid().is_root(),
        cgroup: cgroup_version(),
        overlay_problem: engine.clone().unwrap_or_default(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        seccomp: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
        apparmor: uses_apparmor(),
        engine: engine.map(drop),
    }
}

fn judge(config: &PluginConfig, host: Host) -> Fingerprint {
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
        ("rootfs", text(if copies(policy.rootfs, &host) { "copy" } else { "overlay" })),
    ];
    let attributes = attributes.into_iter().map(|(name, value)| (format!("driver.oci-rs.{name}"), value)).collect();
    Fingerprint { attributes, problem: problem(policy.rootfs, host) }
}

/// Whether images are copied.
fn copies(rootfs: RootChoice, host: &Host) -> bool {
    rootfs == RootChoice::Copy || rootfs == RootChoice::Auto && host.overlay_problem.is_some()
}

fn problem(rootfs: RootChoice, host: Host) -> Option<String> {
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
    host.engine.err()
}

/// The generation of control groups that limits anything here, if one does.
fn cgroup_version() -> Option<&'static str> {
    match runtime::cgroup::version().ok()? {
        Version::V2 => Some("v2"),
        Version::V1 => Path::new("/sys/fs/cgroup/memory/cgroup.procs").exists().then_some("v1"),
    }
}

/// Reads what plans need to know of this node.
pub fn node_info(compute: Compute) -> NodeInfo {
    NodeInfo {
        cgroup_v2: runtime::cgroup::version().is_ok_and(|version| version == Version::V2),
        compute,
        overlay_problem: None,
        held_capabilities: held_capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
        host_resolv_conf: host_resolv_conf(),
        state_dir: PathBuf::new(),
        host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        apparmor: uses_apparmor(),
        numa_nodes: numa_nodes().unwrap_or_default(),
        swap_uncounted: swap_uncounted(),
        selinux: Path::new("/sys/fs/selinux/enforce").exists(),
        volumes_dir: PathBuf::new(),
    }
}

/// The machine's NUMA nodes and their cores; none where the kernel does not tell.
fn numa_nodes() -> std::io::Result<Vec<(u32, String)>> {
    let mut nodes = Vec::new();
    for entry in fs::read_dir("/sys/devices/system/node")? {
        let entry = entry?;
        let name = entry.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok()) {
            nodes.push((number, fs::read_to_string(entry.path().join("cpulist"))?.trim().to_owned()));
        }
    }
    nodes.sort();
    Ok(nodes)
}

/// On v2 swap is always counted; on v1 the file is there when it is.
fn swap_uncounted() -> bool {
    let counted = !runtime::cgroup::version().is_ok_and(|version| version == Version::V1)
        || Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    !counted && swaps.lines().count() > 1
}

fn uses_apparmor() -> bool {
    fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.trim() == "Y")
}

/// The capabilities in the bounding set of `/proc/PID/status` (proc_pid_status(5)).
fn held_capabilities(status: &str) -> BTreeSet<String> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let held = CAPABILITIES.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
    held.map(|(_, name)| (*name).to_owned()).collect()
}

/// The host's resolver configuration, seen from a container: systemd-resolved's stub on 127.0.0.53 cannot be reached
/// from another network namespace, so the file behind it is taken where there is one.
fn host_resolv_conf() -> String {
    const BEHIND_STUB: &str = "/run/systemd/resolve/resolv.conf";
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    without_stub(text, || fs::read_to_string(BEHIND_STUB).ok())
}

fn without_stub(text: String, behind: impl FnOnce() -> Option<String>) -> String {
    const STUB: &str = "127.0.0.53";
    let is_stub = text.lines().any(|line| line.split_whitespace().eq(["nameserver", STUB]));
    if is_stub { behind().unwrap_or(text) } else { text }
}

#[cfg(test)]
mod tests {
    use super::{Host, Value, copies, held_capabilities, judge, problem, without_stub};
    use crate::config::{PluginConfig, RootChoice};

    fn healthy() -> Host {
        Host {
            root: true,
            cgroup: Some("v2"),
            overlay_problem: None,
            kernel: "6.1".into(),
            seccomp: true,
            apparmor: false,
            engine: Ok(()),
            missing: Vec::new(),
        }
    }

    #[test]
    fn a_node_without_plugins_is_healthy_and_says_so() {
        let host = Host { missing: vec!["CNI plugin portmap".into()], ..healthy() };
        for (host, expected) in [(healthy(), true), (host, false)] {
            let fingerprint = judge(&PluginConfig::default(), host);
            assert_eq!(fingerprint.attributes["driver.oci-rs.network.bridge"], Value::Flag(expected));
            assert_eq!(fingerprint.attributes["driver.oci-rs.network.bridge.ipv6"], Value::Flag(false));
            assert_eq!(fingerprint.problem, None);
        }
    }

    #[test]
    fn capabilities_are_read_by_their_bit() {
        let held = held_capabilities("Name:\tx\nCapBnd:\t0000000000200001\n");
        assert_eq!(held.into_iter().collect::<Vec<_>>(), ["CAP_CHOWN", "CAP_SYS_ADMIN"]);
    }

    #[test]
    fn the_servers_behind_a_stub_are_taken() {
        let behind = || Some("nameserver 10.0.0.2\n".to_owned());
        let seen = |text: &str| without_stub(text.to_owned(), behind);
        assert_eq!(seen("# managed\nnameserver 127.0.0.53\noptions edns0 trust-ad\n"), "nameserver 10.0.0.2\n");
        for own in ["nameserver 127.0.0.1\n", "# nameserver 127.0.0.53\nnameserver 10.0.0.3\n", ""] {
            assert_eq!(seen(own), own);
        }
        let alone = "nameserver 127.0.0.53\n";
        assert_eq!(without_stub(alone.to_owned(), || None), alone);
    }

    #[test]
    fn a_problem_names_its_remedy() {
        assert_eq!(problem(RootChoice::Overlay, healthy()), None);
        let nfs = || Host { overlay_problem: Some("data_dir is on NFS".into()), ..healthy() };
        assert!(problem(RootChoice::Overlay, nfs()).unwrap().contains("rootfs = \"auto\""));
        assert!(problem(RootChoice::Auto, nfs()).is_none() && copies(RootChoice::Auto, &nfs()));
        assert!(copies(RootChoice::Copy, &healthy()) && !copies(RootChoice::Auto, &healthy()));
        for (host, part) in [
            (Host { root: false, ..healthy() }, "as root"),
            (Host { cgroup: None, ..healthy() }, "mount cgroup"),
            (Host { engine: Err("data_dir is read-only".into()), ..healthy() }, "data_dir"),
        ] {
            assert!(problem(RootChoice::Auto, host).unwrap().contains(part), "{part}");
        }
    }
}
