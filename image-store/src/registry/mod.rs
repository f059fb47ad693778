//! Talking to registries: requests that authenticate, follow redirects, retry and stay bounded.
//!
//! A [`Session`] is one host, one repository, one caller. Every body has a ceiling before it is read, credentials leave only for
//! the host that they belong to, and silence ends a request after the caller's inactivity limit.

pub(crate) mod auth;
pub(crate) mod challenge;
mod endpoints;
pub(crate) mod transport;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::{Buf, Bytes};
use layer::{buffers::Buffers, stream::Piece};
use reqwest::{Method, Response, StatusCode, Url, header};
use tokio::sync::mpsc;

use crate::{
    config::{Credentials, Limits},
    digest::Digest,
    error::PullError,
    manifest::{self, Descriptor},
    progress::Meter,
};
pub(crate) use endpoints::Endpoints;

use auth::{AuthCache, Key, Plan, TokenLimits};
use transport::{Failure, Host};

const MAX_REDIRECTS: usize = 5;
/// A body that breaks again and again must have brought this much in between.
const WORTHWHILE: u64 = 1 << 20;

/// One caller's conversation with one host about one repository.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) host: Arc<Host>,
    pub(crate) repository: String,
    /// The registry the image is named after, told to mirrors.
    pub(crate) namespace: Option<String>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) cache: Arc<AuthCache>,
    pub(crate) limits: Limits,
    pub(crate) inactivity: Duration,
}

/// Where a blob goes.
pub(crate) struct Sink<'a> {
    pub(crate) pieces: &'a mpsc::Sender<Piece>,
    pub(crate) meter: &'a Meter,
    pub(crate) buffers: Buffers,
}

struct Ask<'a> {
    method: Method,
    url: Url,
    accept: Option<&'static str>,
    from: u64,
    what: &'a str,
}

impl Session {
    fn url(&self, kind: &str, name: &str) -> Result<Url, PullError> {
        let path = format!("v2/{}/{kind}/{name}", self.repository);
        let mut url = self.host.base().join(&path).map_err(|error| PullError::malformed(path, error))?;
        if let Some(namespace) = &self.namespace {
            url.query_pairs_mut().append_pair("ns", namespace);
        }
        Ok(url)
    }

    /// The digest that a tag has now, if the registry tells it without sending the manifest.
    pub(crate) async fn head_manifest(&self, name: &str) -> Result<Option<Digest>, PullError> {
        let what = format!("manifest {}:{name}", self.repository);
        let url = self.url("manifests", name)?;
        let ask = Ask { method: Method::HEAD, url, accept: Some(manifest::ACCEPT), from: 0, what: &what };
        let response = self.send(&ask).await?;
        let digest = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        Ok(digest.and_then(|text| text.parse().ok()))
    }

    /// A manifest or index by tag or digest, verified when by digest.
    pub(crate) async fn manifest(&self, name: &str) -> Result<(Bytes, Digest), PullError> {
        let what = format!("manifest {}:{name}", self.repository);
        let expected = name.parse::<Digest>().ok();
        let url = self.url("manifests", name)?;
        let ask = Ask { method: Method::GET, url, accept: Some(manifest::ACCEPT), from: 0, what: &what };
        let bytes = self.small(&ask).await?;
        match expected {
            Some(expected) => {
                verify(&what, &expected, &bytes)?;
                Ok((bytes, expected))
            }
            None => {
                let digest = Digest::sha256(&bytes);
                Ok((bytes, digest))
            }
        }
    }

    /// A small blob (the config), verified.
    pub(crate) async fn small_blob(&self, descriptor: &Descriptor) -> Result<Bytes, PullError> {
        let what = format!("blob {}@{}", self.repository, descriptor.digest);
        if descriptor.size > self.limits.document_bytes {
            return Err(too_large(&what, self.limits.document_bytes));
        }
        let url = self.url("blobs", descriptor.digest.as_str())?;
        let bytes = self.small(&Ask { method: Method::GET, url, accept: None, from: 0, what: &what }).await?;
        if bytes.len() as u64 != descriptor.size {
            return Err(wrong_size(&what, descriptor.size, bytes.len() as u64));
        }
        verify(&what, &descriptor.digest, &bytes)?;
        Ok(bytes)
    }

    /// A whole body under the document limit. A body that breaks is asked for again.
    async fn small(&self, ask: &Ask<'_>) -> Result<Bytes, PullError> {
        let mut attempt = 1;
        loop {
            let response = self.send(ask).await?;
            let limit = self.limits.document_bytes;
            match read_bounded(response, limit, self.host.name(), ask.what, self.inactivity).await {
                Ok(bytes) => return Ok(bytes),
                Err(Failure { retry: Some(pause), .. }) if attempt < self.limits.attempts => {
                    self.pause(attempt, pause).await;
                    attempt += 1;
                }
                Err(failure) => return Err(failure.error),
            }
        }
    }

