//! An OCI layout → a registry: each blob that the registry lacks, then the manifests, each after what it refers to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use layer::Digest;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{layout_image::LayoutImage, parts::Parts};
use crate::{
    archive::{CancelOnDrop, OciLayout, Source},
    blocking::blocking_pull,
    credentials::{self, CredentialSources},
    error::PullError,
    limits::Limits,
    manifest::{Descriptor, MAX_INDEX_DEPTH},
    progress::{LayerMeter, Meter, Progress},
    pull::join_all,
    reference::Reference,
    registry::{Caller, Endpoints, Placed, Session, Upload},
    tracker::TaskTracker,
};

/// A request to upload an image.
#[derive(Debug)]
pub struct PushRequest {
    /// The image.
    pub layout: LayoutImage,
    /// Its name at the registry.
    pub reference: Reference,
    /// A repository of the same registry that may have some of the blobs. The registry takes them from there.
    pub mount_from: Option<String>,
    /// Idle timeout: how long the registry may neither take nor send a byte.
    pub idle_timeout: Duration,
}

/// What was uploaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pushed {
    /// The digest of the index or the manifest that has the name now.
    pub digest: String,
    /// Blobs that were sent.
    pub uploaded: usize,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// Blobs that the registry took from the other repository.
    pub mounted: usize,
    /// Blobs that the repository had.
    pub present: usize,
}

/// Uploads an image.
pub(crate) async fn push(
    endpoints: &Endpoints,
    sources: &CredentialSources,
    request: PushRequest,
    limits: &Limits,
    progress: Arc<dyn Progress>,
) -> Result<Pushed, PullError> {
    let PushRequest { layout, reference, mount_from, idle_timeout } = request;
    let cancel = CancelOnDrop::default();
    let (opener_limits, cancelled) = (limits.clone(), cancel.flag());
    let content = blocking_pull(move || {
        let LayoutImage { file, name, image } = layout;
        let source = Source::open(name, file, &opener_limits, &std::env::temp_dir(), cancelled)?;
        Content::of(OciLayout::new(source, &opener_limits), image.as_deref())
    })
    .await?;
    let name = name_at_registry(&reference, &content.top.digest)?;
    let found = credentials::find(sources, &reference, false).await?;
    let caller = Caller { reference: &reference, credentials: found.as_ref(), idle_timeout };
    let session = endpoints.upload_session(caller, limits, &progress)?;
    let session = session.ok_or_else(|| PullError::malformed(reference.to_string(), "no registry to ask"))?;
    let mut pushed = place_blobs(&session, &content, mount_from, progress).await?;
    for document in &content.documents {
        let own = document.descriptor.digest.as_str();
        let name = if document.descriptor.digest == content.top.digest { name.as_str() } else { own };
        let body = (document.descriptor.media_type.as_str(), document.bytes.clone());
        session.put_manifest(name, body, &document.descriptor.digest).await?;
    }
    pushed.digest = content.top.digest.to_string();
    Ok(pushed)
}

/// The tag or the digest by which the registry stores the image.
fn name_at_registry(reference: &Reference, digest: &Digest) -> Result<String, PullError> {
    match (reference.digest(), reference.tag()) {
        (Some(wanted), _) if wanted != digest => {
            Err(PullError::malformed(reference.to_string(), format!("the image of the layout is {digest}")))
        }
        (_, Some(tag)) => Ok(tag.to_owned()),
        (Some(digest), None) => Ok(digest.to_string()),
        (None, None) => Ok("latest".to_owned()),
    }
}

/// A manifest or an index.
struct Document {
    descriptor: Descriptor,
    bytes: Bytes,
}

/// What an image consists of.
struct Content {
    layout: Arc<OciLayout>,
    top: Descriptor,
    /// The manifests and indexes, each after those that it refers to. The last one is the top.
    documents: Vec<Document>,
    /// The other blobs, each once.
    blobs: BTreeMap<Digest, u64>,
}

impl Content {
    /// Reads all documents of an image. Blocks.
    fn of(layout: OciLayout, image: Option<&str>) -> Result<Self, PullError> {
        let top = layout.top(image)?;
        let (layout, top_copy) = (Arc::new(layout), top.clone());
        let mut content = Self { layout, top, documents: Vec::new(), blobs: BTreeMap::new() };
        content.add(top_copy, 0, &mut BTreeSet::new())?;
        Ok(content)
    }

    fn add(&mut self, mut descriptor: Descriptor, depth: usize, seen: &mut BTreeSet<Digest>) -> Result<(), PullError> {
        if !seen.insert(descriptor.digest.clone()) {
            return Ok(());
        }
        let bytes = self.layout.document(&descriptor)?;
        let parts = Parts::of(&bytes).map_err(|problem| self.layout.malformed(problem))?;
        if depth > MAX_INDEX_DEPTH {
            return Err(self.layout.malformed(format!("indexes nested more than {} deep", MAX_INDEX_DEPTH)));
        }
        for child in parts.manifests {
            self.add(child, depth + 1, seen)?;
        }
        for blob in parts.blobs {
            // Some layers must not be distributed. Their descriptors say where else they are.
            if blob.is_elsewhere && self.layout.find(&blob.descriptor.digest)?.is_none() {
                continue;
            }
            self.blobs.insert(blob.descriptor.digest, blob.descriptor.size);
        }
        descriptor.media_type = parts.media_type;
        self.documents.push(Document { descriptor, bytes: bytes.into() });
        Ok(())
    }
}

/// Uploads the blobs that the registry lacks, several at a time.
async fn place_blobs(
    session: &Session,
    content: &Content,
    mount_from: Option<String>,
    progress: Arc<dyn Progress>,
) -> Result<Pushed, PullError> {
    let total = content.blobs.values().fold(0u64, |sum, size| sum.saturating_add(*size));
    let meter = Arc::new(Meter::new(progress, total, content.blobs.len()));
    let slots = Arc::new(Semaphore::new(session.limits.parallel_per_pull.max(1)));
    let mut tasks = JoinSet::new();
    for (digest, size) in content.blobs.clone() {
        let (session, layout, slots) = (session.clone(), Arc::clone(&content.layout), Arc::clone(&slots));
        let (meter, mount_from) = (Arc::clone(&meter), mount_from.clone());
        tasks.spawn(async move {
            let _slot = slots.acquire().await;
            let wanted = digest.clone();
            let part = blocking_pull(move || {
                let part = layout.blob(&wanted)?;
                match part.size() == size {
                    true => Ok(part),
                    false => Err(layout.malformed(format!("blob {wanted} has {} bytes, not {size}", part.size()))),
                }
            })
            .await?;
            let (file, start) = part.into_file();
            let meter = LayerMeter::new(meter, digest.clone(), size);
            let mount_from = mount_from.as_deref();
            let upload = Upload { digest: &digest, size, file: Arc::new(file), start, mount_from, meter: &meter };
            let placed = session.place_blob(&upload).await?;
            meter.add_missing();
            meter.done();
            Ok::<_, PullError>((placed, size))
        });
    }
    let mut pushed = Pushed::default();
    for (placed, size) in join_all(tasks, TaskTracker::new()).await? {
        match placed {
            Placed::Present => pushed.present += 1,
            Placed::Mounted => pushed.mounted += 1,
            Placed::Uploaded => {
                pushed.uploaded += 1;
                pushed.uploaded_bytes += size;
            }
        }
    }
    Ok(pushed)
}
