//! The access check: may this caller have an image that was pulled with the credentials of another caller?
//!
//! - An image that was pulled without credentials is for every caller.
//! - Any other image is for callers to whom its registry would give it: the registry is asked for the manifest with the
//!   credentials of the caller.
//! - A caller that got the image before waits only a moment for the registry, and then gets it again. If the registry
//!   refuses it after that moment, the next check counts the refusal.
//! - If the registry cannot be reached, other callers get an error that a later attempt may resolve.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use layer::Digest;

use super::{grants::Content, puller::Puller, request::PullRequest, resolve_cache::requester};
use crate::{
    credentials::Credentials,
    error::PullError,
    limits::Limits,
    progress::{Progress, PullEvent, Wait},
    reference::Reference,
    registry::Session,
    store::{Access, ImageRecord},
};

/// The lifetime of a grant of the registry.
pub(super) const GRANT_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// The lifetime of a grant without the registry. It is not asked again during this time.
const GRACE_LIFETIME: Duration = Duration::from_secs(30);
/// The timeout of the check. A start must not wait long for a registry that it needs only for the check.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts of one request of the check.
const ATTEMPTS: u32 = 2;

/// A fingerprint of credentials for the record of an image. It includes the image, so that records of two images do not
/// show that the credentials are the same.
pub(super) fn holder(reference: &Reference, credentials: Option<&Credentials>) -> Option<Digest> {
    let Credentials { username, password } = credentials?;
    Some(Digest::sha256(format!("access\0{reference}\0{username}\0{}", password.expose()).as_bytes()))
}

/// Whether every caller may have the image without a check.
pub(super) fn is_public(puller: &Puller, record: &ImageRecord) -> bool {
    !puller.verify_access || record.access == Access::Anyone
}

/// Checks that the caller may have a recorded image. Returns whether the record has changed.
pub(super) async fn check(
    puller: &Arc<Puller>,
    request: &PullRequest,
    record: &mut ImageRecord,
    progress: &Arc<dyn Progress>,
) -> Result<bool, PullError> {
    let credentials = puller.endpoints.credentials(request.caller());
    progress.report(PullEvent::Waiting(Wait::registry(&request.reference)));
    let requester = requester(&request.reference, credentials.as_ref());
    let name_lock = puller.resolved.lock(&requester);
    let _holder = name_lock.lock().await;
    if puller.grants.includes(&requester, &record.resolved) {
        return Ok(false);
    }
    let holder = holder(&request.reference, credentials.as_ref());
    let had_it = record.access.includes(holder.as_ref()) && !puller.grants.is_refused(&requester, &record.resolved);
    let content = (requester, record.resolved.clone());
    let question = ask_in_time(Arc::clone(puller), request.clone(), record.clone(), Arc::clone(progress));
    let answer = if had_it { ask_for_a_moment(puller, question, &content).await } else { question.await };
    match decide(had_it, answer)? {
        Verdict::Granted => {
            puller.grants.add(content, Instant::now() + GRANT_LIFETIME);
            Ok(record.access.grant(holder))
        }
        Verdict::Grace(error) => {
            let image = &request.reference;
            tracing::info!(%image, %error, "the registry cannot check access to the image; this task had it before");
            puller.grants.add_grace(content, Instant::now() + GRACE_LIFETIME);
            Ok(false)
        }
    }
}

/// Asks until the timeout of the check.
async fn ask_in_time(
    puller: Arc<Puller>,
    request: PullRequest,
    record: ImageRecord,
    progress: Arc<dyn Progress>,
) -> Result<(), PullError> {
    let limit = TIMEOUT.min(request.idle_timeout);
    let answer = tokio::time::timeout(limit, ask(&puller, &request, &record, &progress)).await;
    answer.unwrap_or_else(|_| Err(PullError::Timeout { reference: request.reference.to_string(), limit }))
}

