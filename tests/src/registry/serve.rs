//! HTTP/1.1 of the registry in memory, as far as a pull speaks it.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use serde_json::json;

use super::{Action, Request, Shared, auth};

/// What is sent back.
pub(super) struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    pub(super) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(super) fn error(status: u16, code: &str) -> Self {
        let body = json!({"errors": [{"code": code, "message": code.to_lowercase()}]});
        Self::new(status, body.to_string()).with("Content-Type", "application/json")
    }
}

pub(super) fn serve(shared: &Shared, connection: TcpStream) {
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
        // Whoever got all of it takes the connection for one that can be used again.
        Some(Action::Stall(length)) if answer.body.len() <= *length => {}
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
        return auth::token(&state, request);
    }
    if let Some(refusal) = auth::refusal(shared, &state, request) {
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
