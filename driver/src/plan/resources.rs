//! Limits and the place in the cgroup tree.

use std::{collections::BTreeSet, path::PathBuf};

use runtime::plan::{CgroupPlacement, Resources};

use super::{NodeFacts, NomadTask, TaskContext};
use crate::config::Mistakes;

/// Bounds of cpu.shares.
const SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;

/// The limits that the cgroup enforces.
pub fn limits(context: &TaskContext, mistakes: &Mistakes) -> Resources {
    let TaskContext { spec, task, node, .. } = *context;
    let (memory_limit, memory_reservation) = memory(context, mistakes);
    let cores = task.resources.cpuset_cpus.trim();
    Resources {
        memory_limit,
        memory_reservation,
        cpu_shares: shares(task.resources.cpu_shares, node.total_mhz),
        cpu_quota: spec.cpu_hard_limit.map(|period| quota(task.resources.percent_ticks, period, node.cores)),
        cpu_period: spec.cpu_hard_limit,
        cpuset_cpus: (!cores.is_empty()).then(|| cores.to_owned()),
        cpuset_mems: if context.policy.numa_memory { memory_beside(cores, &node.numa_nodes) } else { None },
        pids_limit: spec.pids_limit,
    }
}

/// The NUMA nodes that the cores belong to.
fn memory_beside(cores: &str, nodes: &[(u32, String)]) -> Option<String> {
    let cores = numbers(cores);
    let near = nodes.iter().filter(|(_, theirs)| !numbers(theirs).is_disjoint(&cores));
    let near: Vec<String> = near.map(|(node, _)| node.to_string()).collect();
    (!near.is_empty()).then(|| near.join(","))
}

/// The numbers of a list as the kernel writes it: `0-3,8`.
fn numbers(list: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Hard limit and reservation in bytes.
///
/// `memory_max` and `memory_hard_limit` both lift the hard limit above `memory`, which then is what the kernel tries to spare.
fn memory(context: &TaskContext, mistakes: &Mistakes) -> (Option<u64>, Option<u64>) {
    let resources = &context.task.resources;
    let bytes = |mib: u64| mib.checked_mul(1 << 20).filter(|bytes| *bytes > 0);
    let reserved = u64::try_from(resources.memory_mb).unwrap_or(0);
    if resources.memory_max_mb == -1 {
        return (None, bytes(reserved));
    }
    let lifted = context.spec.memory_hard_limit.unwrap_or(0).max(u64::try_from(resources.memory_max_mb).unwrap_or(0));
    if lifted == 0 {
        let limit =
            bytes(reserved).or_else(|| u64::try_from(resources.memory_limit_bytes).ok().filter(|limit| *limit > 0));
        return (limit, None);
    }
    if lifted < reserved {
        mistakes.add(
            "memory_hard_limit",
            format!("is {lifted} MiB, less than the {reserved} MiB of `memory`"),
            format!("set it to {reserved} or more, or remove it"),
        );
    }
    (bytes(lifted), bytes(reserved))
}

/// Nomad's MHz as shares: scaled down on nodes whose total is more than cpu.shares can say, so that the ratios stay.
fn shares(mhz: i64, total_mhz: u64) -> Option<u64> {
    let mhz = u64::try_from(mhz).ok().filter(|mhz| *mhz > 0)?;
    let most = *SHARES.end();
    let scaled =
        if total_mhz < most { mhz } else { (u128::from(mhz) * u128::from(most) / u128::from(total_mhz)) as u64 };
    Some(scaled.clamp(*SHARES.start(), most))
}

/// CPU time per period: the task's share of every core.
fn quota(percent_ticks: f64, period: u64, cores: u64) -> i64 {
    /// The kernel accepts no less.
    const LEAST: i64 = 1000;
    ((percent_ticks * period as f64) as i64).saturating_mul(i64::try_from(cores.max(1)).unwrap_or(i64::MAX)).max(LEAST)
}

/// The cgroup that Nomad made for the task. The same names are used when it made none, so that the task is found by them.
pub fn cgroup(task: &NomadTask, node: &NodeFacts, mistakes: &Mistakes) -> CgroupPlacement {
    let alloc = if task.alloc_id.is_empty() { &task.id } else { &task.alloc_id };
    let name = format!("{alloc}.{}", task.name).replace('/', "_");
    let given = task.resources.cpuset_cgroup.as_str();
    if given.split('/').any(|part| part == "..") || !(given.is_empty() || given.starts_with(ROOT)) {
        mistakes.add("cpuset_cgroup", format!("{given:?} is not below {ROOT}"), "report this: the agent chose it");
    }
    if !node.cgroup_v2 {
        return CgroupPlacement {
            path: format!("/nomad/{name}"),
            cpuset_v1: (!given.is_empty()).then(|| PathBuf::from(given)),
        };
    }
    let path = match given.strip_prefix(ROOT) {
        Some(path) if !path.is_empty() => format!("/{path}"),
        _ => format!("/nomad.slice/share.slice/{name}.scope"),
    };
    CgroupPlacement { path, cpuset_v1: None }
}

const ROOT: &str = "/sys/fs/cgroup/";
