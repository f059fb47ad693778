//! Calls of dockerd's API over its unix socket: HTTP/1.0, one connection for each call.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

/// The largest answer. Descriptions of containers are much smaller.
const LARGEST: u64 = 4 << 20;

/// The socket of a docker daemon.
#[derive(Debug, Clone)]
pub struct Api {
    socket: PathBuf,
}

/// The daemon's answer.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, if it is JSON.
    pub body: Value,
}

impl Answer {
    /// The daemon's own words about a failure.
    pub fn message(&self) -> String {
        let text = self.body["message"].as_str().unwrap_or("no reason given");
        format!("{text} (status {})", self.status)
    }
}

impl Api {
    /// The daemon at a socket. Connects nothing.
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Calls the API. `path` must not need escapes.
    pub async fn call(&self, method: &str, path: &str, limit: Duration) -> io::Result<Answer> {
        let exchange = async {
            let mut stream = UnixStream::connect(&self.socket).await?;
            let request = format!("{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut bytes = Vec::new();
            stream.take(LARGEST).read_to_end(&mut bytes).await?;
            parse(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
        };
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: serde_json::from_str(body).unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use std::{io, os::unix::net::UnixListener, time::Duration};

    use super::{Api, parse};

    #[tokio::test]
    async fn a_daemon_that_hangs_holds_no_call_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("docker.sock");
        // The kernel accepts the connection, and no process reads the request.
        let _listener = UnixListener::bind(&socket).unwrap();
        let answer = Api::new(socket).call("GET", "/info", Duration::from_millis(20)).await;
        assert_eq!(answer.err().map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
    }

    #[test]
    fn status_and_body_are_found() {
        let answer =
            parse(b"HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\n{\"message\":\"No such container\"}\n").unwrap();
        assert_eq!((answer.status, answer.message().as_str()), (404, "No such container (status 404)"));
        assert_eq!(parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().message(), "no reason given (status 204)");
        for bytes in [&b""[..], b"\r\n\r\n", b"HTTP/1.0\r\n\r\n", b"HTTP/1.0 x y\r\n\r\n", b"SSH-2.0"] {
            assert!(parse(bytes).is_none(), "{bytes:?}");
        }
    }
}
