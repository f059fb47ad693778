//! From a wish for an image to directories that can be mounted.
//!
//! The registry is asked what a name means now (or not, if that is known and may not have changed), the lease is written, missing
//! layers stream through the unpacker side by side, and only then is the image recorded. Whoever asks for the same content at the
//! same time shares the work; nobody shares another's failure. A pull that is given up leaves nothing behind but finished layers:
//! when that is told, or, if its future is dropped, soon after.

mod access;
mod fetch;
mod load;
mod resolve;

use std::{
    collections::HashSet,
    future::{self, Future},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

pub use load::LoadRequest;
use resolve::News;
pub(crate) use resolve::Resolved;

use crate::{
    config::PullRequest,
    error::{PullError, StoreError},
    lease::LeaseOwner,
    manifest::ImageConfig,
    progress::{Progress, PullEvent},
    reference::Reference,
    store::{Inner, LayerRecord, Lease, Outstanding, Source, Stack, Store, Work},
};

/// An image that is ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What was asked for.
    pub reference: Reference,
    /// Digest of the manifest for this machine.
    pub digest: String,
    /// What to make an overlay of, topmost first; at least one. Directories, and files that hold an EROFS file system ([`LayerFormat`](crate::LayerFormat)).
    pub layers: Vec<PathBuf>,
    /// Overlayfs cannot read what these layers hide of one another, because the store's file system refused its marks. They can be copied.
    pub copy_only: bool,
    /// What the image wants to be run as.
    pub config: ImageConfig,
}

impl Store {
    /// Makes an image ready, asking its registry where needed, and leases it: its layers stay until [`Store::release`]. A lease of
    /// the same name is replaced, but only by success.
    pub async fn acquire(
        &self,
        request: PullRequest,
        owner: impl Into<LeaseOwner>,
        progress: Arc<dyn Progress>,
    ) -> Result<Image, PullError> {
        self.acquire_unless(request, owner, progress, future::pending()).await
    }

    /// The same until `given_up` is ready: [`PullError::GivenUp`], and nothing is under way any more.
    pub async fn acquire_unless(
        &self,
        request: PullRequest,
        owner: impl Into<LeaseOwner>,
        progress: Arc<dyn Progress>,
        given_up: impl Future<Output = ()>,
    ) -> Result<Image, PullError> {
        let owner = owner.into();
        let work = |work| acquire(&self.inner, &request, owner, progress, work);
        unless(given_up, (&request.reference, request.timeout), work).await
    }
}

/// Does the work until its limit, or until its caller gives it up. What it still has to undo on other threads is undone then.
async fn unless<T, F: Future<Output = Result<T, PullError>>>(
    given_up: impl Future<Output = ()>,
    (reference, limit): (&Reference, Option<Duration>),
    work: impl FnOnce(Work) -> F,
) -> Result<T, PullError> {
    let outstanding = Outstanding::new();
    let late = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => future::pending().await,
        }
        PullError::Timeout { reference: reference.to_string(), limit: limit.unwrap_or_default() }
    };
    // Not pinned here: it has to go before its end is waited for.
    let mut work = Box::pin(work(outstanding.work()));
    let error = tokio::select! {
        biased;
        done = &mut work => return done,
        () = given_up => PullError::GivenUp,
        late = late => late,
    };
    drop(work);
    outstanding.settled().await;
    Err(error)
}

async fn acquire(
    inner: &Arc<Inner>,
    request: &PullRequest,
    owner: LeaseOwner,
    progress: Arc<dyn Progress>,
    whole: Work,
) -> Result<Image, PullError> {
    let started = Instant::now();
    let reference = request.reference.clone();
    let mut request = request.clone();
    progress.report(PullEvent::Started { reference: reference.clone() });
    let (resolved, news) = resolve::resolve(inner, &mut request, started).await?;
    let record = resolved.record.clone();
    let layers = without_duplicates(&record.layers);
    let lease = Lease {
        owner,
        reference: reference.clone(),
        manifest: record.manifest.clone(),
        layers: layers.iter().map(|layer| layer.diff_id.clone()).collect(),
        fixups: Vec::new(),
        ready: false,
    };
    let pin = Pin::with_room(inner, &lease, &whole).await?;
    let work = || {
        let lease = (lease.clone(), pin.given_up());
        make_ready(inner, &request, (&resolved, news), lease, Arc::clone(&progress), &whole)
    };
    let ready = match work().await {
        Err(error) if inner.makes_room(&error).await => work().await,
        ready => ready,
    };
    let (fetched, stack) = pin.end(ready, &layers).await?;
    progress.report(PullEvent::Done {
        digest: record.manifest.clone(),
        bytes: fetched.unwrap_or(0),
        elapsed: started.elapsed(),
        cached: fetched.is_none(),
    });
    let Stack { layers, copy_only } = stack;
    let digest = record.manifest.to_string();
    Ok(Image { reference, digest, layers, copy_only, config: resolved.run.clone() })
}

