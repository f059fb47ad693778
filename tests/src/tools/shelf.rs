//! A registry in threads: manifests and blobs, anonymous or behind credentials.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use super::sha256;
use crate::must::Must;

/// Whom the registry serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Everybody.
    Anonymous,
    /// Who sends this name and password with each request.
    Basic(String, String),
    /// Who fetches a token with this name and password.
    Bearer(String, String),
    /// Nobody: every request fails with this status.
    Broken(u16),
}

#[derive(Debug)]
struct State {
    access: Access,
    stopped: bool,
    blobs: BTreeMap<(String, String), Arc<Vec<u8>>>,
    manifests: BTreeMap<(String, String), Arc<Vec<u8>>>,
    requests: Vec<String>,
}

/// The registry. It ends with this value.
#[derive(Debug)]
pub(crate) struct Shelf {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shelf {
    pub(crate) fn start() -> Self {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).must("an address for the registry");
        let address = listener.local_addr().must("the registry's address");
        let state = State {
            access: Access::Anonymous,
            stopped: false,
            blobs: BTreeMap::new(),
            manifests: BTreeMap::new(),
            requests: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if lock(&shared).stopped {
                    return;
                }
                let shared = Arc::clone(&shared);
                // A client that goes away ends its connection; nobody else is concerned.
                thread::spawn(move || serve(&stream, &shared).ok());
            }
        });
        Self { address, state }
    }

    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn require(&self, access: Access) {
        lock(&self.state).access = access;
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stopped = true;
        // Wakes the listener, which then closes.
        drop(TcpStream::connect(self.address));
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        lock(&self.state).requests.clone()
    }

    pub(crate) fn put_blob(&self, name: &str, digest: &str, bytes: Arc<Vec<u8>>) {
        lock(&self.state)
            .blobs
            .insert((name.to_owned(), digest.to_owned()), bytes);
    }

    pub(crate) fn put_manifest(&self, name: &str, tag: &str, bytes: Vec<u8>) {
        let bytes = Arc::new(bytes);
        let mut state = lock(&self.state);
        state
            .manifests
            .insert((name.to_owned(), sha256(&bytes)), Arc::clone(&bytes));
        state
            .manifests
            .insert((name.to_owned(), tag.to_owned()), bytes);
    }

    pub(crate) fn digest_of(&self, reference: &str) -> String {
        let (name, tag) = reference
            .rsplit_once('/')
            .and_then(|(_, path)| path.split_once(':'))
            .must("name and tag");
        let state = lock(&self.state);
        sha256(
            state
                .manifests
                .get(&(name.to_owned(), tag.to_owned()))
                .must("a manifest"),
        )
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Request {
    method: String,
    path: String,
    authorization: String,
}

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, path) = (
        words.next().unwrap_or_default().to_owned(),
        words.next().unwrap_or_default().to_owned(),
    );
    let mut authorization = String::new();
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            return Ok(Some(Request {
                method,
                path,
                authorization,
            }));
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("authorization")
        {
            value.trim().clone_into(&mut authorization);
        }
    }
}

struct Answer {
    status: u16,
    headers: Vec<String>,
    body: Arc<Vec<u8>>,
}

impl Answer {
    fn of(status: u16, code: &str) -> Self {
        let body = format!(r#"{{"errors":[{{"code":"{code}","message":"{code}"}}]}}"#);
        Self {
            status,
            headers: vec!["Content-Type: application/json".into()],
            body: Arc::new(body.into_bytes()),
        }
    }

    fn ok(kind: &str, body: Arc<Vec<u8>>) -> Self {
        Self {
            status: 200,
            headers: vec![format!("Content-Type: {kind}")],
            body,
        }
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(request) = read_request(&mut reader)? {
        let answer = {
            let mut state = lock(state);
            if state.stopped {
                return Ok(());
            }
            state
                .requests
                .push(format!("{} {}", request.method, request.path));
            answer(&state, &request, &stream.local_addr()?.to_string())
        };
        let mut head = format!(
            "HTTP/1.1 {} x\r\nContent-Length: {}\r\n",
            answer.status,
            answer.body.len()
        );
        answer
            .headers
            .iter()
            .for_each(|header| head.push_str(&format!("{header}\r\n")));
        head.push_str("\r\n");
        writer.write_all(head.as_bytes())?;
        if request.method != "HEAD" {
            writer.write_all(&answer.body)?;
        }
    }
    Ok(())
}

const TOKEN: &str = "a-token-of-this-registry";

fn answer(state: &State, request: &Request, host: &str) -> Answer {
    let path = request.path.split('?').next().unwrap_or_default();
    match &state.access {
        Access::Anonymous => {}
        Access::Broken(status) => return Answer::of(*status, "UNKNOWN"),
        Access::Basic(name, password) => {
            if request.authorization != basic(name, password) {
                return challenge("Basic realm=\"kit\"");
            }
        }
        Access::Bearer(name, password) => {
            if path == "/token" {
                return if request.authorization == basic(name, password) {
                    Answer::ok(
                        "application/json",
                        Arc::new(format!(r#"{{"token":"{TOKEN}","expires_in":300}}"#).into_bytes()),
                    )
                } else {
                    Answer::of(401, "UNAUTHORIZED")
                };
            }
            if request.authorization != format!("Bearer {TOKEN}") {
                return challenge(&format!(
                    "Bearer realm=\"http://{host}/token\",service=\"kit\",scope=\"repository:x:pull\""
                ));
            }
        }
    }
    stored(state, path)
}

fn challenge(scheme: &str) -> Answer {
    let mut answer = Answer::of(401, "UNAUTHORIZED");
    answer.headers.push(format!("WWW-Authenticate: {scheme}"));
    answer
}

fn stored(state: &State, path: &str) -> Answer {
    if path == "/v2/" {
        return Answer::ok("application/json", Arc::new(b"{}".to_vec()));
    }
    let rest = path.strip_prefix("/v2/").unwrap_or_default();
    if let Some((name, reference)) = rest.split_once("/manifests/") {
        return match state
            .manifests
            .get(&(name.to_owned(), reference.to_owned()))
        {
            Some(bytes) => {
                let mut answer = Answer::ok(
                    "application/vnd.oci.image.manifest.v1+json",
                    Arc::clone(bytes),
                );
                answer
                    .headers
                    .push(format!("Docker-Content-Digest: {}", sha256(bytes)));
                answer
            }
            None => Answer::of(404, "MANIFEST_UNKNOWN"),
        };
    }
    match rest
        .split_once("/blobs/")
        .and_then(|(name, digest)| state.blobs.get(&(name.to_owned(), digest.to_owned())))
    {
        Some(bytes) => Answer::ok("application/octet-stream", Arc::clone(bytes)),
        None => Answer::of(404, "BLOB_UNKNOWN"),
    }
}

/// The header's value for a name and a password.
fn basic(name: &str, password: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = format!("{name}:{password}");
    let mut encoded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let padded = [
            chunk[0],
            *chunk.get(1).unwrap_or(&0),
            *chunk.get(2).unwrap_or(&0),
        ];
        let bits = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for position in 0..4 {
            let symbol = ALPHABET[(bits >> (18 - 6 * position) & 63) as usize];
            encoded.push(if position > chunk.len() {
                '='
            } else {
                char::from(symbol)
            });
        }
    }
    format!("Basic {encoded}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn basic_credentials() {
        assert_eq!(
            super::basic("Aladdin", "open sesame"),
            "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
        );
        assert_eq!(super::basic("a", "b"), "Basic YTpi");
    }
}
