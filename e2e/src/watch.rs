//! Waiting for changes in a directory, by inotify.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
};

use crate::{Failure, Outcome};

/// A time limit, scaled for this machine: `OCI_RS_PATIENCE` is the factor for a slow, emulated machine
/// (`scripts/test-v2.sh`).
#[must_use]
pub fn patient(limit: Duration) -> Duration {
    let factor = std::env::var("OCI_RS_PATIENCE").ok().and_then(|text| text.parse().ok());
    limit.saturating_mul(factor.unwrap_or(1))
}

/// Calls `look` now and after each change in `directory` and its subdirectories, until it returns a value.
///
/// # Errors
/// After `limit`, or when the directory cannot be watched.
pub fn until<T>(directory: &Path, what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Outcome<T> {
    let changes =
        WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE | WatchFlags::DELETE;
    let limit = patient(limit);
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let deadline = Instant::now() + limit;
    inotify::add_watch(&inotify, directory, changes)?;
    loop {
        // The watch starts before the look, so no change is missed. Adding a watch twice has no effect.
        for inner in fs::read_dir(directory)?.flatten() {
            match inotify::add_watch(&inotify, inner.path(), changes | WatchFlags::ONLYDIR) {
                // A file, or a directory that was removed meanwhile.
                Ok(_) | Err(Errno::NOTDIR | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(found) = look() {
            return Ok(found);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure(format!("waited {limit:?} in vain for {what} in {}", directory.display())));
        }
        match poll(&mut [PollFd::new(&inotify, PollFlags::IN)], Some(&Timespec::try_from(left)?)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut events = [0; 4096];
        loop {
            match rustix::io::read(&inotify, &mut events) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
}
