//! Jobs of a cluster, from Nomad's HTTP API, with the options and environment variables of the `nomad` command.
//!
//! Only GET requests are sent. The token and other secrets are in no error text.

use std::{
    fs, io,
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::{Certificate, Client, ClientBuilder, Identity, StatusCode, Url, header::HeaderValue, redirect::Policy};
use serde_json::Value as Json;

use super::job::{self, DockerTask};
use crate::{
    cli::{arguments::ClusterArguments, failure::Failure},
    error::with_causes,
};

/// The address of an agent on the same machine.
const DEFAULT_ADDRESS: &str = "http://127.0.0.1:4646";
/// All namespaces that the token may read.
const EVERY_NAMESPACE: &str = "*";
/// The number of jobs that are read at the same time.
const PARALLEL: usize = 8;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(60);

/// The docker tasks of all jobs that are not stopped. Children of periodic and dispatched jobs have the tasks of their
/// parents.
pub fn tasks(arguments: &ClusterArguments) -> Result<Vec<DockerTask>, Failure> {
    let settings = Settings::new(arguments, |name| std::env::var(name).ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::of)?;
    let cluster = Cluster::new(&settings).map_err(Failure::Failed)?;
    let jobs = runtime.block_on(cluster.jobs());
    let jobs = jobs.map_err(|problem| Failure::Failed(format!("{}: {problem}", cluster.name)))?;
    Ok(jobs.iter().flat_map(job::docker_tasks).collect())
}

/// Where the cluster is, and how to speak to it.
#[derive(Debug, Default, PartialEq)]
struct Settings {
    address: String,
    region: Option<String>,
    namespace: String,
    token: Option<String>,
    /// User name and password for a proxy in front of the API.
    http_auth: Option<String>,
    ca_cert: Option<PathBuf>,
    ca_path: Option<PathBuf>,
    client_cert: Option<PathBuf>,
    client_key: Option<PathBuf>,
    server_name: Option<String>,
    skip_verify: bool,
}

impl Settings {
    /// An option overrides its variable.
    fn new(arguments: &ClusterArguments, variable: impl Fn(&str) -> Option<String>) -> Self {
        let text = |option: &Option<String>, name: &str| {
            option.clone().or_else(|| variable(name)).filter(|text| !text.is_empty())
        };
        let path = |option: &Option<PathBuf>, name: &str| {
            let from_variable = || variable(name).filter(|text| !text.is_empty()).map(PathBuf::from);
            option.clone().or_else(from_variable)
        };
        Self {
            address: text(&arguments.address, "NOMAD_ADDR").unwrap_or_else(|| DEFAULT_ADDRESS.to_owned()),
            region: text(&arguments.region, "NOMAD_REGION"),
            namespace: text(&arguments.namespace, "NOMAD_NAMESPACE").unwrap_or_else(|| EVERY_NAMESPACE.to_owned()),
            token: text(&arguments.token, "NOMAD_TOKEN"),
            http_auth: text(&None, "NOMAD_HTTP_AUTH"),
            ca_cert: path(&arguments.ca_cert, "NOMAD_CACERT"),
            ca_path: path(&arguments.ca_path, "NOMAD_CAPATH"),
            client_cert: path(&arguments.client_cert, "NOMAD_CLIENT_CERT"),
            client_key: path(&arguments.client_key, "NOMAD_CLIENT_KEY"),
            server_name: text(&arguments.tls_server_name, "NOMAD_TLS_SERVER_NAME"),
            skip_verify: arguments.tls_skip_verify
                || matches!(variable("NOMAD_SKIP_VERIFY").as_deref(), Some("1" | "t" | "T" | "true" | "TRUE" | "True")),
        }
    }
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
struct Cluster {
    /// The address without user name and password.
    name: String,
    client: Client,
    base: Url,
    namespace: String,
    region: Option<String>,
    token: Option<HeaderValue>,
    user: Option<(String, Option<String>)>,
}

impl Cluster {
    fn new(settings: &Settings) -> Result<Self, String> {
        let Endpoint { mut base, socket, user } = Endpoint::parse(&settings.address)?;
        if rustls::crypto::ring::default_provider().install_default().is_err() {
            tracing::trace!("a TLS provider is installed already");
        }
        let name = socket.as_ref().map_or_else(|| base.to_string(), |path| format!("unix://{}", path.display()));
        // The token must not reach another host.
        let mut builder = Client::builder().connect_timeout(CONNECT_TIMEOUT).timeout(TIMEOUT).redirect(Policy::none());
        builder = with_tls(builder, settings)?;
        if let Some(socket) = socket {
            builder = builder.unix_socket(socket).no_proxy();
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
            namespace: settings.namespace.clone(),
            region: settings.region.clone(),
            token: settings.token.as_deref().map(secret).transpose()?,
            user: from_variable.or(user),
        })
    }

    /// All jobs that are not stopped and have no parent.
    async fn jobs(&self) -> Result<Vec<Json>, String> {
        let list = self.get(&["v1", "jobs"], &self.namespace).await?;
        let list = list.ok_or("/v1/jobs: not found; is this the API of a Nomad agent?")?;
        let is_wanted = |job: &&Json| job["Stop"] != true && job["ParentID"].as_str().unwrap_or_default().is_empty();
        let read = |job: &Json| {
            let (id, namespace) = (text(job, "ID"), text(job, "Namespace"));
            async move { self.get(&["v1", "job", &id], &namespace).await }
        };
        let wanted: Vec<Json> = list.as_array().into_iter().flatten().filter(is_wanted).cloned().collect();
        let jobs: Vec<Option<Json>> = stream::iter(&wanted).map(read).buffered(PARALLEL).try_collect().await?;
        Ok(jobs.into_iter().flatten().collect())
    }

    /// An answer. `None` if there is no such object, such as a job that was removed meanwhile.
    async fn get(&self, path: &[&str], namespace: &str) -> Result<Option<Json>, String> {
        let mut url = self.base.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => drop(segments.pop_if_empty().extend(path)),
            Err(()) => return Err("the address is not that of an agent".to_owned()),
        }
        url.query_pairs_mut().append_pair("namespace", namespace);
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
        let failed = |problem: String| format!("/{}: {problem}", path.join("/"));
        let response = request.send().await.map_err(|error| failed(with_causes(&error.without_url())))?;
        let status = response.status();
        let body = response.text().await.map_err(|error| failed(with_causes(&error.without_url())))?;
        match status {
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::FORBIDDEN => {
                Err(failed(format!("{}: the token needs `list-jobs` and `read-job`", body.trim())))
            }
            status if !status.is_success() => Err(failed(format!("{status}: {}", body.trim()))),
            _ => serde_json::from_str(&body).map(Some).map_err(|error| failed(format!("no JSON: {error}"))),
        }
    }
}

