//! From a wish for an image to folders that can be mounted.
//!
//! The registry is asked what a name means now (or not, if that is known and may not have changed), the lease is written, missing
//! layers stream through the unpacker side by side, and only then is the image recorded. Whoever asks for the same content at the
//! same time shares the work; nobody shares another's failure. Dropping the future gives the pull up and leaves nothing behind
//! but finished layers.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::JoinSet,
};

use crate::{
    config::PullRequest,
    digest::Digest,
    error::{PullError, StoreError},
    manifest::{self, Descriptor, Document, ImageConfig, Manifest},
    progress::{Meter, Progress, PullEvent},
    reference::Reference,
    registry::{Session, Sink},
    store::{self, ImageRecord, Inner, LayerRecord, Lease, Staged, Store},
    unpack::{
        self, UnpackError, Unpacked,
        stream::{Feed, Piece},
        tree,
    },
};

/// An index may point to an index once.
const MAX_INDEX_DEPTH: usize = 2;
/// Layers of at least this compressed size inflate and write on two threads.
const SIDE_BY_SIDE: u64 = 16 << 20;
/// Chunks that may wait between the network and the unpacker.
const WAITING_PIECES: usize = 32;

/// An image that is ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What was asked for.
    pub reference: Reference,
    /// Digest of the manifest for this machine.
    pub digest: String,
    /// Overlay lower directories, topmost first; at least one.
    pub layers: Vec<PathBuf>,
    /// What the image wants to be run as.
    pub config: ImageConfig,
}

/// What a name means.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) record: ImageRecord,
    pub(crate) manifest: Bytes,
    pub(crate) config: Bytes,
    pub(crate) run: ImageConfig,
}

impl Store {
    /// Makes an image ready, asking its registry where needed, and leases it: its layers stay until [`Store::release`]. A lease of
    /// the same name is replaced, but only by success.
    pub async fn acquire(
        &self,
        request: PullRequest,
        lease: &str,
        progress: Arc<dyn Progress>,
    ) -> Result<Image, PullError> {
        let work = acquire(&self.inner, &request, lease, progress);
        match request.timeout {
            None => work.await,
            Some(limit) => tokio::time::timeout(limit, work)
                .await
                .unwrap_or_else(|_| Err(PullError::Timeout { reference: request.reference.to_string(), limit })),
        }
    }
}

async fn acquire(
    inner: &Arc<Inner>,
    request: &PullRequest,
    lease: &str,
    progress: Arc<dyn Progress>,
) -> Result<Image, PullError> {
    let started = Instant::now();
    let reference = request.reference.clone();
    progress.report(PullEvent::Started { reference: reference.clone() });
    let (resolved, asked) = resolve(inner, request, started).await?;
    let record = resolved.record.clone();
    let layers = without_duplicates(&record.layers);
    let lease = Lease {
        name: lease.to_owned(),
        reference: reference.clone(),
        manifest: record.manifest.clone(),
        layers: layers.iter().map(|layer| layer.diff_id.clone()).collect(),
        fixups: Vec::new(),
    };
    let pin = Pin::new(inner, &lease).await?;
    let last_word = Arc::clone(&pin.given_up);
    let ready = make_ready(inner, request, (&resolved, asked), (lease, last_word), Arc::clone(&progress)).await;
    pin.end(ready.is_ok()).await?;
    let (fetched, folders) = ready?;
    progress.report(PullEvent::Done {
        digest: record.manifest.clone(),
        bytes: fetched.unwrap_or(0),
        elapsed: started.elapsed(),
        cached: fetched.is_none(),
    });
    Ok(Image { reference, digest: record.manifest.to_string(), layers: folders, config: resolved.run.clone() })
}

