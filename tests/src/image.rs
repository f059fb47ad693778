//! Small images for tests: entries → layers → manifest → index, honest or hostile.
//!
//! Everything is bytes in memory. An [`Image`] builds into [`Built`] content that a registry of the kit serves or that is pushed
//! into a real one. Entries are written without any check, so that a test can say what no honest tool would.

use std::io::Write;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::must::Must;

/// `sha256:<hex>` of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// How a layer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Gzip, as most images are, but quickly made.
    Gzip,
    /// Gzip as small as tools make it when nobody tells them more (level 6).
    GzipAsUsual,
    /// Zstandard.
    Zstd,
    /// Not compressed.
    Plain,
}

/// One entry of a layer. The name is taken as it is.
#[derive(Debug, Clone)]
pub struct Entry {
    kind: u8,
    name: Vec<u8>,
    link: Vec<u8>,
    data: Vec<u8>,
    mode: u32,
    uid: u64,
    gid: u64,
    mtime: (u64, u32),
    device: (u32, u32),
    pax: Vec<(String, Vec<u8>)>,
}

impl Entry {
    fn new(kind: u8, name: impl Into<Vec<u8>>, mode: u32) -> Self {
        let (link, data, pax) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            kind,
            name: name.into(),
            link,
            data,
            mode,
            uid: 0,
            gid: 0,
            mtime: (1_600_000_000, 0),
            device: (0, 0),
            pax,
        }
    }

    /// A regular file, mode 0644.
    pub fn file(name: impl Into<Vec<u8>>, data: impl Into<Vec<u8>>) -> Self {
        Self { data: data.into(), ..Self::new(b'0', name, 0o644) }
    }

    /// A directory, mode 0755.
    pub fn dir(name: impl Into<Vec<u8>>) -> Self {
        Self::new(b'5', name, 0o755)
    }

    /// A symbolic link.
    pub fn symlink(name: impl Into<Vec<u8>>, target: impl Into<Vec<u8>>) -> Self {
        Self { link: target.into(), ..Self::new(b'2', name, 0o777) }
    }

    /// A hard link.
    pub fn hard_link(name: impl Into<Vec<u8>>, target: impl Into<Vec<u8>>) -> Self {
        Self { link: target.into(), ..Self::new(b'1', name, 0o644) }
    }

    /// A character device, mode 0666.
    pub fn char_device(name: impl Into<Vec<u8>>, major: u32, minor: u32) -> Self {
        Self { device: (major, minor), ..Self::new(b'3', name, 0o666) }
    }

    /// A block device, mode 0660.
    pub fn block_device(name: impl Into<Vec<u8>>, major: u32, minor: u32) -> Self {
        Self { device: (major, minor), ..Self::new(b'4', name, 0o660) }
    }

    /// A named pipe.
    pub fn fifo(name: impl Into<Vec<u8>>) -> Self {
        Self::new(b'6', name, 0o644)
    }

    /// A whiteout of `path`.
    pub fn whiteout(path: &str) -> Self {
        let name = match path.rsplit_once('/') {
            Some((parent, last)) => format!("{parent}/.wh.{last}"),
            None => format!(".wh.{path}"),
        };
        Self::file(name, "")
    }

    /// The mark that hides what lower layers have in the directory `path` (empty: the root).
    pub fn opaque(path: &str) -> Self {
        let name = if path.is_empty() { ".wh..wh..opq".to_owned() } else { format!("{path}/.wh..wh..opq") };
        Self::file(name, "")
    }

    /// An entry of any type.
    pub fn of_kind(kind: u8, name: impl Into<Vec<u8>>) -> Self {
        Self::new(kind, name, 0o644)
    }

    /// The name as it was given.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Sets the permission bits.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Sets owner and group.
    pub fn owner(mut self, uid: u64, gid: u64) -> Self {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    /// Sets the modification time; nanoseconds go into a PAX record.
    pub fn mtime(mut self, seconds: u64, nanos: u32) -> Self {
        self.mtime = (seconds, nanos);
        self
    }

    /// Adds an extended attribute.
    pub fn xattr(self, key: &str, value: impl Into<Vec<u8>>) -> Self {
        self.pax(&format!("SCHILY.xattr.{key}"), value)
    }

    /// Adds a PAX record.
    pub fn pax(mut self, key: &str, value: impl Into<Vec<u8>>) -> Self {
        self.pax.push((key.to_owned(), value.into()));
        self
    }

    fn write(&self, tar: &mut Vec<u8>) {
        let mut pax = self.pax.clone();
        if self.name.len() > 100 && !pax.iter().any(|(key, _)| key == "path") {
            pax.push(("path".into(), self.name.clone()));
        }
        if self.link.len() > 100 {
            pax.push(("linkpath".into(), self.link.clone()));
        }
        if self.mtime.1 > 0 {
            pax.push(("mtime".into(), format!("{}.{:09}", self.mtime.0, self.mtime.1).into_bytes()));
        }
        if !pax.is_empty() {
            let records: Vec<u8> = pax.iter().flat_map(|(key, value)| pax_record(key, value)).collect();
            let header = Self { data: records, ..Self::new(b'x', "PaxHeader", 0o644) };
            header.write_raw(tar);
        }
        self.write_raw(tar);
    }

    fn write_raw(&self, tar: &mut Vec<u8>) {
        let mut header = tar::Header::new_gnu();
        let fields = header.as_old_mut();
        let copy = |to: &mut [u8], from: &[u8]| {
            let length = from.len().min(to.len());
            to[..length].copy_from_slice(&from[..length]);
        };
        copy(&mut fields.name, &self.name);
        copy(&mut fields.linkname, &self.link);
        fields.linkflag = [self.kind];
        header.set_mode(self.mode);
        header.set_uid(self.uid);
        header.set_gid(self.gid);
        header.set_mtime(self.mtime.0);
        header.set_size(self.data.len() as u64);
        if self.kind == b'3' || self.kind == b'4' {
            header.set_device_major(self.device.0).must("a device number");
            header.set_device_minor(self.device.1).must("a device number");
        }
        header.set_cksum();
        tar.extend_from_slice(header.as_bytes());
        tar.extend_from_slice(&self.data);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
}

/// One PAX record with its length in front.
pub fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

/// A layer: a tar archive and how it is sent.
#[derive(Debug, Clone)]
pub struct Layer {
    tar: Vec<u8>,
    compression: Compression,
    diff_id: Option<String>,
    blob_digest: Option<String>,
}

impl Layer {
    /// A gzip layer of entries.
    pub fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut tar = Vec::new();
        entries.into_iter().for_each(|entry| entry.write(&mut tar));
        tar.resize(tar.len() + 1024, 0);
        Self::raw(tar)
    }

    /// A gzip layer of any bytes.
    pub fn raw(tar: impl Into<Vec<u8>>) -> Self {
        Self { tar: tar.into(), compression: Compression::Gzip, diff_id: None, blob_digest: None }
    }

    /// Sets the compression.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Has the config claim another diff id.
    pub fn claim_diff_id(mut self, digest: &str) -> Self {
        self.diff_id = Some(digest.to_owned());
        self
    }

    /// Has the manifest claim another digest for the blob.
    pub fn claim_blob(mut self, digest: &str) -> Self {
        self.blob_digest = Some(digest.to_owned());
        self
    }

    /// The archive.
    pub fn tar(&self) -> &[u8] {
        &self.tar
    }

    /// The bytes as sent.
    pub fn blob(&self) -> Vec<u8> {
        match self.compression {
            Compression::Plain => self.tar.clone(),
            Compression::Zstd => zstd::encode_all(&self.tar[..], 3).must("zstd"),
            Compression::Gzip => gzip(&self.tar, flate2::Compression::fast()),
            Compression::GzipAsUsual => gzip(&self.tar, flate2::Compression::default()),
        }
    }
}

