//! Registries for tests: one of our own that can misbehave on purpose, and the real `docker-registry` where it is installed.
//!
//! [`Registry`] serves from memory on a loopback port, one thread per connection, so that it works under any runtime and under
//! none. It counts and keeps every request. A [`Fault`] changes what happens to the requests that it matches, for as many of them
//! as told.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    image::{Built, Document, digest},
    must::Must,
};

/// Who may read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Auth {
    /// Everybody.
    #[default]
    Open,
    /// One user, by the Basic scheme.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// Whoever brings a token of our token server.
    Bearer {
        /// The user that gets one; everybody if there is none.
        user: Option<(String, String)>,
        /// Where the token server is said to be; here if nothing is said.
        realm: Option<String>,
    },
}

/// What goes wrong.
#[derive(Debug, Clone)]
pub enum Action {
    /// Answer with this status and these headers.
    Status(u16, Vec<(String, String)>),
    /// Close the connection after so many bytes of the body.
    Cut(usize),
    /// Say nothing more after so many bytes of the body.
    Stall(usize),
    /// Serve this body instead.
    Body(Vec<u8>),
    /// Serve a body that does not end.
    Endless,
    /// Serve the whole body whatever range was asked for.
    IgnoreRange,
    /// Redirect there; `{path}` stands for the path that was asked for.
    Redirect(String),
    /// Wait before answering.
    Delay(Duration),
    /// Add a header to the answer.
    Header(String, String),
}

/// A disturbance of some requests.
#[derive(Debug, Clone)]
pub struct Fault {
    method: Option<String>,
    path: String,
    times: usize,
    skip: usize,
    action: Action,
}

impl Fault {
    /// Disturbs all requests whose path contains `path`.
    pub fn on(path: impl Into<String>, action: Action) -> Self {
        Self { method: None, path: path.into(), times: usize::MAX, skip: 0, action }
    }

    /// Only so many of them.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Not the first few.
    pub fn after(mut self, skip: usize) -> Self {
        self.skip = skip;
        self
    }

    /// Only with this method.
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_owned());
        self
    }

    fn take(&mut self, request: &Request) -> bool {
        let matches = request.path.contains(&self.path)
            && self.method.as_ref().is_none_or(|method| *method == request.method)
            && self.times > 0;
        if matches && self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if matches && self.times != usize::MAX {
            self.times -= 1;
        }
        matches
    }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The host that was meant, if we were asked as a proxy.
    pub proxied: Option<String>,
    headers: HashMap<String, String>,
    /// The body of a POST.
    pub body: String,
}

impl Request {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(&name.to_ascii_lowercase()).map(String::as_str)
    }
}

#[derive(Default)]
struct State {
    blobs: HashMap<String, Vec<u8>>,
    /// By `repository:tag` and `repository@digest`.
    manifests: HashMap<String, Document>,
    auth: Auth,
    token: String,
    tokens: usize,
    faults: Vec<Fault>,
    requests: Vec<Request>,
}

struct Shared {
    state: Mutex<State>,
    stopped: AtomicBool,
    address: SocketAddr,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registry in this process.
pub struct Registry {
    shared: Arc<Shared>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::start()
    }
}

impl Registry {
    /// Starts an empty one on a free loopback port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").must("a loopback port");
        let address = listener.local_addr().must("the registry's address");
        let shared = Arc::new(Shared { state: Mutex::default(), stopped: AtomicBool::new(false), address });
        let server = Arc::clone(&shared);
        thread::spawn(move || {
            for connection in listener.incoming() {
                if server.stopped.load(Ordering::Acquire) {
                    return;
                }
                let (Ok(connection), server) = (connection, Arc::clone(&server)) else {
                    continue;
                };
                thread::spawn(move || serve(&server, connection));
            }
        });
        Self { shared }
    }

    /// `127.0.0.1:<port>`, as it stands in references.
    pub fn host(&self) -> String {
        self.shared.address.to_string()
    }

    /// A reference to a repository and tag of this registry.
    pub fn reference(&self, name: &str) -> String {
        format!("{}/{name}", self.host())
    }

    /// Takes an image in under `repository:tag`, and returns the full reference.
    pub fn push(&self, name: &str, image: &Built) -> String {
        let (repository, _) = name.split_once(':').must("a name with a tag");
        let mut state = self.shared.state();
        state.blobs.extend(image.blobs.iter().cloned());
        for manifest in &image.manifests {
            state.manifests.insert(format!("{repository}@{}", manifest.digest()), manifest.clone());
        }
        state.manifests.insert(name.to_owned(), image.top().clone());
        drop(state);
        self.reference(name)
    }

    /// Sets who may read. Tokens given out so far lose their worth.
    pub fn auth(&self, auth: Auth) {
        let mut state = self.shared.state();
        state.auth = auth;
        drop(state);
        self.revoke_tokens();
    }

    /// Makes all tokens given out so far worthless.
    pub fn revoke_tokens(&self) {
        let mut state = self.shared.state();
        state.tokens += 1;
        state.token = format!("token-{}", state.tokens);
    }

    /// Adds a disturbance. The first one that matches a request counts.
    pub fn fault(&self, fault: Fault) {
        self.shared.state().faults.push(fault);
    }

    /// Ends all disturbances.
    pub fn heal(&self) {
        self.shared.state().faults.clear();
    }

    /// Everything that was asked so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.state().requests.clone()
    }

    /// How many requests had this in their path.
    pub fn count(&self, path: &str) -> usize {
        self.shared.state().requests.iter().filter(|request| request.path.contains(path)).count()
    }

    /// Forgets the requests so far.
    pub fn forget_requests(&self) {
        self.shared.state().requests.clear();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the accepting thread; if that fails, it ends with the process.
        drop(TcpStream::connect(self.shared.address));
    }
}

