//! A session with a registry: one host, one repository, one caller.
//!
//! This module sends requests: it authenticates, follows redirects and repeats failed attempts. Credentials are sent
//! only to the host that they belong to, and a request ends when nothing was received for the idle timeout of the
//! caller.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, header};

use super::{
    address::same_origin,
    auth::{self, AuthCache, Key, Plan, TokenLimits},
    challenge,
    failure::{Asked, Failure, network_failure, status_failure},
    host::Host,
    payload::Payload,
};
use crate::{
    credentials::Credentials,
    error::PullError,
    limits::Limits,
    progress::{Progress, PullEvent, Wait},
};

/// A request follows at most this many redirects.
const MAX_REDIRECTS: usize = 5;

/// One host, one repository, one caller.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) host: Arc<Host>,
    pub(crate) repository: String,
    /// The access for which a token server is asked if the registry does not say it: `pull`, or `pull,push`.
    pub(crate) actions: &'static str,
    /// The registry in the name of the image. Mirrors get it as a parameter.
    pub(crate) namespace: Option<String>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) cache: Arc<AuthCache>,
    pub(crate) limits: Limits,
    pub(crate) idle_timeout: Duration,
    /// Learns what the session waits for.
    pub(crate) progress: Arc<dyn Progress>,
}

/// One request.
pub(super) struct Ask<'a> {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) accept: Option<&'static str>,
    /// The offset of the first byte that the host shall send.
    pub(super) from: u64,
    /// The offset behind the last byte, if not all are wanted.
    pub(super) until: Option<u64>,
    /// What is sent.
    pub(super) body: Option<Payload>,
    /// What is asked for, for errors.
    pub(super) what: &'a str,
}

impl<'a> Ask<'a> {
    /// A request without a body.
    pub(super) fn new(method: Method, url: Url, what: &'a str) -> Self {
        Self { method, url, accept: None, from: 0, until: None, body: None, what }
    }
}

impl Session {
    pub(super) fn url(&self, kind: &str, name: &str) -> Result<Url, PullError> {
        let path = format!("v2/{}/{kind}/{name}", self.repository);
        let mut url = self.host.base().join(&path).map_err(|error| PullError::malformed(path, error))?;
        if let Some(namespace) = &self.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        Ok(url)
    }

    /// Nothing was received for the idle timeout.
    pub(super) fn idle(&self, what: &str) -> Failure {
        let error = PullError::IdleTimeout {
            host: self.host.name().to_owned(),
            what: what.to_owned(),
            limit: self.idle_timeout,
        };
        // No further attempt: it would double the time that the caller waits.
        Failure { error, retry: None }
    }

    /// Sends a request until the answer is a success or a final failure.
    pub(super) async fn send(&self, ask: &Ask<'_>) -> Result<Response, PullError> {
        let mut attempt = 1;
        self.waits_for(Wait::Answer { host: self.host.name().to_owned(), what: ask.what.to_owned() });
        loop {
            match self.exchange(ask).await {
                Ok(response) => return Ok(response),
                Err(Failure { retry: Some(pause), error }) if attempt < self.limits.attempts => {
                    tracing::debug!(attempt, %error, "trying again");
                    self.waits_for_retry(attempt, &error);
                    self.pause(attempt, pause).await;
                    attempt += 1;
                }
                Err(failure) => return Err(failure.error),
            }
        }
    }

    fn waits_for(&self, wait: Wait) {
        self.progress.report(PullEvent::Waiting(wait));
    }

    /// Reports that an attempt failed and that another one follows.
    pub(super) fn waits_for_retry(&self, attempt: u32, error: &PullError) {
        self.host.traffic().add_retry();
        self.waits_for(Wait::Retry { problem: error.to_string(), attempt, attempts: self.limits.attempts });
    }

    /// The pause before the next attempt. It doubles with each attempt.
    pub(super) async fn pause(&self, attempt: u32, at_least: Duration) {
        let doubled = self.limits.retry_pause * 2u32.saturating_pow(attempt - 1).min(64);
        tokio::time::sleep(doubled.max(at_least) + jitter(doubled)).await;
    }

    /// One attempt. Follows redirects, and answers a 401 once.
    pub(super) async fn exchange(&self, ask: &Ask<'_>) -> Result<Response, Failure> {
        let key: Key =
            (self.host.base().to_string(), self.repository.clone(), self.credentials.as_ref().map(auth::fingerprint));
        let mut authorization = self.cache.get(&key);
        let mut answered = false;
        loop {
            let (response, at_home) = self.follow(ask, authorization.as_deref()).await?;
            if response.status() == StatusCode::UNAUTHORIZED && at_home && !answered {
                answered = true;
                self.cache.forget(&key);
                if let Some((value, life)) = self.answer(&response, ask.what).await? {
                    self.cache.put(key.clone(), value.clone(), life);
                    authorization = Some(value);
                    continue;
                }
            }
            if response.status().is_success() {
                return Ok(response);
            }
            if response.status() == StatusCode::UNAUTHORIZED {
                self.cache.forget(&key);
            }
            let anonymous = self.credentials.is_none();
            let asked =
                Asked { host: self.host.name(), what: ask.what, anonymous, own: self.host.is_own(response.url()) };
            return Err(status_failure(&asked, response, self.idle_timeout).await);
        }
    }

