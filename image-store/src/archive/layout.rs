//! An OCI layout as a store of blobs: the images that it names, its documents, its blobs.

use std::collections::BTreeSet;

use layer::Digest;

use super::{Part, Source, choose::path_of};
use crate::{
    error::PullError,
    limits::Limits,
    manifest::{self, Descriptor, Document},
};

/// The annotation of an image's name in `index.json`.
pub(crate) const NAME: &str = "org.opencontainers.image.ref.name";

/// An opened OCI layout. All calls block.
pub(crate) struct OciLayout {
    source: Source,
    limits: Limits,
}

impl OciLayout {
    pub(crate) fn new(source: Source, limits: &Limits) -> Self {
        Self { source, limits: limits.clone() }
    }

    /// The entry of `index.json` that has this name, or the only one.
    pub(crate) fn top(&self, image: Option<&str>) -> Result<Descriptor, PullError> {
        let Some(bytes) = self.source.document("index.json", &self.limits)? else {
            return Err(self.malformed("no OCI layout: it has no index.json"));
        };
        let Document::Index(mut entries) = manifest::parse_document("index.json", &bytes)? else {
            return Err(self.malformed("its index.json is no index"));
        };
        let names: BTreeSet<String> = entries.iter().filter_map(|entry| entry.annotations.get(NAME).cloned()).collect();
        if let Some(image) = image {
            entries.retain(|entry| entry.annotations.get(NAME).is_some_and(|name| name == image));
        }
        match (entries.len(), entries.pop()) {
            (1, Some(entry)) => Ok(entry),
            _ => {
                let names: Vec<String> = names.into_iter().take(20).collect();
                Err(self.malformed(format!(
                    "one image must be named; the names in its index.json are: {}",
                    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
                )))
            }
        }
    }

    /// A small blob, verified.
    pub(crate) fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, PullError> {
        let Some(bytes) = self.source.document(&path_of(&descriptor.digest), &self.limits)? else {
            return Err(self.missing(&descriptor.digest));
        };
        match descriptor.digest.matches(&bytes) {
            true => Ok(bytes),
            false => Err(self.malformed(format!("blob {} has another digest", descriptor.digest))),
        }
    }

    /// A blob, not verified; `None` if the layout does not have it.
    pub(crate) fn find(&self, digest: &Digest) -> Result<Option<Part>, PullError> {
        self.source.member(&path_of(digest))
    }

    /// A blob that the layout must have, not verified.
    pub(crate) fn blob(&self, digest: &Digest) -> Result<Part, PullError> {
        self.find(digest)?.ok_or_else(|| self.missing(digest))
    }

    /// The error for a layout without a blob.
    fn missing(&self, digest: &Digest) -> PullError {
        self.malformed(format!("blob {digest} is missing; copy all images of the index, as skopeo copy --all does"))
    }

    /// The name in error texts.
    pub(crate) fn name(&self) -> &str {
        self.source.name()
    }

    pub(crate) fn malformed(&self, problem: impl ToString) -> PullError {
        self.source.malformed(problem)
    }
}
