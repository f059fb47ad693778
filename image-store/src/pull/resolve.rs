//! The resolution of a name: from the record, from another caller that just asked, or from mirrors and registry.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use layer::Digest;

use super::{
    access,
    puller::Puller,
    request::PullRequest,
    resolve_cache::requester,
    resolved::{ResolutionSource, Resolved},
};
use crate::{
    blocking::blocking,
    credentials::{self, CredentialSources},
    error::PullError,
    manifest::{self, Descriptor, Document, MAX_INDEX_DEPTH, Manifest},
    native,
    progress::{Progress, PullEvent, Wait},
    reference::Reference,
    registry::Session,
    store::{self, Access, ImageRecord, LayerRecord},
};

/// Resolves the name of a request. Adds credentials to the request if a registry has to be asked for anything.
pub(super) async fn resolve(
    puller: &Arc<Puller>,
    request: &mut PullRequest,
    started: Instant,
    progress: &Arc<dyn Progress>,
) -> Result<(Arc<Resolved>, ResolutionSource), PullError> {
    let (local, reference) = (Arc::clone(&puller.local), request.reference.clone());
    let (recorded, complete) = blocking(move || {
        let recorded = match Resolved::recorded(&local, &reference)? {
            Some(recorded) => Some((recorded, ResolutionSource::Record)),
            None => Resolved::recorded_under_another_name(&local, &reference)?,
        };
        let complete = recorded.as_ref().map_or(Ok(false), |(recorded, _)| local.is_complete(&recorded.record))?;
        Ok((recorded, complete))
    })
    .await?;
    let (recorded, source) = recorded.unzip();
    let source = source.unwrap_or(ResolutionSource::Registry);
    // The layers of an archive are at no registry, so an incomplete image of one is unknown.
    let recorded = recorded.filter(|recorded| complete || !recorded.record.loaded);
    // A node that mounts native images no longer needs the other manifest of the index.
    let mountable = |record: &ImageRecord| puller.platform.is_erofs() || !record.has_native_layers();
    let recorded = recorded.filter(|recorded| mountable(&recorded.record));
    let must_ask = request.reference.digest().is_none() && (request.force || request.reference.is_floating());
    let public = recorded.as_ref().is_some_and(|recorded| access::is_public(puller, &recorded.record));
    if must_ask || !complete || !public {
        progress.report(PullEvent::Waiting(Wait::Credentials { registry: request.reference.domain().to_owned() }));
        add_credentials(&puller.sources, request).await?;
    }
    match recorded {
        Some(recorded) if !must_ask && public => Ok((Arc::new(recorded), source)),
        Some(mut recorded) if !must_ask => {
            let changed = access::check(puller, request, &mut recorded.record, progress).await?;
            let source = if changed { ResolutionSource::NewRecord } else { source };
            Ok((Arc::new(recorded), source))
        }
        recorded => {
            let resolved = resolve_at_registry(puller, request, recorded, (started, progress)).await?;
            Ok((resolved, ResolutionSource::Registry))
        }
    }
}

/// Adds the credentials of the configured sources to a request that has none.
async fn add_credentials(sources: &CredentialSources, request: &mut PullRequest) -> Result<(), PullError> {
    if request.credentials.is_none() {
        request.credentials = credentials::find(sources, &request.reference, request.soft_fail).await?;
    }
    Ok(())
}

/// Asks the registry, unless another caller with the same credentials asked it after `started`.
async fn resolve_at_registry(
    puller: &Arc<Puller>,
    request: &PullRequest,
    recorded: Option<Resolved>,
    (started, progress): (Instant, &Arc<dyn Progress>),
) -> Result<Arc<Resolved>, PullError> {
    let credentials = puller.endpoints.credentials(request.caller());
    progress.report(PullEvent::Waiting(Wait::registry(&request.reference)));
    let requester = requester(&request.reference, credentials.as_ref());
    let name_lock = puller.resolved.lock(&requester);
    let _holder = name_lock.lock().await;
    if let Some(resolved) = puller.resolved.get(&requester, started) {
        return Ok(resolved);
    }
    let before = recorded.as_ref().map(|recorded| (recorded.record.resolved.clone(), recorded.record.access.clone()));
    let mut resolved = ask(puller, request, recorded, progress).await?;
    let record = &mut resolved.record;
    // Access to other content may differ, so only the access to the same content is kept.
    record.access =
        before.filter(|(digest, _)| *digest == record.resolved).map(|(_, access)| access).unwrap_or_default();
    record.access.grant(access::holder(&request.reference, credentials.as_ref()));
    puller.grants.add((requester.clone(), record.resolved.clone()), Instant::now() + access::GRANT_LIFETIME);
    let resolved = Arc::new(resolved);
    puller.resolved.put(requester, &resolved);
    Ok(resolved)
}