fn gzip(tar: &[u8], level: flate2::Compression) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
    encoder.write_all(tar).must("gzip");
    encoder.finish().must("gzip")
}

/// Which family of media types an image uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The OCI image specification.
    Oci,
    /// Docker schema 2.
    Docker,
}

impl Format {
    fn manifest(self) -> &'static str {
        match self {
            Format::Oci => "application/vnd.oci.image.manifest.v1+json",
            Format::Docker => "application/vnd.docker.distribution.manifest.v2+json",
        }
    }

    fn index(self) -> &'static str {
        match self {
            Format::Oci => "application/vnd.oci.image.index.v1+json",
            Format::Docker => "application/vnd.docker.distribution.manifest.list.v2+json",
        }
    }

    fn config(self) -> &'static str {
        match self {
            Format::Oci => "application/vnd.oci.image.config.v1+json",
            Format::Docker => "application/vnd.docker.container.image.v1+json",
        }
    }

    fn layer(self, compression: Compression) -> &'static str {
        match (self, compression) {
            (Format::Oci, Compression::Gzip | Compression::GzipAsUsual) => {
                "application/vnd.oci.image.layer.v1.tar+gzip"
            }
            (Format::Oci, Compression::Zstd) => "application/vnd.oci.image.layer.v1.tar+zstd",
            (Format::Oci, Compression::Plain) => "application/vnd.oci.image.layer.v1.tar",
            (Format::Docker, Compression::Gzip | Compression::GzipAsUsual | Compression::Zstd) => {
                "application/vnd.docker.image.rootfs.diff.tar.gzip"
            }
            (Format::Docker, Compression::Plain) => "application/vnd.docker.image.rootfs.diff.tar",
        }
    }
}

