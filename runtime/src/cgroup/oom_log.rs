//! The records of the OOM killer in the kernel's log.

use std::{
    fs,
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

/// A process that the OOM killer killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// The name of the process, as in `/proc/<pid>/comm`.
    pub name: String,
    /// The process id in the host's PID namespace.
    pub pid: i32,
}

/// The clocks of the kernel's log and of the system differ a little.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);
/// The maximum length of a record (Documentation/ABI/testing/dev-kmsg).
const MAX_RECORD: usize = 8192;

/// The last process of a cgroup that the OOM killer killed after `since`, according to the kernel's log.
pub(super) fn last_victim(cgroup: &Path, since: SystemTime) -> io::Result<Option<Victim>> {
    let now = clock_gettime(ClockId::Monotonic);
    let uptime = Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0));
    let since = uptime.saturating_sub(since.elapsed().unwrap_or_default() + CLOCK_TOLERANCE);
    let mut log = fs::OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open("/dev/kmsg")?;
    let mut record = [0; MAX_RECORD];
    let mut last = None;
    loop {
        match log.read(&mut record) {
            Ok(length) => {
                let text = String::from_utf8_lossy(record.get(..length).unwrap_or_default());
                last = victim_of(&text, cgroup, since).or(last);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(last),
            // The kernel has overwritten records that were not read yet.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The victim of a record of the log, if it was in the cgroup or below it and was killed after `since`. Such a record
/// is `level,number,microseconds,flags;oom-kill:constraint=…,oom_memcg=/…,task_memcg=/group,task=name,pid=1,uid=0`.
fn victim_of(record: &str, cgroup: &Path, since: Duration) -> Option<Victim> {
    let (head, text) = record.split_once(';')?;
    let text = text.lines().next()?.strip_prefix("oom-kill:")?;
    let time = Duration::from_micros(head.split(',').nth(2)?.parse().ok()?);
    if time < since {
        return None;
    }
    let (_, rest) = text.split_once(",task_memcg=/")?;
    // Parsed from the end, because a process name may contain any character.
    let (rest, _) = rest.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let (path, name) = rest.split_once(",task=")?;
    // The directory of the cgroup ends with the path in the record, or with the path of one of its parents.
    let matches = Path::new(path).ancestors().any(|path| !path.as_os_str().is_empty() && cgroup.ends_with(path));
    if matches { Some(Victim { name: name.to_owned(), pid: pid.parse().ok()? }) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "6,505,2588609317,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,\
                          mems_allowed=0,oom_memcg=/nomad/x.web,task_memcg=/nomad/x.web,task=tail,pid=6433,uid=0\n";

    #[test]
    fn the_victim_is_found_in_the_log() {
        let cgroup = Path::new("/sys/fs/cgroup/memory/nomad/x.web");
        let tail = Victim { name: "tail".to_owned(), pid: 6433 };
        let early = Duration::from_secs(2588);
        assert_eq!(victim_of(RECORD, cgroup, early), Some(tail.clone()));
        let child = RECORD.replace("task_memcg=/nomad/x.web", "task_memcg=/nomad/x.web/inner");
        assert_eq!(victim_of(&child, cgroup, early), Some(tail));
        let unusual = RECORD.replace("task=tail", "task=a,task=b,pid=1");
        assert_eq!(victim_of(&unusual, cgroup, early).map(|victim| victim.name), Some("a,task=b,pid=1".to_owned()));
    }

    #[test]
    fn records_of_other_cgroups_and_earlier_times_are_ignored() {
        let cgroup = Path::new("/sys/fs/cgroup/memory/nomad/x.web");
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
            assert_eq!(victim_of(&record, cgroup, since), None, "{record}");
        }
        assert_eq!(victim_of(RECORD, cgroup, Duration::from_secs(2589)), None, "an earlier container's");
    }
}
