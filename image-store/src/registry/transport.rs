//! One HTTP exchange with a registry: which client, which host, redirects, and what a status means.
//!
//! Certificates are verified unless the registry's own configuration says otherwise, and then only for that very host. Plain
//! HTTP is spoken to loopback addresses and to hosts configured for it. Redirects are followed by [`super::Session`], never by
//! the client.

use std::{
    net::IpAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use reqwest::{
    Client, Response, StatusCode, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde::Deserialize;

use crate::{
    config::{RegistryConfig, Secret},
    error::{PullError, StoreError},
};

const USER_AGENT: &str = concat!("oci-rs/", env!("CARGO_PKG_VERSION"));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Enough of an error page to find the registry's message in it.
const ERROR_BYTES: u64 = 16 << 10;

/// One host that speaks the registry protocol, and the clients to reach it with. Clients are made when first needed: reading
/// the system's certificates takes milliseconds that a plain HTTP registry need not pay.
pub(crate) struct Host {
    config: RegistryConfig,
    base: Url,
    headers: HeaderMap,
    own: Slot,
    foreign: Slot,
    plain: OnceLock<Client>,
}

/// A client, and what its files were like when they were read.
type Slot = Mutex<Option<(Stamps, Client)>>;

/// What tells a file from what stood there before: when it was written, its size and its inode. `None`: it is not there.
type Stamps = Vec<Option<(SystemTime, u64, u64)>>;

impl Host {
    pub(crate) fn new(config: RegistryConfig) -> Result<Arc<Host>, StoreError> {
        let name = match config.host.as_str() {
            "docker.io" => "registry-1.docker.io",
            other => other,
        };
        let parse = |scheme: &str| Url::parse(&format!("{scheme}://{name}/"));
        let wrong = |problem: String| StoreError::Configuration { host: config.host.clone(), problem };
        let https = parse("https").map_err(|error| wrong(error.to_string()))?;
        let base = if config.plain_http || (is_loopback(&https) && !config.wants_tls()) {
            parse("http").map_err(|error| wrong(error.to_string()))?
        } else {
            https
        };
        if base.path() != "/" || base.query().is_some() || !base.username().is_empty() {
            return Err(wrong("a host with an optional port is expected, without a path or a user".into()));
        }
        if config.cert_file.is_some() != config.key_file.is_some() {
            return Err(wrong("cert_file and key_file must be given together".into()));
        }
        let headers = headers(&config.headers).map_err(wrong)?;
        Ok(Arc::new(Host {
            config,
            base,
            headers,
            own: Slot::default(),
            foreign: Slot::default(),
            plain: OnceLock::new(),
        }))
    }

    /// The name that errors and token caches use.
    pub(crate) fn name(&self) -> &str {
        &self.config.host
    }

    /// Scheme, host and port, with the path `/`.
    pub(crate) fn base(&self) -> &Url {
        &self.base
    }

    /// Headers for requests to this host itself.
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The client for a URL that this host named, itself included. Certificates are read again when their files have changed.
    pub(crate) fn client(&self, url: &Url) -> Result<Client, PullError> {
        if url.scheme() == "http" {
            if let Some(client) = self.plain.get() {
                return Ok(client.clone());
            }
            let client = self.build_plain()?;
            return Ok(self.plain.get_or_init(|| client).clone());
        }
        let at_home = same_origin(url, &self.base);
        let slot = if at_home { &self.own } else { &self.foreign };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        // Before they are read: what changes meanwhile is then seen the next time.
        let stamps = self.stamps();
        match &*slot {
            Some((known, client)) if *known == stamps => return Ok(client.clone()),
            _ => {}
        }
        let client = match (self.build_tls(at_home), &*slot) {
            (Ok(client), _) => client,
            // Somebody may be in the middle of replacing them.
            (Err(error), Some((_, client))) => {
                tracing::warn!(%error, "going on with the certificates read before");
                return Ok(client.clone());
            }
            (Err(error), None) => return Err(error.into()),
        };
        *slot = Some((stamps, client.clone()));
        Ok(client)
    }

    fn stamps(&self) -> Stamps {
        let files = [&self.config.ca_file, &self.config.cert_file, &self.config.key_file];
        let stamp = |path: &PathBuf| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.modified().ok()?, meta.len(), meta.ino()))
        };
        files.into_iter().flatten().map(stamp).collect()
    }

    fn build_plain(&self) -> Result<Client, StoreError> {
        let mut builder = base_builder().tls_certs_only(std::iter::empty());
        if is_loopback(&self.base) {
            builder = builder.no_proxy();
        }
        builder.build().map_err(|error| self.client_error(&error))
    }

    /// Only the host itself is shown our certificate, and only it may go unverified.
    fn build_tls(&self, at_home: bool) -> Result<Client, StoreError> {
        let mut builder = base_builder();
        if let Some(path) = &self.config.ca_file {
            let wrong = |problem: String| self.file_error("ca_file", path, problem);
            let pem = self.read("ca_file", path)?;
            let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.to_string()))?;
            if certificates.is_empty() {
                return Err(wrong("it holds no PEM certificate".into()));
            }
            builder = builder.tls_certs_merge(certificates);
        }
        if let (true, Some(cert), Some(key)) = (at_home, &self.config.cert_file, &self.config.key_file) {
            let mut pem = self.read("cert_file", cert)?;
            pem.push(b'\n');
            pem.extend(self.read("key_file", key)?);
            let identity = reqwest::Identity::from_pem(&pem).map_err(|_| {
                let problem = format!("no PEM certificate, or no PEM key in key_file {}", key.display());
                self.file_error("cert_file", cert, problem)
            })?;
            builder = builder.identity(identity);
        }
        if at_home && self.config.insecure_skip_verify {
            builder = builder.tls_danger_accept_invalid_certs(true);
        }
        builder.build().map_err(|error| self.client_error(&error))
    }

    fn read(&self, option: &str, path: &Path) -> Result<Vec<u8>, StoreError> {
        std::fs::read(path).map_err(|error| self.file_error(option, path, error.to_string()))
    }

    fn file_error(&self, option: &str, path: &Path, problem: String) -> StoreError {
        let problem = format!("{option} {}: {problem}", path.display());
        StoreError::Configuration { host: self.config.host.clone(), problem }
    }

    fn client_error(&self, error: &reqwest::Error) -> StoreError {
        StoreError::Configuration {
            host: self.config.host.clone(),
            problem: format!("no HTTP client: {}; are the system's CA certificates installed?", chain(error)),
        }
    }
}

