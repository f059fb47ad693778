//! An OCI layout → the same layout with native images beside the images that it has.
//!
//! The index of the result has all entries of the original, unchanged and first, so that other clients choose what they
//! chose before. A native image follows for each image of Linux; native images of an earlier conversion are made again.
//! The entry of a native image holds its manifest, and the manifest its config, so that a node has both with the index.
//! The same layout gives the same bytes.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use layer::{Converted, Digest, FirstReads, UnpackError, digest::Hasher, stream::BlobReader};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    layout_image::LayoutImage,
    writer::{LayoutWriter, Top},
};
use crate::{
    archive::{CancelOnDrop, Cancelled, NAME, OciLayout, Source},
    blocking::blocking_pull,
    error::{PullError, StoreError},
    files,
    limits::Limits,
    manifest::{self, Descriptor, Document, INDEX, MANIFEST, Manifest},
    native,
    platform::{EROFS, Platform},
    profile::Profile,
};

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Pieces that may wait between the reader and the converter.
const WAITING_PIECES: usize = 8;
/// A document of at most this many bytes is held by its descriptor. Those of most images have less than a quarter.
const MAX_EMBEDDED: usize = 64 << 10;
/// The manifests in an index have at most this many bytes together. Registries accept documents of 4 MiB, and each
/// client reads all of them.
const MAX_EMBEDDED_TOTAL: usize = 256 << 10;

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

/// How native images are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeForm {
    /// What nodes fetch first.
    pub profile: Profile,
    /// Whether the data that nodes fetch first precedes the other data. Layers of a profile are then other ones than
    /// those without it, so images share them only if they share the profile too.
    pub reorder: bool,
    /// Whether the data is compressed with zstd. Kernels without that use the original.
    pub compressed: bool,
}

/// Converts the image of a layout into the directory `target`, which must not exist. If the future is dropped, the work
/// ends soon and the directory is removed.
///
/// # Errors
/// The layout is malformed, a layer is refused, or a file cannot be written.
pub async fn convert_layout(
    source: LayoutImage,
    target: PathBuf,
    form: NativeForm,
    limits: Limits,
) -> Result<Conversion, PullError> {
    let cancel = CancelOnDrop::default();
    let cancelled = cancel.flag();
    blocking_pull(move || convert(source, &target, form, &limits, cancelled)).await
}

fn convert(
    source: LayoutImage,
    target: &Path,
    form: NativeForm,
    limits: &Limits,
    cancelled: Cancelled,
) -> Result<Conversion, PullError> {
    let target = LayoutWriter::create(target)?;
    let LayoutImage { file, name, image } = source;
    let from = OciLayout::new(Source::open(name, file, limits, target.path(), cancelled)?, limits);
    let limits = layer::Limits { zstd_images: form.compressed, ..limits.of_a_layer() };
    let converter = Converter { from, target, form, limits };
    let top = converter.from.top(image.as_deref())?;
    let (index, images) = converter.convert(&top)?;
    let name = top.annotations.get(NAME).map(String::as_str);
    converter.target.finish(&Top { media_type: INDEX, digest: &index.0, size: index.1, name })?;
    Ok(Conversion { index: index.0, images })
}

/// A digest and a size.
type Blob = (Digest, u64);

/// The source, and where the blobs of the result go.
struct Converter {
    from: OciLayout,
    target: LayoutWriter,
    form: NativeForm,
    limits: layer::Limits,
}