fn with_tls(mut builder: ClientBuilder, settings: &Settings) -> Result<ClientBuilder, String> {
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

fn resolve(url: &Url) -> io::Result<Vec<SocketAddr>> {
    let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or(4646));
    Ok((host.trim_matches(['[', ']']), port).to_socket_addrs()?.collect())
}

fn secret(token: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(token).map_err(|_| "the token cannot be sent: it is no text of one line")?;
    value.set_sensitive(true);
    Ok(value)
}

fn text(json: &Json, field: &str) -> String {
    json[field].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        os::unix::net::UnixListener,
        path::PathBuf,
        sync::{Arc, Mutex},
        thread,
    };

    use serde_json::json;

    use super::{Cluster, Endpoint, Settings};
    use crate::cli::arguments::ClusterArguments;

    /// Answers requests on a unix socket as an agent does, and notes their heads.
    fn agent(listener: UnixListener, heads: Arc<Mutex<Vec<String>>>) {
        let list = json!([
            { "ID": "team/web", "Namespace": "shop" },
            { "ID": "gone", "Namespace": "default" },
            { "ID": "stopped", "Namespace": "default", "Stop": true },
            { "ID": "web/periodic-1", "Namespace": "default", "ParentID": "web" },
        ]);
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let (status, body) = match head.first().map_or("", |line| line.split(' ').nth(1).unwrap_or("")) {
                "/v1/jobs?namespace=*&region=eu" => (200, list.to_string()),
                "/v1/job/team%2Fweb?namespace=shop&region=eu" => (200, json!({ "ID": "team/web" }).to_string()),
                "/v1/jobs?namespace=secret" => (403, "Permission denied".to_owned()),
                _ => (404, "job not found".to_owned()),
            };
            heads.lock().unwrap().push(head.join("\n"));
            let length = body.len();
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    }

    #[test]
    fn the_jobs_of_a_cluster_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("api.sock");
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (listener, noted) = (UnixListener::bind(&socket).unwrap(), Arc::clone(&heads));
        thread::spawn(move || agent(listener, noted));
        let settings = |namespace: &str, region: Option<&str>| Settings {
            address: format!("unix://{}", socket.display()),
            namespace: namespace.to_owned(),
            region: region.map(str::to_owned),
            token: Some("s3cret".to_owned()),
            http_auth: Some("user:pass".to_owned()),
            ..Settings::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let jobs = |settings: &Settings| runtime.block_on(Cluster::new(settings).unwrap().jobs());
        assert_eq!(jobs(&settings("*", Some("eu"))).unwrap(), [json!({ "ID": "team/web" })]);
        let error = jobs(&settings("secret", None)).unwrap_err();
        assert!(error.contains("Permission denied") && error.contains("list-jobs"), "{error}");
        let heads = heads.lock().unwrap();
        assert_eq!(heads.len(), 4, "{heads:?}");
        let authorized = |head: &String| {
            let head = head.to_lowercase();
            head.contains("x-nomad-token: s3cret") && head.contains("authorization: basic dxnlcjpwyxnz")
        };
        assert!(heads.iter().all(authorized), "{heads:?}");
    }

    #[test]
    fn secrets_are_in_no_error() {
        for (address, token) in [("http://user:s3cret@127.0.0.1:1", "t"), ("http://127.0.0.1:1", "s3cret\n")] {
            let settings = Settings {
                address: address.to_owned(),
                namespace: "*".to_owned(),
                token: Some(token.to_owned()),
                ..Settings::default()
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let error = match Cluster::new(&settings) {
                Ok(cluster) => format!("{}: {}", cluster.name, runtime.block_on(cluster.jobs()).unwrap_err()),
                Err(error) => error,
            };
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn options_override_variables() {
        let variables = |name: &str| match name {
            "NOMAD_ADDR" => Some("https://variable:4646".to_owned()),
            "NOMAD_TOKEN" => Some("from a variable".to_owned()),
            "NOMAD_SKIP_VERIFY" => Some("true".to_owned()),
            "NOMAD_REGION" => Some(String::new()),
            "NOMAD_CACERT" => Some("/ca.pem".to_owned()),
            _ => None,
        };
        let arguments = ClusterArguments { address: Some("unix:///x".to_owned()), ..ClusterArguments::default() };
        let expected = Settings {
            address: "unix:///x".to_owned(),
            namespace: "*".to_owned(),
            token: Some("from a variable".to_owned()),
            ca_cert: Some(PathBuf::from("/ca.pem")),
            skip_verify: true,
            ..Settings::default()
        };
        assert_eq!(Settings::new(&arguments, variables), expected);
        let plain = Settings::new(&ClusterArguments::default(), |_| None);
        assert_eq!((plain.address.as_str(), plain.skip_verify), ("http://127.0.0.1:4646", false));
    }

    #[test]
    fn addresses_are_parsed() {
        let http = Endpoint::parse("https://user:pass@nomad.example/api/").unwrap();
        assert_eq!(http.base.as_str(), "https://nomad.example/api/");
        assert_eq!(http.user, Some(("user".to_owned(), Some("pass".to_owned()))));
        let unix = Endpoint::parse("unix:///secrets/api.sock").unwrap();
        assert_eq!(unix.socket, Some(PathBuf::from("/secrets/api.sock")));
        for wrong in ["127.0.0.1:4646", "ftp://x", "mailto:x", ""] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong}");
        }
    }
}
