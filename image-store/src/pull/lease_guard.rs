//! The lease of a running pull. It is restored to its former state unless the pull succeeds.

use std::sync::{Arc, Mutex, PoisonError};

use super::puller::Puller;
use crate::{
    blocking::{blocking, interrupted},
    error::{PullError, StoreError},
    lease::LeaseOwner,
    store::{LayerRecord, Lease, LocalStore, MountSources, Partials},
    tracker::TaskToken,
};

/// Restores a lease when it is dropped, also when the pull is cancelled.
pub(super) struct LeaseGuard {
    restore: Option<Restore>,
}

/// Set when the lease was restored. File work continues when its future is dropped: no work may write the lease after
/// that.
#[derive(Debug, Clone, Default)]
pub(super) struct Restored(Arc<Mutex<bool>>);

impl Restored {
    /// Completes the lease, unless it was restored.
    pub(super) fn complete(
        &self,
        local: &LocalStore,
        lease: &mut Lease,
        partials: &Partials,
    ) -> Result<MountSources, StoreError> {
        let restored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *restored { Err(interrupted()) } else { local.complete_lease(lease, partials) }
    }
}

impl LeaseGuard {
    /// Begins a lease. On a full disk this may need the removal of an image.
    pub(super) async fn begin(puller: &Arc<Puller>, lease: &Lease, token: &TaskToken) -> Result<Self, PullError> {
        let begun = match Self::try_begin(puller, lease, token).await {
            Err(error) if puller.reclaim_space(&error).await => Self::try_begin(puller, lease, token).await,
            begun => begun,
        };
        match begun {
            Err(error) => Err(puller.out_of_space(error, &[]).await),
            begun => begun,
        }
    }

    async fn try_begin(puller: &Arc<Puller>, lease: &Lease, token: &TaskToken) -> Result<Self, PullError> {
        let (local, lease, token) = (Arc::clone(&puller.local), lease.clone(), token.clone());
        let begun = blocking(move || {
            failpoint::at("pull-before-lease");
            let before = local.begin_lease(&lease)?;
            failpoint::at("pull-before-layers");
            let restored = Restored::default();
            let restore = Restore { local, owner: lease.owner, before, succeeded: false, restored, _token: token };
            Ok(Self { restore: Some(restore) })
        });
        Ok(begun.await?)
    }

    pub(super) fn restored(&self) -> Restored {
        self.restore.as_ref().map(|restore| restore.restored.clone()).unwrap_or_default()
    }

    /// Keeps the lease of a successful pull. After a failure it restores the lease, and removes the pull's layers from
    /// a full disk.
    pub(super) async fn end<T>(
        mut self,
        puller: &Arc<Puller>,
        result: Result<T, PullError>,
        layers: &[LayerRecord],
    ) -> Result<T, PullError> {
        let Some(mut restore) = self.restore.take() else { return result };
        let failure = match result {
            Ok(value) => {
                restore.succeeded = true;
                return Ok(value);
            }
            Err(failure) => failure,
        };
        blocking(move || {
            drop(restore);
            Ok(())
        })
        .await?;
        Err(puller.out_of_space(failure, layers).await)
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        let Some(restore) = self.restore.take() else { return };
        match tokio::runtime::Handle::try_current() {
            // A runtime that shuts down drops the work without running it, and that restores the lease as well.
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(restore))),
            Err(_) => drop(restore),
        }
    }
}

/// Restores the lease when it is dropped.
struct Restore {
    local: Arc<LocalStore>,
    owner: LeaseOwner,
    /// The lease that the pull replaced.
    before: Option<Lease>,
    /// The pull succeeded, so its lease stays.
    succeeded: bool,
    restored: Restored,
    _token: TaskToken,
}

impl Drop for Restore {
    fn drop(&mut self) {
        if self.succeeded {
            return;
        }
        *self.restored.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        if let Err(error) = self.local.restore_lease(&self.owner, self.before.as_ref()) {
            // The error of the pull has often the same cause, and is the one that the caller gets.
            tracing::warn!(lease = %self.owner, %error, "the lease of a failed pull stays");
        }
    }
}
