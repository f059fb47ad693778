//! Streaming blobs. A broken connection is resumed at the byte where it broke.

use std::{
    ops::{ControlFlow, Range},
    time::Duration,
};

use bytes::{Buf, Bytes};
use layer::{
    Digest,
    buffers::{Buffer, Buffers},
    stream::Piece,
};
use reqwest::{Method, Response, StatusCode, header};
use tokio::sync::mpsc;

use super::{
    body,
    failure::{Failure, network_failure},
    gathering::{Ended, GatheredBody},
    session::{Ask, Session},
};
use crate::{error::PullError, progress::LayerMeter};

/// A connection that transferred this many bytes made progress, which resets the number of failed attempts. Fewer bytes
/// do not count, so that a registry cannot keep a pull going with a few bytes per connection.
const PROGRESS_BYTES: u64 = 64 << 10;

/// The target of a blob. A connection delivers small pieces, with TLS at most 16 KiB, and each piece that is sent wakes
/// the receiver. So they are gathered.
struct Sink<'a> {
    pieces: &'a mpsc::Sender<Piece>,
    meter: &'a LayerMeter,
    buffers: Buffers,
    /// What was not sent yet. It stays when a connection breaks.
    gathered: Option<Buffer>,
}

/// The receiver of the pieces is gone. Its own result tells why.
struct Unreceived;

impl Sink<'_> {
    /// Takes bytes, and sends each buffer that is full.
    async fn write(&mut self, mut chunk: Bytes) -> Result<(), Unreceived> {
        self.meter.add_bytes(chunk.len() as u64);
        // The whole chunk is copied before the first wait: the connection reuses the memory of the chunk for the next
        // read, and allocates new memory while a part of the chunk is still held.
        let mut full = Vec::new();
        while !chunk.is_empty() {
            let mut buffer = self.gathered.take().unwrap_or_else(|| self.buffers.take());
            chunk.advance(buffer.copy(&chunk));
            if buffer.space().is_empty() {
                full.push(buffer);
            } else {
                self.gathered = Some(buffer);
            }
        }
        drop(chunk);
        for buffer in full {
            self.send(buffer).await?;
        }
        Ok(())
    }

    /// Sends what was gathered.
    async fn flush(&mut self) -> Result<(), Unreceived> {
        match self.gathered.take() {
            Some(buffer) => self.send(buffer).await,
            None => Ok(()),
        }
    }

    async fn send(&self, buffer: Buffer) -> Result<(), Unreceived> {
        self.pieces.send(Piece::Data(Bytes::from_owner(buffer))).await.map_err(|_| Unreceived)
    }
}

/// Streams a blob from the first host that delivers it. Each host continues where the one before failed.
pub(crate) async fn stream_blob(
    sessions: &[Session],
    (digest, size): (&Digest, u64),
    pieces: &mpsc::Sender<Piece>,
    meter: &LayerMeter,
) -> Result<(), PullError> {
    let mut sink = Sink { pieces, meter, buffers: Buffers::default(), gathered: None };
    let mut offset = 0;
    let mut result = Ok(());
    for session in sessions {
        result = session.stream_blob((digest, size), &mut offset, &mut sink).await;
        match &result {
            Ok(()) => break,
            Err(_) if pieces.is_closed() => break,
            Err(error) => tracing::debug!(host = session.host.name(), %error, "this host does not deliver the blob"),
        }
    }
    result
}

impl Session {
    /// Streams a blob from `*offset` on into `sink`, and resumes broken connections. `*offset` counts the bytes that
    /// went into the sink, so that another session can continue after an error.
    async fn stream_blob(
        &self,
        (digest, size): (&Digest, u64),
        offset: &mut u64,
        sink: &mut Sink<'_>,
    ) -> Result<(), PullError> {
        let what = format!("blob {}@{}", self.repository, digest);
        let url = self.url("blobs", digest.as_str())?;
        let mut failures = 0;
        loop {
            let ask = Ask { from: *offset, ..Ask::new(Method::GET, url.clone(), &what) };
            let before = *offset;
            let response = self.send(&ask).await?;
            let failure = match self.copy_body(response, size, offset, &what, sink).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            if failure.retry.is_none() {
                return Err(failure.error);
            }
            if *offset - before >= PROGRESS_BYTES {
                failures = 0;
            }
            failures += 1;
            if failures >= self.limits.attempts {
                return Err(failure.error);
            }
            tracing::debug!(host = self.host.name(), %what, offset, "the transfer broke, resuming");
            self.waits_for_retry(failures, &failure.error);
            self.pause(failures, Duration::ZERO).await;
        }
    }

