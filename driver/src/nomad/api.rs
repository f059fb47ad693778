//! Requests to the HTTP API of a Nomad agent. Only GET requests are sent. The token and other secrets are in no error
//! text.

use std::{
    fmt, fs, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::{
    Certificate, Client, ClientBuilder, Identity, RequestBuilder, Response, StatusCode, Url, header::HeaderValue,
    redirect::Policy,
};
use serde_json::Value as Json;

use super::job::text;
use crate::error::with_causes;

/// The number of jobs that are read at the same time.
const PARALLEL: usize = 8;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for a whole answer that is not a stream.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time without a byte. An agent sends one on each stream every 30 seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Where an agent is, and how to speak to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApiSettings {
    /// `http://…`, `https://…` or `unix://…`.
    pub address: String,
    /// The region; `None` is that of the agent.
    pub region: Option<String>,
    /// The ACL token.
    pub token: Option<String>,
    /// User name and password for a proxy in front of the API.
    pub http_auth: Option<String>,
    /// File with the certificate authorities.
    pub ca_cert: Option<PathBuf>,
    /// Directory with such files.
    pub ca_path: Option<PathBuf>,
    /// File with the client's certificate.
    pub client_cert: Option<PathBuf>,
    /// File with its key.
    pub client_key: Option<PathBuf>,
    /// The name in the agent's certificate, if it is not the address.
    pub server_name: Option<String>,
    /// Accept any certificate.
    pub skip_verify: bool,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiError {
    /// The agent answered with this status.
    Status(u16, String),
    /// There was no usable answer.
    Failed(String),
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Status(_, text) | Self::Failed(text)) = self;
        f.write_str(text)
    }
}

/// An answer with the index of the state that it shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The document.
    pub json: Json,
    /// The index.
    pub index: u64,
}

/// An address of the API.
#[derive(Debug, PartialEq)]
struct Endpoint {
    base: Url,
    /// The unix socket on which the API listens.
    socket: Option<PathBuf>,
    /// User name and password that the address holds.
    user: Option<(String, Option<String>)>,
}

impl Endpoint {
    fn parse(address: &str) -> Result<Self, String> {
        if let Some(path) = address.strip_prefix("unix://") {
            let base = Url::parse("http://localhost/").map_err(|error| error.to_string())?;
            return Ok(Self { base, socket: Some(PathBuf::from(path)), user: None });
        }
        let wrong =
            || "the address is not that of an agent: write it as in \"https://nomad.example:4646\" or \"unix:///path\"";
        let mut base = Url::parse(address).map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") || base.cannot_be_a_base() {
            return Err(wrong().to_owned());
        }
        let password = base.password().map(str::to_owned);
        let user = Some(base.username().to_owned()).filter(|name| !name.is_empty()).map(|name| (name, password));
        // An address that can be a base can have no user.
        let cleared = base.set_username("").and_then(|()| base.set_password(None));
        cleared.map_err(|()| wrong())?;
        Ok(Self { base, socket: None, user })
    }
}

/// A client of the API.
pub struct Api {
    /// The address without user name and password.
    name: String,
    client: Client,
    base: Url,
    region: Option<String>,
    token: Option<HeaderValue>,
    user: Option<(String, Option<String>)>,
}