/// What is sent back.
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    fn error(status: u16, code: &str) -> Self {
        let body = json!({"errors": [{"code": code, "message": code.to_lowercase()}]});
        Self::new(status, body.to_string()).with("Content-Type", "application/json")
    }
}

fn serve(shared: &Shared, connection: TcpStream) {
    let Ok(mut writer) = connection.try_clone() else {
        return;
    };
    let mut reader = BufReader::new(connection);
    while let Some(request) = read_request(&mut reader) {
        let mut state = shared.state();
        state.requests.push(request.clone());
        let fault = state.faults.iter_mut().find_map(|fault| fault.take(&request).then(|| fault.action.clone()));
        drop(state);
        if let Some(Action::Delay(pause)) = &fault {
            thread::sleep(*pause);
        }
        let ranged = !matches!(fault, Some(Action::IgnoreRange));
        let mut answer = answer(shared, &request, ranged);
        if !disturb(shared, &request, &mut answer, fault.as_ref(), &mut writer) {
            break;
        }
    }
    // The other side may have closed already.
    drop(writer.shutdown(Shutdown::Both));
}

/// Sends the answer, disturbed or not. Says whether the connection goes on.
fn disturb(
    shared: &Shared,
    request: &Request,
    answer: &mut Answer,
    fault: Option<&Action>,
    writer: &mut TcpStream,
) -> bool {
    match fault {
        Some(Action::Status(status, headers)) => {
            *answer = Answer::error(*status, "FAULT");
            answer.headers.extend(headers.iter().cloned());
        }
        Some(Action::Body(body)) => answer.body.clone_from(body),
        Some(Action::Header(name, value)) => answer.headers.push((name.clone(), value.clone())),
        Some(Action::Redirect(to)) => {
            *answer = Answer::new(307, "").with("Location", to.replace("{path}", &request.path));
        }
        Some(Action::Cut(length)) => {
            send_part(writer, request, answer, *length);
            return false;
        }
        Some(Action::Stall(length)) => {
            send_part(writer, request, answer, *length);
            while !shared.stopped.load(Ordering::Acquire) && is_open(writer) {
                thread::sleep(Duration::from_millis(20));
            }
            return false;
        }
        Some(Action::Endless) => {
            endless(shared, writer);
            return false;
        }
        Some(Action::IgnoreRange | Action::Delay(_)) | None => {}
    }
    let body = if request.method == "HEAD" { &[][..] } else { &answer.body };
    writer.write_all(head(answer).as_bytes()).and_then(|()| writer.write_all(body)).is_ok()
}

fn head(answer: &Answer) -> String {
    let mut head = format!("HTTP/1.1 {} kit\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\n\r\n", answer.body.len()));
    head
}

fn send_part(writer: &mut TcpStream, request: &Request, answer: &Answer, length: usize) {
    let part = &answer.body[..length.min(answer.body.len())];
    let part = if request.method == "HEAD" { &[][..] } else { part };
    // A client that is gone already is no concern of the fault.
    drop(writer.write_all(head(answer).as_bytes()).and_then(|()| writer.write_all(part)));
}

