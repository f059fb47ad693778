//! The access check: may this caller have an image that was pulled with the credentials of another caller?
//!
//! - An image that was pulled without credentials is for every caller.
//! - Any other image is for callers to whom its registry would give it: the registry is asked for the manifest with the
//!   credentials of the caller.
//! - If the registry cannot be reached, a caller that got the image before gets it again. Other callers get an error
//!   that a later attempt may resolve.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use layer::Digest;

use super::{puller::Puller, request::PullRequest, resolve_cache::requester};
use crate::{
    credentials::Credentials,
    error::PullError,
    limits::Limits,
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
) -> Result<bool, PullError> {
    let credentials = puller.endpoints.credentials(request.caller());
    let requester = requester(&request.reference, credentials.as_ref());
    let name_lock = puller.resolved.lock(&requester);
    let _holder = name_lock.lock().await;
    if puller.grants.includes(&requester, &record.resolved) {
        return Ok(false);
    }
    let holder = holder(&request.reference, credentials.as_ref());
    let limit = TIMEOUT.min(request.idle_timeout);
    let answer = tokio::time::timeout(limit, ask(puller, request, record))
        .await
        .unwrap_or_else(|_| Err(PullError::Timeout { reference: request.reference.to_string(), limit }));
    let (lifetime, changed) = match decide(&record.access, holder.as_ref(), answer)? {
        Verdict::Granted => (GRANT_LIFETIME, record.access.grant(holder)),
        Verdict::Grace(error) => {
            let image = &request.reference;
            tracing::info!(%image, %error, "the registry cannot check access to the image; this task had it before");
            (GRACE_LIFETIME, false)
        }
    };
    puller.grants.add(requester, record.resolved.clone(), Instant::now() + lifetime);
    Ok(changed)
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
fn decide(access: &Access, holder: Option<&Digest>, answer: Result<(), PullError>) -> Result<Verdict, PullError> {
    match answer {
        Ok(()) => Ok(Verdict::Granted),
        Err(error) if error.recoverable() && access.includes(holder) => Ok(Verdict::Grace(error)),
        Err(reason) => Err(PullError::Access { reason: Box::new(reason) }),
    }
}

/// Asks mirrors and registry in turn, as a pull would.
async fn ask(puller: &Puller, request: &PullRequest, record: &ImageRecord) -> Result<(), PullError> {
    let limits = Limits { attempts: puller.limits.attempts.min(ATTEMPTS), ..puller.limits.clone() };
    let mut answer = Err(PullError::malformed(request.reference.to_string(), "no registry to ask"));
    for session in puller.endpoints.sessions(request.caller(), &limits)? {
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
        let [known, other] = ["known", "other"].map(|text| Digest::sha256(text.as_bytes()));
        let access = Access::Holders(vec![known.clone()]);
        assert!(matches!(decide(&access, Some(&other), Ok(())), Ok(Verdict::Granted)));
        assert!(matches!(decide(&access, Some(&known), Err(silent())), Ok(Verdict::Grace(_))));
        assert!(decide(&access, Some(&other), Err(silent())).unwrap_err().recoverable());
        assert!(decide(&access, None, Err(silent())).unwrap_err().recoverable());
        // A denial counts also for earlier holders.
        assert!(!decide(&access, Some(&known), Err(denied())).unwrap_err().recoverable());
    }
}
