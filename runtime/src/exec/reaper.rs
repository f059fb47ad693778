//! Reaping helpers for which the plugin no longer waits: one thread for all of them.
//!
//! The container has a part in how long a helper lives, so no thread may wait for a single one. The thread begins with
//! the first helper that has not ended yet, and it stays.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    io::Errno,
};

use crate::process::ProcessRef;

/// The ends of processes that the thread looks at in one step.
const BATCH: usize = 64;

/// `None` until the first helper has one. A plugin that lacks descriptors gets it later.
static REAPER: Mutex<Option<Arc<Reaper>>> = Mutex::new(None);
/// Helpers that have no reaper yet.
static LATER: Mutex<Vec<ProcessRef>> = Mutex::new(Vec::new());

struct Reaper {
    epoll: OwnedFd,
    /// By pid. The pid of a child cannot be used again before it is reaped.
    waiting: Mutex<HashMap<u64, ProcessRef>>,
}

/// Reaps a child of this process as soon as it has ended. Does not wait.
pub(super) fn reap_later(child: ProcessRef) {
    LATER.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    reap_others();
}

/// Takes care of the helpers that have no reaper yet. A plugin that had no descriptors may have some now.
pub(super) fn reap_others() {
    let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
    if later.is_empty() {
        return;
    }
    if let Err(error) = Reaper::get().and_then(|reaper| reaper.add(&mut later)) {
        tracing::warn!(%error, "exec helper not reaped before the next one");
    }
}

impl Reaper {
    fn get() -> io::Result<Arc<Self>> {
        let mut reaper = REAPER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reaper) = &*reaper {
            return Ok(Arc::clone(reaper));
        }
        let new = Arc::new(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, waiting: Mutex::default() });
        let running = Arc::clone(&new);
        thread::Builder::new().name("exec reaper".to_owned()).spawn(move || {
            if let Err(error) = running.run() {
                tracing::error!(%error, "exec helpers are no longer reaped");
            }
        })?;
        *reaper = Some(Arc::clone(&new));
        Ok(new)
    }

    /// Takes the children that it can wait for.
    fn add(&self, children: &mut Vec<ProcessRef>) -> io::Result<()> {
        // The lock keeps the thread from looking before a child is in the map.
        let mut waiting = self.lock();
        while let Some(child) = children.pop() {
            let key = u64::from(child.pid.unsigned_abs());
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            if let Err(error) = epoll::add(&self.epoll, &child.pidfd, EventData::new_u64(key), flags) {
                children.push(child);
                return Err(error.into());
            }
            waiting.insert(key, child);
        }
        Ok(())
    }

    fn run(&self) -> io::Result<()> {
        let mut events = Vec::with_capacity(BATCH);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in events.drain(..) {
                let ended = self.lock().remove(&event.data.u64());
                if let Some(Err(error)) = ended.map(|child| child.reap()) {
                    tracing::warn!(%error, "exec helper not reaped");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, ProcessRef>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    #[test]
    #[expect(clippy::zombie_processes, reason = "the reaper waits for them")]
    fn children_that_live_on_take_one_thread() {
        let threads = || {
            let tasks = fs::read_dir("/proc/self/task").expect("threads").flatten();
            tasks
                .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|c| c == "exec reaper\n"))
                .count()
        };
        let mut children = Vec::new();
        for _ in 0..20 {
            let child = Command::new("sleep").arg("1000").spawn().expect("a child");
            let pid = i32::try_from(child.id()).expect("a pid");
            reap_later(ProcessRef::open(pid).expect("a process"));
            children.push(ProcessRef::open(pid).expect("a process"));
        }
        assert!(threads() <= 1, "{} threads", threads());
        for child in &children {
            child.signal(libc::SIGKILL).expect("killed");
        }
        for child in children {
            while fs::exists(format!("/proc/{}", child.pid)).expect("a look") {
                thread::yield_now();
            }
        }
    }
}
