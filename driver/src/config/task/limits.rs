//! The task block's options for limits and kernel parameters.

use std::collections::BTreeMap;

use runtime::plan::Rlimit;

use crate::config::{
    block::ConfigBlock,
    error::{Needs, Permission},
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
    plugin::{LayerLimits, Policy},
};

/// The options of the task block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "cpu_hard_limit",
        OptionType::Bool,
        Words("false"),
        "the task's CPU share is a hard limit, also if the node is idle",
    ),
    OptionSpec::honoured(
        "cpu_cfs_period",
        OptionType::Number,
        Literal("100000"),
        "period of `cpu_hard_limit` in microseconds, 1000 to 1000000",
    ),
    OptionSpec::ignored(
        "cpuset_cpus",
        OptionType::String,
        "",
        "has no effect in the docker driver either. Use `resources { cores = … }`",
    ),
    OptionSpec::honoured(
        "memory_hard_limit",
        OptionType::Number,
        Words("`memory`, or `memory_max`"),
        "hard memory limit in MiB. `memory` is then the reservation",
    ),
    OptionSpec::honoured(
        "oom_score_adj",
        OptionType::Number,
        Words("0"),
        "-1000 to 1000. A process with a higher value is killed earlier when the node runs out of memory. A negative \
         value needs the plugin's `min_oom_score_adj`",
    ),
    OptionSpec::honoured(
        "pids_limit",
        OptionType::Number,
        Words("the plugin's"),
        "maximum number of processes and threads, up to the plugin's `pids_limit`",
    ),
    OptionSpec::honoured("shm_size", OptionType::Number, Words("67108864"), "size of /dev/shm in bytes"),
    OptionSpec::honoured(
        "sysctl",
        OptionType::StringMaps,
        Words("none"),
        "kernel parameters of the container's namespaces: `net.*`, `fs.mqueue.*`, and those of `kernel.*` for System \
         V IPC",
    ),
    OptionSpec::honoured(
        "ulimit",
        OptionType::StringMaps,
        Words("the agent's"),
        "resource limits by name, `\"soft:hard\"` or one number for both. -1 is unlimited",
    ),
];

/// Resource limits of Linux (getrlimit(2)).
const RLIMITS: [&str; 16] = [
    "as",
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];

/// Kernel parameters of the IPC namespace outside `fs.mqueue.`.
const IPC_SYSCTLS: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
];

/// Checks options that add nothing to the task's values: `cpuset_cpus` must be text.
pub fn check_ignored(block: &ConfigBlock) {
    block.string("cpuset_cpus");
}

/// Reads `ulimit`.
pub fn rlimits(block: &ConfigBlock) -> BTreeMap<String, Rlimit> {
    let mut limits = BTreeMap::new();
    for (name, text) in block.string_map("ulimit") {
        let lower = name.to_ascii_lowercase();
        if !RLIMITS.contains(&lower.as_str()) {
            block.error(
                "ulimit",
                format!("{name:?} is no resource limit"),
                format!("use one of {}", RLIMITS.join(", ")),
            );
            continue;
        }
        match parse_rlimit(&text) {
            Some(limit) if limit.soft <= limit.hard => {
                limits.insert(lower, limit);
            }
            Some(_) => block.error(
                "ulimit",
                format!("{name} = {text:?}: the soft limit is above the hard one"),
                "write \"soft:hard\"",
            ),
            None => block.error(
                "ulimit",
                format!("{name} = {text:?} is not a limit"),
                "write one number, \"soft:hard\", or -1 for no limit",
            ),
        }
    }
    limits
}

fn parse_rlimit(text: &str) -> Option<Rlimit> {
    let number = |text: &str| match text.trim().parse::<i64>().ok()? {
        -1 => Some(u64::MAX),
        number => u64::try_from(number).ok(),
    };
    let (soft, hard) = text.split_once(':').unwrap_or((text, text));
    Some(Rlimit { soft: number(soft)?, hard: number(hard)? })
}

/// Reads `sysctl`.
pub fn sysctl(block: &ConfigBlock) -> BTreeMap<String, String> {
    let mut parameters = BTreeMap::new();
    for (name, value) in block.string_map("sysctl") {
        match dotted(&name) {
            Some(dotted) if namespaced(&dotted) => {
                parameters.insert(dotted, value);
            }
            Some(_) => block.error(
                "sysctl",
                format!("{name:?} is not a parameter of the container's own namespaces"),
                "set it on the host; tasks can set net.*, fs.mqueue.* and the kernel.* parameters of System V IPC",
            ),
            None => block.error(
                "sysctl",
                format!("{name:?} is not a kernel parameter"),
                "write it as in \"net.core.somaxconn\"",
            ),
        }
    }
    parameters
}

/// A parameter's name with dots. It may be written with slashes instead. The name becomes a path, so no other
/// characters are allowed.
fn dotted(name: &str) -> Option<String> {
    let dotted = name.replace('/', ".");
    let mixed = name.contains('/') && name.contains('.');
    let word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    (!mixed && dotted.split('.').all(word) && dotted.contains('.')).then_some(dotted)
}

