//! Whose turn it is to make a layer, among all tasks of all processes that use the store.
//!
//! Inside a process a lock in memory decides, between processes a `flock` on a file that exists only while somebody holds or
//! wants it. The kernel frees it when its holder is killed, so the next one goes on at once. A thread waits for it, not a task:
//! there is at most one such thread per layer and process. Whoever gives up leaves the thread to the next one in this process;
//! if there is none, the thread lets go of the lock as soon as it has it.

use std::{
    fs::File,
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FlockOperation, OFlags};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::{Inner, flight::Flight};
use crate::{commit, digest::Digest, error::StoreError, pull::blocking};

/// The thread that waits for a layer's lock, as those in line for it see it.
pub(crate) type Waiting = Option<oneshot::Receiver<Result<LayerLock, StoreError>>>;

/// The turn at one layer, until dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct Turn {
    // In this order: the next one in this process finds the file free.
    _lock: LayerLock,
    _flight: OwnedMutexGuard<Waiting>,
}

impl Inner {
    /// Waits until nobody else, here or in another process, makes this layer. Dropping the future gives up.
    pub(crate) async fn layer_turn(&self, diff_id: &Digest) -> Result<Turn, StoreError> {
        let flight = self.layers.get(diff_id.clone());
        let mut waiting = Arc::clone(&flight).lock_owned().await;
        if waiting.is_none() {
            let path = self.layout.layer_lock(diff_id);
            let wanted = path.clone();
            match blocking(move || LayerLock::lock(&wanted, false)).await? {
                Some(lock) => return Ok(Turn { _lock: lock, _flight: waiting }),
                None => *waiting = Some(wait_aside(path, flight)?),
            }
        }
        let answer = match waiting.as_mut() {
            Some(receiver) => receiver.await.ok(),
            None => None,
        };
        *waiting = None;
        let died = || StoreError::io("waiting for", self.layout.layer_lock(diff_id))(io::ErrorKind::Interrupted);
        Ok(Turn { _lock: answer.ok_or_else(died)??, _flight: waiting })
    }
}

/// Waits on a thread. It keeps the flight alive, so that the next one who wants the layer finds it and not another thread.
fn wait_aside(
    path: PathBuf,
    flight: Flight<Waiting>,
) -> Result<oneshot::Receiver<Result<LayerLock, StoreError>>, StoreError> {
    let (sender, receiver) = oneshot::channel();
    let place = path.clone();
    std::thread::Builder::new()
        .name("layer-lock".into())
        .spawn(move || {
            let interrupted = || StoreError::io("waiting for", &path)(io::ErrorKind::Interrupted);
            let lock = LayerLock::lock(&path, true).and_then(|lock| lock.ok_or_else(interrupted));
            // The lock is freed by whoever drops it last: here if nobody is left, else in the flight.
            drop(sender.send(lock));
            drop(flight);
        })
        .map_err(StoreError::io("starting a thread for", place))?;
    Ok(receiver)
}

/// A locked file. It is removed while it is still locked, so a file that is there is wanted by somebody or left by a kill.
#[derive(Debug)]
pub(crate) struct LayerLock {
    path: PathBuf,
    _file: File,
}

impl LayerLock {
    /// Locks the file, which is made if it is missing. Without patience, `None` if another one holds it.
    fn lock(path: &Path, patient: bool) -> Result<Option<LayerLock>, StoreError> {
        let operation = if patient { FlockOperation::LockExclusive } else { FlockOperation::NonBlockingLockExclusive };
        loop {
            let file = File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(path)
                .map_err(StoreError::io("opening", path))?;
            match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation)) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(StoreError::io("locking", path)(errno)),
            }
            // Its holder may have removed it meanwhile: then it is nobody's lock any more.
            if is_still(&file, path).map_err(StoreError::io("examining", path))? {
                return Ok(Some(LayerLock { path: path.to_owned(), _file: file }));
            }
        }
    }
}

fn is_still(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (own.dev(), own.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for LayerLock {
    fn drop(&mut self) {
        failpoint::at("turn-before-unlock");
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "lock file left for the sweep");
        }
    }
}

/// Removes the lock files of the dead. Returns how many there were.
pub(super) fn sweep(directory: &Path) -> Result<usize, StoreError> {
    let mut count = 0;
    for path in commit::entries(directory)? {
        // One that vanishes meanwhile is made and removed again, which disturbs nobody.
        if LayerLock::lock(&path, false)?.is_some() {
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it_and_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = LayerLock::lock(&path, false).unwrap().unwrap();
        assert!(LayerLock::lock(&path, false).unwrap().is_none());
        drop(lock);
        assert!(!path.exists());
        drop(LayerLock::lock(&path, true).unwrap().unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn those_who_wait_get_it_one_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let lock = LayerLock::lock(&path, true).unwrap();
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
    fn a_sweep_leaves_what_is_held() {
        let directory = tempfile::tempdir().unwrap();
        let held = LayerLock::lock(&directory.path().join("held"), false).unwrap().unwrap();
        std::fs::write(directory.path().join("dead"), "").unwrap();
        assert_eq!(sweep(directory.path()).unwrap(), 1);
        assert!(held.path.exists() && !directory.path().join("dead").exists());
    }
}
