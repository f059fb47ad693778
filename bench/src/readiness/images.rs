//! The images of the services at a registry: as gzip alone, and beside it as a native image with a profile.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fixtures::{image::digest, must::Must, registry::DockerRegistry};
use kit::plugin::{COOKIE, PluginCommand};
use serde_json::{Value as Json, json};

use super::{
    blobs::{Blob, Blobs},
    services::Service,
};
use crate::{
    containerd::REMOTE,
    report::note,
    workdir::{WorkDirectory, text},
};

/// An image of a service.
#[derive(Debug, Clone)]
pub struct Image {
    /// The service.
    pub service: Service,
    /// The size that was asked for, in MiB of gzip.
    pub mebibytes: u64,
    /// Bytes of all gzip layers.
    pub packed: u64,
    /// Bytes of all native layers.
    pub native: u64,
    /// The digests of all native layers, the largest one first.
    blobs: Vec<String>,
    name: String,
}

impl Image {
    /// The image with gzip layers only, at this host.
    pub fn gzip(&self, host: &str) -> String {
        format!("{host}/{}:gzip", self.name)
    }

    /// The image in the form that a snapshotter of containerd takes, at this host.
    pub fn of_snapshotter(&self, host: &str, snapshotter: &str) -> String {
        if REMOTE.contains(&snapshotter) { format!("{host}/{}:{snapshotter}", self.name) } else { self.gzip(host) }
    }

    /// The image with its native form, at this host.
    pub fn native(&self, host: &str) -> String {
        format!("{host}/{}:native", self.name)
    }

    /// The number of layers, in either form.
    pub fn layers(&self) -> usize {
        self.blobs.len()
    }

    /// The paths of the requests of a pull of the native image: that of its index, and those of its layers, the largest
    /// one first.
    pub fn requests(&self) -> (String, Vec<String>) {
        let path = |kind, name| format!("/v2/{}/{kind}/{name}", self.name);
        (path("manifests", "native"), self.blobs.iter().map(|digest| path("blobs", digest)).collect())
    }
}

/// Makes images and uploads them.
pub struct Publisher<'a> {
    /// The run.
    pub workdir: &'a WorkDirectory,
    /// Where the layers are.
    pub blobs: &'a Blobs,
    /// Where the images go.
    pub registry: &'a DockerRegistry,
    /// The port on which the services listen, and their answer.
    pub service: (u16, &'a str),
}

impl Publisher<'_> {
    /// An image of a service with this many MiB of gzip, or without anything that the service does not need. `profile`
    /// is the output of `image profile --json`.
    pub fn publish(&self, service: Service, mebibytes: Option<u64>, profile: Option<&Path>) -> Result<Image, String> {
        let root = self.blobs.root(self.workdir, service)?;
        let (port, answer) = self.service;
        let own = self.blobs.small(self.workdir, service.name(), service.files(port, answer));
        let rest = mebibytes.map_or(0, |all| (all << 20).saturating_sub(root.size + own.size));
        let mut layers = vec![root];
        layers.extend(self.blobs.filling(rest)?);
        layers.push(own);
        let size = mebibytes.map_or_else(|| "small".to_owned(), |all| all.to_string());
        let name = format!("readiness/{service}-{size}").to_lowercase();
        note(&format!("readiness: converting {name}"));
        let (source, target) = (self.workdir.directory("layouts").join("source"), self.workdir.directory("layouts"));
        let target = target.join("native");
        for directory in [&source, &target] {
            fs::remove_dir_all(directory).ok();
        }
        layout(&source, &layers, &service.run());
        let paths = (text(&source), text(&target));
        let profile = profile.map(text);
        let mut convert = vec!["image", "convert", &paths.0, &paths.1, "--json"];
        convert.extend(profile.iter().flat_map(|profile| ["--reorder", "--profile", profile.as_str()]));
        let converted: Json = serde_json::from_str(&self.command(&convert)?).map_err(|error| error.to_string())?;
        let image = Image {
            service,
            mebibytes: mebibytes.unwrap_or_default(),
            packed: layers.iter().map(|layer| layer.size).sum(),
            native: converted["images"][0]["layer_bytes"].as_u64().ok_or("no bytes of native layers")?,
            blobs: native_layers(&target, &converted["images"][0]["manifest"])?,
            name,
        };
        let host = self.registry.host();
        self.command(&["image", "push", &paths.0, &image.gzip(&host)])?;
        self.command(&["image", "push", &paths.1, &image.native(&host)])?;
        for directory in [&source, &target] {
            fs::remove_dir_all(directory).ok();
        }
        Ok(image)
    }

    fn command(&self, args: &[&str]) -> Result<String, String> {
        command(&self.workdir.directory("commands"), args)
    }
}