fn namespaced(name: &str) -> bool {
    name.starts_with("net.") || name.starts_with("fs.mqueue.") || IPC_SYSCTLS.contains(&name)
}

/// The largest `memory_hard_limit` in MiB: the kernel counts bytes as a signed number.
const MAX_MEMORY_MIB: i64 = i64::MAX >> 20;

/// The kernel's largest limit of processes (`PID_MAX_LIMIT`).
const MAX_PIDS: i64 = 4 << 20;

/// Reads `memory_hard_limit`, in MiB. As in docker's driver, a number below 1 counts as unset.
pub fn memory_hard_limit(block: &ConfigBlock) -> Option<u64> {
    let limit = block.integer("memory_hard_limit").filter(|limit| *limit > 0)?;
    if limit > MAX_MEMORY_MIB {
        block.error(
            "memory_hard_limit",
            format!("{limit} MiB is more than the kernel can count"),
            "write a smaller number, or `memory_max = -1` in the task's `resources` for no limit",
        );
    }
    u64::try_from(limit).ok()
}

/// Reads `pids_limit`. The operator's limit is the default and the maximum.
pub fn pids(block: &ConfigBlock, policy: &Policy) -> Option<i64> {
    // As in docker, a number below 1 counts as unset.
    let Some(limit) = block.integer("pids_limit").filter(|limit| *limit > 0) else { return policy.pids_limit };
    if limit > MAX_PIDS {
        let problem = format!("{limit} is more than the kernel's maximum");
        block.error("pids_limit", problem, format!("use up to {MAX_PIDS}, or remove it"));
    }
    if let Some(ceiling) = policy.pids_limit
        && limit > ceiling
    {
        block.forbid(
            "pids_limit",
            format!("{limit} is more than the {ceiling} that this node allows"),
            format!("use up to {ceiling}"),
            Permission { option: "pids_limit", needs: Needs::AtLeast(limit) },
        );
    }
    Some(limit)
}

/// Reads `storage_opt`: `size`, in docker's notation. As in docker, 0 is no limit of the task's own.
pub fn layer_size(block: &ConfigBlock, policy: &Policy) -> Option<u64> {
    let mut size = None;
    for (name, text) in block.string_map("storage_opt") {
        if !name.eq_ignore_ascii_case("size") {
            block.error("storage_opt", format!("{name:?} is not supported"), "remove it; `size` is the only option");
            continue;
        }
        match log_drivers::size(&text) {
            Some(0) => {}
            Some(bytes) if bytes >= LayerLimits::SMALLEST => size = Some(bytes),
            Some(_) => block.error("storage_opt", format!("size = {text:?} is too small"), "write 1M or more"),
            None => {
                block.error("storage_opt", format!("size = {text:?} is no size"), "write it as in \"10G\" or \"512M\"");
            }
        }
    }
    if let (Some(bytes), Some(max)) = (size, policy.layers.max)
        && bytes > max
    {
        block.forbid(
            "storage_opt",
            format!("size: {bytes} bytes are more than the {max} that this node allows"),
            format!("use up to {max}"),
            Permission {
                option: "writable_layer.max_size",
                needs: Needs::AtLeast(i64::try_from(bytes).unwrap_or(i64::MAX)),
            },
        );
    }
    size
}

/// Reads `cpu_hard_limit` and `cpu_cfs_period`. Returns the period if the limit is on.
pub fn cpu_hard_limit(block: &ConfigBlock) -> Option<u64> {
    const DEFAULT: i64 = 100_000;
    let period = block.integer("cpu_cfs_period").filter(|period| *period != 0).unwrap_or(DEFAULT);
    if !block.bool("cpu_hard_limit") {
        return None;
    }
    // The kernel's bounds.
    if !(1000..=1_000_000).contains(&period) {
        block.error("cpu_cfs_period", format!("{period} is out of bounds"), "use 1000 to 1000000 microseconds");
    }
    u64::try_from(period).ok()
}

/// Reads `oom_score_adj`. Values below the operator's lowest one are refused.
pub fn oom_score_adj(block: &ConfigBlock, policy: &Policy) -> i32 {
    let score = block.integer("oom_score_adj").unwrap_or(0);
    let lowest = policy.min_oom_score_adj;
    match i32::try_from(score) {
        Ok(score) if (-1000..lowest).contains(&score) => {
            block.forbid(
                "oom_score_adj",
                format!("{score} is below {lowest}, the lowest value that this node allows"),
                format!(
                    "use {lowest} or more, or have the operator set `min_oom_score_adj = {score}` in the plugin block"
                ),
                Permission { option: "min_oom_score_adj", needs: Needs::AtMost(score.into()) },
            );
            lowest
        }
        Ok(score) if (-1000..=1000).contains(&score) => score,
        _ => {
            block.error("oom_score_adj", format!("{score} is out of bounds"), "use -1000 to 1000");
            0
        }
    }
}