impl Api {
    /// A client. Reads the files of certificates, and looks up the address if it is needed here.
    pub fn new(settings: &ApiSettings) -> Result<Self, String> {
        let Endpoint { mut base, socket, user } = Endpoint::parse(&settings.address)?;
        if rustls::crypto::ring::default_provider().install_default().is_err() {
            tracing::trace!("a TLS provider is installed already");
        }
        let name = socket.as_ref().map_or_else(|| base.to_string(), |path| format!("unix://{}", path.display()));
        // The token must not reach another host.
        let builder = Client::builder().redirect(Policy::none());
        let mut builder = with_tls(builder.connect_timeout(CONNECT_TIMEOUT).read_timeout(IDLE_TIMEOUT), settings)?;
        if is_loopback(&base) {
            builder = builder.no_proxy();
        }
        if let Some(socket) = socket {
            builder = builder.unix_socket(socket);
        } else if let Some(server) = &settings.server_name {
            // The certificate is checked for the name in the URL.
            let addresses = resolve(&base).map_err(|error| error.to_string())?;
            base.set_host(Some(server)).map_err(|error| format!("the server name {server:?}: {error}"))?;
            builder = builder.resolve_to_addrs(server, &addresses);
        }
        let from_variable = settings.http_auth.as_deref().map(|auth| match auth.split_once(':') {
            Some((name, password)) => (name.to_owned(), Some(password.to_owned())),
            None => (auth.to_owned(), None),
        });
        Ok(Self {
            name,
            client: builder.build().map_err(|error| with_causes(&error))?,
            base,
            region: settings.region.clone(),
            token: settings.token.as_deref().map(secret).transpose()?,
            user: from_variable.or(user),
        })
    }

    /// The address without user name and password.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The list of the jobs of a namespace, `*` for all, in the short form of the API.
    pub async fn list_jobs(&self, namespace: &str) -> Result<Answer, ApiError> {
        let path = ["v1", "jobs"];
        let list = self.get(&path, &[("namespace", namespace)]).await?;
        list.ok_or_else(|| ApiError::Failed("/v1/jobs: not found; is this the API of a Nomad agent?".to_owned()))
    }

    /// The whole jobs of some entries of a list. Those that were removed meanwhile are left out.
    pub async fn read_jobs(&self, entries: &[Json]) -> Result<Vec<Json>, ApiError> {
        let read = |entry: &Json| {
            let (id, namespace) = (text(entry, "ID").to_owned(), text(entry, "Namespace").to_owned());
            async move { self.get(&["v1", "job", &id], &[("namespace", &namespace)]).await }
        };
        let jobs: Vec<Option<Answer>> = stream::iter(entries).map(read).buffered(PARALLEL).try_collect().await?;
        Ok(jobs.into_iter().flatten().map(|answer| answer.json).collect())
    }