    /// Streams a blob from `*offset` on into `sink`; a broken connection is resumed where it broke. `*offset` counts what was
    /// handed over, so that another session can go on after an error.
    pub(crate) async fn stream_blob(
        &self,
        descriptor: &Descriptor,
        offset: &mut u64,
        sink: &Sink<'_>,
    ) -> Result<(), PullError> {
        let what = format!("blob {}@{}", self.repository, descriptor.digest);
        let url = self.url("blobs", descriptor.digest.as_str())?;
        let mut failures = 0;
        loop {
            let ask = Ask { method: Method::GET, url: url.clone(), accept: None, from: *offset, what: &what };
            let before = *offset;
            let response = self.send(&ask).await?;
            let failure = match self.drain(response, descriptor, offset, &what, sink).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            if failure.retry.is_none() {
                return Err(failure.error);
            }
            if *offset - before >= WORTHWHILE {
                failures = 0;
            }
            failures += 1;
            if failures >= self.limits.attempts {
                return Err(failure.error);
            }
            tracing::debug!(host = self.host.name(), %what, offset, "the transfer broke, resuming");
            self.pause(failures, Duration::ZERO).await;
        }
    }

    async fn drain(
        &self,
        mut response: Response,
        descriptor: &Descriptor,
        offset: &mut u64,
        what: &str,
        sink: &Sink<'_>,
    ) -> Result<(), Failure> {
        let mut skip = self.position(&response, descriptor, *offset, what)?;
        loop {
            let chunk = tokio::time::timeout(self.inactivity, response.chunk())
                .await
                .map_err(|_| self.silence(what))?
                .map_err(|error| transport::network_failure(self.host.name(), what, error))
                // The client calls a body that ends early a decoding problem.
                .map_err(|failure| Failure { retry: Some(Duration::ZERO), ..failure })?;
            let Some(mut chunk) = chunk else { break };
            let skipped = skip.min(chunk.len() as u64);
            skip -= skipped;
            chunk.advance(usize::try_from(skipped).unwrap_or(chunk.len()));
            if chunk.is_empty() {
                continue;
            }
            let next = *offset + chunk.len() as u64;
            if next > descriptor.size {
                return Err(wrong_size(what, descriptor.size, next).into());
            }
            // Copied whole before anything is waited for: the connection reads what comes next into the memory that this was in,
            // and takes new memory for it while a part of this is still held.
            let mut filled = Vec::new();
            while !chunk.is_empty() {
                let mut buffer = sink.buffers.take();
                chunk.advance(buffer.copy(&chunk));
                filled.push(buffer);
            }
            drop(chunk);
            for buffer in filled {
                let length = buffer.as_ref().len() as u64;
                if sink.pieces.send(Piece::Data(Bytes::from_owner(buffer))).await.is_err() {
                    let problem = "the unpacker stopped reading".to_owned();
                    let host = self.host.name().to_owned();
                    return Err(PullError::Network { host, what: what.to_owned(), problem }.into());
                }
                sink.meter.add_bytes(length);
                *offset += length;
            }
        }
        if *offset == descriptor.size {
            return Ok(());
        }
        let problem = format!("the body ended after {} of {} bytes", *offset, descriptor.size);
        let error = PullError::Network { host: self.host.name().to_owned(), what: what.to_owned(), problem };
        Err(Failure { error, retry: Some(Duration::ZERO) })
    }

