//! The kernel, the clock and the networks of this node.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use runtime::cgroup::Version;

use super::programs::{answer, program};
use crate::{
    cli::doctor::checks::{
        kernel::{Clock, Kernel},
        network::{CNI_PLUGINS, Network, forward_chains},
    },
    config::PluginConfig,
    layers, node_info, sys,
};

const CGROUPS: &str = "/sys/fs/cgroup";

/// The kernel, as tasks with this configuration use it.
pub fn kernel(config: &PluginConfig) -> Kernel {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cgroup_v1 = runtime::cgroup::version().is_ok_and(|version| version == Version::V1);
    let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
    let controllers: Vec<String> = if cgroup_v1 {
        let mounted = fs::read_dir(CGROUPS).into_iter().flatten().flatten();
        mounted.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    } else {
        words(read(&format!("{CGROUPS}/cgroup.controllers")))
    };
    let marks = ["/run/.containerenv", "/.dockerenv", "/run/systemd/container"];
    Kernel {
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        // A missing directory has a finding of its own.
        layer_image_problem: if config.data_dir.is_dir() { layers::image_problem(config) } else { None },
        compressed_image_problem: if config.data_dir.is_dir() {
            layers::compressed_image_problem(config)
        } else {
            None
        },
        fs_verity_problem: if config.data_dir.is_dir() { layers::fs_verity_problem(config) } else { None },
        cgroup_v1,
        controllers,
        delegated: fs::read_to_string(format!("{CGROUPS}/nomad.slice/cgroup.controllers")).ok().map(words),
        swap_uncounted: node_info::swap_uncounted(),
        pressure: Path::new("/proc/pressure/memory").exists(),
        inotify_watches: read("/proc/sys/fs/inotify/max_user_watches").trim().parse().ok(),
        in_container: marks.iter().any(|mark| Path::new(mark).exists()),
    }
}

/// The clock, compared with files that the driver has written.
pub fn clock(written: &[PathBuf]) -> Clock {
    let newest = written.iter().filter_map(|path| fs::metadata(path).ok()?.modified().ok()).max();
    let behind = newest.and_then(|newest| newest.duration_since(SystemTime::now()).ok()).unwrap_or_default();
    Clock { synchronized: sys::clock_is_synchronized(), behind: behind.as_secs() }
}

/// The networks.
pub fn network(config: &PluginConfig) -> Network {
    let settings = &config.policy.network;
    let is_missing = |name: &&&str| !settings.cni_path.iter().any(|directory| directory.join(name).is_file());
    let tables = ["/proc/self/net/ip_tables_names", "/proc/self/net/ip6_tables_names"];
    let is_loaded =
        |path: &&str| fs::read_to_string(path).is_ok_and(|names| names.lines().any(|name| name == "filter"));
    let iptables = program("iptables").map(|program| answer(&program, &["-V"]));
    let is_legacy = |answer: &Result<String, String>| answer.as_ref().is_ok_and(|text| !text.contains("nf_tables"));
    let chains = |nft: PathBuf| {
        let output = answer(&nft, &["-j", "list", "chains"])?;
        forward_chains(output.as_bytes()).ok_or_else(|| format!("the answer of {} is not understood", nft.display()))
    };
    Network {
        cni_path: settings.cni_path.clone(),
        missing_plugins: CNI_PLUGINS.iter().filter(is_missing).copied().collect(),
        legacy_table: tables.iter().any(is_loaded),
        legacy_program: program("iptables-legacy").is_some() || iptables.as_ref().is_some_and(is_legacy),
        iptables: iptables.is_some(),
        iptables_problem: iptables.and_then(Result::err),
        forward_chains: program("nft").map(chains),
        bridge: settings.bridge.clone(),
    }
}
