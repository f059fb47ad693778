//! The body of a request. It is sent in pieces, so that a slow link is not taken for a silent one.

use std::{
    convert::Infallible,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use reqwest::{Body, RequestBuilder, header};
use tokio_stream::StreamExt;

/// Bytes that count as sent together.
const PIECE: usize = 64 << 10;

/// The body of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Payload {
    /// The media type.
    pub(super) media_type: String,
    /// The part of the blob that it is.
    pub(super) range: Option<Range<u64>>,
    pub(super) bytes: Bytes,
}

impl Payload {
    /// Adds the body and its headers. `sent` counts the bytes that go out.
    pub(super) fn attach(&self, request: RequestBuilder, sent: &Arc<AtomicU64>) -> RequestBuilder {
        let mut request = request.header(header::CONTENT_LENGTH, self.bytes.len());
        if self.bytes.is_empty() {
            return request.body(Body::default());
        }
        request = request.header(header::CONTENT_TYPE, &self.media_type);
        if let Some(range) = &self.range {
            // Without a unit, unlike the header of an answer (distribution API, "pushing a blob in chunks").
            request = request.header(header::CONTENT_RANGE, format!("{}-{}", range.start, range.end - 1));
        }
        let (bytes, sent) = (self.bytes.clone(), Arc::clone(sent));
        let pieces = (0..bytes.len()).step_by(PIECE).map(move |at| bytes.slice(at..bytes.len().min(at + PIECE)));
        let counted = tokio_stream::iter(pieces).map(move |piece| {
            sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
            Ok::<_, Infallible>(piece)
        });
        request.body(Body::wrap_stream(counted))
    }
}
