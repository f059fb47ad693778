//! The resolution of a name: from the record, from another caller that just asked, or from mirrors and registry.

use std::{sync::Arc, time::Instant};

use layer::Digest;

use super::{
    access,
    documents::{Documents, Refused, documents},
    puller::Puller,
    request::PullRequest,
    resolve_cache::requester,
    resolved::{ResolutionSource, Resolved},
};
use crate::{
    blocking::blocking,
    credentials::{self, CredentialSources},
    error::PullError,
    progress::{Progress, PullEvent, Wait},
    reference::Reference,
    registry::Session,
    store::{self, Access, ImageRecord},
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
            let resolved = resolve_at_registry(puller, request, (recorded, &Form::Best), (started, progress)).await?;
            Ok((resolved, ResolutionSource::Registry))
        }
    }
}

/// Resolves the name of a request to the original of an image whose native form was refused.
pub(super) async fn resolve_original(
    puller: &Arc<Puller>,
    request: &PullRequest,
    native: &Resolved,
    progress: &Arc<dyn Progress>,
) -> Result<Arc<Resolved>, PullError> {
    let form = Form::OriginalOf(native.record.resolved.clone());
    let recorded = (Some(native.clone()), &form);
    let resolved = resolve_at_registry(puller, request, recorded, (Instant::now(), progress)).await?;
    if resolved.record.has_native_layers() {
        let problem = "the index has no other form of the image";
        return Err(PullError::Unsupported { what: request.reference.to_string(), problem: problem.to_owned() });
    }
    let record = ImageRecord { pinned: native.record.pinned, ..resolved.record.clone() };
    Ok(Arc::new(Resolved { record, ..(*resolved).clone() }))
}

/// Reports that the pull goes on with the original.
pub(super) fn report_refusal(progress: &Arc<dyn Progress>, image: &Reference, refusal: &PullError) {
    tracing::warn!(%image, %refusal, "the native image is refused, its original is used");
    progress.report(PullEvent::NativeRefused { problem: refusal.to_string() });
}

/// Which form of an image is wanted.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    /// The native form if this machine mounts it, otherwise the original.
    Best,
    /// The original in the index with this digest, even if the name has another index by now.
    OriginalOf(Digest),
}

impl Form {
    /// Whether what was just resolved has this form. Pure.
    fn is_form_of(&self, record: &ImageRecord) -> bool {
        match self {
            Form::Best => true,
            Form::OriginalOf(index) => record.resolved == *index && !record.has_native_layers(),
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
    (recorded, form): (Option<Resolved>, &Form),
    (started, progress): (Instant, &Arc<dyn Progress>),
) -> Result<Arc<Resolved>, PullError> {
    let credentials = puller.endpoints.credentials(request.caller());
    progress.report(PullEvent::Waiting(Wait::registry(&request.reference)));
    let requester = requester(&request.reference, credentials.as_ref());
    let name_lock = puller.resolved.lock(&requester);
    let _holder = name_lock.lock().await;
    let known = puller.resolved.get(&requester, started);
    if let Some(resolved) = known.filter(|known| form.is_form_of(&known.record)) {
        return Ok(resolved);
    }
    let before = recorded.as_ref().map(|recorded| (recorded.record.resolved.clone(), recorded.record.access.clone()));
    let mut resolved = ask(puller, request, (recorded, form), progress).await?;
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
    (recorded, form): (Option<Resolved>, &Form),
    progress: &Arc<dyn Progress>,
) -> Result<Resolved, PullError> {
    // What was recorded is in the refused form.
    let wanted = (recorded.as_ref().filter(|_| *form == Form::Best), form);
    let mut sessions = puller.endpoints.sessions(request.caller(), &puller.limits, progress)?;
    // The registry itself comes last, and its failure is the one that is reported.
    let last = sessions.pop();
    for session in &sessions {
        match ask_one(puller, (request, progress), session, wanted).await {
            Ok(resolved) => return Ok(resolved),
            Err(error) => tracing::info!(mirror = session.host.name(), %error, "the mirror does not help"),
        }
    }
    match last {
        Some(session) => ask_one(puller, (request, progress), &session, wanted).await,
        None => Err(PullError::malformed(request.reference.to_string(), "no registry to ask")),
    }
}

async fn ask_one(
    puller: &Puller,
    (request, progress): (&PullRequest, &Arc<dyn Progress>),
    session: &Session,
    (recorded, form): (Option<&Resolved>, &Form),
) -> Result<Resolved, PullError> {
    let reference = &request.reference;
    let name = match (form, reference.digest(), reference.tag()) {
        (Form::OriginalOf(digest), ..) | (Form::Best, Some(digest), _) => digest.as_str(),
        (Form::Best, None, tag) => tag.unwrap_or("latest"),
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
    let (best, original) = (puller.platform.clone(), puller.platform.without_erofs());
    let look = |machine| documents(puller, (reference, machine), session, (bytes.clone(), resolved.clone()));
    let documents = match form {
        Form::OriginalOf(_) => look(&original).await,
        Form::Best => match look(&best).await {
            Err(Refused { native: true, error: refusal }) if refusal.refuses_content() => {
                let found = look(&original).await;
                if found.is_ok() {
                    report_refusal(progress, reference, &refusal);
                }
                found.map_err(|Refused { error, .. }| if error.recoverable() { error } else { refusal }.into())
            }
            found => found,
        },
    };
    let Documents { manifest, manifest_digest, config, config_digest, document, layers } =
        documents.map_err(|Refused { error, .. }| error)?;
    if document.platform.distance(&puller.platform).is_none() {
        tracing::warn!(image = %reference, platform = %document.platform, "the image was made for another platform");
    }
    let record = ImageRecord {
        reference: reference.clone(),
        resolved,
        manifest: manifest_digest,
        config: config_digest,
        layers,
        pulled_at: store::now(),
        loaded: false,
        pinned: false,
        access: Access::default(),
    };
    Ok(Resolved { record, manifest, config, run: document.config })
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
