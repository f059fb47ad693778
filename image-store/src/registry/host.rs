//! One host that speaks the registry protocol: its base URL, its configured headers, its HTTP clients.
//!
//! Certificates are verified unless the configuration of the registry says otherwise, and then only for this host.
//! Plain HTTP is used for loopback addresses and for hosts that are configured for it. The clients follow no redirects.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, SystemTime},
};

use reqwest::{
    Client, Url,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use rustls::pki_types::CertificateDer;
use tls::{ClientCertificate, Trust};

use super::{
    address::{is_loopback, same_origin},
    config::RegistryConfig,
    failure::chain,
    guard::{Guard, GuardedResolver},
    traffic::Traffic,
};
use crate::{
    credentials::Secret,
    error::{PullError, StoreError},
};

const USER_AGENT: &str = concat!("oci-rs/", env!("CARGO_PKG_VERSION"));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// One host that speaks the registry protocol, with its HTTP clients. Clients are made at their first use: reading the
/// certificates of the system takes milliseconds, which a plain HTTP registry does not need.
pub(crate) struct Host {
    config: RegistryConfig,
    base: Url,
    headers: HeaderMap,
    /// For the host itself.
    own: Slot,
    /// For other hosts that the host redirects to.
    foreign: Slot,
    plain: OnceLock<Client>,
    foreign_plain: OnceLock<Client>,
    /// Checks the addresses of other hosts. `None` admits all.
    guard: Option<Arc<Guard>>,
    traffic: Traffic,
}

/// A client, and the stamps of its files when they were read.
type Slot = Mutex<Option<(Stamps, Client)>>;

/// Modification time, size and inode of each certificate file; `None` for a missing file. A replaced file has another
/// stamp.
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
        let guard = Guard::of(base.clone(), config.internal_redirects);
        Ok(Arc::new(Host {
            guard,
            config,
            base,
            headers,
            own: Slot::default(),
            foreign: Slot::default(),
            plain: OnceLock::new(),
            foreign_plain: OnceLock::new(),
            traffic: Traffic::default(),
        }))
    }

    /// The name for errors and token caches.
    pub(crate) fn name(&self) -> &str {
        &self.config.host
    }

    /// The traffic with this host.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Scheme, host and port, with the path `/`.
    pub(crate) fn base(&self) -> &Url {
        &self.base
    }

    /// The headers of requests to this host itself.
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The client for a URL on this host, or for one that this host named. Refuses a URL on an internal address that
    /// this host must not name.
    pub(crate) async fn client_for(&self, url: &Url, what: &str) -> Result<Client, PullError> {
        if let Some(guard) = self.guard.as_ref().filter(|_| !self.is_own(url)) {
            let refused = |error| PullError::malformed(format!("{}: {what}", self.name()), error);
            guard.check(url).await.map_err(refused)?;
        }
        self.client(url)
    }

    /// Whether a URL is on this host.
    pub(crate) fn is_own(&self, url: &Url) -> bool {
        same_origin(url, &self.base)
    }

    /// Certificates are read again when their files have changed.
    fn client(&self, url: &Url) -> Result<Client, PullError> {
        let at_home = self.is_own(url);
        if url.scheme() == "http" {
            let slot = if at_home { &self.plain } else { &self.foreign_plain };
            if let Some(client) = slot.get() {
                return Ok(client.clone());
            }
            let client = self.build_plain(at_home)?;
            return Ok(slot.get_or_init(|| client).clone());
        }
        let slot = if at_home { &self.own } else { &self.foreign };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken before the files are read: a change during the read is then noticed at the next call.
        let stamps = self.stamps();
        match &*slot {
            Some((known, client)) if *known == stamps => return Ok(client.clone()),
            _ => {}
        }
        let client = match (self.build_tls(at_home), &*slot) {
            (Ok(client), _) => client,
            // The files may be half replaced.
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

    fn builder(&self, at_home: bool) -> reqwest::ClientBuilder {
        match self.guard.as_ref().filter(|_| !at_home) {
            Some(guard) => base_builder().dns_resolver(Arc::new(GuardedResolver(guard.clone()))),
            None => base_builder(),
        }
    }

    fn build_plain(&self, at_home: bool) -> Result<Client, StoreError> {
        let mut builder = self.builder(at_home).tls_certs_only(std::iter::empty());
        if is_loopback(&self.base) {
            builder = builder.no_proxy();
        }
        builder.build().map_err(|error| self.client_error(&error))
    }

    /// The client certificate is shown to the host itself only, and only the host itself may go unverified.
    fn build_tls(&self, at_home: bool) -> Result<Client, StoreError> {
        let listed = self.listed()?;
        let client = if at_home { self.client_certificate()? } else { None };
        let any = at_home && self.config.insecure_skip_verify;
        let trust = if any { Trust::Any } else { Trust::Verified { listed } };
        let mut config = tls::config(trust, client).map_err(|error| self.client_error(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        self.builder(at_home).tls_backend_preconfigured(config).build().map_err(|error| self.client_error(&error))
    }

    /// The certificates of `ca_file`.
    fn listed(&self) -> Result<Vec<CertificateDer<'static>>, StoreError> {
        let Some(path) = &self.config.ca_file else { return Ok(Vec::new()) };
        let wrong = |problem: String| self.file_error("ca_file", path, problem);
        let certificates = tls::certificates(&self.read("ca_file", path)?).map_err(|error| wrong(error.to_string()))?;
        if certificates.is_empty() { Err(wrong("it holds no PEM certificate".into())) } else { Ok(certificates) }
    }

    fn client_certificate(&self) -> Result<Option<ClientCertificate>, StoreError> {
        let (Some(cert), Some(key)) = (&self.config.cert_file, &self.config.key_file) else { return Ok(None) };
        let mut pem = self.read("cert_file", cert)?;
        pem.push(b'\n');
        pem.extend(self.read("key_file", key)?);
        ClientCertificate::from_pem(&pem).map(Some).map_err(|_| {
            let problem = format!("no PEM certificate, or no PEM key in key_file {}", key.display());
            self.file_error("cert_file", cert, problem)
        })
    }

    fn read(&self, option: &str, path: &Path) -> Result<Vec<u8>, StoreError> {
        std::fs::read(path).map_err(|error| self.file_error(option, path, error.to_string()))
    }

    fn file_error(&self, option: &str, path: &Path, problem: String) -> StoreError {
        let problem = format!("{option} {}: {problem}", path.display());
        StoreError::Configuration { host: self.config.host.clone(), problem }
    }

    fn client_error(&self, error: &(dyn std::error::Error + 'static)) -> StoreError {
        StoreError::Configuration {
            host: self.config.host.clone(),
            problem: format!("no HTTP client: {}; are the system's CA certificates installed?", chain(error)),
        }
    }
}

/// Checks the configuration of a registry, and that its certificate files can be used now. Contacts no host.
pub fn check_registry(config: &RegistryConfig) -> Result<(), StoreError> {
    let host = Host::new(config.clone())?;
    host.listed()?;
    host.client_certificate()?;
    Ok(())
}

/// The configured headers. Headers that this module sets itself are refused.
fn headers(configured: &[(String, Secret)]) -> Result<HeaderMap, String> {
    const RESERVED: [&str; 5] = ["authorization", "host", "range", "accept", "content-length"];
    let mut headers = HeaderMap::new();
    for (name, value) in configured {
        let wrong = |problem: &str| format!("header {name:?}: {problem}");
        let known: HeaderName = name.parse().map_err(|_| wrong("that is no header's name"))?;
        if RESERVED.contains(&known.as_str()) {
            return Err(wrong("it cannot be set here; credentials belong into auth"));
        }
        let mut value: HeaderValue = value.expose().parse().map_err(|_| wrong("its value cannot be sent"))?;
        value.set_sensitive(true);
        headers.append(known, value);
    }
    Ok(headers)
}

/// Sets the TLS provider of this process, which every client of a registry needs.
pub(crate) fn install_tls_provider() {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        tracing::trace!("a TLS provider is installed already");
    }
}

fn base_builder() -> reqwest::ClientBuilder {
    Client::builder()
        .user_agent(USER_AGENT)
        // One connection per layer, so that layers do not wait for each other.
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Duration::from_secs(30))
        .pool_idle_timeout(Duration::from_secs(60))
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
}
