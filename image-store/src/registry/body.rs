//! Bodies of answers: bounded, and verified against their digest and size.

use std::time::Duration;

use bytes::Bytes;
use layer::{Digest, digest::Hasher};
use reqwest::Response;

use super::failure::{Failure, network_failure};
use crate::error::PullError;

/// Reads a whole body of at most `limit` bytes.
pub(super) async fn read_bounded(
    mut response: Response,
    limit: u64,
    host: &str,
    what: &str,
    idle_timeout: Duration,
) -> Result<Bytes, Failure> {
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large(what, limit).into());
    }
    let mut bytes = Vec::new();
    loop {
        let silent = || PullError::IdleTimeout { host: host.to_owned(), what: what.to_owned(), limit: idle_timeout };
        let chunk = tokio::time::timeout(idle_timeout, response.chunk())
            .await
            .map_err(|_| Failure::from(silent()))?
            .map_err(|error| Failure { retry: Some(Duration::ZERO), ..network_failure(host, what, error) })?;
        let Some(chunk) = chunk else { return Ok(bytes.into()) };
        if bytes.len() as u64 + chunk.len() as u64 > limit {
            return Err(too_large(what, limit).into());
        }
        bytes.extend_from_slice(&chunk);
    }
}

/// Checks that a document hashes to its digest.
pub(super) fn verify(what: &str, expected: &Digest, bytes: &[u8]) -> Result<(), PullError> {
    let mut hasher = Hasher::new(expected.algorithm());
    hasher.update(bytes);
    let actual = hasher.finish();
    if actual == *expected {
        return Ok(());
    }
    Err(PullError::DigestMismatch { what: what.to_owned(), expected: expected.clone(), actual })
}

/// A body exceeds its limit.
pub(super) fn too_large(what: &str, limit: u64) -> PullError {
    PullError::TooLarge { what: what.to_owned(), limit: format!("{limit} bytes") }
}

/// A body has another size than the manifest says.
pub(super) fn wrong_size(what: &str, expected: u64, actual: u64) -> PullError {
    PullError::malformed(what, format!("its size is {expected} bytes by the manifest, but at least {actual} arrived"))
}
