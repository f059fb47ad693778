//! Reads the body of a large answer in few large parts: the kernel gathers its bytes.
//!
//! A link delivers a few packets at a time, and each delivery wakes the HTTP client. During a pull through a slow link,
//! most of the processor time was such wakes, because the caches are cold after each pause. A layer that is pulled
//! whole has no reader that waits for a part of it.
//!
//! - The end of a body is seen as early as without gathering: its last bytes are not gathered. Bytes that arrived are
//!   taken after a second, however few they are.
//! - A connection that is not found is read without gathering.

use std::time::Duration;

use bytes::Bytes;
use host::receive_mark::ReceiveMark;
use hyper_util::client::legacy::connect::HttpInfo;
use reqwest::Response;
use tokio::time::timeout;

/// Bytes that are gathered.
const GATHERED: u32 = 512 << 10;
/// The last bytes of a body, which are not gathered. With TLS, the client may hold the beginning of a record, at most
/// 16 KiB and 256 bytes (RFC 8446, section 5.2), so that fewer bytes arrive than the body lacks.
const LAST: u64 = 32 << 10;
/// Bytes that arrived are taken after this time.
const PATIENCE: Duration = Duration::from_secs(1);

/// A body that arrives, and the connection on which it does.
pub(super) struct GatheredBody {
    // Dropped first: the connection of an unfinished body ends before its mark is reset.
    response: Response,
    mark: Option<ReceiveMark>,
}

/// Why there are no further bytes.
#[derive(Debug)]
pub(super) enum Ended {
    /// Nothing came within the timeout.
    Silent,
    /// The connection failed, or the answer is none of HTTP.
    Failed(reqwest::Error),
}

impl GatheredBody {
    /// The body of an answer. A body of less than twice what is gathered is read as it arrives.
    pub(super) fn new(response: Response, size: u64) -> Self {
        let large = size >= u64::from(2 * GATHERED);
        let connection = response.extensions().get::<HttpInfo>().filter(|_| large);
        let mark = connection.and_then(|connection| {
            ReceiveMark::find(connection.local_addr(), connection.remote_addr()).unwrap_or_else(|error| {
                tracing::debug!(%error, "the connection of a body is not found");
                None
            })
        });
        Self { response, mark }
    }

    /// The next bytes; `None` at the end. `left` of the body's bytes are missing.
    pub(super) async fn chunk(&mut self, left: u64, mut idle: Duration) -> Result<Option<Bytes>, Ended> {
        if let Some(mark) = &mut self.mark {
            // Half of what is left, so that little is left to do when the last byte is here.
            let half = left.saturating_sub(LAST) / 2;
            let gathered = u32::try_from(half).map_or(GATHERED, |half| half.min(GATHERED));
            let patience = PATIENCE.min(idle / 2);
            if gather(mark, gathered)
                && let Ok(chunk) = timeout(patience, self.response.chunk()).await
            {
                return chunk.map_err(Ended::Failed);
            }
            gather(mark, 1);
            idle -= patience;
        }
        let chunk = timeout(idle, self.response.chunk()).await.map_err(|_| Ended::Silent)?;
        chunk.map_err(Ended::Failed)
    }
}

/// Whether the kernel gathers this many bytes now.
fn gather(mark: &mut ReceiveMark, bytes: u32) -> bool {
    mark.set(bytes).inspect_err(|error| tracing::debug!(%error, "the bytes of a body are not gathered")).is_ok()
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use reqwest::{Client, Url};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        sync::oneshot,
    };

    use super::*;
    use crate::registry::{RegistryConfig, host::Host, install_tls_provider};

    const SIZE: usize = 4 << 20;
    const IDLE: Duration = Duration::from_secs(60);

    /// A host that a test speaks for, its client, and its URL.
    async fn listen() -> (TcpListener, Client, Url) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = listener.local_addr().unwrap().to_string();
        install_tls_provider();
        let host = Host::new(RegistryConfig { host: name, ..Default::default() }).unwrap();
        let url = host.base().clone();
        (listener, host.client_for(&url, "a body").await.unwrap(), url)
    }

    /// Asks for a body of this size.
    async fn ask(client: &Client, url: &Url, size: usize) -> GatheredBody {
        GatheredBody::new(client.get(url.clone()).send().await.unwrap(), size as u64)
    }

    /// Receives a request, and sends the head of its answer.
    async fn answer(stream: &mut TcpStream, size: usize) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
    }

    /// Reads a body to its end. Returns its size, and how often the reader waited.
    async fn read(mut body: GatheredBody) -> (usize, usize) {
        let (mut size, mut waits) = (0, 0);
        loop {
            let mut chunk = std::pin::pin!(body.chunk((SIZE - size) as u64, IDLE));
            let chunk = std::future::poll_fn(|context| {
                let polled = chunk.as_mut().poll(context);
                waits += usize::from(polled.is_pending());
                match polled {
                    Poll::Ready(chunk) => Poll::Ready(chunk.unwrap()),
                    Poll::Pending => Poll::Pending,
                }
            });
            match chunk.await {
                Some(chunk) => size += chunk.len(),
                None => return (size, waits),
            }
        }
    }

    #[tokio::test]
    async fn a_body_in_small_pieces_wakes_its_reader_a_few_times() {
        let (listener, client, url) = listen().await;
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            for _ in 0..2 {
                answer(&mut stream, SIZE).await;
                for piece in vec![7; SIZE].chunks(8 << 10) {
                    stream.write_all(piece).await.unwrap();
                    // The reader has its turn.
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
            }
            // The same connection, and an answer that is shorter than what is gathered.
            answer(&mut stream, 3).await;
            stream.write_all(b"end").await.unwrap();
            stream
        });
        let (size, without) = read(GatheredBody { mark: None, ..ask(&client, &url, SIZE).await }).await;
        assert_eq!(size, SIZE);
        let body = ask(&client, &url, SIZE).await;
        assert!(body.mark.is_some());
        let (size, with) = read(body).await;
        assert_eq!(size, SIZE);
        assert!(with * 4 < without, "{with} waits instead of {without}");
        assert_eq!(client.get(url).send().await.unwrap().text().await.unwrap(), "end");
        server.await.unwrap();
    }

    #[tokio::test]
    async fn bytes_before_a_pause_are_taken_though_they_are_few() {
        let (listener, client, url) = listen().await;
        let (took, taken) = oneshot::channel();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream, SIZE).await;
            stream.write_all(&[7; 1000]).await.unwrap();
            taken.await.unwrap();
        });
        let mut body = ask(&client, &url, SIZE).await;
        let mut left = SIZE;
        while left > SIZE - 1000 {
            left -= body.chunk(left as u64, Duration::from_millis(500)).await.unwrap().unwrap().len();
        }
        // A silent host is given up, and one that ends early is noticed at once.
        assert!(matches!(body.chunk(left as u64, Duration::from_millis(20)).await, Err(Ended::Silent)));
        took.send(()).unwrap();
        server.await.unwrap();
        assert!(matches!(body.chunk(left as u64, IDLE).await, Err(Ended::Failed(_))));
    }

    #[tokio::test]
    async fn a_small_body_is_read_as_it_arrives() {
        let (listener, client, url) = listen().await;
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream, 3).await;
            stream.write_all(b"abc").await.unwrap();
        });
        let mut body = ask(&client, &url, 3).await;
        assert!(body.mark.is_none());
        assert_eq!(body.chunk(3, IDLE).await.unwrap().as_deref(), Some(&b"abc"[..]));
        assert_eq!(body.chunk(0, IDLE).await.unwrap(), None);
        server.await.unwrap();
    }
}
