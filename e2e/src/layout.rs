//! OCI layouts with new layers, for cases that look at downloads: a node does not download a layer that it has.

use std::{
    fs::{self, File},
    io::Read,
    path::Path,
    process::Command,
};

use serde_json::{Value, json};

use crate::{Context, Outcome, process::succeed};

/// Writes a layout with an image of `count` layers, each with one file of `bytes` random bytes. Returns the digests of
/// the unpacked layers.
pub(crate) fn write(layout: &Path, tag: &str, (count, bytes): (usize, u64)) -> Outcome<Vec<String>> {
    let (blobs, file) = (layout.join("blobs/sha256"), layout.join("file"));
    fs::create_dir_all(&blobs)?;
    let blob = |path: &Path, kind: &str| -> Outcome<Value> {
        let output = Command::new("sha256sum").arg(path).output().context("sha256sum")?;
        let hash: String = String::from_utf8_lossy(&output.stdout).chars().take(64).collect();
        let size = fs::metadata(path)?.len();
        fs::rename(path, blobs.join(&hash))?;
        let media_type = format!("application/vnd.oci.image.{kind}");
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{hash}"), "size": size }))
    };
    let document = |value: &Value, kind: &str| -> Outcome<Value> {
        fs::write(&file, value.to_string())?;
        blob(&file, kind)
    };
    let mut layers = Vec::new();
    for number in 0..count {
        let (name, archive) = (format!("random-{number}"), layout.join("layer.tar"));
        // Random bytes cannot be compressed.
        std::io::copy(&mut File::open("/dev/urandom")?.take(bytes), &mut File::create(layout.join(&name))?)?;
        succeed(Command::new("tar").arg("--create").arg("--file").args([&archive]).arg("-C").arg(layout).arg(&name))?;
        fs::remove_file(layout.join(&name))?;
        layers.push(blob(&archive, "layer.v1.tar")?);
    }
    let diff_ids: Vec<String> =
        layers.iter().map(|layer| layer["digest"].as_str().unwrap_or_default().to_owned()).collect();
    let rootfs = json!({ "type": "layers", "diff_ids": diff_ids });
    let config = json!({ "architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs });
    let config = document(&config, "config.v1+json")?;
    let manifest = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": layers });
    let mut manifest = document(&manifest, "manifest.v1+json")?;
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
    fs::write(layout.join("index.json"), json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string())?;
    fs::write(layout.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    Ok(diff_ids)
}