/// An image to be built.
#[derive(Debug, Clone)]
pub struct Image {
    format: Format,
    layers: Vec<Layer>,
    run: Value,
    platform: (String, String, String),
}

impl Default for Image {
    fn default() -> Self {
        Self::new()
    }
}

impl Image {
    /// An OCI image without layers for the machine that the tests run on.
    pub fn new() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let platform = ("linux".into(), architecture.into(), String::new());
        Self { format: Format::Oci, layers: Vec::new(), run: json!({}), platform }
    }

    /// Sets the family of media types.
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Adds a layer on top.
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    /// Sets the config's `config` object: `{"Cmd": […], "Env": […], …}`.
    pub fn run(mut self, run: Value) -> Self {
        self.run = run;
        self
    }

    /// Sets the platform.
    pub fn platform(mut self, os: &str, architecture: &str, variant: &str) -> Self {
        self.platform = (os.into(), architecture.into(), variant.into());
        self
    }

    fn platform_json(&self) -> Value {
        let (os, architecture, variant) = &self.platform;
        let mut platform = json!({"os": os, "architecture": architecture});
        if !variant.is_empty() {
            platform["variant"] = json!(variant);
        }
        platform
    }

    /// Builds config and manifest.
    pub fn build(&self) -> Built {
        let mut blobs = Vec::new();
        let (mut descriptors, mut diff_ids) = (Vec::new(), Vec::new());
        for layer in &self.layers {
            let blob = layer.blob();
            let name = layer.blob_digest.clone().unwrap_or_else(|| digest(&blob));
            descriptors.push(json!({
                "mediaType": self.format.layer(layer.compression), "digest": name, "size": blob.len(),
            }));
            diff_ids.push(layer.diff_id.clone().unwrap_or_else(|| digest(&layer.tar)));
            blobs.push((name, blob));
        }
        let mut config = self.platform_json();
        config["config"] = self.run.clone();
        config["rootfs"] = json!({"type": "layers", "diff_ids": diff_ids});
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": self.format.manifest(),
            "config": {"mediaType": self.format.config(), "digest": digest(&config), "size": config.len()},
            "layers": descriptors,
        });
        blobs.push((digest(&config), config));
        let manifest = Document::new(self.format.manifest(), manifest.to_string());
        Built { blobs, manifests: vec![manifest], diff_ids, platform: self.platform_json(), format: self.format }
    }
}

/// A manifest or index as it is served.
#[derive(Debug, Clone)]
pub struct Document {
    /// `Content-Type`.
    pub media_type: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Document {
    /// Any document.
    pub fn new(media_type: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { media_type: media_type.to_owned(), bytes: bytes.into() }
    }

    /// Its digest.
    pub fn digest(&self) -> String {
        digest(&self.bytes)
    }
}

/// Content ready to be served.
#[derive(Debug, Clone)]
pub struct Built {
    /// Layers bottom first, then the config, under the digests that the manifest names.
    pub blobs: Vec<(String, Vec<u8>)>,
    /// Manifests and indexes; the last one is what a tag names.
    pub manifests: Vec<Document>,
    /// Diff ids of the layers.
    pub diff_ids: Vec<String>,
    platform: Value,
    format: Format,
}

impl Built {
    /// What a tag names.
    pub fn top(&self) -> &Document {
        self.manifests.last().must("a built image has a manifest")
    }

    /// The digest of what a tag names.
    pub fn digest(&self) -> String {
        self.top().digest()
    }