/// Asks mirrors and registry in turn.
async fn ask(
    puller: &Puller,
    request: &PullRequest,
    recorded: Option<Resolved>,
    progress: &Arc<dyn Progress>,
) -> Result<Resolved, PullError> {
    let mut sessions = puller.endpoints.sessions(request.caller(), &puller.limits, progress)?;
    // The registry itself comes last, and its failure is the one that is reported.
    let last = sessions.pop();
    for session in &sessions {
        match ask_one(puller, request, session, recorded.as_ref()).await {
            Ok(resolved) => return Ok(resolved),
            Err(error) => tracing::info!(mirror = session.host.name(), %error, "the mirror does not help"),
        }
    }
    match last {
        Some(session) => ask_one(puller, request, &session, recorded.as_ref()).await,
        None => Err(PullError::malformed(request.reference.to_string(), "no registry to ask")),
    }
}

async fn ask_one(
    puller: &Puller,
    request: &PullRequest,
    session: &Session,
    recorded: Option<&Resolved>,
) -> Result<Resolved, PullError> {
    let reference = &request.reference;
    let name = match (reference.digest(), reference.tag()) {
        (Some(digest), _) => digest.as_str(),
        (None, tag) => tag.unwrap_or("latest"),
    };
    if let Some(recorded) = recorded {
        // A request for the digest only does not count as a pull at registries that limit pulls.
        match session.head_manifest(name).await {
            Ok(Some(digest)) if digest == recorded.record.resolved => {
                let record = ImageRecord { pulled_at: store::now(), ..recorded.record.clone() };
                return Ok(Resolved { record, ..recorded.clone() });
            }
            Ok(_) => {}
            Err(error) if error.recoverable() => return Err(error),
            Err(error) => tracing::debug!(%error, "no answer to HEAD, asking for the whole manifest"),
        }
    }
    let (bytes, resolved) = session.manifest(name).await?;
    let (manifest_bytes, manifest_digest, manifest) =
        select(puller, reference, session, bytes, resolved.clone()).await?;
    let config = session.small_blob(&manifest.config).await?;
    let what = format!("config {}", manifest.config.digest);
    let document = manifest::parse_config(&what, &config)?;
    let layers = pair_layers(&what, &manifest, &document.diff_ids, puller.limits.layers)?;
    if document.platform.distance(&puller.platform).is_none() {
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
        pinned: false,
        access: Access::default(),
    };
    Ok(Resolved { record, manifest: manifest_bytes, config, run: document.config })
}

/// Follows indexes to the manifest for this machine.
async fn select(
    puller: &Puller,
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
        let chosen = manifest::choose(reference, &entries, &puller.platform)?;
        (bytes, digest) = session.manifest(chosen.digest.as_str()).await?;
        if bytes.len() as u64 != chosen.size {
            let problem = format!("its size is {} bytes by the index, but {} arrived", chosen.size, bytes.len());
            return Err(PullError::malformed(what, problem));
        }
    }
    Err(PullError::malformed(reference.to_string(), format!("indexes nested more than {MAX_INDEX_DEPTH} deep")))
}

/// Pairs the blobs of the manifest with the diff ids of the config. Pure.
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
    let pair = |(layer, diff_id): (&Descriptor, &Digest)| {
        let refuse = |problem: &str| PullError::Unsupported { what: what.to_owned(), problem: problem.to_owned() };
        let native = native::of_layer(&layer.media_type, &layer.annotations).map_err(refuse)?;
        if native.is_some() && layer.digest != *diff_id {
            return Err(refuse("an EROFS layer whose diff id is not the digest of its blob"));
        }
        Ok(LayerRecord { blob: layer.digest.clone(), size: layer.size, diff_id: diff_id.clone(), native })
    };
    manifest.layers.iter().zip(diff_ids).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Credentials;

    #[tokio::test]
    async fn a_request_with_credentials_needs_no_source() {
        let sources = CredentialSources { config_file: Some("/no/such/config.json".into()), helper: None };
        let own = Credentials { username: "own".into(), password: "x".into() };
        let reference: Reference = "registry.invalid/team/app:1".parse().unwrap();
        let mut request = PullRequest { credentials: Some(own.clone()), ..PullRequest::new(reference) };
        add_credentials(&sources, &mut request).await.unwrap();
        assert_eq!(request.credentials, Some(own));
        request.credentials = None;
        assert!(add_credentials(&sources, &mut request).await.is_err());
    }
}