impl Converter {
    fn convert(&self, top: &Descriptor) -> Result<(Blob, Vec<NativeManifest>), PullError> {
        let bytes = self.copy_document(top)?;
        let what = format!("{}: {}", self.from.name(), top.digest);
        let mut entries = match manifest::parse_document(&what, &bytes)? {
            Document::Manifest(manifest) => {
                let platform = self.platform_of(&manifest)?;
                let media_type = if top.media_type.is_empty() { MANIFEST } else { &top.media_type };
                let platform = serde_json::to_value(platform).map_err(|error| self.from.malformed(error))?;
                vec![json!({
                    "mediaType": media_type, "digest": top.digest.as_str(), "size": top.size, "platform": platform,
                })]
            }
            Document::Index(_) => {
                let mut index: Value = serde_json::from_slice(&bytes).map_err(|error| self.from.malformed(error))?;
                index["manifests"].as_array_mut().map(std::mem::take).unwrap_or_default()
            }
        };
        // The native images of an earlier conversion are made again.
        entries.retain(|entry| entry["annotations"][native::FORMAT].is_null());
        let mut images = Vec::new();
        let mut embedded = 0;
        for entry in entries.clone() {
            let descriptor: Descriptor =
                serde_json::from_value(entry.clone()).map_err(|error| self.from.malformed(error))?;
            if let Some((mut native, manifest, image)) = self.convert_entry(&entry, &descriptor)? {
                if let Some(content) = embed(&manifest).filter(|_| embedded + manifest.len() <= MAX_EMBEDDED_TOTAL) {
                    native["annotations"][native::DOCUMENT] = content;
                    embedded += manifest.len();
                }
                entries.push(native);
                images.push(image);
            }
        }
        if images.is_empty() {
            return Err(self.from.malformed("it has no image that can be converted"));
        }
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).to_string();
        Ok((self.store(index.as_bytes())?, images))
    }

    /// Copies an entry of the index with everything that it refers to. Returns the entry of its native form and that
    /// one's manifest, if it is an image that has one.
    fn convert_entry(
        &self,
        entry: &Value,
        descriptor: &Descriptor,
    ) -> Result<Option<(Value, Vec<u8>, NativeManifest)>, PullError> {
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
            return Err(self.from.malformed("it has native images already"));
        }
        let config = self.copy_document(&manifest.config)?;
        let (document, bytes, reordered) = self.native_manifest(&manifest, &config)?;
        let native = self.store(&document)?;
        let mut platform = entry["platform"].clone();
        platform["os.features"] = json!([EROFS]);
        let shown = descriptor.platform.as_ref().map(Platform::to_string).unwrap_or_default();
        let image = NativeManifest { platform: shown, digest: native.0.clone(), bytes };
        let entry = json!({
            "mediaType": MANIFEST, "digest": native.0.as_str(), "size": native.1, "platform": platform,
            "annotations": {native::FORMAT: native::version(self.form.compressed, reordered)},
        });
        Ok(Some((entry, document, image)))
    }

    /// Copies the layers of an image and converts them. Returns the manifest, the bytes of its layers, and whether the
    /// data of one has another order than its files.
    fn native_manifest(&self, manifest: &Manifest, config: &[u8]) -> Result<(Vec<u8>, u64, bool), PullError> {
        let document = manifest::parse_config(manifest.config.digest.as_str(), config)?;
        if document.diff_ids.len() != manifest.layers.len() {
            return Err(self.from.malformed("its config and its manifest name different numbers of layers"));
        }
        let (mut layers, mut diff_ids, mut bytes, mut reordered) = (Vec::new(), Vec::new(), 0, false);
        for (layer, diff_id) in manifest.layers.iter().zip(&document.diff_ids) {
            self.copy(layer)?;
            let converted = self.convert_layer(layer, diff_id)?;
            diff_ids.push(json!(converted.image.as_str()));
            bytes += converted.parts.total();
            let mut annotations = json!({
                native::METADATA: converted.parts.metadata.to_string(),
                native::HASH_ROOT: format!("sha256:{}", hex::encode(converted.hash_root)),
            });
            if !converted.first.is_empty() {
                let chunks = lazy::chunks_of_all(&converted.parts, &converted.first);
                annotations[native::FIRST] = json!(native::format_chunks(&chunks));
            }
            reordered |= converted.reordered;
            layers.push(json!({
                "mediaType": native::MEDIA_TYPE, "digest": converted.image.as_str(), "size": converted.parts.total(),
                "annotations": annotations,
            }));
        }
        let mut config: Value = serde_json::from_slice(config).map_err(|error| self.from.malformed(error))?;
        config["os.features"] = json!([EROFS]);
        config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
        let config = config.to_string().into_bytes();
        let (digest, size) = self.store(&config)?;
        let mut descriptor = json!({"mediaType": CONFIG, "digest": digest.as_str(), "size": size});
        if let Some(content) = embed(&config) {
            descriptor["data"] = content;
        }
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": layers, "config": descriptor});
        Ok((manifest.to_string().into_bytes(), bytes, reordered))
    }

    fn platform_of(&self, manifest: &Manifest) -> Result<Platform, PullError> {
        let config = self.from.document(&manifest.config)?;
        Ok(manifest::parse_config(manifest.config.digest.as_str(), &config)?.platform)
    }

    /// Converts a layer whose blob was copied.
    fn convert_layer(&self, layer: &Descriptor, diff_id: &Digest) -> Result<Converted, PullError> {
        let problem = |problem: String| PullError::Layer { layer: layer.digest.clone(), problem };
        let temporary = files::temporary(self.target.path());
        let make = || File::options().read(true).write(true).create_new(true).open(&temporary);
        let out = make().map_err(StoreError::io("creating", &temporary))?;
        let scratch_path = files::temporary(self.target.path());
        let scratch = File::options().read(true).write(true).create_new(true).open(&scratch_path);
        let scratch = scratch.map_err(StoreError::io("creating", &scratch_path))?;
        fs::remove_file(&scratch_path).map_err(StoreError::io("removing", &scratch_path))?;
        let part = self.from.blob(&layer.digest)?;
        let files = self.form.profile.of_layer(diff_id);
        let first = FirstReads { files: &files, reorder: self.form.reorder };
        let converted = std::thread::scope(|scope| {
            let (pieces, receiver) = mpsc::channel(WAITING_PIECES);
            // If reading fails, the channel closes without an end, and the receiver reports that.
            scope.spawn(move || part.send(&pieces).ok());
            let blob = BlobReader::new(receiver, layer.digest.algorithm());
            layer::convert(blob, (scratch, &out), diff_id.algorithm(), first, &self.limits)
        });
        let converted = converted.map_err(|error| problem(refusal(error)))?;
        if converted.blob != layer.digest || converted.diff_id != *diff_id {
            return Err(problem("its digest or its diff id is wrong".to_owned()));
        }
        let path = self.target.blob(&converted.image);
        fs::rename(&temporary, &path).map_err(StoreError::io("renaming to", path))?;
        Ok(converted)
    }

    /// Copies what a document refers to, as far as the layout has it.
    fn copy_parts(&self, document: &[u8]) -> Result<(), PullError> {
        let document: Value = serde_json::from_slice(document).map_err(|error| self.from.malformed(error))?;
        let lists = ["layers", "manifests"].into_iter().filter_map(|key| document[key].as_array()).flatten();
        for part in lists.chain(document.get("config")) {
            let descriptor: Descriptor =
                serde_json::from_value(part.clone()).map_err(|error| self.from.malformed(error))?;
            if self.from.find(&descriptor.digest)?.is_some() {
                self.copy(&descriptor)?;
            }
        }
        Ok(())
    }

    /// A small blob, verified, which is copied too.
    fn copy_document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, PullError> {
        let bytes = self.from.document(descriptor)?;
        self.target.store(&descriptor.digest, &bytes)?;
        Ok(bytes)
    }

    /// Copies a blob and verifies it.
    fn copy(&self, descriptor: &Descriptor) -> Result<(), PullError> {
        let mut part = self.from.blob(&descriptor.digest)?;
        let path = self.target.blob(&descriptor.digest);
        let mut out = File::create(&path).map_err(StoreError::io("creating", &path))?;
        let mut hasher = Hasher::new(descriptor.digest.algorithm());
        let mut block = vec![0; layer::buffers::SIZE];
        loop {
            let length = part.read(&mut block).map_err(StoreError::io("reading", self.from.name()))?;
            if length == 0 {
                break;
            }
            hasher.update(&block[..length]);
            out.write_all(&block[..length]).map_err(StoreError::io("writing", &path))?;
        }
        match hasher.finish() == descriptor.digest {
            true => Ok(()),
            false => Err(self.from.malformed(format!("blob {} has another digest", descriptor.digest))),
        }
    }

    /// Stores a new document.
    fn store(&self, bytes: &[u8]) -> Result<Blob, PullError> {
        let digest = Digest::sha256(bytes);
        self.target.store(&digest, bytes)?;
        Ok((digest, bytes.len() as u64))
    }
}

/// A document as its descriptor holds it; `None` if it is large.
fn embed(document: &[u8]) -> Option<Value> {
    (document.len() <= MAX_EMBEDDED).then(|| manifest::embed(document).into())
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
