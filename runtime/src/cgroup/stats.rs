//! Stand-in until the readers arrive.
#![allow(missing_docs)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuStats { pub total_ns: u64, pub user_ns: u64, pub system_ns: u64, pub throttled_periods: u64, pub throttled_ns: u64 }
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats { pub usage: u64, pub rss: u64, pub cache: u64, pub swap: u64, pub max_usage: Option<u64>, pub kernel: Option<u64>, pub kernel_max: Option<u64> }
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats { pub cpu: CpuStats, pub memory: MemoryStats, pub cgroup_v2: bool, pub oom_kills: u64, pub pids: u64 }
