//! The documents of the image that a name means on one kind of machine: manifest and config, read from a registry.
//!
//! A descriptor can hold the document that it refers to, as those of native images do. The registry is not asked for it
//! then, which saves an answer for each.

use bytes::Bytes;
use layer::Digest;

use super::puller::Puller;
use crate::{
    error::PullError,
    manifest::{self, ConfigDocument, Descriptor, Document, MAX_INDEX_DEPTH, Manifest},
    native,
    platform::Platform,
    reference::Reference,
    registry::Session,
    store::LayerRecord,
};

/// The documents of one image.
pub(super) struct Documents {
    pub(super) manifest: Bytes,
    pub(super) manifest_digest: Digest,
    pub(super) config: Bytes,
    pub(super) config_digest: Digest,
    /// The parsed config.
    pub(super) document: ConfigDocument,
    pub(super) layers: Vec<LayerRecord>,
}

/// Why there are no documents.
pub(super) struct Refused {
    /// They are those of a native image, by the index.
    pub(super) native: bool,
    pub(super) error: PullError,
}

/// A failure before an image was chosen.
impl From<PullError> for Refused {
    fn from(error: PullError) -> Self {
        Self { native: false, error }
    }
}

/// The documents of the image for a machine. `top` is what the registry has for the name.
pub(super) async fn documents(
    puller: &Puller,
    (reference, machine): (&Reference, &Platform),
    session: &Session,
    top: (Bytes, Digest),
) -> Result<Documents, Refused> {
    let Chosen { bytes, digest, manifest, native } = select((reference, machine), session, top).await?;
    let read = async {
        let config = match manifest.config.embedded() {
            Some(config) => config,
            None => session.small_blob(&manifest.config).await?,
        };
        let what = format!("config {}", manifest.config.digest);
        let document = manifest::parse_config(&what, &config)?;
        let layers = pair_layers(&what, &manifest, &document.diff_ids, puller.limits.layers)?;
        let config_digest = manifest.config.digest;
        Ok(Documents { manifest: bytes, manifest_digest: digest, config, config_digest, document, layers })
    };
    read.await.map_err(|error| Refused { native, error })
}

/// A manifest for a machine.
struct Chosen {
    bytes: Bytes,
    digest: Digest,
    manifest: Manifest,
    /// The index calls it a native image.
    native: bool,
}

/// Follows indexes to the manifest for a machine.
async fn select(
    (reference, machine): (&Reference, &Platform),
    session: &Session,
    (mut bytes, mut digest): (Bytes, Digest),
) -> Result<Chosen, Refused> {
    let mut native = false;
    for _ in 0..=MAX_INDEX_DEPTH {
        let what = format!("{reference}: {digest}");
        let refused = |error| Refused { native, error };
        let entries = match manifest::parse_document(&what, &bytes).map_err(refused)? {
            Document::Manifest(manifest) => return Ok(Chosen { bytes, digest, manifest, native }),
            Document::Index(entries) => entries,
        };
        let chosen = manifest::choose(reference, &entries, machine)?;
        native = native::is_native_image(&chosen.annotations);
        let refused = |error| Refused { native, error };
        (bytes, digest) = match chosen.embedded() {
            Some(bytes) => (bytes, chosen.digest.clone()),
            None => session.manifest(chosen.digest.as_str()).await.map_err(refused)?,
        };
        if bytes.len() as u64 != chosen.size {
            let problem = format!("its size is {} bytes by the index, but {} arrived", chosen.size, bytes.len());
            return Err(refused(PullError::malformed(what, problem)));
        }
    }
    Err(PullError::malformed(reference.to_string(), format!("indexes nested more than {MAX_INDEX_DEPTH} deep")).into())
}

/// Pairs the blobs of the manifest with the diff ids of the config. Pure.
fn pair_layers(
    what: &str,
    manifest: &Manifest,
    diff_ids: &[Digest],
    limit: usize,
) -> Result<Vec<LayerRecord>, PullError> {
    if manifest.layers.len() != diff_ids.len() {
        let problem = format!("it names {} layers, the manifest {}", diff_ids.len(), manifest.layers.len());
        return Err(PullError::malformed(what, problem));
    }
    if diff_ids.len() > limit {
        return Err(PullError::TooLarge { what: format!("{what}: the number of layers"), limit: limit.to_string() });
    }
    let pair = |(layer, diff_id): (&Descriptor, &Digest)| {
        let refuse = |problem: &str| PullError::Unsupported { what: what.to_owned(), problem: problem.to_owned() };
        let native = native::of_layer(&layer.media_type, &layer.annotations).map_err(refuse)?;
        if native.is_some() && layer.digest != *diff_id {
            return Err(refuse("an EROFS layer whose diff id is not the digest of its blob"));
        }
        Ok(LayerRecord { blob: layer.digest.clone(), size: layer.size, diff_id: diff_id.clone(), native })
    };
    manifest.layers.iter().zip(diff_ids).map(pair).collect()
}
