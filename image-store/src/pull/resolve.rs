//! What an image's name means: cached, learned from another caller a moment ago, or asked from mirrors and registry.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;

use super::{access, blocking};
use crate::{
    config::PullRequest,
    credentials,
    digest::Digest,
    error::PullError,
    manifest::{self, Descriptor, Document, ImageConfig, Manifest},
    reference::Reference,
    registry::Session,
    store::{self, Access, ImageRecord, Inner, LayerRecord},
};

/// An index may point to an index once.
const MAX_INDEX_DEPTH: usize = 2;

/// What a name means.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) record: ImageRecord,
    pub(crate) manifest: Bytes,
    pub(crate) config: Bytes,
    pub(crate) run: ImageConfig,
}

/// How a name's meaning is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It was recorded, and nothing is to be added to that.
    Nothing,
    /// It was recorded, but not that this caller may have it.
    Access,
    /// The registry was asked.
    Meaning,
}

/// What the request's name means, and how that is known. Completes the request's credentials if a registry has to be
/// asked for anything.
pub(super) async fn resolve(
    inner: &Arc<Inner>,
    request: &mut PullRequest,
    started: Instant,
) -> Result<(Arc<Resolved>, News), PullError> {
    let (keeper, reference) = (Arc::clone(inner), request.reference.clone());
    let (cached, complete) = blocking(move || {
        let cached = keeper.cached(&reference)?;
        let complete = cached.as_ref().map_or(Ok(false), |cached| keeper.complete(&cached.record))?;
        Ok((cached, complete))
    })
    .await?;
    let must_ask = request.reference.digest().is_none() && (request.force || request.reference.is_floating());
    let free = cached.as_ref().is_some_and(|cached| access::is_free(inner, &cached.record));
    if must_ask || !complete || !free {
        credentials::settle(&inner.sources, request).await?;
    }
    let cached = match cached {
        Some(cached) if !must_ask && free => return Ok((Arc::new(cached), News::Nothing)),
        Some(mut cached) if !must_ask => {
            let learned = access::check(inner, request, &mut cached.record).await?;
            return Ok((Arc::new(cached), if learned { News::Access } else { News::Nothing }));
        }
        cached => cached,
    };
    let credentials = inner.endpoints.credentials(request);
    let asker = store::asker(&request.reference, credentials.as_ref());
    let flight = inner.name_flight(&asker);
    let _turn = flight.lock().await;
    if let Some(learned) = inner.learned(&asker, started) {
        return Ok((learned, News::Meaning));
    }
    let before = cached.as_ref().map(|cached| (cached.record.resolved.clone(), cached.record.access.clone()));
    let mut resolved = ask(inner, request, cached).await?;
    let record = &mut resolved.record;
    // Other content may be for others.
    record.access =
        before.filter(|(digest, _)| *digest == record.resolved).map(|(_, access)| access).unwrap_or_default();
    record.access.grant(access::holder(&request.reference, credentials.as_ref()));
    inner.consent(asker.clone(), record.resolved.clone(), Instant::now() + access::CONSENT);
    let resolved = Arc::new(resolved);
    inner.learn(asker, &resolved);
    Ok((resolved, News::Meaning))
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
        loaded: false,
        access: Access::default(),
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
