//! Cgroup events: how often a container has reached its limits.

use std::{
    fs::{self, File},
    path::Path,
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{
    container::Cgroups,
    flat_keyed::field,
    oom_log::{Victim, last_victim},
    version::Version,
};

/// How often a limit was reached since the cgroups were created. The cgroups may be older than the container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupEvents {
    /// The number of processes that the OOM killer killed.
    pub oom_kills: u64,
    /// The number of forks that failed because of the limit on processes (`pids.max`).
    #[serde(default)]
    pub forks_refused: u64,
}

impl CgroupEvents {
    /// The events after `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            oom_kills: self.oom_kills.saturating_sub(before.oom_kills),
            forks_refused: self.forks_refused.saturating_sub(before.forks_refused),
        }
    }
}

/// Details about a container that ran out of memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfMemory {
    /// The number of processes that the OOM killer killed.
    pub kills: u64,
    /// The memory limit of the container, in bytes.
    pub limit: Option<u64>,
    /// The highest memory usage, in bytes.
    pub peak: Option<u64>,
    /// The process that was killed last, if the kernel's log can be read and still has the record.
    pub victim: Option<Victim>,
}

impl Cgroups {
    /// The events so far. A number that the kernel does not count is zero.
    pub fn events(&self) -> CgroupEvents {
        let pids_events = self.path_of("pids").and_then(|cgroup| fs::read_to_string(cgroup.join("pids.events")).ok());
        let forks_refused = pids_events.and_then(|text| field(&text, "max")).unwrap_or(0);
        CgroupEvents { oom_kills: self.oom_kills(), forks_refused }
    }

    fn oom_kills(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        self.path_of("memory")
            .and_then(|cgroup| fs::read_to_string(cgroup.join(file)).ok())
            .and_then(|text| field(&text, "oom_kill"))
            .unwrap_or(0)
    }

    /// The files that report a change of a number by POLLPRI (poll(2)). Cgroup v1 has none for memory.
    pub fn event_files(&self) -> Vec<File> {
        let memory = (self.version == Version::V2).then_some(("memory", "memory.events"));
        let files = [("pids", "pids.events")].into_iter().chain(memory);
        files.filter_map(|(controller, name)| File::open(self.path_of(controller)?.join(name)).ok()).collect()
    }

    /// The limit on processes and threads; `None` if there is no limit.
    pub fn pids_limit(&self) -> Option<u64> {
        number(&self.path_of("pids")?.join("pids.max"))
    }

    /// The details about a container that has been running since `since` and in which the OOM killer killed `kills`
    /// processes.
    pub fn out_of_memory(&self, kills: u64, since: SystemTime) -> OutOfMemory {
        let cgroup = self.path_of("memory");
        let read = |v1: &str, v2: &str| {
            let name = if self.version == Version::V1 { v1 } else { v2 };
            cgroup.and_then(|cgroup| number(&cgroup.join(name)))
        };
        // Cgroup v1 shows the largest number of whole pages if there is no limit.
        let limit = read("memory.limit_in_bytes", "memory.max").filter(|limit| *limit < u64::MAX >> 2);
        let peak = read("memory.max_usage_in_bytes", "memory.peak");
        let victim = cgroup.and_then(|cgroup| last_victim(cgroup, since).ok().flatten());
        OutOfMemory { kills, limit, peak, victim }
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_never_negative() {
        let events = |oom_kills, forks_refused| CgroupEvents { oom_kills, forks_refused };
        assert_eq!(events(3, 1).since(events(1, 1)), events(2, 0));
        assert_eq!(events(0, 0).since(events(1, 1)), events(0, 0));
    }
}
