//! Limits and kernel parameters.

use std::collections::BTreeMap;

use runtime::plan::Rlimit;

use super::super::{policy::Policy, value::Reader};

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

/// Kernel parameters outside `net.` and `fs.mqueue.` that belong to a container's namespaces.
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

pub fn rlimits(block: &Reader) -> BTreeMap<String, Rlimit> {
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

pub fn sysctl(block: &Reader) -> BTreeMap<String, String> {
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

/// A name with dots, also when it was written with slashes; the name becomes a path, so nothing else may be in it.
fn dotted(name: &str) -> Option<String> {
    let dotted = name.replace('/', ".");
    let mixed = name.contains('/') && name.contains('.');
    let word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    (!mixed && dotted.split('.').all(word) && dotted.contains('.')).then_some(dotted)
}

fn namespaced(name: &str) -> bool {
    name.starts_with("net.") || name.starts_with("fs.mqueue.") || IPC_SYSCTLS.contains(&name)
}

/// The task's limit within the operator's, which is also the default.
pub fn pids(block: &Reader, policy: &Policy) -> Option<i64> {
    // Docker takes anything below one for "no limit of its own".
    let Some(limit) = block.integer("pids_limit").filter(|limit| *limit > 0) else { return policy.pids_limit };
    if let Some(ceiling) = policy.pids_limit
        && limit > ceiling
    {
        block.error(
            "pids_limit",
            format!("{limit} is more than the {ceiling} that this node allows"),
            format!("use up to {ceiling}"),
        );
    }
    Some(limit)
}

/// The period when CPU time is limited.
pub fn cpu_hard_limit(block: &Reader) -> Option<u64> {
    const DEFAULT: i64 = 100_000;
    let period = block.integer("cpu_cfs_period").filter(|period| *period != 0).unwrap_or(DEFAULT);
    if !block.bool("cpu_hard_limit") {
        return None;
    }
    // The kernel's own bounds.
    if !(1000..=1_000_000).contains(&period) {
        block.error("cpu_cfs_period", format!("{period} is out of bounds"), "use 1000 to 1000000 microseconds");
    }
    u64::try_from(period).ok()
}

pub fn oom_score_adj(block: &Reader) -> i32 {
    let score = block.integer("oom_score_adj").unwrap_or(0);
    match i32::try_from(score) {
        Ok(score) if (-1000..=1000).contains(&score) => score,
        _ => {
            block.error("oom_score_adj", format!("{score} is out of bounds"), "use -1000 to 1000");
            0
        }
    }
}