/// Fetches what is missing, then records the image. Returns the bytes that arrived, if any layer was missing, and what to mount.
async fn make_ready(
    inner: &Arc<Inner>,
    request: &PullRequest,
    (resolved, asked): (&Arc<Resolved>, bool),
    (mut lease, given_up): (Lease, Arc<Mutex<bool>>),
    progress: Arc<dyn Progress>,
) -> Result<(Option<u64>, Vec<PathBuf>), PullError> {
    let layers = without_duplicates(&resolved.record.layers);
    let fetched = fetch_missing(inner, request, &resolved.record, &layers, progress).await?;
    let (keeper, resolved) = (Arc::clone(inner), Arc::clone(resolved));
    let folders = blocking(move || {
        if asked || fetched.is_some() {
            keeper.save(&resolved)?;
        }
        let given_up = given_up.lock().unwrap_or_else(PoisonError::into_inner);
        if *given_up { Err(interrupted()) } else { keeper.mountable(&mut lease) }
    })
    .await?;
    Ok((fetched, folders))
}

/// A lease that is undone unless the pull succeeds, also when the pull is given up.
struct Pin {
    inner: Arc<Inner>,
    name: String,
    before: Option<Lease>,
    armed: bool,
    /// File work goes on when its future is dropped: nothing may write the lease after it was undone.
    given_up: Arc<Mutex<bool>>,
}

impl Pin {
    async fn new(inner: &Arc<Inner>, lease: &Lease) -> Result<Pin, StoreError> {
        let (keeper, lease) = (Arc::clone(inner), lease.clone());
        blocking(move || {
            let before = keeper.pin(&lease)?;
            Ok(Pin { inner: keeper, name: lease.name, before, armed: true, given_up: Arc::default() })
        })
        .await
    }

    /// Keeps the lease, or undoes it and waits until that is done.
    async fn end(mut self, keep: bool) -> Result<(), StoreError> {
        self.armed = false;
        if keep {
            return Ok(());
        }
        blocking(self.undo()).await
    }

