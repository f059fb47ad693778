//! A registry → an OCI layout with everything that the image's index refers to.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use layer::{Digest, digest::Hasher, stream::Piece};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use super::{
    parts::Parts,
    writer::{LayoutWriter, Top},
};
use crate::{
    blocking::{blocking_pull, interrupted},
    credentials::{self, CredentialSources},
    error::{PullError, StoreError},
    limits::Limits,
    manifest::{Descriptor, MAX_INDEX_DEPTH},
    progress::{LayerMeter, Meter, Progress},
    pull::join_all,
    reference::Reference,
    registry::{Caller, Endpoints, Session, stream_blob},
    tracker::{TaskToken, TaskTracker},
};

/// Pieces that may wait between the network and the file.
const WAITING_PIECES: usize = 8;

/// Downloads an image into a new directory. If the future is dropped, the directory is removed.
pub(crate) async fn fetch(
    endpoints: &Endpoints,
    sources: &CredentialSources,
    (reference, target): (&Reference, &Path),
    (limits, idle_timeout): (&Limits, Duration),
    progress: Arc<dyn Progress>,
) -> Result<(), PullError> {
    let found = credentials::find(sources, reference, false).await?;
    let caller = Caller { reference, credentials: found.as_ref(), idle_timeout };
    let sessions: Arc<[Session]> = endpoints.sessions(caller, limits, &progress)?.into();
    let layout = LayoutWriter::create(target)?;
    let name = match (reference.digest(), reference.tag()) {
        (Some(digest), _) => digest.as_str(),
        (None, tag) => tag.unwrap_or("latest"),
    };
    let (bytes, digest) = document(&sessions, name).await?;
    let (size, mut blobs) = (bytes.len() as u64, BTreeMap::new());
    let media_type = fetch_documents(&sessions, &layout, (bytes, digest.clone()), &mut blobs).await?;
    fetch_blobs(&sessions, &layout, blobs, (limits, progress)).await?;
    layout.finish(&Top { media_type: &media_type, digest: &digest, size, name: reference.tag() })?;
    Ok(())
}

/// A manifest or an index of the first host that has it.
async fn document(sessions: &[Session], name: &str) -> Result<(Bytes, Digest), PullError> {
    let mut result = Err(PullError::malformed(name, "no registry to ask"));
    for session in sessions {
        result = session.manifest(name).await;
        match &result {
            Ok(_) => break,
            Err(error) => tracing::debug!(host = session.host.name(), %error, "this host does not help"),
        }
    }
    result
}

/// Stores a document and those that it refers to. Notes their blobs. Returns the media type of the first one.
async fn fetch_documents(
    sessions: &[Session],
    layout: &LayoutWriter,
    top: (Bytes, Digest),
    blobs: &mut BTreeMap<Digest, u64>,
) -> Result<String, PullError> {
    let mut media_type = None;
    let mut level = vec![top];
    for _ in 0..=MAX_INDEX_DEPTH {
        let mut children: Vec<Descriptor> = Vec::new();
        for (bytes, digest) in level {
            let parts = Parts::of(&bytes).map_err(|problem| PullError::malformed(digest.as_str(), problem))?;
            layout.store(&digest, &bytes)?;
            media_type.get_or_insert(parts.media_type);
            children.extend(parts.manifests);
            blobs.extend(parts.blobs.into_iter().map(|blob| (blob.descriptor.digest, blob.descriptor.size)));
        }
        level = Vec::with_capacity(children.len());
        for child in children {
            level.push(document(sessions, child.digest.as_str()).await?);
        }
        if level.is_empty() {
            return Ok(media_type.unwrap_or_default());
        }
    }
    let problem = format!("indexes nested more than {} deep", MAX_INDEX_DEPTH);
    Err(PullError::malformed(level[0].1.as_str(), problem))
}

/// Downloads blobs, several at a time.
async fn fetch_blobs(
    sessions: &Arc<[Session]>,
    layout: &LayoutWriter,
    blobs: BTreeMap<Digest, u64>,
    (limits, progress): (&Limits, Arc<dyn Progress>),
) -> Result<(), PullError> {
    let total = blobs.values().fold(0u64, |sum, size| sum.saturating_add(*size));
    let meter = Arc::new(Meter::new(progress, total, blobs.len()));
    let slots = Arc::new(Semaphore::new(limits.parallel_per_pull.max(1)));
    let (mut tasks, tracker) = (JoinSet::new(), TaskTracker::new());
    for (digest, size) in blobs {
        let (sessions, slots, meter) = (Arc::clone(sessions), Arc::clone(&slots), Arc::clone(&meter));
        let target = (layout.blob(&digest), tracker.token());
        tasks.spawn(async move {
            let _slot = slots.acquire().await;
            let meter = LayerMeter::new(meter, digest.clone(), size);
            fetch_blob(&sessions, (&digest, size), target, &meter).await?;
            meter.done();
            Ok::<_, PullError>(())
        });
    }
    join_all(tasks, tracker).await?;
    Ok(())
}

/// Downloads a blob into a file, and verifies it.
async fn fetch_blob(
    sessions: &[Session],
    (digest, size): (&Digest, u64),
    (path, token): (PathBuf, TaskToken),
    meter: &LayerMeter,
) -> Result<(), PullError> {
    let (pieces, receiver) = mpsc::channel(WAITING_PIECES);
    let expected = digest.clone();
    let writer = tokio::spawn(blocking_pull(move || {
        let _token = token;
        write(receiver, &path, &expected)
    }));
    let streamed = stream_blob(sessions, (digest, size), &pieces, meter).await;
    drop(pieces);
    // An error of the disk closes the channel, and is the cause of the other one.
    let written = writer.await.map_err(|_| PullError::from(interrupted()))?;
    match (written, streamed) {
        (Err(error @ (PullError::Store(_) | PullError::DiskFull { .. })), _) | (_, Err(error)) => Err(error),
        (written, Ok(())) => written,
    }
}

/// Writes the pieces of a blob into a file. Blocks.
fn write(mut pieces: mpsc::Receiver<Piece>, path: &Path, expected: &Digest) -> Result<(), PullError> {
    let mut file = File::create(path).map_err(StoreError::io("creating", path))?;
    let mut hasher = Hasher::new(expected.algorithm());
    while let Some(Piece::Data(bytes)) = pieces.blocking_recv() {
        hasher.update(&bytes);
        file.write_all(&bytes).map_err(StoreError::io("writing", path))?;
    }
    let actual = hasher.finish();
    match actual == *expected {
        true => Ok(()),
        false => {
            Err(PullError::DigestMismatch { what: format!("blob {expected}"), expected: expected.clone(), actual })
        }
    }
}
