//! The choice of one image in an archive, and its layers.
//!
//! - `docker save` writes `manifest.json`, an OCI layout has `index.json`. Newer docker writes both; then
//!   `manifest.json` counts, as it does for docker.
//! - An image is chosen by its name in the archive. An archive with one image needs no name.

use std::collections::BTreeMap;

use bytes::Bytes;
use layer::Digest;
use serde::Deserialize;

use super::{index, source::Source};
use crate::{
    error::PullError,
    json::null_default,
    limits::Limits,
    manifest::{self, Descriptor, Document, ImageConfig, MAX_INDEX_DEPTH},
    platform::Platform,
    reference::Reference,
};

/// The chosen image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveImage {
    /// The digest of its manifest, or of its config if there is no manifest.
    pub(crate) id: Digest,
    pub(crate) config: Digest,
    /// The bytes of the config.
    pub(crate) document: Bytes,
    pub(crate) run: ImageConfig,
    /// Bottom first.
    pub layers: Vec<ArchiveLayer>,
}

/// One layer of the chosen image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveLayer {
    /// The archive member with the layer's blob.
    pub member: String,
    /// The digest of its bytes, if the archive names it.
    pub(crate) blob: Option<Digest>,
    pub(crate) diff_id: Digest,
}

/// An entry of `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default, deserialize_with = "null_default")]
    repo_tags: Vec<String>,
    #[serde(default, deserialize_with = "null_default")]
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default, deserialize_with = "null_default")]
    manifests: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(flatten)]
    descriptor: Descriptor,
    #[serde(default, deserialize_with = "null_default")]
    annotations: BTreeMap<String, String>,
}

/// Chooses an image; see the module's rules.
pub fn choose(
    source: &Source,
    reference: &Reference,
    machine: &Platform,
    limits: &Limits,
) -> Result<ArchiveImage, PullError> {
    let saved = source.document("manifest.json", limits)?;
    let index = source.document("index.json", limits)?;
    match (saved, index) {
        // Only an index contains digests of manifests.
        (_, Some(index)) if reference.digest().is_some() => from_index(source, reference, machine, limits, &index),
        (Some(saved), _) => from_saved(source, reference, machine, limits, &saved),
        (None, Some(index)) => from_index(source, reference, machine, limits, &index),
        (None, None) => Err(source.malformed(
            "no image archive: it has neither a manifest.json, as `docker save` writes it, \
             nor the index.json of an OCI layout",
        )),
    }
}

fn from_saved(
    source: &Source,
    reference: &Reference,
    machine: &Platform,
    limits: &Limits,
    bytes: &[u8],
) -> Result<ArchiveImage, PullError> {
    let images: Vec<Saved> =
        serde_json::from_slice(bytes).map_err(|error| source.malformed(format!("manifest.json: {error}")))?;
    let named = |image: &&Saved| image.repo_tags.iter().any(|name| is_named(name, reference));
    let image = match &images[..] {
        [only] if only.repo_tags.is_empty() => only,
        images => images.iter().find(named).ok_or_else(|| {
            absent(source, reference, images.iter().flat_map(|image| &image.repo_tags).map(String::as_str))
        })?,
    };
    let config_member = member(source, &image.config)?;
    let bytes = required(source, &config_member, limits)?;
    let config = Digest::sha256(&bytes);
    // Docker names the file after the digest, with or without `.json`.
    let stem = config_member.rsplit('/').next().unwrap_or_default();
    check(source, &config_member, digest_of(stem.strip_suffix(".json").unwrap_or(stem)).as_ref(), &config)?;
    let mut layers = Vec::new();
    for name in &image.layers {
        let member = member(source, name)?;
        let blob = member.strip_prefix("blobs/sha256/").and_then(digest_of);
        layers.push((member, blob));
    }
    assemble(source, machine, limits, (config.clone(), config), &bytes, layers)
}

fn from_index(
    source: &Source,
    reference: &Reference,
    machine: &Platform,
    limits: &Limits,
    bytes: &[u8],
) -> Result<ArchiveImage, PullError> {
    let index: Index =
        serde_json::from_slice(bytes).map_err(|error| source.malformed(format!("index.json: {error}")))?;
    let entries = named_entries(source, reference, &index.manifests)?;
    let mut next = manifest::choose(reference, &entries, machine)?;
    for _ in 0..=MAX_INDEX_DEPTH {
        let bytes = blob(source, &next, limits)?;
        match manifest::parse_document(&format!("{}: {}", source.name(), next.digest), &bytes)? {
            Document::Index(entries) => next = manifest::choose(reference, &entries, machine)?,
            Document::Manifest(manifest) => {
                let config = blob(source, &manifest.config, limits)?;
                let layers = manifest.layers.into_iter().map(|layer| (path_of(&layer.digest), Some(layer.digest)));
                return assemble(
                    source,
                    machine,
                    limits,
                    (next.digest, manifest.config.digest),
                    &config,
                    layers.collect(),
                );
            }
        }
    }
    Err(source.malformed(format!("indexes nested more than {MAX_INDEX_DEPTH} deep")))
}