    /// An index over images (or over other indexes). `attestation` adds the entry that build tools put there.
    pub fn index(images: &[Built], attestation: bool) -> Built {
        let mut entries: Vec<Value> = Vec::new();
        if attestation {
            entries.push(json!({
                "mediaType": Format::Oci.manifest(), "digest": digest(b"attestation"), "size": 11,
                "platform": {"os": "unknown", "architecture": "unknown"},
            }));
        }
        for image in images {
            let top = image.top();
            let mut entry = json!({"mediaType": top.media_type, "digest": top.digest(), "size": top.bytes.len()});
            if !image.platform.is_null() {
                entry["platform"] = image.platform.clone();
            }
            entries.push(entry);
        }
        let format = images.first().map_or(Format::Oci, |image| image.format);
        let index = json!({"schemaVersion": 2, "mediaType": format.index(), "manifests": entries});
        let mut manifests: Vec<Document> = images.iter().flat_map(|image| image.manifests.clone()).collect();
        manifests.push(Document::new(format.index(), index.to_string()));
        let blobs = images.iter().flat_map(|image| image.blobs.clone()).collect();
        Built { blobs, manifests, diff_ids: Vec::new(), platform: Value::Null, format }
    }
}

/// A tar of any entries, for archives that no tool would write.
pub fn archive(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    Layer::of(entries).tar
}

/// Compresses an archive.
pub fn compress(archive: &[u8], compression: Compression) -> Vec<u8> {
    Layer::raw(archive).compression(compression).blob()
}

impl Built {
    fn config(&self) -> &(String, Vec<u8>) {
        self.blobs.last().must("a built image has a config")
    }

    /// The members of an archive as `docker save` wrote it for years: `<id>/layer.tar`, every second layer but a link to it.
    pub fn saved(&self, names: &[&str]) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut layers = Vec::new();
        for (at, (_, blob)) in self.blobs.iter().take(self.diff_ids.len()).enumerate() {
            let (directory, name) = (format!("layer{at}"), format!("layer{at}/layer.tar"));
            entries.push(Entry::dir(directory.clone()));
            if at % 2 == 1 {
                entries.push(Entry::file(format!("shared{at}/layer.tar"), blob.clone()));
                entries.push(Entry::symlink(name.clone(), format!("../shared{at}/layer.tar")));
            } else {
                entries.push(Entry::file(name.clone(), blob.clone()));
            }
            layers.push(name);
        }
        let (digest, config) = self.config();
        let config_name = format!("{}.json", digest.trim_start_matches("sha256:"));
        entries.push(Entry::file(config_name.clone(), config.clone()));
        let manifest = json!([{"Config": config_name, "RepoTags": names, "Layers": layers}]);
        entries.push(Entry::file("manifest.json", manifest.to_string()));
        entries
    }

    /// The members of an OCI layout; `annotations` are those of the image's entry in `index.json`.
    pub fn layout(&self, annotations: Value) -> Vec<Entry> {
        let mut entries = vec![Entry::file("oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#)];
        let path = |digest: &str| format!("blobs/{}", digest.replacen(':', "/", 1));
        entries.extend(self.blobs.iter().map(|(digest, bytes)| Entry::file(path(digest), bytes.clone())));
        entries.extend(
            self.manifests.iter().map(|manifest| Entry::file(path(&manifest.digest()), manifest.bytes.clone())),
        );
        let top = self.top();
        let mut entry = json!({"mediaType": top.media_type, "digest": top.digest(), "size": top.bytes.len()});
        entry["annotations"] = annotations;
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        entries.push(Entry::file("index.json", index.to_string()));
        entries
    }

    /// What docker has written since version 25: an OCI layout with a `manifest.json` that points into it.
    pub fn saved_as_layout(&self, name: &str) -> Vec<Entry> {
        let mut entries = self.layout(json!({"io.containerd.image.name": name}));
        let path = |digest: &str| format!("blobs/{}", digest.replacen(':', "/", 1));
        let layers: Vec<String> = self.blobs.iter().take(self.diff_ids.len()).map(|(digest, _)| path(digest)).collect();
        let manifest = json!([{"Config": path(&self.config().0), "RepoTags": [name], "Layers": layers}]);
        entries.push(Entry::file("manifest.json", manifest.to_string()));
        entries
    }
}

impl Entry {
    /// Writes files and directories of an archive into a directory, as unpacking it would.
    pub fn write_below(&self, directory: &std::path::Path) {
        let path = directory.join(String::from_utf8_lossy(&self.name).as_ref());
        std::fs::create_dir_all(path.parent().must("a parent")).must("make a directory");
        match self.kind {
            b'5' => std::fs::create_dir_all(&path).must("make a directory"),
            _ => std::fs::write(&path, &self.data).must("write a file"),
        }
    }
}
