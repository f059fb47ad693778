//! Uploads by the distribution API: blobs in chunks, then manifests.
//!
//! - A blob that the repository has, or can take from another repository, is not sent.
//! - After a broken connection the registry says how much of the blob it has, and the upload continues there. If the
//!   registry has given the upload up, the blob is sent again from its beginning.

use std::{fs::File, os::unix::fs::FileExt, sync::Arc, time::Duration};

use bytes::Bytes;
use layer::Digest;
use reqwest::{Method, Response, StatusCode, Url, header};

use super::{
    failure::Failure,
    payload::Payload,
    session::{Ask, Session, next_hop},
};
use crate::{
    blocking::blocking,
    error::{PullError, StoreError},
    progress::LayerMeter,
};

/// The largest chunk that a registry may ask for. A chunk is in memory while it is sent.
const MAX_CHUNK: u64 = 64 << 20;

/// A blob to upload: a part of a file.
pub(crate) struct Upload<'a> {
    pub(crate) digest: &'a Digest,
    pub(crate) size: u64,
    pub(crate) file: Arc<File>,
    /// The offset of the blob in the file.
    pub(crate) start: u64,
    /// A repository of the same registry that may have the blob.
    pub(crate) mount_from: Option<&'a str>,
    pub(crate) meter: &'a LayerMeter,
}

/// How a blob came into the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It was there.
    Present,
    /// The registry took it from another repository.
    Mounted,
    /// It was sent.
    Uploaded,
}

/// An upload that the registry has begun.
struct Begun {
    /// Where the next chunk goes.
    location: Url,
    /// Bytes that the registry has.
    offset: u64,
    /// Bytes of a chunk.
    chunk: u64,
    /// A request of it broke. The registry may still have been writing what arrived when it was asked for the offset.
    broke: bool,
}

impl Session {
    /// Makes sure that the repository has a blob.
    pub(crate) async fn place_blob(&self, blob: &Upload<'_>) -> Result<Placed, PullError> {
        let what = format!("blob {}@{}", self.repository, blob.digest);
        if self.has_blob(blob.digest, &what).await? {
            return Ok(Placed::Present);
        }
        let Some(mut upload) = self.begin(blob, &what).await? else { return Ok(Placed::Mounted) };
        let (mut failures, mut furthest) = (0, 0);
        loop {
            let before = upload.offset;
            let Failure { error, retry } = match self.advance(blob, &mut upload, &what).await {
                Ok(true) => return Ok(Placed::Uploaded),
                Ok(false) if upload.offset == before => {
                    failures += 1;
                    if failures >= self.limits.attempts {
                        let problem = format!("it took no byte at offset {before}; {failures} attempts failed");
                        return Err(PullError::malformed(format!("{}: {what}", self.host.name()), problem));
                    }
                    continue;
                }
                Ok(false) => {
                    // Only bytes that no earlier attempt brought there are progress.
                    if upload.offset > furthest {
                        blob.meter.add_bytes(upload.offset - furthest);
                        (failures, furthest) = (0, upload.offset);
                    }
                    continue;
                }
                Err(failure) => failure,
            };
            failures += 1;
            let Some(pause) = retry.filter(|_| failures < self.limits.attempts) else { return Err(error) };
            tracing::debug!(host = self.host.name(), %what, offset = upload.offset, %error, "the upload broke");
            self.waits_for_retry(failures, &error);
            self.pause(failures, pause).await;
            upload = match self.status(blob, &upload, &what).await? {
                Some(upload) => upload,
                // The answer to its last request may have been lost.
                None if self.has_blob(blob.digest, &what).await? => return Ok(Placed::Uploaded),
                None => match self.begin(blob, &what).await? {
                    Some(upload) => upload,
                    None => return Ok(Placed::Mounted),
                },
            };
        }
    }