/// Configured headers, none of which may carry what the store itself decides on.
fn headers(configured: &[(String, Secret)]) -> Result<HeaderMap, String> {
    const OURS: [&str; 5] = ["authorization", "host", "range", "accept", "content-length"];
    let mut headers = HeaderMap::new();
    for (name, value) in configured {
        let wrong = |problem: &str| format!("header {name:?}: {problem}");
        let known: HeaderName = name.parse().map_err(|_| wrong("that is no header's name"))?;
        if OURS.contains(&known.as_str()) {
            return Err(wrong("it cannot be set here; credentials belong into auth"));
        }
        let mut value: HeaderValue = value.expose().parse().map_err(|_| wrong("its value cannot be sent"))?;
        value.set_sensitive(true);
        headers.append(known, value);
    }
    Ok(headers)
}

fn base_builder() -> reqwest::ClientBuilder {
    Client::builder()
        .user_agent(USER_AGENT)
        // One connection per layer: they do not wait for each other.
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Duration::from_secs(30))
        .pool_idle_timeout(Duration::from_secs(60))
}

/// Same scheme, host and port.
pub(crate) fn same_origin(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme() && a.host() == b.host() && a.port_or_known_default() == b.port_or_known_default()
}

/// Whether the host is this machine, by name or address.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Whether the host is an address literal that only means something inside somebody's network.
pub(crate) fn is_internal(url: &Url) -> bool {
    let address: IpAddr = match url.host() {
        Some(url::Host::Ipv4(address)) => address.into(),
        Some(url::Host::Ipv6(address)) => address.to_canonical(),
        _ => return is_loopback(url),
    };
    match address {
        IpAddr::V4(v4) => {
            v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_multicast()
                || v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
        }
    }
}

/// An error with its causes, without the URL (which may carry a signature).
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// What a failed exchange means for trying again.
pub(crate) struct Failure {
    pub(crate) error: PullError,
    /// `None`: trying again is pointless. `Some(pause)`: at least so long.
    pub(crate) retry: Option<Duration>,
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        Failure { error, retry: None }
    }
}

/// Judges an error of the HTTP client.
pub(crate) fn network_failure(host: &str, what: &str, error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let hopeless = error.is_builder() || error.is_decode() || is_certificate_problem(&error);
    Failure {
        error: PullError::Network { host: host.to_owned(), what: what.to_owned(), problem: chain(&error) },
        retry: (!hopeless).then_some(Duration::ZERO),
    }
}