    /// How many bytes of this response we already have.
    fn position(
        &self,
        response: &Response,
        descriptor: &Descriptor,
        offset: u64,
        what: &str,
    ) -> Result<u64, PullError> {
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
            return match range.and_then(parse_content_range) {
                Some((start, total)) if start == offset && total.is_none_or(|total| total == descriptor.size) => Ok(0),
                _ => Err(PullError::malformed(what, format!("asked for bytes from {offset} on, got {range:?}"))),
            };
        }
        match response.content_length() {
            Some(length) if length != descriptor.size => Err(wrong_size(what, descriptor.size, length)),
            _ => Ok(offset),
        }
    }

    fn silence(&self, what: &str) -> Failure {
        let error =
            PullError::Inactive { host: self.host.name().to_owned(), what: what.to_owned(), limit: self.inactivity };
        // The caller's patience is used up: another try would double it.
        Failure { error, retry: None }
    }

    /// Sends until the answer is a success or final.
    async fn send(&self, ask: &Ask<'_>) -> Result<Response, PullError> {
        let mut attempt = 1;
        loop {
            match self.exchange(ask).await {
                Ok(response) => return Ok(response),
                Err(Failure { retry: Some(pause), error }) if attempt < self.limits.attempts => {
                    tracing::debug!(attempt, %error, "trying again");
                    self.pause(attempt, pause).await;
                    attempt += 1;
                }
                Err(failure) => return Err(failure.error),
            }
        }
    }

    async fn pause(&self, attempt: u32, at_least: Duration) {
        let doubled = self.limits.retry_pause * 2u32.saturating_pow(attempt - 1).min(64);
        tokio::time::sleep(doubled.max(at_least) + jitter(doubled)).await;
    }

    /// One try: redirects followed, a 401 answered once.
    async fn exchange(&self, ask: &Ask<'_>) -> Result<Response, Failure> {
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
            return Err(
                transport::status_failure(self.host.name(), ask.what, response, anonymous, self.inactivity).await
            );
        }
    }

    /// Answers the challenges of a 401: the `Authorization` value to use from now on and how long it lasts.
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
        let plan = auth::plan(&challenges, base, &self.repository, self.credentials.is_some())
            .map_err(|problem| PullError::malformed(format!("{}: {what}", self.host.name()), problem))?;
        match (plan, &self.credentials) {
            (Some(Plan::Basic), Some(credentials)) => Ok(Some((auth::basic(credentials), Duration::from_secs(3600)))),
            (Some(Plan::Bearer { realm, service, scope }), credentials) => {
                let limits = TokenLimits { bytes: self.limits.token_bytes, inactivity: self.inactivity };
                let plan = (&realm, service.as_deref(), scope.as_str());
                auth::fetch_token(&self.host, plan, credentials.as_ref(), &limits).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Sends and follows redirects. Says also whether the answer came from where the credentials belong.
    async fn follow(&self, ask: &Ask<'_>, authorization: Option<&str>) -> Result<(Response, bool), Failure> {
        let mut url = ask.url.clone();
        let mut at_home = true;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.host.client(&url)?.request(ask.method.clone(), url.clone());
            if let Some(accept) = ask.accept {
                request = request.header(header::ACCEPT, accept);
            }
            if ask.from > 0 {
                request = request.header(header::RANGE, format!("bytes={}-", ask.from));
            }
            if at_home {
                request = request.headers(self.host.headers().clone());
            }
            if let (true, Some(value)) = (at_home, authorization) {
                request = request.header(header::AUTHORIZATION, value);
            }
            let response = tokio::time::timeout(self.inactivity, request.send())
                .await
                .map_err(|_| self.silence(ask.what))?
                .map_err(|error| transport::network_failure(self.host.name(), ask.what, error))?;
            let redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let (true, Some(location)) = (redirect, location) else { return Ok((response, at_home)) };
            let next = next_hop(&url, location)
                .map_err(|problem| PullError::malformed(format!("{}: {}", self.host.name(), ask.what), problem))?;
            // Once away from home, a redirect back is not home either: somebody else chose that URL.
            at_home = at_home && transport::same_origin(&url, &next);
            url = next;
        }
        let problem = format!("more than {MAX_REDIRECTS} redirects");
        Err(PullError::malformed(format!("{}: {}", self.host.name(), ask.what), problem).into())
    }
}

/// Where a redirect leads, if it may be followed. Pure.
fn next_hop(from: &Url, location: &str) -> Result<Url, String> {
    let mut next = from.join(location).map_err(|error| format!("a redirect to no URL: {error}"))?;
    match (from.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => {}
        (_, scheme) => return Err(format!("a redirect from https to {scheme} is refused")),
    }
    let cleared = next.set_username("").and_then(|()| next.set_password(None));
    cleared.map_err(|()| "a redirect to a URL without a host".to_owned())?;
    Ok(next)
}

/// `bytes 5-9/10` → (5, 10).
fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((start, total))
}

/// Up to a quarter more, so that many nodes do not come back in step. The clock's low bits are random enough for that.
fn jitter(pause: Duration) -> Duration {
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    pause / 4 * (nanos % 100) / 100
}

/// A body of at most `limit` bytes.
pub(crate) async fn read_bounded(
    mut response: Response,
    limit: u64,
    host: &str,
    what: &str,
    inactivity: Duration,
) -> Result<Bytes, Failure> {
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large(what, limit).into());
    }
    let mut bytes = Vec::new();
    loop {
        let silent = || PullError::Inactive { host: host.to_owned(), what: what.to_owned(), limit: inactivity };
        let chunk =
            tokio::time::timeout(inactivity, response.chunk()).await.map_err(|_| Failure::from(silent()))?.map_err(
                |error| Failure { retry: Some(Duration::ZERO), ..transport::network_failure(host, what, error) },
            )?;
        let Some(chunk) = chunk else { return Ok(bytes.into()) };
        if bytes.len() as u64 + chunk.len() as u64 > limit {
            return Err(too_large(what, limit).into());
        }
        bytes.extend_from_slice(&chunk);
    }
}

fn verify(what: &str, expected: &Digest, bytes: &[u8]) -> Result<(), PullError> {
    let mut hasher = crate::digest::Hasher::new(expected.algorithm());
    hasher.update(bytes);
    let actual = hasher.finish();
    if actual == *expected {
        return Ok(());
    }
    Err(PullError::DigestMismatch { what: what.to_owned(), expected: expected.clone(), actual })
}

fn too_large(what: &str, limit: u64) -> PullError {
    PullError::TooLarge { what: what.to_owned(), limit: format!("{limit} bytes") }
}

fn wrong_size(what: &str, expected: u64, actual: u64) -> PullError {
    PullError::malformed(what, format!("its size is {expected} bytes by the manifest, but at least {actual} arrived"))
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

    #[test]
    fn content_ranges() {
        assert_eq!(parse_content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((5, None)));
        assert_eq!(parse_content_range("bytes */10"), None);
        assert_eq!(parse_content_range("5-9/10"), None);
    }
}
