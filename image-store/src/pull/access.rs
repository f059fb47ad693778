//! May this task have an image that another task's credentials brought here?
//!
//! An image that came without credentials is everybody's. Any other is given only to those to whom its registry would give it:
//! the registry is asked for the manifest's existence as the task. When it cannot be reached, whoever got the image from it before
//! may have it again; everybody else has to wait.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    config::{Credentials, Limits, PullRequest},
    digest::Digest,
    error::PullError,
    reference::Reference,
    registry::Session,
    store::{self, Access, ImageRecord, Inner},
};

/// How long a registry's consent counts.
pub(super) const CONSENT: Duration = Duration::from_secs(5 * 60);
/// How long nobody asks again a registry that could not be reached.
const GRACE: Duration = Duration::from_secs(30);
/// A start should not hang on a registry that it does not need.
const PATIENCE: Duration = Duration::from_secs(10);
const ATTEMPTS: u32 = 2;

/// Names credentials in an image's record. The image is part of it, so that records do not show who is the same.
pub(super) fn holder(reference: &Reference, credentials: Option<&Credentials>) -> Option<Digest> {
    let Credentials { username, password } = credentials?;
    Some(Digest::sha256(format!("access\0{reference}\0{username}\0{}", password.expose()).as_bytes()))
}

/// Whether the record alone gives the image to everybody.
pub(super) fn is_free(inner: &Inner, record: &ImageRecord) -> bool {
    !inner.verify_access || record.access == Access::Anyone
}

/// Checks that the request may have what the record names. Returns whether the record has learned something.
pub(super) async fn check(
    inner: &Arc<Inner>,
    request: &PullRequest,
    record: &mut ImageRecord,
) -> Result<bool, PullError> {
    let credentials = inner.endpoints.credentials(request);
    let asker = store::asker(&request.reference, credentials.as_ref());
    let flight = inner.name_flight(&asker);
    let _turn = flight.lock().await;
    if inner.consents(&asker, &record.resolved) {
        return Ok(false);
    }
    let holder = holder(&request.reference, credentials.as_ref());
    let limit = PATIENCE.min(request.inactivity);
    let answer = tokio::time::timeout(limit, ask(inner, request, record))
        .await
        .unwrap_or_else(|_| Err(PullError::Timeout { reference: request.reference.to_string(), limit }));
    let (life, changed) = match decide(&record.access, holder.as_ref(), answer)? {
        Verdict::Consent => (CONSENT, record.access.grant(holder)),
        Verdict::Grace(error) => {
            tracing::info!(image = %request.reference, %error, "the registry cannot say who may have the image; this task had it before");
            (GRACE, false)
        }
    };
    inner.consent(asker, record.resolved.clone(), Instant::now() + life);
    Ok(changed)
}

#[derive(Debug)]
enum Verdict {
    /// The registry would give it.
    Consent,
    /// It cannot be asked, but it did before.
    Grace(PullError),
}

/// What a registry's answer means for a task. Pure.
fn decide(access: &Access, holder: Option<&Digest>, answer: Result<(), PullError>) -> Result<Verdict, PullError> {
    match answer {
        Ok(()) => Ok(Verdict::Consent),
        Err(error) if error.recoverable() && access.includes(holder) => Ok(Verdict::Grace(error)),
        Err(reason) => Err(PullError::Access { reason: Box::new(reason) }),
    }
}

/// Asks mirrors and registry in turn, as a pull would.
async fn ask(inner: &Inner, request: &PullRequest, record: &ImageRecord) -> Result<(), PullError> {
    let limits = Limits { attempts: inner.limits.attempts.min(ATTEMPTS), ..inner.limits.clone() };
    let mut answer = Err(PullError::malformed(request.reference.to_string(), "no registry to ask"));
    for session in inner.endpoints.sessions(request, &limits)? {
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
        // The name may have gone from the registry; what it meant may still be there.
        Err(PullError::NotFound { .. }) if name != record.resolved.as_str() => {
            may_read(session, record.resolved.as_str()).await
        }
        answer => answer,
    }
}

async fn may_read(session: &Session, name: &str) -> Result<(), PullError> {
    match session.head_manifest(name).await {
        // Some do not answer HEAD; what counts is the answer to a pull.
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
    fn only_who_had_it_gets_it_from_a_silent_registry() {
        let silent = || PullError::Inactive { host: "h".into(), what: "w".into(), limit: Duration::ZERO };
        let denied =
            || PullError::Denied { host: "h".into(), what: "w".into(), anonymous: false, detail: String::new() };
        let [known, other] = ["known", "other"].map(|text| Digest::sha256(text.as_bytes()));
        let access = Access::Holders(vec![known.clone()]);
        assert!(matches!(decide(&access, Some(&other), Ok(())), Ok(Verdict::Consent)));
        assert!(matches!(decide(&access, Some(&known), Err(silent())), Ok(Verdict::Grace(_))));
        assert!(decide(&access, Some(&other), Err(silent())).unwrap_err().recoverable());
        assert!(decide(&access, None, Err(silent())).unwrap_err().recoverable());
        // What was taken away is gone, also for those who had it.
        assert!(!decide(&access, Some(&known), Err(denied())).unwrap_err().recoverable());
    }
}
