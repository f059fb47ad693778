//! The cost of a pull: time, processor time of the whole machine, and memory of all processes of the pull.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use fixtures::process;

use crate::quiet;

/// The interval of memory samples. High-water marks include peaks between two samples.
const LOOK: Duration = Duration::from_millis(100);

/// The cost of one pull.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// The time from the call to its end.
    pub took: Duration,
    /// The busy time of all processors during the pull, including the registry and other programs.
    pub cpu: Duration,
    /// The largest sum of high-water marks of concurrent processes, in KiB.
    pub peak: u64,
}

/// Runs `work` and measures its cost. Its processes are new descendants of this process, and the descendants of
/// `daemons`.
pub fn watch(daemons: &[i32], work: impl FnOnce() -> Result<Duration, String>) -> Result<Cost, String> {
    let daemons = daemons.to_vec();
    let own = std::process::id().cast_signed();
    let strangers: BTreeSet<i32> = family(own).difference(&families(&daemons)).copied().collect();
    let (stop, stopped) = mpsc::channel::<()>();
    let before = quiet::ticks().0;
    let watcher = thread::spawn(move || {
        let mut peak = 0;
        loop {
            let theirs = family(own);
            let sum = theirs.difference(&strangers).filter(|pid| **pid != own).filter_map(|pid| high_water(*pid)).sum();
            peak = peak.max(sum);
            if stopped.recv_timeout(LOOK) != Err(mpsc::RecvTimeoutError::Timeout) {
                return peak;
            }
        }
    });
    let result = work();
    let busy = quiet::ticks().0.saturating_sub(before);
    drop(stop);
    let peak = watcher.join().unwrap_or_default();
    // The kernel counts in hundredths of a second (USER_HZ, time(7)).
    Ok(Cost { took: result?, cpu: Duration::from_millis(busy * 10), peak })
}

/// The same for an async function, timed until it is ready.
pub async fn watch_async<F: Future<Output = ()>>(daemons: &[i32], work: F) -> Cost {
    let (done, finished) = mpsc::channel::<Duration>();
    let daemons = daemons.to_vec();
    let watcher = tokio::task::spawn_blocking(move || {
        watch(&daemons, || finished.recv().map_err(|_| "the work was given up".to_owned()))
    });
    let begun = Instant::now();
    work.await;
    done.send(begun.elapsed()).ok();
    let none = Cost { took: begun.elapsed(), cpu: Duration::ZERO, peak: 0 };
    watcher.await.ok().and_then(Result::ok).unwrap_or(none)
}

/// A process and all its descendants.
fn family(root: i32) -> BTreeSet<i32> {
    families(&[root])
}

fn families(roots: &[i32]) -> BTreeSet<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for pid in process::all_pids() {
        if let Some(parent) = process::status_field(pid, "PPid").and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found: BTreeSet<i32> = roots.iter().copied().collect();
    let mut open = roots.to_vec();
    while let Some(parent) = open.pop() {
        open.extend(children.get(&parent).into_iter().flatten().filter(|pid| found.insert(**pid)));
    }
    found
}

fn high_water(pid: i32) -> Option<u64> {
    process::status_field(pid, "VmHWM")?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use fixtures::must::Must;

    use super::*;
    use crate::process::until_done;

    #[test]
    fn a_program_is_seen_while_it_runs() {
        let cost = watch(&[], || until_done(Command::new("sleep").arg("0.3"))).must("a cost");
        assert!(cost.took >= Duration::from_millis(300) && cost.peak > 0, "{cost:?}");
    }

    #[test]
    fn a_failure_stays_one() {
        watch(&[], || until_done(&mut Command::new("false"))).err().must("an error");
    }
}