/// Fetches what is missing, then records the image. Returns the bytes that arrived, if any layer was missing, and what to mount.
async fn make_ready(
    inner: &Arc<Inner>,
    request: &PullRequest,
    (resolved, news): (&Arc<Resolved>, News),
    (mut lease, given_up): (Lease, Arc<Mutex<bool>>),
    progress: Arc<dyn Progress>,
    whole: &Work,
) -> Result<(Option<u64>, Stack), PullError> {
    let layers = without_duplicates(&resolved.record.layers);
    let fetched = fetch::fetch_missing(inner, request, &resolved.record, &layers, progress, whole).await?;
    let (keeper, resolved) = (Arc::clone(inner), Arc::clone(resolved));
    let stack = blocking(move || {
        failpoint::at("pull-before-save");
        if news != News::Nothing || fetched.is_some() {
            let source = if news == News::Meaning { Source::Registry } else { Source::Record };
            keeper.save(&resolved, source)?;
        }
        let given_up = given_up.lock().unwrap_or_else(PoisonError::into_inner);
        if *given_up { Err(interrupted()) } else { keeper.mountable(&mut lease) }
    })
    .await?;
    Ok((fetched, stack))
}

/// A lease that is undone unless the pull succeeds, also when the pull is given up.
struct Pin {
    undo: Option<Undo>,
}

impl Pin {
    async fn new(inner: &Arc<Inner>, lease: &Lease, whole: &Work) -> Result<Pin, PullError> {
        let (inner, lease, whole) = (Arc::clone(inner), lease.clone(), whole.clone());
        let pinned = blocking(move || {
            failpoint::at("pull-before-lease");
            let before = inner.pin(&lease)?;
            failpoint::at("pull-before-layers");
            let undo = Undo { inner, owner: lease.owner, before, done: false, given_up: Arc::default(), _whole: whole };
            Ok(Pin { undo: Some(undo) })
        });
        Ok(pinned.await?)
    }

    /// The same on a disk so full that it may take removing an image.
    async fn with_room(inner: &Arc<Inner>, lease: &Lease, whole: &Work) -> Result<Pin, PullError> {
        let pinned = match Pin::new(inner, lease, whole).await {
            Err(error) if inner.makes_room(&error).await => Pin::new(inner, lease, whole).await,
            pinned => pinned,
        };
        match pinned {
            Err(error) => Err(inner.out_of_space(error, &[]).await),
            pinned => pinned,
        }
    }

    fn given_up(&self) -> Arc<Mutex<bool>> {
        self.undo.as_ref().map(|undo| Arc::clone(&undo.given_up)).unwrap_or_default()
    }

    /// Keeps the lease of a success. After a failure the lease is undone, and what takes up a full disk is given back.
    async fn end<T>(mut self, ready: Result<T, PullError>, layers: &[LayerRecord]) -> Result<T, PullError> {
        let Some(mut undo) = self.undo.take() else { return ready };
        let failure = match ready {
            Ok(ready) => {
                undo.done = true;
                return Ok(ready);
            }
            Err(failure) => failure,
        };
        let inner = Arc::clone(&undo.inner);
        blocking(move || {
            drop(undo);
            Ok(())
        })
        .await?;
        Err(inner.out_of_space(failure, layers).await)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        match tokio::runtime::Handle::try_current() {
            // A runtime that shuts down drops what it does not run, and that undoes it as well.
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(undo))),
            Err(_) => drop(undo),
        }
    }
}

/// Puts back, when it is dropped, what a lease replaced.
struct Undo {
    inner: Arc<Inner>,
    owner: LeaseOwner,
    before: Option<Lease>,
    /// There is nothing to put back: the pull succeeded.
    done: bool,
    /// File work goes on when its future is dropped: nothing may write the lease after it was undone.
    given_up: Arc<Mutex<bool>>,
    _whole: Work,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        *self.given_up.lock().unwrap_or_else(PoisonError::into_inner) = true;
        if let Err(error) = self.inner.unpin(&self.owner, self.before.as_ref()) {
            // What the pull failed of says more, and is often the same.
            tracing::warn!(lease = %self.owner, %error, "the lease of a failed pull stays");
        }
    }
}

/// Runs file work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(interrupted()),
    }
}

/// What file work ends with when nobody waits for it any more.
fn interrupted() -> StoreError {
    StoreError::io("waiting for", "the pull")(std::io::Error::from(std::io::ErrorKind::Interrupted))
}

/// Overlay refuses the same directory twice, and only the topmost one counts.
fn without_duplicates(layers: &[LayerRecord]) -> Vec<LayerRecord> {
    let mut seen = HashSet::new();
    let mut kept: Vec<_> = layers.iter().rev().filter(|layer| seen.insert(&layer.diff_id)).cloned().collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn layer(blob: &str, diff_id: &str) -> LayerRecord {
        LayerRecord { blob: Digest::sha256(blob.as_bytes()), size: 1, diff_id: Digest::sha256(diff_id.as_bytes()) }
    }

    #[test]
    fn the_topmost_of_equal_layers_stays() {
        let layers = [layer("1", "a"), layer("2", "b"), layer("3", "a"), layer("4", "c")];
        assert_eq!(without_duplicates(&layers), layers[1..]);
    }
}