    /// Stores a manifest or an index under a tag or its digest.
    pub(crate) async fn put_manifest(
        &self,
        name: &str,
        (media_type, bytes): (&str, Bytes),
        digest: &Digest,
    ) -> Result<(), PullError> {
        let what = format!("manifest {}:{name}", self.repository);
        let body = Payload { media_type: media_type.to_owned(), range: None, bytes };
        let ask = Ask { body: Some(body), ..Ask::new(Method::PUT, self.url("manifests", name)?, &what) };
        let response = self.send(&ask).await?;
        let stored = text(&response, "docker-content-digest").and_then(|text| text.parse::<Digest>().ok());
        match stored.filter(|stored| stored.algorithm() == digest.algorithm() && stored != digest) {
            Some(actual) => Err(PullError::DigestMismatch { what, expected: digest.clone(), actual }),
            None => Ok(()),
        }
    }

    /// Whether the repository has a blob. A registry that does not say so does not have it.
    async fn has_blob(&self, digest: &Digest, what: &str) -> Result<bool, PullError> {
        let ask = Ask::new(Method::HEAD, self.url("blobs", digest.as_str())?, what);
        match self.send(&ask).await {
            Ok(_) => Ok(true),
            Err(error) if error.recoverable() => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Begins an upload. `None`: the registry took the blob from the other repository.
    async fn begin(&self, blob: &Upload<'_>, what: &str) -> Result<Option<Begun>, PullError> {
        let url = self.url("blobs", "uploads/")?;
        let post = |url| Ask { body: Some(Payload::default()), ..Ask::new(Method::POST, url, what) };
        let response = match blob.mount_from {
            Some(from) => {
                let mut mount = url.clone();
                mount.query_pairs_mut().append_pair("mount", blob.digest.as_str()).append_pair("from", from);
                match self.send(&post(mount)).await {
                    // The credentials may not suffice for the other repository.
                    Err(error) if !error.recoverable() => self.send(&post(url)).await,
                    answer => answer,
                }
            }
            None => self.send(&post(url)).await,
        }?;
        if response.status() == StatusCode::CREATED {
            return Ok(None);
        }
        let smallest = text(&response, "oci-chunk-min-length").and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
        let chunk = self.limits.upload_chunk.max(1).max(smallest).min(MAX_CHUNK);
        Ok(Some(Begun { location: self.location(&response, what)?, offset: 0, chunk, broke: false }))
    }

    /// Sends the next chunk, or ends the upload behind the last one. Returns whether it has ended.
    async fn advance(&self, blob: &Upload<'_>, upload: &mut Begun, what: &str) -> Result<bool, Failure> {
        let left = blob.size - upload.offset;
        if left == 0 {
            let mut url = upload.location.clone();
            url.query_pairs_mut().append_pair("digest", blob.digest.as_str());
            let ask = Ask { body: Some(Payload::default()), ..Ask::new(Method::PUT, url, what) };
            let begin_again: &[u16] = if upload.broke { &[400, 404] } else { &[404] };
            return self.exchange(&ask).await.map(|_| true).map_err(|failure| or_ask(failure, begin_again));
        }
        let bytes = self.chunk(blob, upload.offset, left.min(upload.chunk)).await?;
        let end = upload.offset + bytes.len() as u64;
        let body = Payload { media_type: "application/octet-stream".into(), range: Some(upload.offset..end), bytes };
        let ask = Ask { body: Some(body), ..Ask::new(Method::PATCH, upload.location.clone(), what) };
        let response = self.exchange(&ask).await.map_err(|failure| or_ask(failure, &[400, 404, 416]))?;
        upload.offset = acknowledged(text(&response, "range"), upload.offset, end)
            .map_err(|problem| PullError::malformed(format!("{}: {what}", self.host.name()), problem))?;
        upload.location = self.location(&response, what)?;
        Ok(false)
    }

    /// Reads a part of the blob.
    async fn chunk(&self, blob: &Upload<'_>, offset: u64, length: u64) -> Result<Bytes, PullError> {
        let (file, at) = (Arc::clone(&blob.file), blob.start + offset);
        let read = move || {
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut bytes, at).map_err(StoreError::io("reading", "the image"))?;
            Ok(Bytes::from(bytes))
        };
        Ok(blocking(read).await?)
    }

    /// Asks how much of an upload the registry has. `None`: it does not know the upload any more.
    async fn status(&self, blob: &Upload<'_>, upload: &Begun, what: &str) -> Result<Option<Begun>, PullError> {
        let response = match self.send(&Ask::new(Method::GET, upload.location.clone(), what)).await {
            Ok(response) => response,
            Err(error) if error.recoverable() => return Err(error),
            Err(_) => return Ok(None),
        };
        let Some(offset) = received(text(&response, "range")).filter(|offset| *offset <= blob.size) else {
            return Ok(None);
        };
        // Without a location the upload stays where it is.
        let location = self.location(&response, what).unwrap_or_else(|_| upload.location.clone());
        Ok(Some(Begun { location, offset, chunk: upload.chunk, broke: true }))
    }

    /// Where an upload continues.
    fn location(&self, response: &Response, what: &str) -> Result<Url, PullError> {
        let problem = |problem: String| PullError::malformed(format!("{}: {what}", self.host.name()), problem);
        let location = text(response, header::LOCATION.as_str());
        let location = location.ok_or_else(|| problem("an upload without a location".to_owned()))?;
        next_hop(response.url(), location).map_err(problem)
    }
}

/// A header of an answer.
fn text<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

/// A failure with one of these states is not final: the registry has another part of the blob than was thought, and is
/// asked for it.
fn or_ask(failure: Failure, states: &[u16]) -> Failure {
    let status = match &failure.error {
        PullError::NotFound { .. } => 404,
        PullError::Status { status, .. } => *status,
        _ => 0,
    };
    let retry = failure.retry.or_else(|| states.contains(&status).then_some(Duration::ZERO));
    Failure { retry, ..failure }
}

/// How many bytes a registry has, by the header `Range` of its answer: `0-99` are 100 bytes. A registry that has none
/// says `0-0`. Pure.
fn received(range: Option<&str>) -> Option<u64> {
    let range = range?.trim();
    let (first, last) = range.strip_prefix("bytes=").unwrap_or(range).split_once('-')?;
    let last: u64 = last.parse().ok()?;
    (first == "0").then_some(if last == 0 { 0 } else { last.checked_add(1)? })
}

/// How many bytes a registry has after it took a chunk, or a part of it, or nothing. Pure.
fn acknowledged(range: Option<&str>, before: u64, end: u64) -> Result<u64, String> {
    let wrong = |range: &str| Err(format!("bytes {before} to {end} were sent, and it has the range {range:?}"));
    match range {
        None => Ok(end),
        // One byte, or none.
        Some(range) if received(Some(range)) == Some(0) && end == 1 => Ok(end),
        Some(range) => match received(Some(range)) {
            Some(offset) if (before..=end).contains(&offset) => Ok(offset),
            _ => wrong(range),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_says_how_much_is_there() {
        for (range, bytes) in [
            (Some("0-0"), Some(0)),
            (Some("0-99"), Some(100)),
            (Some("bytes=0-99"), Some(100)),
            (Some("1-99"), None),
            (Some("0-"), None),
            (Some("0-18446744073709551615"), None),
            (Some(""), None),
            (None, None),
        ] {
            assert_eq!(received(range), bytes, "{range:?}");
        }
    }

    #[test]
    fn an_answer_to_a_chunk_is_a_part_of_the_chunk() {
        assert_eq!(acknowledged(None, 10, 20), Ok(20));
        assert_eq!(acknowledged(Some("0-19"), 10, 20), Ok(20));
        assert_eq!(acknowledged(Some("0-14"), 10, 20), Ok(15), "the rest is sent again");
        assert_eq!(acknowledged(Some("0-0"), 0, 1), Ok(1));
        assert_eq!(acknowledged(Some("0-9"), 10, 20), Ok(10), "all of it is sent again");
        assert_eq!(acknowledged(Some("0-0"), 0, 20), Ok(0));
        for range in ["0-0", "0-8", "0-20", "x"] {
            assert!(acknowledged(Some(range), 10, 20).is_err(), "{range}");
        }
    }
}