    /// Delivers a range of a blob of this size in pieces, with one attempt. Ends early if `sink` breaks.
    pub(crate) async fn read_range(
        &self,
        (digest, size): (&Digest, u64),
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), PullError> {
        let what = format!("blob {}@{}", self.repository, digest);
        let url = self.url("blobs", digest.as_str())?;
        let ask = Ask { from: range.start, until: Some(range.end), ..Ask::new(Method::GET, url, &what) };
        let mut response = self.exchange(&ask).await.map_err(|failure| failure.error)?;
        if self.position(&response, size, range.start, &what)? > 0 {
            return Err(PullError::malformed(what, "the host ignores that only a part is asked for"));
        }
        let mut left = range.end - range.start;
        while left > 0 {
            let chunk = tokio::time::timeout(self.idle_timeout, response.chunk())
                .await
                .map_err(|_| self.idle(&what).error)?
                .map_err(|error| network_failure(self.host.name(), &what, error).error)?;
            let Some(chunk) = chunk else { break };
            self.host.traffic().add_bytes(chunk.len() as u64);
            let wanted = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= wanted as u64;
            if sink(&chunk[..wanted]).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Copies one body into the sink.
    async fn copy_body(
        &self,
        response: Response,
        size: u64,
        offset: &mut u64,
        what: &str,
        sink: &mut Sink<'_>,
    ) -> Result<(), Failure> {
        let mut skip = self.position(&response, size, *offset, what)?;
        let left = |offset, skip| size - offset + skip;
        let mut body = GatheredBody::new(response, left(*offset, skip));
        loop {
            let chunk = body.chunk(left(*offset, skip), self.idle_timeout).await.map_err(|ended| match ended {
                Ended::Silent => self.idle(what),
                // The HTTP client reports a body that ends early as a decoding error.
                Ended::Failed(error) => {
                    Failure { retry: Some(Duration::ZERO), ..network_failure(self.host.name(), what, error) }
                }
            })?;
            let Some(mut chunk) = chunk else { break };
            self.host.traffic().add_bytes(chunk.len() as u64);
            let skipped = skip.min(chunk.len() as u64);
            skip -= skipped;
            chunk.advance(usize::try_from(skipped).unwrap_or(chunk.len()));
            if chunk.is_empty() {
                continue;
            }
            let next = *offset + chunk.len() as u64;
            if next > size {
                return Err(body::wrong_size(what, size, next).into());
            }
            *offset = next;
            sink.write(chunk).await.map_err(|_| self.unreceived(what))?;
        }
        if *offset == size {
            return sink.flush().await.map_err(|_| self.unreceived(what));
        }
        let problem = format!("the body ended after {} of {} bytes", *offset, size);
        let error = PullError::Network { host: self.host.name().to_owned(), what: what.to_owned(), problem };
        Err(Failure { error, retry: Some(Duration::ZERO) })
    }

    fn unreceived(&self, what: &str) -> Failure {
        let problem = "the unpacker stopped reading".to_owned();
        PullError::Network { host: self.host.name().to_owned(), what: what.to_owned(), problem }.into()
    }

    /// The number of bytes at the start of this response that the sink already has.
    fn position(&self, response: &Response, size: u64, offset: u64, what: &str) -> Result<u64, PullError> {
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
            return match range.and_then(parse_content_range) {
                Some((start, total)) if start == offset && total.is_none_or(|total| total == size) => Ok(0),
                _ => Err(PullError::malformed(what, format!("asked for bytes from {offset} on, got {range:?}"))),
            };
        }
        match response.content_length() {
            Some(length) if length != size => Err(body::wrong_size(what, size, length)),
            _ => Ok(offset),
        }
    }
}

/// The start and the total size of a `Content-Range`: `bytes 5-9/10` → (5, 10).
fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((start, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(parse_content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((5, None)));
        assert_eq!(parse_content_range("bytes */10"), None);
        assert_eq!(parse_content_range("5-9/10"), None);
    }
}