/// Asks for a caller that had the image before. An answer that comes later counts for the next check.
async fn ask_for_a_moment(
    puller: &Arc<Puller>,
    question: impl Future<Output = Result<(), PullError>> + Send + 'static,
    content: &Content,
) -> Result<(), PullError> {
    let (tell, answer) = tokio::sync::oneshot::channel();
    let (puller, content) = (Arc::clone(puller), content.clone());
    let (reference, wait) = (content.0.0.to_string(), puller.limits.access_wait);
    tokio::spawn(async move {
        match tell.send(question.await) {
            Ok(()) => {}
            Err(Ok(())) => puller.grants.add(content, Instant::now() + GRANT_LIFETIME),
            Err(Err(error)) if !error.recoverable() => puller.grants.refuse(content),
            Err(Err(error)) => tracing::debug!(%error, "no late answer about access"),
        }
    });
    let timeout = || Err(PullError::Timeout { reference, limit: wait });
    match tokio::time::timeout(wait, answer).await {
        Ok(Ok(answer)) => answer,
        // The question ends without an answer only if the runtime shuts down.
        Ok(Err(_)) | Err(_) => timeout(),
    }
}

/// The result of a check that gives the image to the caller.
#[derive(Debug)]
enum Verdict {
    /// The registry would give it.
    Granted,
    /// The registry cannot be asked, but it gave the image to the caller before.
    Grace(PullError),
}

/// Interprets the answer of a registry. Pure.
fn decide(had_it: bool, answer: Result<(), PullError>) -> Result<Verdict, PullError> {
    match answer {
        Ok(()) => Ok(Verdict::Granted),
        Err(error) if error.recoverable() && had_it => Ok(Verdict::Grace(error)),
        Err(reason) => Err(PullError::Access { reason: Box::new(reason) }),
    }
}

/// Asks mirrors and registry in turn, as a pull would.
async fn ask(
    puller: &Puller,
    request: &PullRequest,
    record: &ImageRecord,
    progress: &Arc<dyn Progress>,
) -> Result<(), PullError> {
    let limits = Limits { attempts: puller.limits.attempts.min(ATTEMPTS), ..puller.limits.clone() };
    let mut answer = Err(PullError::malformed(request.reference.to_string(), "no registry to ask"));
    for session in puller.endpoints.sessions(request.caller(), &limits, progress)? {
        answer = ask_one(&session, &request.reference, record).await;
        if answer.is_ok() {
            break;
        }
    }
    answer
}

async fn ask_one(session: &Session, reference: &Reference, record: &ImageRecord) -> Result<(), PullError> {
    let name = reference.digest().map(Digest::as_str).or(reference.tag()).unwrap_or("latest");
    match may_read(session, name).await {
        // The name may be deleted at the registry, while its content still exists.
        Err(PullError::NotFound { .. }) if name != record.resolved.as_str() => {
            may_read(session, record.resolved.as_str()).await
        }
        answer => answer,
    }
}

async fn may_read(session: &Session, name: &str) -> Result<(), PullError> {
    match session.head_manifest(name).await {
        // Some registries do not answer HEAD; the answer to GET counts.
        Err(error) if !error.recoverable() => session.manifest(name).await.map(drop),
        answer => answer.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(password: &str) -> Credentials {
        Credentials { username: "u".into(), password: password.into() }
    }

    #[test]
    fn holders_differ_by_image_and_credentials() {
        let [a, b]: [Reference; 2] = ["r.example/a", "r.example/b"].map(|name| name.parse().unwrap());
        let one = holder(&a, Some(&credentials("1")));
        assert_eq!(one, holder(&a, Some(&credentials("1"))));
        assert_ne!(one, holder(&a, Some(&credentials("2"))));
        assert_ne!(one, holder(&b, Some(&credentials("1"))));
        assert_eq!(holder(&a, None), None);
    }

    #[test]
    fn only_earlier_holders_get_it_while_the_registry_is_silent() {
        let silent = || PullError::IdleTimeout { host: "h".into(), what: "w".into(), limit: Duration::ZERO };
        let denied =
            || PullError::Denied { host: "h".into(), what: "w".into(), anonymous: false, detail: String::new() };
        assert!(matches!(decide(false, Ok(())), Ok(Verdict::Granted)));
        assert!(matches!(decide(true, Err(silent())), Ok(Verdict::Grace(_))));
        assert!(decide(false, Err(silent())).unwrap_err().recoverable());
        // A denial counts also for earlier holders.
        assert!(!decide(true, Err(denied())).unwrap_err().recoverable());
    }
}
