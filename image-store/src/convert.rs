//! An OCI layout → the same layout with native images beside the images that it has.
//!
//! The index of the result has all entries of the original, unchanged and first, so that other clients choose what they
//! chose before. A native image follows for each image of Linux. The same layout gives the same bytes.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use layer::{Converted, Digest, UnpackError, digest::Hasher, stream::BlobReader};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    archive::{self, Part, Source},
    error::{PullError, StoreError},
    files,
    limits::Limits,
    manifest::{self, Descriptor, Document, Manifest},
    native,
    platform::{EROFS, Platform},
};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// The annotation of an image's name in `index.json`.
const NAME: &str = "org.opencontainers.image.ref.name";
/// Pieces that may wait between the reader and the converter.
const WAITING_PIECES: usize = 8;

/// What was converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversion {
    /// The digest of the new index.
    pub index: Digest,
    /// The native images, each with its platform.
    pub images: Vec<NativeManifest>,
}

/// One native image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeManifest {
    /// The platform, as `linux/amd64`.
    pub platform: String,
    /// The digest of its manifest.
    pub digest: Digest,
    /// Bytes of its layers.
    pub bytes: u64,
}

/// Converts the image of this name in the OCI layout `source`, a directory or an archive. Without a name, the layout
/// must have one image. The directory `target` must not exist. Blocks.
///
/// # Errors
/// The layout is malformed, a layer is refused, or a file cannot be written.
pub fn convert_layout(
    source: OwnedFd,
    source_name: String,
    image: Option<&str>,
    target: &Path,
    limits: &Limits,
) -> Result<Conversion, PullError> {
    fs::create_dir(target).map_err(StoreError::io("creating", target))?;
    let converted = convert_into((source, source_name), image, target, limits);
    if converted.is_err()
        && let Err(error) = fs::remove_dir_all(target)
    {
        tracing::warn!(path = %target.display(), %error, "an incomplete layout is left");
    }
    converted
}

fn convert_into(
    (source, name): (OwnedFd, String),
    image: Option<&str>,
    target: &Path,
    limits: &Limits,
) -> Result<Conversion, PullError> {
    for algorithm in ["blobs/sha256", "blobs/sha512"] {
        let blobs = target.join(algorithm);
        fs::create_dir_all(&blobs).map_err(StoreError::io("creating", blobs))?;
    }
    let source = Source::open(name, source, limits, target, Arc::default())?;
    let layout = Layout { source, target: target.to_owned(), limits };
    let top = layout.top(image)?;
    let (index, images) = layout.convert(&top)?;
    let mut entry = json!({"mediaType": INDEX, "digest": index.0.as_str(), "size": index.1});
    if let Some(name) = top.annotations.get(NAME) {
        entry["annotations"] = json!({NAME: name});
    }
    write(&target.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    // Written last: without it the directory is no layout.
    write(&target.join("index.json"), json!({"schemaVersion": 2, "manifests": [entry]}).to_string().as_bytes())?;
    Ok(Conversion { index: index.0, images })
}

/// A digest and a size.
type Blob = (Digest, u64);

/// The source, and where the blobs of the result go.
struct Layout<'a> {
    source: Source,
    target: PathBuf,
    limits: &'a Limits,
}

