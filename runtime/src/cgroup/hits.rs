//! When a container met its limits: what the kernel counted, and what it says of it.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::{
    fs::OFlags,
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};

use super::{Groups, Mode, field};

/// How often a container has met its limits since its groups were made, which may be before the container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitHits {
    /// Processes that the kernel killed for want of memory.
    pub oom_kills: u64,
    /// Processes and threads that it did not allow to be made (`pids.max`).
    #[serde(default)]
    pub forks_refused: u64,
}

impl LimitHits {
    /// What was added since.
    pub fn since(self, before: Self) -> Self {
        Self {
            oom_kills: self.oom_kills.saturating_sub(before.oom_kills),
            forks_refused: self.forks_refused.saturating_sub(before.forks_refused),
        }
    }
}

/// What is known of a container that ran out of memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutOfMemory {
    /// Processes that the kernel killed.
    pub kills: u64,
    /// The container's limit in bytes.
    pub limit: Option<u64>,
    /// The most it used, in bytes.
    pub peak: Option<u64>,
    /// The process that was killed last, where the kernel's log can be read and still has it.
    pub victim: Option<Victim>,
}

/// A process that the kernel killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Its name, as in `/proc/<pid>/comm`.
    pub name: String,
    /// Its id on the host.
    pub pid: i32,
}

impl Groups {
    /// Counts so far; what nobody counts is zero.
    pub fn hits(&self) -> LimitHits {
        let refused = self.of("pids").and_then(|group| fs::read_to_string(group.join("pids.events")).ok());
        let forks_refused = refused.and_then(|text| field(&text, "max")).unwrap_or(0);
        LimitHits { oom_kills: self.oom_kills(), forks_refused }
    }

    /// Files that become readable with priority (poll(2), POLLPRI) when a count changes. Version 1 has none for memory.
    pub fn hit_files(&self) -> Vec<File> {
        let memory = (self.mode == Mode::V2).then_some(("memory", "memory.events"));
        let files = [("pids", "pids.events")].into_iter().chain(memory);
        files.filter_map(|(controller, name)| File::open(self.of(controller)?.join(name)).ok()).collect()
    }

    /// The limit on processes; `None` without one.
    pub fn pids_limit(&self) -> Option<u64> {
        number(&self.of("pids")?.join("pids.max"))
    }

    /// What can be told of a container that ran since then and in which the kernel killed so many processes.
    pub fn out_of_memory(&self, kills: u64, since: SystemTime) -> OutOfMemory {
        let group = self.of("memory");
        let read = |v1: &str, v2: &str| {
            let name = if self.mode == Mode::V1 { v1 } else { v2 };
            group.and_then(|group| number(&group.join(name)))
        };
        // Without a limit, version 1 shows the largest number of whole pages.
        let limit = read("memory.limit_in_bytes", "memory.max").filter(|limit| *limit < u64::MAX >> 2);
        let peak = read("memory.max_usage_in_bytes", "memory.peak");
        let victim = group.and_then(|group| victim(group, since).ok().flatten());
        OutOfMemory { kills, limit, peak, victim }
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Clocks of the kernel's log and of the system run apart a little.
const SLACK: Duration = Duration::from_secs(5);
/// No record is longer (Documentation/ABI/testing/dev-kmsg).
const RECORD: usize = 8192;

/// The last process of a group that the kernel's log says it killed.
fn victim(group: &Path, since: SystemTime) -> io::Result<Option<Victim>> {
    let up = clock_gettime(ClockId::Monotonic);
    let up = Duration::new(up.tv_sec.try_into().unwrap_or(0), up.tv_nsec.try_into().unwrap_or(0));
    let since = up.saturating_sub(since.elapsed().unwrap_or_default() + SLACK);
    let mut log = fs::OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open("/dev/kmsg")?;
    let mut record = [0; RECORD];
    let mut last = None;
    loop {
        match log.read(&mut record) {
            Ok(length) => {
                let text = String::from_utf8_lossy(record.get(..length).unwrap_or_default());
                last = killed(&text, group, since).or(last);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(last),
            // Records were overwritten while we read.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

/// What a record of the log says of a process that was killed in a group or below it. Such a record is
/// `level,number,microseconds,flags;oom-kill:constraint=…,oom_memcg=/…,task_memcg=/group,task=name,pid=1,uid=0`.
fn killed(record: &str, group: &Path, since: Duration) -> Option<Victim> {
    let (head, text) = record.split_once(';')?;
    let text = text.lines().next()?.strip_prefix("oom-kill:")?;
    let time = Duration::from_micros(head.split(',').nth(2)?.parse().ok()?);
    if time < since {
        return None;
    }
    let (_, rest) = text.split_once(",task_memcg=/")?;
    // From the end, because a name may hold anything.
    let (rest, _) = rest.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let (path, name) = rest.split_once(",task=")?;
    // The group's path on the host ends with its path in the hierarchy, or with that of a directory above.
    let ours = Path::new(path).ancestors().any(|path| !path.as_os_str().is_empty() && group.ends_with(path));
    if ours { Some(Victim { name: name.to_owned(), pid: pid.parse().ok()? }) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "6,505,2588609317,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,\
                          mems_allowed=0,oom_memcg=/nomad/x.web,task_memcg=/nomad/x.web,task=tail,pid=6433,uid=0\n";

    #[test]
    fn the_log_names_who_was_killed() {
        let group = Path::new("/sys/fs/cgroup/memory/nomad/x.web");
        let tail = Victim { name: "tail".to_owned(), pid: 6433 };
        let early = Duration::from_secs(2588);
        assert_eq!(killed(RECORD, group, early), Some(tail.clone()));
        let below = RECORD.replace("task_memcg=/nomad/x.web", "task_memcg=/nomad/x.web/inner");
        assert_eq!(killed(&below, group, early), Some(tail));
        let odd = RECORD.replace("task=tail", "task=a,task=b,pid=1");
        assert_eq!(killed(&odd, group, early).map(|victim| victim.name), Some("a,task=b,pid=1".to_owned()));
    }

    #[test]
    fn records_of_others_are_not_ours() {
        let group = Path::new("/sys/fs/cgroup/memory/nomad/x.web");
        let since = Duration::from_secs(2588);
        for record in [
            RECORD.replace("/nomad/x.web", "/nomad/x.web2"),
            RECORD.replace("task_memcg=/nomad/x.web", "task_memcg=/other"),
            RECORD.replace("task_memcg=/nomad/x.web", "task_memcg=/"),
            RECORD.replace("pid=6433", "pid=x"),
            RECORD.replace("oom-kill:", "oom-kill"),
            "6,505".to_owned(),
            String::new(),
        ] {
            assert_eq!(killed(&record, group, since), None, "{record}");
        }
        assert_eq!(killed(RECORD, group, Duration::from_secs(2589)), None, "an earlier container's");
    }

    #[test]
    fn counts_never_go_back() {
        let hits = |oom_kills, forks_refused| LimitHits { oom_kills, forks_refused };
        assert_eq!(hits(3, 1).since(hits(1, 1)), hits(2, 0));
        assert_eq!(hits(0, 0).since(hits(1, 1)), hits(0, 0));
    }
}
