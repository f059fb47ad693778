//! Manifests, indexes and configs of one session. Each is read whole, within the limit for documents.

use bytes::Bytes;
use layer::Digest;
use reqwest::Method;

use super::{
    body,
    failure::Failure,
    session::{Ask, Session},
};
use crate::{
    error::PullError,
    manifest::{self, Descriptor},
};

impl Session {
    /// Whether the host speaks the registry protocol, and accepts the credentials of the session.
    pub(crate) async fn ping(&self) -> Result<(), PullError> {
        let url = self.host.base().join("v2/").map_err(|error| PullError::malformed("v2/".to_owned(), error))?;
        let ask = Ask {
            method: Method::GET,
            url,
            accept: None,
            from: 0,
            until: None,
            body: None,
            what: "its interface (/v2/)",
        };
        self.send(&ask).await.map(drop)
    }

    /// The digest that a tag has now, if the answer to HEAD contains it.
    pub(crate) async fn head_manifest(&self, name: &str) -> Result<Option<Digest>, PullError> {
        let what = format!("manifest {}:{name}", self.repository);
        let url = self.url("manifests", name)?;
        let ask = Ask {
            method: Method::HEAD,
            url,
            accept: Some(manifest::ACCEPT),
            from: 0,
            until: None,
            body: None,
            what: &what,
        };
        let response = self.send(&ask).await?;
        let digest = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        Ok(digest.and_then(|text| text.parse().ok()))
    }

    /// A manifest or index by tag or by digest. By digest it is verified.
    pub(crate) async fn manifest(&self, name: &str) -> Result<(Bytes, Digest), PullError> {
        let what = format!("manifest {}:{name}", self.repository);
        let expected = name.parse::<Digest>().ok();
        let url = self.url("manifests", name)?;
        let ask = Ask {
            method: Method::GET,
            url,
            accept: Some(manifest::ACCEPT),
            from: 0,
            until: None,
            body: None,
            what: &what,
        };
        let bytes = self.small(&ask).await?;
        match expected {
            Some(expected) => {
                body::verify(&what, &expected, &bytes)?;
                Ok((bytes, expected))
            }
            None => {
                let digest = Digest::sha256(&bytes);
                Ok((bytes, digest))
            }
        }
    }

    /// A small blob (the config), verified.
    pub(crate) async fn small_blob(&self, descriptor: &Descriptor) -> Result<Bytes, PullError> {
        let what = format!("blob {}@{}", self.repository, descriptor.digest);
        if descriptor.size > self.limits.document_bytes {
            return Err(body::too_large(&what, self.limits.document_bytes));
        }
        let url = self.url("blobs", descriptor.digest.as_str())?;
        let bytes = self
            .small(&Ask { method: Method::GET, url, accept: None, from: 0, until: None, body: None, what: &what })
            .await?;
        if bytes.len() as u64 != descriptor.size {
            return Err(body::wrong_size(&what, descriptor.size, bytes.len() as u64));
        }
        body::verify(&what, &descriptor.digest, &bytes)?;
        Ok(bytes)
    }

    /// A whole body within the limit for documents. If it breaks off, the request is sent again.
    async fn small(&self, ask: &Ask<'_>) -> Result<Bytes, PullError> {
        let mut attempt = 1;
        loop {
            let response = self.send(ask).await?;
            let limit = self.limits.document_bytes;
            match body::read_bounded(response, limit, self.host.name(), ask.what, self.idle_timeout).await {
                Ok(bytes) => {
                    self.host.traffic().add_bytes(bytes.len() as u64);
                    return Ok(bytes);
                }
                Err(Failure { retry: Some(pause), error }) if attempt < self.limits.attempts => {
                    self.waits_for_retry(attempt, &error);
                    self.pause(attempt, pause).await;
                    attempt += 1;
                }
                Err(failure) => return Err(failure.error),
            }
        }
    }
}
