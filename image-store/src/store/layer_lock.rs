//! The layer lock: one task of one process makes a layer at a time.
//!
//! - Inside a process, a lock in memory decides ([`Singleflight`]). Between processes, flock(2) on a file decides. The
//!   file exists only while the lock has a holder or a waiter.
//! - The kernel frees the file lock of a killed process, so the next waiter continues at once.
//! - A thread waits for the file lock, not an async task. There is at most one such thread per layer and process. A
//!   waiter that is cancelled leaves the thread to the next waiter of this process. Without one, the thread frees the
//!   lock as soon as it gets it.

use std::{
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use host::lock::{Locked, Wait};
use layer::Digest;
use rustix::fs::OFlags;
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::layout::Layout;
use crate::{
    blocking::blocking,
    error::StoreError,
    files,
    singleflight::{KeyLock, Singleflight},
};

/// The result of the thread that waits for the file lock, if there is one.
type Pending = Option<oneshot::Receiver<Result<FileLock, StoreError>>>;

/// The layer locks of this process.
#[derive(Default)]
pub(crate) struct LayerLocks(Singleflight<Digest, Pending>);

/// A held layer lock, released when dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct LayerLock {
    // Dropped in this order: the next holder in this process finds the file lock free.
    _file: FileLock,
    _in_process: OwnedMutexGuard<Pending>,
}

impl LayerLocks {
    /// Waits until no other task of any process makes this layer. Dropping the future stops waiting.
    pub(crate) async fn lock(&self, layout: &Layout, diff_id: &Digest) -> Result<LayerLock, StoreError> {
        let path = layout.layer_lock(diff_id);
        let key_lock = self.0.get(diff_id.clone());
        let mut pending = Arc::clone(&key_lock).lock_owned().await;
        if pending.is_none() {
            let wanted = path.clone();
            match blocking(move || FileLock::lock(&wanted, Wait::No)).await? {
                Some(file) => return Ok(LayerLock { _file: file, _in_process: pending }),
                None => *pending = Some(wait_on_thread(path.clone(), key_lock)?),
            }
        }
        let answer = match pending.as_mut() {
            Some(receiver) => receiver.await.ok(),
            None => None,
        };
        *pending = None;
        let thread_died = || StoreError::io("waiting for", path)(io::Error::from(io::ErrorKind::Interrupted));
        Ok(LayerLock { _file: answer.ok_or_else(thread_died)??, _in_process: pending })
    }

    /// The lock, if no other task of any process has it or waits for it.
    pub(crate) async fn try_lock(&self, layout: &Layout, diff_id: &Digest) -> Result<Option<LayerLock>, StoreError> {
        let Ok(pending) = self.0.get(diff_id.clone()).try_lock_owned() else { return Ok(None) };
        if pending.is_some() {
            return Ok(None);
        }
        let path = layout.layer_lock(diff_id);
        let file = blocking(move || FileLock::lock(&path, Wait::No)).await?;
        Ok(file.map(|file| LayerLock { _file: file, _in_process: pending }))
    }
}

/// Waits for the file lock on a thread. The thread keeps the key's lock alive, so that the next waiter of this process
/// finds the pending result and starts no second thread.
fn wait_on_thread(
    path: PathBuf,
    key_lock: KeyLock<Pending>,
) -> Result<oneshot::Receiver<Result<FileLock, StoreError>>, StoreError> {
    let (sender, receiver) = oneshot::channel();
    let wanted = path.clone();
    std::thread::Builder::new()
        .name("layer-lock".into())
        .spawn(move || {
            let interrupted = || StoreError::io("waiting for", &wanted)(io::Error::from(io::ErrorKind::Interrupted));
            let lock = FileLock::lock(&wanted, Wait::Forever).and_then(|lock| lock.ok_or_else(interrupted));
            // Without a receiver the lock is freed here, otherwise with the key's lock.
            drop(sender.send(lock));
            drop(key_lock);
        })
        .map_err(StoreError::io("starting a thread for", path))?;
    Ok(receiver)
}

/// A locked file. Its holder removes it while it is still locked, so an existing file has a holder or a waiter, or is
/// left by a kill.
#[derive(Debug)]
struct FileLock {
    path: PathBuf,
    _file: File,
}

impl FileLock {
    /// Locks the file, and makes it if it is missing. `None`: another descriptor holds it; only with [`Wait::No`].
    fn lock(path: &Path, wait: Wait) -> Result<Option<FileLock>, StoreError> {
        let open = || {
            File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(path)
        };
        match host::lock::lock(path, wait, true, open).map_err(StoreError::io("locking", path))? {
            Locked::Held(file) => Ok(Some(FileLock { path: path.to_owned(), _file: file })),
            Locked::Busy => Ok(None),
            // The open above makes a missing file; only a missing directory leads here.
            Locked::Missing => Err(StoreError::io("opening", path)(io::Error::from(io::ErrorKind::NotFound))),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        failpoint::at("layer-lock-before-unlock");
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "lock file left for the sweep");
        }
    }
}

/// Removes the lock files of ended processes. Returns their number.
pub(super) fn sweep(directory: &Path) -> Result<usize, StoreError> {
    let mut count = 0;
    for path in files::entries(directory)? {
        // A file that vanishes meanwhile is made and removed again, which disturbs no other process.
        if FileLock::lock(&path, Wait::No)?.is_some() {
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_one_holder_and_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = FileLock::lock(&path, Wait::No).unwrap().unwrap();
        assert!(FileLock::lock(&path, Wait::No).unwrap().is_none());
        drop(lock);
        assert!(!path.exists());
        drop(FileLock::lock(&path, Wait::Forever).unwrap().unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn waiters_get_it_one_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let lock = FileLock::lock(&path, Wait::Forever).unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(lock);
                    }
                });
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn a_sweep_keeps_held_locks() {
        let directory = tempfile::tempdir().unwrap();
        let held = FileLock::lock(&directory.path().join("held"), Wait::No).unwrap().unwrap();
        std::fs::write(directory.path().join("dead"), "").unwrap();
        assert_eq!(sweep(directory.path()).unwrap(), 1);
        assert!(held.path.exists() && !directory.path().join("dead").exists());
    }
}
