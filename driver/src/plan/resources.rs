//! Limits, and the task's cgroup.

use std::{collections::BTreeSet, path::PathBuf};

use runtime::plan::{CgroupPlacement, Resources};

use super::{context::TaskContext, node::NodeInfo, nomad_task::NomadTask};
use crate::config::ErrorCollector;

/// The mount point of the cgroup file system.
const CGROUP_ROOT: &str = "/sys/fs/cgroup/";

/// The largest amount of memory in MiB: the kernel counts bytes as a signed number.
const MAX_MEMORY_MIB: i64 = i64::MAX >> 20;

/// The kernel's bounds of cpu.shares.
const SHARES: std::ops::RangeInclusive<u64> = 2..=262_144;

/// The limits that the cgroup enforces.
pub fn limits(context: &TaskContext, errors: &ErrorCollector) -> Resources {
    let TaskContext { spec, task, node, .. } = *context;
    let (memory_limit, memory_reservation) = memory(context, errors);
    let cores = task.resources.cpuset_cpus.trim();
    Resources {
        memory_limit,
        memory_reservation,
        cpu_shares: shares(task.resources.cpu_shares, node.compute.total_mhz),
        cpu_quota: spec.cpu_hard_limit.map(|period| quota(task.resources.percent_ticks, period, node.compute.cores)),
        cpu_period: spec.cpu_hard_limit,
        cpuset_cpus: (!cores.is_empty()).then(|| cores.to_owned()),
        cpuset_mems: if context.policy.numa_memory { memory_nodes_of(cores, &node.numa_nodes) } else { None },
        pids_limit: spec.pids_limit.or(context.policy.default_pids_limit.filter(|_| node.limits_pids)),
    }
}

/// The NUMA nodes that the cores belong to.
fn memory_nodes_of(cores: &str, nodes: &[(u32, String)]) -> Option<String> {
    let cores = numbers(cores);
    let local = nodes.iter().filter(|(_, node_cores)| !numbers(node_cores).is_disjoint(&cores));
    let local: Vec<String> = local.map(|(node, _)| node.to_string()).collect();
    (!local.is_empty()).then(|| local.join(","))
}

/// The numbers of a list in the kernel's format: `0-3,8`.
fn numbers(list: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// Hard limit and reservation in bytes.
///
/// `memory` is the hard limit. If `memory_max` or `memory_hard_limit` is set, the larger of them is the hard limit and
/// `memory` is the reservation.
fn memory(context: &TaskContext, errors: &ErrorCollector) -> (Option<u64>, Option<u64>) {
    let resources = &context.task.resources;
    let bytes = |mib: u64| mib.checked_mul(1 << 20).filter(|bytes| *bytes > 0);
    let reserved = u64::try_from(resources.memory_mb).unwrap_or(0);
    for (option, mib) in [("memory", resources.memory_mb), ("memory_max", resources.memory_max_mb)] {
        if mib > MAX_MEMORY_MIB {
            errors.add(option, format!("{mib} MiB is more than the kernel can count"), "write a smaller number");
        }
    }
    if resources.memory_max_mb == -1 {
        return (None, bytes(reserved));
    }
    let hard_limit =
        context.spec.memory_hard_limit.unwrap_or(0).max(u64::try_from(resources.memory_max_mb).unwrap_or(0));
    if hard_limit == 0 {
        let limit =
            bytes(reserved).or_else(|| u64::try_from(resources.memory_limit_bytes).ok().filter(|limit| *limit > 0));
        return (limit, None);
    }
    if hard_limit < reserved {
        errors.add(
            "memory_hard_limit",
            format!("is {hard_limit} MiB, less than the {reserved} MiB of `memory`"),
            format!("set it to {reserved} or more, or remove it"),
        );
    }
    (bytes(hard_limit), bytes(reserved))
}

/// Nomad's MHz as cpu.shares. If the node's total exceeds the maximum of cpu.shares, all tasks are scaled down alike.
fn shares(mhz: i64, total_mhz: u64) -> Option<u64> {
    let mhz = u64::try_from(mhz).ok().filter(|mhz| *mhz > 0)?;
    let max = *SHARES.end();
    let scaled = if total_mhz < max { mhz } else { (u128::from(mhz) * u128::from(max) / u128::from(total_mhz)) as u64 };
    Some(scaled.clamp(*SHARES.start(), max))
}

/// CPU time per period in microseconds: the task's share of every core.
fn quota(percent_ticks: f64, period: u64, cores: u64) -> i64 {
    /// The kernel's minimum.
    const MIN_QUOTA: i64 = 1000;
    ((percent_ticks * period as f64) as i64)
        .saturating_mul(i64::try_from(cores.max(1)).unwrap_or(i64::MAX))
        .max(MIN_QUOTA)
}

/// The task's cgroup. If Nomad made none, the driver uses the name that Nomad would have used, so that tools find the
/// task.
pub fn cgroup(task: &NomadTask, node: &NodeInfo, errors: &ErrorCollector) -> CgroupPlacement {
    let alloc = if task.alloc_id.is_empty() { &task.id } else { &task.alloc_id };
    let name = format!("{alloc}.{}", task.name).replace('/', "_");
    let given = task.resources.cpuset_cgroup.as_str();
    if given.split('/').any(|part| part == "..") || !(given.is_empty() || given.starts_with(CGROUP_ROOT)) {
        errors.add("cpuset_cgroup", format!("{given:?} is not below {CGROUP_ROOT}"), "report this: the agent chose it");
    }
    if !node.cgroup_v2 {
        return CgroupPlacement {
            path: format!("/nomad/{name}"),
            cpuset_v1: (!given.is_empty()).then(|| PathBuf::from(given)),
        };
    }
    let path = match given.strip_prefix(CGROUP_ROOT) {
        Some(path) if !path.is_empty() => format!("/{path}"),
        _ => format!("/nomad.slice/share.slice/{name}.scope"),
    };
    CgroupPlacement { path, cpuset_v1: None }
}