/// The entries with the name of the reference, or all entries if none has a name and the choice is unambiguous.
fn named_entries(source: &Source, reference: &Reference, all: &[Entry]) -> Result<Vec<Descriptor>, PullError> {
    if let Some(digest) = reference.digest() {
        let same: Vec<_> = all.iter().map(|entry| &entry.descriptor).filter(|entry| entry.digest == *digest).collect();
        let names = all.iter().map(|entry| entry.descriptor.digest.as_str());
        return if same.is_empty() {
            Err(absent(source, reference, names))
        } else {
            Ok(same.into_iter().cloned().collect())
        };
    }
    let named: Vec<_> = all.iter().filter(|entry| entry.has_name_of(reference)).collect();
    let nameless = || all.iter().all(|entry| entry.name().is_none());
    let unambiguous = || all.len() == 1 || all.iter().all(|entry| entry.descriptor.platform.is_some());
    let chosen: Vec<_> = if named.is_empty() && nameless() && unambiguous() { all.iter().collect() } else { named };
    if chosen.is_empty() {
        return Err(absent(source, reference, all.iter().filter_map(Entry::name)));
    }
    Ok(chosen.into_iter().map(|entry| entry.descriptor.clone()).collect())
}

impl Entry {
    /// The full name if there is one: containerd and docker write it in addition to the tag.
    fn name(&self) -> Option<&str> {
        let name = |key: &str| self.annotations.get(key).map(String::as_str);
        name("io.containerd.image.name").or_else(|| name("org.opencontainers.image.ref.name"))
    }

    fn has_name_of(&self, reference: &Reference) -> bool {
        self.name().is_some_and(|name| {
            // Some tools write only the tag.
            if name.contains(['/', ':']) { is_named(name, reference) } else { reference.tag() == Some(name) }
        })
    }
}

fn is_named(name: &str, reference: &Reference) -> bool {
    let key = |reference: &Reference| {
        let tag = reference.tag().map(str::to_owned);
        (reference.domain().to_owned(), reference.repository().to_owned(), tag)
    };
    name.parse::<Reference>().is_ok_and(|name| key(&name) == key(reference))
}

fn absent<'a>(source: &Source, reference: &Reference, names: impl Iterator<Item = &'a str>) -> PullError {
    let show = |name: &str| name.chars().take(200).flat_map(char::escape_debug).collect();
    let names: Vec<String> = names.take(20).map(show).collect();
    let detail = match &names[..] {
        [] => ": the archive has several images and names none of them; save one image only".to_owned(),
        names => format!(": set `image` to one of the names in the archive: {}", names.join(", ")),
    };
    PullError::NotFound { host: source.name().to_owned(), what: reference.to_string(), detail }
}

/// The image of a verified config and its layers.
fn assemble(
    source: &Source,
    machine: &Platform,
    limits: &Limits,
    (id, config): (Digest, Digest),
    bytes: &[u8],
    layers: Vec<(String, Option<Digest>)>,
) -> Result<ArchiveImage, PullError> {
    let what = format!("{}: config {config}", source.name());
    let document = manifest::parse_config(&what, bytes)?;
    if layers.len() != document.diff_ids.len() {
        let problem = format!("it names {} layers, the manifest {}", document.diff_ids.len(), layers.len());
        return Err(PullError::malformed(what, problem));
    }
    if layers.len() > limits.layers {
        return Err(PullError::TooLarge {
            what: format!("{what}: the number of layers"),
            limit: limits.layers.to_string(),
        });
    }
    if document.platform.distance(machine).is_none() {
        let platform = &document.platform;
        tracing::warn!(archive = source.name(), %platform, "the image was made for another platform");
    }
    let join = |((member, blob), diff_id)| ArchiveLayer { member, blob, diff_id };
    Ok(ArchiveImage {
        id,
        config,
        document: Bytes::copy_from_slice(bytes),
        run: document.config,
        layers: layers.into_iter().zip(document.diff_ids).map(join).collect(),
    })
}

fn member(source: &Source, name: &str) -> Result<String, PullError> {
    match index::normalize(name.as_bytes()) {
        Ok(Some(name)) => Ok(name),
        Ok(None) => Err(source.malformed("manifest.json names a member without a name")),
        Err(problem) => Err(source.malformed(format!("manifest.json: member {name:?} {problem}"))),
    }
}

fn required(source: &Source, member: &str, limits: &Limits) -> Result<Vec<u8>, PullError> {
    source.document(member, limits)?.ok_or_else(|| source.malformed(format!("{member:?} is missing")))
}

/// A small blob of an OCI layout, verified.
fn blob(source: &Source, descriptor: &Descriptor, limits: &Limits) -> Result<Vec<u8>, PullError> {
    let member = path_of(&descriptor.digest);
    let bytes = required(source, &member, limits)?;
    if !descriptor.digest.matches(&bytes) {
        let actual = Digest::sha256(&bytes);
        check(source, &member, Some(&descriptor.digest), &actual)?;
    }
    Ok(bytes)
}

/// The path of a blob in an OCI layout.
pub(crate) fn path_of(digest: &Digest) -> String {
    format!("blobs/{}", digest.as_str().replacen(':', "/", 1))
}

fn digest_of(hex: &str) -> Option<Digest> {
    format!("sha256:{hex}").parse().ok()
}

fn check(source: &Source, member: &str, expected: Option<&Digest>, actual: &Digest) -> Result<(), PullError> {
    match expected {
        Some(expected) if expected != actual => Err(PullError::DigestMismatch {
            what: format!("{}: {member:?}", source.name()),
            expected: expected.clone(),
            actual: actual.clone(),
        }),
        _ => Ok(()),
    }
}