    fn undo(&mut self) -> impl FnOnce() -> Result<(), StoreError> + Send + use<> {
        let (inner, name, before) = (Arc::clone(&self.inner), std::mem::take(&mut self.name), self.before.take());
        let given_up = Arc::clone(&self.given_up);
        move || {
            *given_up.lock().unwrap_or_else(PoisonError::into_inner) = true;
            inner.unpin(&name, before.as_ref())
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let (name, undo) = (self.name.clone(), self.undo());
        let undo = move || {
            if let Err(error) = undo() {
                tracing::warn!(lease = name, %error, "the lease of a failed pull stays");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(undo)),
            Err(_) => undo(),
        }
    }
}

/// Runs file work off the async threads.
async fn blocking<T: Send + 'static>(
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

/// Overlay refuses the same folder twice, and only the topmost one counts.
fn without_duplicates(layers: &[LayerRecord]) -> Vec<LayerRecord> {
    let mut seen = HashSet::new();
    let mut kept: Vec<_> = layers.iter().rev().filter(|layer| seen.insert(&layer.diff_id)).cloned().collect();
    kept.reverse();
    kept
}

/// What the request's name means, and whether a registry was asked.
async fn resolve(
    inner: &Arc<Inner>,
    request: &PullRequest,
    started: Instant,
) -> Result<(Arc<Resolved>, bool), PullError> {
    let (keeper, reference) = (Arc::clone(inner), request.reference.clone());
    let cached = blocking(move || keeper.cached(&reference)).await?;
    let must_ask = request.reference.digest().is_none() && (request.force || request.reference.is_floating());
    let cached = match cached {
        Some(cached) if !must_ask => return Ok((Arc::new(cached), false)),
        cached => cached,
    };
    let asker = store::asker(&request.reference, inner.endpoints.credentials(request).as_ref());
    let flight = inner.name_flight(&asker);
    let _turn = flight.lock().await;
    if let Some(learned) = inner.learned(&asker, started) {
        return Ok((learned, true));
    }
    let resolved = Arc::new(ask(inner, request, cached).await?);
    inner.learn(asker, &resolved);
    Ok((resolved, true))
}

/// Asks mirrors and registry in turn.
async fn ask(inner: &Inner, request: &PullRequest, cached: Option<Resolved>) -> Result<Resolved, PullError> {
    let mut sessions = inner.endpoints.sessions(request, &inner.limits)?;
    // The registry itself comes last; its word is final.
    let last = sessions.pop();
    for session in &sessions {
        match ask_one(inner, request, session, cached.as_ref()).await {
            Ok(resolved) => return Ok(resolved),
            Err(error) => tracing::info!(mirror = session.host.name(), %error, "the mirror does not help"),
        }
    }
    match last {
        Some(session) => ask_one(inner, request, &session, cached.as_ref()).await,
        None => Err(PullError::malformed(request.reference.to_string(), "no registry to ask")),
    }
}

async fn ask_one(
    inner: &Inner,
    request: &PullRequest,
    session: &Session,
    cached: Option<&Resolved>,
) -> Result<Resolved, PullError> {
    let reference = &request.reference;
    let name = match (reference.digest(), reference.tag()) {
        (Some(digest), _) => digest.as_str(),
        (None, tag) => tag.unwrap_or("latest"),
    };
    if let Some(cached) = cached {
        // Asking for the digest only does not count as a pull at the registries that count them.
        match session.head_manifest(name).await {
            Ok(Some(digest)) if digest == cached.record.resolved => {
                let record = ImageRecord { pulled_at: store::now(), ..cached.record.clone() };
                return Ok(Resolved { record, ..cached.clone() });
            }
            Ok(_) => {}
            Err(error) if error.recoverable() => return Err(error),
            Err(error) => tracing::debug!(%error, "no answer to HEAD, asking for the whole manifest"),
        }
    }
    let (bytes, resolved) = session.manifest(name).await?;
    let (manifest_bytes, manifest_digest, manifest) =
        select(inner, reference, session, bytes, resolved.clone()).await?;
    let config = session.small_blob(&manifest.config).await?;
    let what = format!("config {}", manifest.config.digest);
    let document = manifest::parse_config(&what, &config)?;
    let layers = pair_layers(&what, &manifest, &document.diff_ids, inner.limits.layers)?;
    if document.platform.distance(&inner.platform).is_none() {
        tracing::warn!(image = %reference, platform = %document.platform, "the image was made for another platform");
    }
    let record = ImageRecord {
        reference: reference.clone(),
        resolved,
        manifest: manifest_digest,
        config: manifest.config.digest,
        layers,
        pulled_at: store::now(),
    };
    Ok(Resolved { record, manifest: manifest_bytes, config, run: document.config })
}

/// Follows indexes to the manifest for this machine.
async fn select(
    inner: &Inner,
    reference: &Reference,
    session: &Session,
    mut bytes: Bytes,
    mut digest: Digest,
) -> Result<(Bytes, Digest, Manifest), PullError> {
    for _ in 0..=MAX_INDEX_DEPTH {
        let what = format!("{reference}: {digest}");
        let entries = match manifest::parse_document(&what, &bytes)? {
            Document::Manifest(manifest) => return Ok((bytes, digest, manifest)),
            Document::Index(entries) => entries,
        };
        let chosen = manifest::choose(reference, &entries, &inner.platform)?;
        (bytes, digest) = session.manifest(chosen.digest.as_str()).await?;
        if bytes.len() as u64 != chosen.size {
            let problem = format!("its size is {} bytes by the index, but {} arrived", chosen.size, bytes.len());
            return Err(PullError::malformed(what, problem));
        }
    }
    Err(PullError::malformed(reference.to_string(), format!("indexes nested more than {MAX_INDEX_DEPTH} deep")))
}

/// Joins the manifest's blobs with the config's diff ids. Pure.
fn pair_layers(
    what: &str,
    manifest: &Manifest,
    diff_ids: &[Digest],
    limit: usize,
) -> Result<Vec<LayerRecord>, PullError> {
    if manifest.layers.len() != diff_ids.len() {
        let problem = format!("it names {} layers, the manifest {}", diff_ids.len(), manifest.layers.len());
        return Err(PullError::malformed(what, problem));
    }
    if diff_ids.len() > limit {
        return Err(PullError::TooLarge { what: format!("{what}: the number of layers"), limit: limit.to_string() });
    }
    let pair = |(layer, diff_id): (&Descriptor, &Digest)| LayerRecord {
        blob: layer.digest.clone(),
        size: layer.size,
        diff_id: diff_id.clone(),
    };
    Ok(manifest.layers.iter().zip(diff_ids).map(pair).collect())
}

/// Fetches the layers that are not here. `None`: nothing was missing; otherwise the bytes that arrived.
async fn fetch_missing(
    inner: &Arc<Inner>,
    request: &PullRequest,
    record: &ImageRecord,
    layers: &[LayerRecord],
    progress: Arc<dyn Progress>,
) -> Result<Option<u64>, PullError> {
    let (keeper, wanted) = (Arc::clone(inner), layers.to_vec());
    let mut missing = blocking(move || {
        let mut missing = Vec::new();
        for layer in wanted {
            if !keeper.ready(&layer)? {
                missing.push(layer);
            }
        }
        Ok(missing)
    })
    .await?;
    let bytes_total = missing.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
    let digest = record.manifest.clone();
    progress.report(PullEvent::Resolved { digest, bytes_total, layers: missing.len() });
    if missing.is_empty() {
        return Ok(None);
    }
    inner.check_space(bytes_total)?;
    // The largest first, so that none of them is left over at the end.
    missing.sort_by_key(|layer| std::cmp::Reverse(layer.size));
    let sessions: Arc<[Session]> = inner.endpoints.sessions(request, &inner.limits)?.into();
    let meter = Arc::new(Meter::new(progress, bytes_total, missing.len()));
    let slots = Arc::new(Semaphore::new(inner.limits.parallel_per_pull.max(1)));
    let mut tasks = JoinSet::new();
    for layer in missing {
        let (inner, sessions) = (Arc::clone(inner), Arc::clone(&sessions));
        let (meter, slots) = (Arc::clone(&meter), Arc::clone(&slots));
        tasks.spawn(async move {
            let _slot = slots.acquire().await;
            fetch_layer(&inner, &sessions, &layer, &meter).await?;
            meter.layer_done();
            Ok::<(), PullError>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok(result) => result?,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Only a runtime that shuts down cancels them while we wait.
            Err(_) => {
                return Err(PullError::Timeout { reference: request.reference.to_string(), limit: Duration::ZERO });
            }
        }
    }
    inner.sync_soon();
    Ok(Some(meter.bytes_done()))
}

/// Makes one layer ready, unless somebody else does so meanwhile.
async fn fetch_layer(
    inner: &Arc<Inner>,
    sessions: &[Session],
    layer: &LayerRecord,
    meter: &Meter,
) -> Result<(), PullError> {
    let flight = inner.layer_flight(&layer.diff_id);
    let _turn = flight.lock().await;
    let (keeper, wanted) = (Arc::clone(inner), layer.clone());
    let staged =
        blocking(move || if keeper.ready(&wanted)? { Ok(None) } else { keeper.staging()?.layer().map(Some) }).await?;
    let Some(staged) = staged else {
        meter.add_bytes(layer.size);
        return Ok(());
    };
    let _download = inner.downloads.acquire().await;
    let (staged, unpacked) = stream_layer(inner, sessions, layer, staged, meter).await?;
    if let Err(error) = verify(layer, &unpacked) {
        // Many files may have to go: not on this thread.
        blocking(move || {
            drop(staged);
            Ok(())
        })
        .await?;
        return Err(error);
    }
    let keeper = Arc::clone(inner);
    Ok(blocking(move || keeper.commit_layer(&staged, &unpacked)).await?)
}

type ThreadResult = Result<(Unpacked, Staged), UnpackError>;

/// Network on this task, unpacking on a thread of its own, a bounded channel between them.
async fn stream_layer(
    inner: &Arc<Inner>,
    sessions: &[Session],
    layer: &LayerRecord,
    staged: Staged,
    meter: &Meter,
) -> Result<(Staged, Unpacked), PullError> {
    let (pieces, receiver) = mpsc::channel(WAITING_PIECES);
    let fs = staged.fs();
    let done = spawn_unpacker(inner, layer, staged, receiver)?;
    let streamed = stream(sessions, layer, &pieces, meter).await;
    if streamed.is_ok() {
        // If nobody reads any more, the thread's own result says why.
        pieces.send(Piece::End).await.ok();
    }
    drop(pieces);
    let result = done
        .await
        .map_err(|_| PullError::Layer { layer: layer.blob.clone(), problem: "the unpacking thread died".into() })?;
    match (result, streamed) {
        (Ok((unpacked, staged)), Ok(())) => Ok((staged, unpacked)),
        // The unpacker stopped because the stream did, or the stream because the unpacker did: the cause is the other one's.
        (Err(UnpackError::Aborted) | Ok(_), Err(error)) => Err(error),
        (Err(UnpackError::Aborted), Ok(())) => {
            Err(PullError::Layer { layer: layer.blob.clone(), problem: "its stream was cut short".into() })
        }
        (Err(error), _) => Err(unpack_error(layer, &fs, error)),
    }
}

fn spawn_unpacker(
    inner: &Arc<Inner>,
    layer: &LayerRecord,
    staged: Staged,
    pieces: mpsc::Receiver<Piece>,
) -> Result<oneshot::Receiver<ThreadResult>, StoreError> {
    let fs = staged.fs();
    let root = tree::open_root(&fs).map_err(StoreError::io("opening", &fs))?;
    let feed = Feed::new(pieces, layer.blob.algorithm());
    let (algorithm, side_by_side) = (layer.diff_id.algorithm(), layer.size >= SIDE_BY_SIDE);
    let limits = inner.limits.clone();
    let (report, done) = oneshot::channel();
    std::thread::Builder::new()
        .name("unpack".into())
        .spawn(move || {
            // Whatever fails, and also when nobody waits any more, `staged` removes itself here.
            let result = unpack::unpack(feed, root, algorithm, side_by_side, &limits);
            drop(report.send(result.map(|unpacked| (unpacked, staged))));
        })
        .map_err(StoreError::io("starting a thread for", fs))?;
    Ok(done)
}

/// Streams a blob from whoever has it, going on where the one before failed.
async fn stream(
    sessions: &[Session],
    layer: &LayerRecord,
    pieces: &mpsc::Sender<Piece>,
    meter: &Meter,
) -> Result<(), PullError> {
    let descriptor =
        Descriptor { media_type: String::new(), digest: layer.blob.clone(), size: layer.size, platform: None };
    let sink = Sink { pieces, meter };
    let mut offset = 0;
    let mut result = Ok(());
    for session in sessions {
        result = session.stream_blob(&descriptor, &mut offset, &sink).await;
        match &result {
            Ok(()) => break,
            Err(_) if pieces.is_closed() => break,
            Err(error) => tracing::debug!(host = session.host.name(), %error, "this host does not deliver the blob"),
        }
    }
    result
}

/// The layer is what the image says it is, before anybody can see it.
fn verify(layer: &LayerRecord, unpacked: &Unpacked) -> Result<(), PullError> {
    let check = |what: &str, expected: &Digest, actual: &Digest| {
        if expected == actual {
            return Ok(());
        }
        let what = format!("layer {}: {what}", layer.blob);
        Err(PullError::DigestMismatch { what, expected: expected.clone(), actual: actual.clone() })
    };
    check("the blob", &layer.blob, &unpacked.blob)?;
    check("its unpacked bytes (diff id)", &layer.diff_id, &unpacked.diff_id)
}

fn unpack_error(layer: &LayerRecord, fs: &Path, error: UnpackError) -> PullError {
    match error {
        UnpackError::Refused { entry, problem } => {
            let problem = match entry {
                Some(entry) => format!("entry \"{entry}\": {problem}"),
                None => problem,
            };
            PullError::Layer { layer: layer.blob.clone(), problem }
        }
        UnpackError::Disk { entry, action, source } => {
            StoreError::io(action, fs.join(entry.trim_start_matches('/')))(source).into()
        }
        UnpackError::Aborted => {
            PullError::Layer { layer: layer.blob.clone(), problem: "unpacking was given up".into() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(blob: &str, diff_id: &str) -> LayerRecord {
        LayerRecord { blob: Digest::sha256(blob.as_bytes()), size: 1, diff_id: Digest::sha256(diff_id.as_bytes()) }
    }

    #[test]
    fn the_topmost_of_equal_layers_stays() {
        let layers = [layer("1", "a"), layer("2", "b"), layer("3", "a"), layer("4", "c")];
        assert_eq!(without_duplicates(&layers), layers[1..]);
    }
}