impl Layout<'_> {
    fn convert(&self, top: &Descriptor) -> Result<(Blob, Vec<NativeManifest>), PullError> {
        let bytes = self.copy_document(top)?;
        let what = format!("{}: {}", self.source.name(), top.digest);
        let mut entries = match manifest::parse_document(&what, &bytes)? {
            Document::Manifest(manifest) => {
                let platform = self.platform_of(&manifest)?;
                let media_type = if top.media_type.is_empty() { MANIFEST } else { &top.media_type };
                let platform = serde_json::to_value(platform).map_err(|error| self.source.malformed(error))?;
                vec![json!({
                    "mediaType": media_type, "digest": top.digest.as_str(), "size": top.size, "platform": platform,
                })]
            }
            Document::Index(_) => {
                let mut index: Value = serde_json::from_slice(&bytes).map_err(|error| self.source.malformed(error))?;
                index["manifests"].as_array_mut().map(std::mem::take).unwrap_or_default()
            }
        };
        let mut images = Vec::new();
        for entry in entries.clone() {
            let descriptor: Descriptor =
                serde_json::from_value(entry.clone()).map_err(|error| self.source.malformed(error))?;
            if let Some((native, image)) = self.convert_entry(&entry, &descriptor)? {
                entries.push(native);
                images.push(image);
            }
        }
        if images.is_empty() {
            return Err(self.source.malformed("it has no image that can be converted"));
        }
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).to_string();
        Ok((self.store(index.as_bytes())?, images))
    }

    /// The entry of `index.json` that has this name, or the only one.
    fn top(&self, image: Option<&str>) -> Result<Descriptor, PullError> {
        let Some(bytes) = self.source.document("index.json", self.limits)? else {
            return Err(self.source.malformed("no OCI layout: it has no index.json"));
        };
        let Document::Index(mut entries) = manifest::parse_document("index.json", &bytes)? else {
            return Err(self.source.malformed("its index.json is no index"));
        };
        let names: BTreeSet<String> = entries.iter().filter_map(|entry| entry.annotations.get(NAME).cloned()).collect();
        if let Some(image) = image {
            entries.retain(|entry| entry.annotations.get(NAME).is_some_and(|name| name == image));
        }
        match (entries.len(), entries.pop()) {
            (1, Some(entry)) => Ok(entry),
            _ => {
                let names: Vec<String> = names.into_iter().take(20).collect();
                Err(self.source.malformed(format!(
                    "one image must be named; the names in its index.json are: {}",
                    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
                )))
            }
        }
    }

    /// Copies an entry of the index with everything that it refers to. Returns its native form, if it is an image that
    /// has one.
    fn convert_entry(
        &self,
        entry: &Value,
        descriptor: &Descriptor,
    ) -> Result<Option<(Value, NativeManifest)>, PullError> {
        let bytes = self.copy_document(descriptor)?;
        let parsed = manifest::parse_document(descriptor.digest.as_str(), &bytes);
        let is_image = descriptor.platform.as_ref().is_some_and(|platform| platform.os == "linux");
        let manifest = match parsed {
            Ok(Document::Manifest(manifest)) if is_image => manifest,
            // Attestations and images of other systems are kept as they are.
            _ => {
                self.copy_parts(&bytes)?;
                return Ok(None);
            }
        };
        if manifest.layers.iter().any(|layer| layer.media_type == native::MEDIA_TYPE) {
            return Err(self.source.malformed("it has native images already"));
        }
        let config = self.copy_document(&manifest.config)?;
        let (native, bytes) = self.native_manifest(&manifest, &config)?;
        let mut platform = entry["platform"].clone();
        platform["os.features"] = json!([EROFS]);
        let shown = descriptor.platform.as_ref().map(Platform::to_string).unwrap_or_default();
        let image = NativeManifest { platform: shown, digest: native.0.clone(), bytes };
        let entry = json!({
            "mediaType": MANIFEST, "digest": native.0.as_str(), "size": native.1, "platform": platform,
            "annotations": {native::FORMAT.0: native::FORMAT.1},
        });
        Ok(Some((entry, image)))
    }

    /// Copies the layers of an image and converts them. Returns the manifest and the bytes of its layers.
    fn native_manifest(&self, manifest: &Manifest, config: &[u8]) -> Result<(Blob, u64), PullError> {
        let document = manifest::parse_config(manifest.config.digest.as_str(), config)?;
        if document.diff_ids.len() != manifest.layers.len() {
            return Err(self.source.malformed("its config and its manifest name different numbers of layers"));
        }
        let (mut layers, mut diff_ids, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (layer, diff_id) in manifest.layers.iter().zip(&document.diff_ids) {
            self.copy(layer)?;
            let converted = self.convert_layer(layer, diff_id)?;
            diff_ids.push(json!(converted.image.as_str()));
            bytes += converted.parts.total();
            layers.push(json!({
                "mediaType": native::MEDIA_TYPE, "digest": converted.image.as_str(), "size": converted.parts.total(),
                "annotations": {
                    native::METADATA: converted.parts.metadata.to_string(),
                    native::HASH_ROOT: format!("sha256:{}", hex::encode(converted.hash_root)),
                },
            }));
        }
        let mut config: Value = serde_json::from_slice(config).map_err(|error| self.source.malformed(error))?;
        config["os.features"] = json!([EROFS]);
        config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
        let config = self.store(config.to_string().as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "layers": layers,
            "config": {"mediaType": CONFIG, "digest": config.0.as_str(), "size": config.1},
        });
        Ok((self.store(manifest.to_string().as_bytes())?, bytes))
    }

    fn platform_of(&self, manifest: &Manifest) -> Result<Platform, PullError> {
        let config = self.document(&manifest.config)?;
        Ok(manifest::parse_config(manifest.config.digest.as_str(), &config)?.platform)
    }

    /// Converts a layer whose blob was copied.
    fn convert_layer(&self, layer: &Descriptor, diff_id: &Digest) -> Result<Converted, PullError> {
        let problem = |problem: String| PullError::Layer { layer: layer.digest.clone(), problem };
        let temporary = files::temporary(&self.target);
        let make = || File::options().read(true).write(true).create_new(true).open(&temporary);
        let out = make().map_err(StoreError::io("creating", &temporary))?;
        let scratch_path = files::temporary(&self.target);
        let scratch = File::options().read(true).write(true).create_new(true).open(&scratch_path);
        let scratch = scratch.map_err(StoreError::io("creating", &scratch_path))?;
        fs::remove_file(&scratch_path).map_err(StoreError::io("removing", &scratch_path))?;
        let part = self.member(&layer.digest)?;
        let limits = self.limits.of_a_layer();
        let converted = std::thread::scope(|scope| {
            let (pieces, receiver) = mpsc::channel(WAITING_PIECES);
            // If reading fails, the channel closes without an end, and the receiver reports that.
            scope.spawn(move || part.send(&pieces).ok());
            let blob = BlobReader::new(receiver, layer.digest.algorithm());
            layer::convert(blob, (scratch, &out), diff_id.algorithm(), &limits)
        });
        let converted = converted.map_err(|error| problem(refusal(error)))?;
        if converted.blob != layer.digest || converted.diff_id != *diff_id {
            return Err(problem("its digest or its diff id is wrong".to_owned()));
        }
        let path = self.target.join(archive::path_of(&converted.image));
        fs::rename(&temporary, &path).map_err(StoreError::io("renaming to", path))?;
        Ok(converted)
    }

    /// Copies what a document refers to, as far as the layout has it.
    fn copy_parts(&self, document: &[u8]) -> Result<(), PullError> {
        let document: Value = serde_json::from_slice(document).map_err(|error| self.source.malformed(error))?;
        let lists = ["layers", "manifests"].into_iter().filter_map(|key| document[key].as_array()).flatten();
        for part in lists.chain(document.get("config")) {
            let descriptor: Descriptor =
                serde_json::from_value(part.clone()).map_err(|error| self.source.malformed(error))?;
            if self.source.member(&archive::path_of(&descriptor.digest))?.is_some() {
                self.copy(&descriptor)?;
            }
        }
        Ok(())
    }

    fn member(&self, digest: &Digest) -> Result<Part, PullError> {
        let missing = || self.source.malformed(format!("blob {digest} is missing"));
        self.source.member(&archive::path_of(digest))?.ok_or_else(missing)
    }

    /// A small blob, verified.
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, PullError> {
        let Some(bytes) = self.source.document(&archive::path_of(&descriptor.digest), self.limits)? else {
            return Err(self.source.malformed(format!("blob {} is missing", descriptor.digest)));
        };
        match descriptor.digest.matches(&bytes) {
            true => Ok(bytes),
            false => Err(self.source.malformed(format!("blob {} has another digest", descriptor.digest))),
        }
    }

    /// A small blob, verified, which is copied too.
    fn copy_document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, PullError> {
        let bytes = self.document(descriptor)?;
        write(&self.target.join(archive::path_of(&descriptor.digest)), &bytes)?;
        Ok(bytes)
    }

    /// Copies a blob and verifies it.
    fn copy(&self, descriptor: &Descriptor) -> Result<(), PullError> {
        let mut part = self.member(&descriptor.digest)?;
        let path = self.target.join(archive::path_of(&descriptor.digest));
        let mut out = File::create(&path).map_err(StoreError::io("creating", &path))?;
        let mut hasher = Hasher::new(descriptor.digest.algorithm());
        let mut block = vec![0; layer::buffers::SIZE];
        loop {
            let length = part.read(&mut block).map_err(StoreError::io("reading", self.source.name()))?;
            if length == 0 {
                break;
            }
            hasher.update(&block[..length]);
            out.write_all(&block[..length]).map_err(StoreError::io("writing", &path))?;
        }
        match hasher.finish() == descriptor.digest {
            true => Ok(()),
            false => Err(self.source.malformed(format!("blob {} has another digest", descriptor.digest))),
        }
    }

    /// Stores a new document.
    fn store(&self, bytes: &[u8]) -> Result<Blob, PullError> {
        let digest = Digest::sha256(bytes);
        write(&self.target.join(archive::path_of(&digest)), bytes)?;
        Ok((digest, bytes.len() as u64))
    }
}

/// Why a layer was not converted, in words.
fn refusal(error: UnpackError) -> String {
    match error {
        UnpackError::Refused { entry: Some(entry), problem } => format!("entry \"{entry}\": {problem}"),
        UnpackError::Refused { entry: None, problem } => problem,
        UnpackError::Disk { action, source, .. } => format!("{action}: {source}"),
        UnpackError::Aborted => "its blob could not be read to the end".to_owned(),
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), PullError> {
    Ok(fs::write(path, bytes).map_err(StoreError::io("writing", path))?)
}