fn is_open(connection: &TcpStream) -> bool {
    let limited = connection.set_read_timeout(Some(Duration::from_millis(1)));
    match connection.peek(&mut [0]) {
        Ok(length) => limited.is_ok() && length > 0,
        Err(error) => matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

fn endless(shared: &Shared, writer: &mut TcpStream) {
    let block = [b' '; 64 << 10];
    let mut going = writer.write_all(b"HTTP/1.1 200 kit\r\nConnection: close\r\n\r\n").is_ok();
    while going && !shared.stopped.load(Ordering::Acquire) {
        going = writer.write_all(&block).is_ok();
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, mut path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    // What a proxy is asked (RFC 9112, section 3.2.2): the whole URL. We serve as one for any host.
    let mut proxied = None;
    if let Some((host, rest)) = path.strip_prefix("http://").and_then(|url| url.split_once('/')) {
        (proxied, path) = (Some(host.to_owned()), format!("/{rest}"));
    }
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, proxied, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

fn answer(shared: &Shared, request: &Request, ranged: bool) -> Answer {
    let state = shared.state();
    let path = request.path.split('?').next().unwrap_or_default();
    if path == "/token" {
        return token(&state, request);
    }
    if let Some(refusal) = refusal(shared, &state, request) {
        return refusal;
    }
    let Some(rest) = path.strip_prefix("/v2/") else {
        return Answer::error(404, "NOT_FOUND");
    };
    if let Some((repository, name)) = rest.split_once("/manifests/") {
        let separator = if name.contains(':') { '@' } else { ':' };
        return match state.manifests.get(&format!("{repository}{separator}{name}")) {
            Some(manifest) => Answer::new(200, manifest.bytes.clone())
                .with("Content-Type", &manifest.media_type)
                .with("Docker-Content-Digest", manifest.digest()),
            None => Answer::error(404, "MANIFEST_UNKNOWN"),
        };
    }
    match rest.split_once("/blobs/").and_then(|(_, name)| state.blobs.get(name)) {
        Some(blob) => ranged_answer(blob, request.header("range").filter(|_| ranged)),
        None => Answer::error(404, "BLOB_UNKNOWN"),
    }
}

fn ranged_answer(blob: &[u8], range: Option<&str>) -> Answer {
    let start = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match start {
        None => Answer::new(200, blob),
        Some(start) if start >= blob.len() => Answer::error(416, "RANGE_INVALID"),
        Some(start) => {
            let range = format!("bytes {start}-{}/{}", blob.len() - 1, blob.len());
            Answer::new(206, &blob[start..]).with("Content-Range", range)
        }
    }
}

fn basic(user: &str, password: &str) -> String {
    use std::fmt::Write as _;
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::from("Basic ");
    for chunk in format!("{user}:{password}").as_bytes().chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let index = (bits >> (18 - 6 * place)) & 63;
            let letter = if place <= chunk.len() { char::from(ALPHABET[index as usize]) } else { '=' };
            write!(text, "{letter}").must("text grows");
        }
    }
    text
}

fn token(state: &State, request: &Request) -> Answer {
    let Auth::Bearer { user, .. } = &state.auth else {
        return Answer::error(404, "NOT_FOUND");
    };
    if let Some((user, password)) = user {
        let by_header = request.header("authorization") == Some(&basic(user, password));
        let by_refresh = request.body.contains(&format!("refresh_token={password}"));
        if !by_header && !by_refresh {
            return Answer::error(401, "UNAUTHORIZED");
        }
    }
    let body = json!({"token": state.token, "expires_in": 300});
    Answer::new(200, body.to_string()).with("Content-Type", "application/json")
}

fn refusal(shared: &Shared, state: &State, request: &Request) -> Option<Answer> {
    let given = request.header("authorization");
    let (wanted, challenge) = match &state.auth {
        Auth::Open => return None,
        Auth::Basic { user, password } => (basic(user, password), r#"Basic realm="kit, of tests""#.to_owned()),
        Auth::Bearer { realm, .. } => {
            let here = format!("http://{}/token", shared.address);
            let realm = realm.as_deref().unwrap_or(&here);
            (format!("Bearer {}", state.token), format!(r#"Bearer realm="{realm}",service="kit""#))
        }
    };
    (given != Some(&wanted)).then(|| Answer::error(401, "UNAUTHORIZED").with("WWW-Authenticate", challenge))
}

/// An authority, and a certificate of it for the loopback address.
const MAKE_CERTIFICATES: &str = "
    new='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
    openssl req -x509 $new -keyout ca.key -out ca.pem -days 2 -subj /CN=kit-authority
    openssl req $new -keyout leaf.key -out leaf.csr -subj /CN=kit
    printf 'subjectAltName=IP:127.0.0.1' > leaf.ext
    openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out leaf.pem -days 2 -extfile leaf.ext
";

/// The real `docker-registry`, in a folder of its own.
pub struct DockerRegistry {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl DockerRegistry {
    /// Starts it on a free port; `None` where it is not installed.
    pub fn start() -> Option<Self> {
        Self::start_in(tempfile::TempDir::with_prefix("kit-registry-").must("a folder for the registry"), None)
    }

    /// Starts it with a certificate for `127.0.0.1` from an authority of its own; [`DockerRegistry::ca_file`] says which.
    /// It has no content: pushing is for the plain one.
    pub fn start_tls() -> Option<Self> {
        Self::start_secured(false)
    }

    /// The same, for clients only that show [`DockerRegistry::client_cert_file`].
    pub fn start_tls_for_clients() -> Option<Self> {
        Self::start_secured(true)
    }

    fn start_secured(clients: bool) -> Option<Self> {
        let folder = tempfile::TempDir::with_prefix("kit-registry-").must("a folder for the registry");
        let made = Command::new("sh").arg("-ec").arg(MAKE_CERTIFICATES).current_dir(folder.path()).output().ok()?;
        assert!(made.status.success(), "certificates: {}", String::from_utf8_lossy(&made.stderr));
        let at = |name: &str| folder.path().join(name);
        let mut tls = json!({"certificate": at("leaf.pem"), "key": at("leaf.key")});
        if clients {
            tls["clientcas"] = json!([at("ca.pem")]);
        }
        Self::start_in(folder, Some(tls))
    }

    fn start_in(folder: tempfile::TempDir, tls: Option<serde_json::Value>) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|probe| probe.local_addr()).must("a free port");
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": folder.path().join("data")}},
            "http": {"addr": address.to_string()},
        });
        if let Some(tls) = tls {
            config["http"]["tls"] = tls;
        }
        let file = folder.path().join("config.yml");
        std::fs::write(&file, config.to_string()).must("the registry's configuration");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().ok()?;
        let started = Self { child, address, folder };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not answer on {address}");
            thread::sleep(Duration::from_millis(10));
        }
        Some(started)
    }

    /// The authority of a registry with TLS.
    pub fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate that it accepts from clients.
    pub fn client_cert_file(&self) -> PathBuf {
        self.folder.path().join("leaf.pem")
    }

    /// The key of that certificate.
    pub fn client_key_file(&self) -> PathBuf {
        self.folder.path().join("leaf.key")
    }

    /// `127.0.0.1:<port>`.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Pushes an image as `repository:tag` through the registry's own API, and returns the full reference.
    pub fn push(&self, name: &str, image: &Built) -> String {
        let (repository, tag) = name.split_once(':').must("a name with a tag");
        for (name, blob) in &image.blobs {
            let (status, location) = self.send("POST", &format!("/v2/{repository}/blobs/uploads/"), "", b"");
            assert_eq!(status, 202, "starting an upload");
            let location = location.must("an upload has a location");
            let path = location.strip_prefix(&format!("http://{}", self.address)).unwrap_or(&location);
            let separator = if path.contains('?') { '&' } else { '?' };
            let target = format!("{path}{separator}digest={name}");
            let (status, _) = self.send("PUT", &target, "application/octet-stream", blob);
            assert_eq!(status, 201, "uploading blob {}", digest(blob));
        }
        for (at, manifest) in image.manifests.iter().enumerate() {
            let own = manifest.digest();
            let name = if at + 1 == image.manifests.len() { tag } else { &own };
            let path = format!("/v2/{repository}/manifests/{name}");
            let (status, _) = self.send("PUT", &path, &manifest.media_type, &manifest.bytes);
            assert_eq!(status, 201, "uploading manifest {own}");
        }
        format!("{}/{name}", self.host())
    }

    /// One exchange: status and `Location`.
    fn send(&self, method: &str, path: &str, media_type: &str, body: &[u8]) -> (u16, Option<String>) {
        let mut connection = TcpStream::connect(self.address).must("connect to the registry");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(body)).must("send to the registry");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).must("the registry's answer");
        let status = answer.split_whitespace().nth(1).and_then(|status| status.parse().ok()).must("a status");
        let location = answer.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
        });
        (status, location)
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        // It ends on its own terms or not at all; either way nobody waits for more than its exit.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
