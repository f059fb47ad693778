//! Reads the properties of the node that plans depend on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use runtime::{cgroup::Version, plan::CAPABILITIES};

use crate::{
    apparmor,
    name::DriverName,
    plan::{Compute, NodeInfo},
};

/// Reads the properties of this node. The driver's name, `state_dir`, `volumes_dir`, `volume_options`, `hosts`,
/// `default_apparmor`, `selinux`, `container_labels`, `id_pool`, `runtime` and the problems of overlays and user
/// namespaces are left empty. Blocks.
pub fn read(compute: Compute) -> NodeInfo {
    NodeInfo {
        driver: DriverName::default(),
        cgroup_v2: runtime::cgroup::version().is_ok_and(|version| version == Version::V2),
        compute,
        overlay_problem: None,
        held_capabilities: held_capabilities(&fs::read_to_string("/proc/self/status").unwrap_or_default()),
        host_resolv_conf: host_resolv_conf(),
        state_dir: PathBuf::new(),
        host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        hosts: String::new(),
        apparmor: apparmor::is_used(),
        default_apparmor: None,
        numa_nodes: numa_nodes().unwrap_or_default(),
        swap_uncounted: swap_uncounted(),
        limits_pids: limits_pids(),
        selinux: false,
        container_labels: None,
        volumes_dir: PathBuf::new(),
        id_pool: None,
        userns_problem: None,
        first_unprivileged_port: first_unprivileged_port(),
        runtime: None,
        volume_options: BTreeMap::new(),
    }
}

/// The first port that needs no right. It is 1024 unless the operator has changed it.
fn first_unprivileged_port() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

/// The node's /etc/hosts, for a task on the host's network. Empty if it cannot be read. Blocks.
pub fn hosts() -> String {
    fs::read("/etc/hosts").map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The machine's NUMA nodes and their cores.
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

/// Whether the node has swap that the kernel does not count per cgroup. cgroup v2 always counts it. With v1 the kernel
/// offers the file only if it counts swap.
pub fn swap_uncounted() -> bool {
    let counted = !runtime::cgroup::version().is_ok_and(|version| version == Version::V1)
        || Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes").exists();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    !counted && swaps.lines().count() > 1
}

/// Whether the kernel can limit the number of processes of a cgroup.
fn limits_pids() -> bool {
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    controllers.split_whitespace().any(|name| name == "pids") || Path::new("/sys/fs/cgroup/pids").exists()
}

/// The capabilities in the bounding set of `/proc/PID/status` (proc_pid_status(5)).
fn held_capabilities(status: &str) -> BTreeSet<String> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let held = CAPABILITIES.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
    held.map(|(_, name)| (*name).to_owned()).collect()
}

/// The host's resolver configuration. systemd-resolved's stub on 127.0.0.53 cannot be reached from another network
/// namespace, so the file with its upstream servers is used instead.
fn host_resolv_conf() -> String {
    const UPSTREAM: &str = "/run/systemd/resolve/resolv.conf";
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    replace_stub(text, || fs::read_to_string(UPSTREAM).ok())
}

fn replace_stub(text: String, upstream: impl FnOnce() -> Option<String>) -> String {
    const STUB: &str = "127.0.0.53";
    let is_stub = text.lines().any(|line| line.split_whitespace().eq(["nameserver", STUB]));
    if is_stub { upstream().unwrap_or(text) } else { text }
}

#[cfg(test)]
mod tests {
    use super::{held_capabilities, replace_stub};

    #[test]
    fn capabilities_are_decoded_from_the_bounding_set() {
        let held = held_capabilities("Name:\tx\nCapBnd:\t0000000000200001\n");
        assert_eq!(held.into_iter().collect::<Vec<_>>(), ["CAP_CHOWN", "CAP_SYS_ADMIN"]);
    }

    #[test]
    fn a_stub_resolver_is_replaced_by_its_upstream_servers() {
        let upstream = || Some("nameserver 10.0.0.2\n".to_owned());
        let resolve = |text: &str| replace_stub(text.to_owned(), upstream);
        assert_eq!(resolve("# managed\nnameserver 127.0.0.53\noptions edns0 trust-ad\n"), "nameserver 10.0.0.2\n");
        for own in ["nameserver 127.0.0.1\n", "# nameserver 127.0.0.53\nnameserver 10.0.0.3\n", ""] {
            assert_eq!(resolve(own), own);
        }
        let alone = "nameserver 127.0.0.53\n";
        assert_eq!(replace_stub(alone.to_owned(), || None), alone);
    }
}