    /// An answer. `None` if there is no such object, such as a job that was removed meanwhile.
    pub async fn get(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Option<Answer>, ApiError> {
        let name = path.join("/");
        let sent = self.request(path, query)?.timeout(TIMEOUT).send().await;
        let response = match checked(&name, sent).await {
            Err(ApiError::Status(status, _)) if status == StatusCode::NOT_FOUND => return Ok(None),
            response => response?,
        };
        let index = response.headers().get("x-nomad-index").and_then(|value| value.to_str().ok()?.parse().ok());
        let body = response.text().await.map_err(|error| failed(&name, with_causes(&error.without_url())))?;
        let json = serde_json::from_str(&body).map_err(|error| failed(&name, format!("no JSON: {error}")))?;
        Ok(Some(Answer { json, index: index.unwrap_or(0) }))
    }

    /// An answer without an end. It fails if no byte arrives for a longer time than agents are silent.
    pub async fn stream(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Response, ApiError> {
        let sent = self.request(path, query)?.send().await;
        checked(&path.join("/"), sent).await
    }

    fn request(&self, path: &[&str], query: &[(&str, &str)]) -> Result<RequestBuilder, ApiError> {
        let mut url = self.base.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => drop(segments.pop_if_empty().extend(path)),
            Err(()) => return Err(ApiError::Failed("the address is not that of an agent".to_owned())),
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        if let Some(region) = &self.region {
            url.query_pairs_mut().append_pair("region", region);
        }
        let mut request = self.client.get(url);
        if let Some(token) = &self.token {
            request = request.header("X-Nomad-Token", token.clone());
        }
        if let Some((name, password)) = &self.user {
            request = request.basic_auth(name, password.as_ref());
        }
        Ok(request)
    }
}

/// The answer, if its status is one of success.
async fn checked(name: &str, sent: Result<Response, reqwest::Error>) -> Result<Response, ApiError> {
    let response = sent.map_err(|error| failed(name, with_causes(&error.without_url())))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = response.text().await.unwrap_or_default();
    let problem = match status {
        StatusCode::FORBIDDEN => format!("/{name}: {}: the token needs {}", body.trim(), rights(name)),
        _ => format!("/{name}: {status}: {}", body.trim()),
    };
    Err(ApiError::Status(status.as_u16(), problem))
}

fn failed(name: &str, problem: String) -> ApiError {
    ApiError::Failed(format!("/{name}: {problem}"))
}

/// The rights that a request needs.
fn rights(path: &str) -> &'static str {
    if path.starts_with("v1/agent") { "`agent { policy = \"read\" }`" } else { "`list-jobs` and `read-job`" }
}

fn with_tls(mut builder: ClientBuilder, settings: &ApiSettings) -> Result<ClientBuilder, String> {
    let mut authorities = Vec::new();
    if let Some(file) = &settings.ca_cert {
        authorities.extend(certificates(file)?);
    } else if let Some(directory) = &settings.ca_path {
        let failed = |error: io::Error| format!("{}: {error}", directory.display());
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_file() {
                authorities.extend(certificates(&path)?);
            }
        }
    }
    if settings.ca_cert.is_some() || settings.ca_path.is_some() {
        builder = builder.tls_certs_only(authorities);
    }
    match (&settings.client_cert, &settings.client_key) {
        (Some(certificate), Some(key)) => {
            let mut pem = read(certificate)?;
            pem.push(b'\n');
            pem.extend(read(key)?);
            let identity = Identity::from_pem(&pem).map_err(|error| format!("{}: {error}", certificate.display()))?;
            builder = builder.identity(identity);
        }
        (None, None) => {}
        _ => return Err("a client certificate needs its key, and a key its certificate".to_owned()),
    }
    Ok(builder.tls_danger_accept_invalid_certs(settings.skip_verify))
}

fn certificates(file: &Path) -> Result<Vec<Certificate>, String> {
    Certificate::from_pem_bundle(&read(file)?).map_err(|error| format!("{}: {error}", file.display()))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

/// Whether an address is on this machine, which no proxy reaches.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn resolve(url: &Url) -> io::Result<Vec<SocketAddr>> {
    let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(4646));
    Ok((host.trim_matches(['[', ']']), port).to_socket_addrs()?.collect())
}

fn secret(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(token).map_err(|_| "the token cannot be sent: it is no text of one line")?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Api, ApiSettings, Endpoint, is_loopback};

    #[test]
    fn secrets_are_in_no_error() {
        for (address, token) in [("http://user:s3cret@127.0.0.1:1", "t"), ("http://127.0.0.1:1", "s3cret\n")] {
            let settings =
                ApiSettings { address: address.to_owned(), token: Some(token.to_owned()), ..ApiSettings::default() };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let error = match Api::new(&settings) {
                Ok(api) => format!("{}: {}", api.name(), runtime.block_on(api.list_jobs("*")).unwrap_err()),
                Err(error) => error,
            };
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn addresses_are_parsed() {
        let http = Endpoint::parse("https://user:pass@nomad.example/api/").unwrap();
        assert_eq!(http.base.as_str(), "https://nomad.example/api/");
        assert_eq!(http.user, Some(("user".to_owned(), Some("pass".to_owned()))));
        let unix = Endpoint::parse("unix:///secrets/api.sock").unwrap();
        assert_eq!(unix.socket, Some(PathBuf::from("/secrets/api.sock")));
        for (address, expected) in [
            ("http://localhost:4646", true),
            ("https://127.0.0.2", true),
            ("http://[::1]:4646", true),
            ("http://nomad.example", false),
            ("http://10.0.0.1", false),
        ] {
            assert_eq!(is_loopback(&Endpoint::parse(address).unwrap().base), expected, "{address}");
        }
        for wrong in ["127.0.0.1:4646", "ftp://x", "mailto:x", ""] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
    }
}