/// Runs a command of the driver on the node with this directory, and returns its output.
pub fn command(root: &Path, args: &[&str]) -> Result<String, String> {
    fs::create_dir_all(root.join("tmp")).must("a directory for temporary files");
    let mut command = PluginCommand::new(root).without(COOKIE.0).args(args).as_std();
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("oci-rs {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// The digests of the layers of a manifest in a layout, the largest one first.
fn native_layers(layout: &Path, manifest: &Json) -> Result<Vec<String>, String> {
    let digest = manifest.as_str().ok_or("no digest of a native image")?;
    let bytes = fs::read(layout.join("blobs").join(digest.replace(':', "/"))).map_err(|error| error.to_string())?;
    let manifest: Json = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    let mut layers = manifest["layers"].as_array().cloned().unwrap_or_default();
    layers.sort_by_key(|layer| std::cmp::Reverse(layer["size"].as_u64()));
    Ok(layers.iter().filter_map(|layer| layer["digest"].as_str().map(str::to_owned)).collect())
}

/// Makes an OCI layout with one image. Large layers are not copied if the file system allows it.
fn layout(directory: &Path, layers: &[Blob], run: &Json) {
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs).must("a layout");
    let path_of = |digest: &str| -> PathBuf { blobs.join(digest.trim_start_matches("sha256:")) };
    for layer in layers {
        let target = path_of(&layer.digest);
        fs::hard_link(&layer.path, &target).or_else(|_| fs::copy(&layer.path, &target).map(drop)).must("a layer");
    }
    let store = |value: &Json, media_type: &str| {
        let bytes = value.to_string().into_bytes();
        let digest = digest(&bytes);
        fs::write(path_of(&digest), &bytes).must("a blob");
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    };
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
    let config = json!({
        "os": "linux", "architecture": architecture, "config": run,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let media_type = "application/vnd.oci.image.layer.v1.tar+gzip";
    let described =
        layers.iter().map(|layer| json!({"mediaType": media_type, "digest": layer.digest, "size": layer.size}));
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": store(&config, "application/vnd.oci.image.config.v1+json"),
        "layers": described.collect::<Vec<_>>(),
    });
    let mut entry = store(&manifest, "application/vnd.oci.image.manifest.v1+json");
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": "1"});
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry],
    });
    fs::write(directory.join("index.json"), index.to_string()).must("an index");
    fs::write(directory.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string()).must("a layout");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_has_all_blobs_that_it_names() {
        let directory = tempfile::tempdir().must("a directory");
        let path = directory.path().join("layer");
        fs::write(&path, "layer").must("a layer");
        let layer = Blob { path, digest: digest(b"layer"), diff_id: digest(b"tar"), size: 5 };
        let target = directory.path().join("layout");
        layout(&target, std::slice::from_ref(&layer), &Service::Static.run());
        let read = |path: PathBuf| serde_json::from_slice::<Json>(&fs::read(path).must("a file")).must("JSON");
        let blob = |entry: &Json| {
            let name = entry["digest"].as_str().must("a digest").replace(':', "/");
            target.join("blobs").join(name)
        };
        let manifest = read(blob(&read(target.join("index.json"))["manifests"][0]));
        assert_eq!(fs::read(blob(&manifest["layers"][0])).must("the layer"), b"layer");
        assert_eq!(read(blob(&manifest["config"]))["rootfs"]["diff_ids"], json!([layer.diff_id]));
    }

    #[test]
    fn references_have_the_host_of_the_link() {
        let (name, blobs) = ("readiness/nginx-150".to_owned(), vec!["sha256:abc".to_owned()]);
        let image = Image { service: Service::Static, mebibytes: 150, packed: 1, native: 1, blobs, name };
        let blob = "/v2/readiness/nginx-150/blobs/sha256:abc".to_owned();
        assert_eq!(image.layers(), 1);
        assert_eq!(image.requests(), ("/v2/readiness/nginx-150/manifests/native".to_owned(), vec![blob]));
        assert_eq!(image.native("127.0.0.1:1"), "127.0.0.1:1/readiness/nginx-150:native");
        assert_eq!(image.gzip("127.0.0.1:1"), "127.0.0.1:1/readiness/nginx-150:gzip");
        assert_eq!(image.of_snapshotter("127.0.0.1:1", "erofs"), image.gzip("127.0.0.1:1"));
        assert_eq!(image.of_snapshotter("127.0.0.1:1", "soci"), "127.0.0.1:1/readiness/nginx-150:soci");
    }
}