fn is_certificate_problem(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
        let tls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()).or_else(|| error.downcast_ref());
        if matches!(tls, Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Judges a status that is no success. Reads a little of the body for the registry's own words.
pub(crate) async fn status_failure(
    host: &str,
    what: &str,
    response: Response,
    anonymous: bool,
    inactivity: Duration,
) -> Failure {
    let status = response.status();
    let retry = match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Some(retry_after(&response)),
        StatusCode::INTERNAL_SERVER_ERROR
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Some(retry_after(&response)),
        _ => None,
    };
    let body = read_some(response, ERROR_BYTES, inactivity.min(Duration::from_secs(10))).await;
    let detail = registry_message(&body);
    let (host, what) = (host.to_owned(), what.to_owned());
    let error = match status {
        StatusCode::NOT_FOUND => PullError::NotFound { host, what, detail },
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => PullError::Denied { host, what, anonymous, detail },
        status => PullError::Status { host, what, status: status.as_u16(), detail },
    };
    Failure { error, retry }
}

/// `Retry-After` in seconds, at most a minute.
fn retry_after(response: &Response) -> Duration {
    let header = response.headers().get(reqwest::header::RETRY_AFTER);
    let seconds = header.and_then(|value| value.to_str().ok()).and_then(|text| text.trim().parse::<u64>().ok());
    Duration::from_secs(seconds.unwrap_or(0).min(60))
}

/// Up to `limit` bytes of a body that nobody depends on.
async fn read_some(mut response: Response, limit: u64, patience: Duration) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(Ok(Some(chunk))) = tokio::time::timeout(patience, response.chunk()).await {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 >= limit {
            break;
        }
    }
    bytes
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    errors: Vec<ErrorItem>,
}

#[derive(Deserialize)]
struct ErrorItem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// The registry's own words, led by ": " and stripped of what could confuse a terminal; empty if it said nothing.
fn registry_message(body: &[u8]) -> String {
    let Ok(ErrorBody { errors }) = serde_json::from_slice(body) else { return String::new() };
    let Some(first) = errors.into_iter().next() else { return String::new() };
    let text = if first.message.is_empty() { first.code } else { first.message };
    let text: String = text.chars().filter(|c| !c.is_control()).take(200).collect();
    if text.is_empty() { text } else { format!(": {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, plain_http: bool) -> Result<Arc<Host>, StoreError> {
        Host::new(RegistryConfig { host: name.into(), plain_http, ..Default::default() })
    }

    #[test]
    fn plain_http_only_when_configured_or_loopback() {
        for (name, plain, expected) in [
            ("docker.io", false, "https://registry-1.docker.io/"),
            ("registry.example:5000", false, "https://registry.example:5000/"),
            ("registry.example:5000", true, "http://registry.example:5000/"),
            ("localhost:5000", false, "http://localhost:5000/"),
            ("127.1.2.3:5000", false, "http://127.1.2.3:5000/"),
            ("[::1]:5000", false, "http://[::1]:5000/"),
            ("10.0.0.1:5000", false, "https://10.0.0.1:5000/"),
            ("127.0.0.1.example", false, "https://127.0.0.1.example/"),
        ] {
            assert_eq!(host(name, plain).unwrap().base().as_str(), expected);
        }
    }

    #[test]
    fn refuses_hosts_with_more_than_a_host() {
        for bad in ["user@host", "host/path", "host?x", "a b"] {
            assert!(host(bad, false).is_err(), "{bad}");
        }
    }

    #[test]
    fn knows_internal_addresses() {
        for (url, internal) in [
            ("https://10.1.2.3/", true),
            ("https://169.254.169.254/", true),
            ("https://[fe80::1]/", true),
            ("https://[::ffff:127.0.0.1]/", true),
            ("https://localhost/", true),
            ("https://8.8.8.8/", false),
            ("https://auth.docker.io/", false),
        ] {
            assert_eq!(is_internal(&url.parse().unwrap()), internal, "{url}");
        }
    }

    #[test]
    fn registry_messages_are_cleaned() {
        let body = br#"{"errors":[{"code":"DENIED","message":"no\u001b[31m entry"}]}"#;
        assert_eq!(registry_message(body), ": no[31m entry");
        assert_eq!(registry_message(b"<html>"), "");
    }
}
