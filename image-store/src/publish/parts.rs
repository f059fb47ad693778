//! The manifests and blobs that a document of an image refers to. Pure.

use serde_json::Value;

use crate::manifest::{Descriptor, INDEX, MANIFEST};

/// The parts of a document.
pub(super) struct Parts {
    /// The media type of the document.
    pub(super) media_type: String,
    /// The manifests of an index.
    pub(super) manifests: Vec<Descriptor>,
    /// The config and the layers of a manifest.
    pub(super) blobs: Vec<BlobPart>,
}

/// A config or a layer.
pub(super) struct BlobPart {
    pub(super) descriptor: Descriptor,
    /// It may be fetched from another place, and registries need not have it.
    pub(super) is_elsewhere: bool,
}

impl Parts {
    /// Reads a document.
    pub(super) fn of(bytes: &[u8]) -> Result<Self, String> {
        let document: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let list = |key: &str| document[key].as_array().into_iter().flatten();
        let parse =
            |part: &Value| serde_json::from_value::<Descriptor>(part.clone()).map_err(|error| error.to_string());
        let manifests = list("manifests").map(parse).collect::<Result<Vec<_>, _>>()?;
        let blob = |part: &Value| {
            let is_elsewhere = part["urls"].as_array().is_some_and(|urls| !urls.is_empty());
            Ok::<_, String>(BlobPart { descriptor: parse(part)?, is_elsewhere })
        };
        let blobs =
            document.get("config").into_iter().chain(list("layers")).map(blob).collect::<Result<Vec<_>, _>>()?;
        let usual = if document.get("manifests").is_some() { INDEX } else { MANIFEST };
        let media_type = document["mediaType"].as_str().filter(|name| !name.is_empty()).unwrap_or(usual).to_owned();
        Ok(Self { media_type, manifests, blobs })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const D: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn indexes_and_manifests_are_told_apart() {
        let part = json!({"digest": D, "size": 1});
        let index = json!({"schemaVersion": 2, "manifests": [part, part]}).to_string();
        let index = Parts::of(index.as_bytes()).unwrap();
        assert_eq!((index.media_type.as_str(), index.manifests.len(), index.blobs.len()), (INDEX, 2, 0));
        let foreign = json!({"digest": D, "size": 1, "urls": ["https://x.example/"]});
        let manifest = json!({"mediaType": "a/b", "config": part, "layers": [part, foreign]}).to_string();
        let manifest = Parts::of(manifest.as_bytes()).unwrap();
        let elsewhere: Vec<_> = manifest.blobs.iter().map(|blob| blob.is_elsewhere).collect();
        assert_eq!((manifest.media_type.as_str(), elsewhere), ("a/b", vec![false, false, true]));
        assert!(Parts::of(b"{\"layers\": [{}]}").is_err());
        assert!(Parts::of(b"[").is_err());
    }
}