    /// Answers the challenges of a 401: the new `Authorization` value and its lifetime.
    async fn answer(&self, response: &Response, what: &str) -> Result<Option<(String, Duration)>, Failure> {
        let challenges: Vec<_> = response
            .headers()
            .get_all(header::WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(challenge::parse)
            .collect();
        if let Some(answer) = auth::registry_token(&challenges, self.credentials.as_ref()) {
            return Ok(answer);
        }
        let base = self.host.base();
        let scope = format!("repository:{}:{}", self.repository, self.actions);
        let plan = auth::plan(&challenges, base, &scope, self.credentials.is_some())
            .map_err(|problem| PullError::malformed(format!("{}: {what}", self.host.name()), problem))?;
        match (plan, &self.credentials) {
            (Some(Plan::Basic), Some(credentials)) => Ok(Some((auth::basic(credentials), Duration::from_secs(3600)))),
            (Some(Plan::Bearer { realm, service, scope }), credentials) => {
                let limits = TokenLimits { bytes: self.limits.token_bytes, idle_timeout: self.idle_timeout };
                let plan = (&realm, service.as_deref(), scope.as_str());
                auth::fetch_token(&self.host, plan, credentials.as_ref(), &limits).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Sends a request and waits for the answer. While a part of its body goes out, the host is not silent.
    async fn answer_to(&self, request: RequestBuilder, sent: &AtomicU64, what: &str) -> Result<Response, Failure> {
        let mut answer = pin!(request.send());
        loop {
            let before = sent.load(Ordering::Relaxed);
            match tokio::time::timeout(self.idle_timeout, &mut answer).await {
                Ok(answer) => return answer.map_err(|error| network_failure(self.host.name(), what, error)),
                Err(_) if sent.load(Ordering::Relaxed) > before => {}
                Err(_) => return Err(self.idle(what)),
            }
        }
    }

    /// Sends a request and follows redirects. Also returns whether the answer comes from the host that may get the
    /// credentials.
    async fn follow(&self, ask: &Ask<'_>, authorization: Option<&str>) -> Result<(Response, bool), Failure> {
        let mut url = ask.url.clone();
        // An upload may continue on another host, which the registry has chosen.
        let mut at_home = self.host.is_own(&url);
        for _ in 0..=MAX_REDIRECTS {
            let client = self.host.client_for(&url, ask.what).await?;
            let mut request = client.request(ask.method.clone(), url.clone());
            if let Some(accept) = ask.accept {
                request = request.header(header::ACCEPT, accept);
            }
            if ask.from > 0 || ask.until.is_some() {
                let last = ask.until.map(|until| until.saturating_sub(1).to_string()).unwrap_or_default();
                request = request.header(header::RANGE, format!("bytes={}-{last}", ask.from));
            }
            if at_home {
                request = request.headers(self.host.headers().clone());
            }
            if let (true, Some(value)) = (at_home, authorization) {
                request = request.header(header::AUTHORIZATION, value);
            }
            let sent = Arc::new(AtomicU64::new(0));
            if let Some(body) = &ask.body {
                request = body.attach(request, &sent);
            }
            self.host.traffic().add_request();
            let response = self.answer_to(request, &sent, ask.what).await?;
            let redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let (true, Some(location)) = (redirect, location) else { return Ok((response, at_home)) };
            let next = next_hop(&url, location)
                .map_err(|problem| PullError::malformed(format!("{}: {}", self.host.name(), ask.what), problem))?;
            // A redirect back from another host does not count as the own host: the other host chose the URL.
            at_home = at_home && same_origin(&url, &next);
            url = next;
        }
        let problem = format!("more than {MAX_REDIRECTS} redirects");
        Err(PullError::malformed(format!("{}: {}", self.host.name(), ask.what), problem).into())
    }
}

/// The target of a redirect, or where an upload continues, if it may be followed. Pure.
pub(super) fn next_hop(from: &Url, location: &str) -> Result<Url, String> {
    let mut next = from.join(location).map_err(|error| format!("a redirect to no URL: {error}"))?;
    match (from.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => {}
        (_, scheme) => return Err(format!("a redirect from https to {scheme} is refused")),
    }
    let cleared = next.set_username("").and_then(|()| next.set_password(None));
    cleared.map_err(|()| "a redirect to a URL without a host".to_owned())?;
    Ok(next)
}

/// Up to a quarter of a pause, so that many nodes do not repeat a request at the same time. The low bits of the clock
/// are random enough.
fn jitter(pause: Duration) -> Duration {
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    pause / 4 * (nanos % 100) / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_never_leave_tls_and_lose_user_info() {
        let from: Url = "https://r.example/v2/a/blobs/x".parse().unwrap();
        assert_eq!(next_hop(&from, "/other?sig=1").unwrap().as_str(), "https://r.example/other?sig=1");
        assert_eq!(next_hop(&from, "https://u:p@cdn.example/x").unwrap().as_str(), "https://cdn.example/x");
        assert!(next_hop(&from, "http://cdn.example/x").is_err());
        assert!(next_hop(&from, "file:///etc/passwd").is_err());
        let plain: Url = "http://127.0.0.1/".parse().unwrap();
        assert!(next_hop(&plain, "http://127.0.0.1:99/x").is_ok());
    }
}
