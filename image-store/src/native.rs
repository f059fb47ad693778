//! Native images in manifests: images whose layers are EROFS images that this program wrote. Pure.
//!
//! The media type of a layer is containerd's. Annotations say what this program needs beyond the layer's digest:
//!
//! | annotation | on | value |
//! |---|---|---|
//! | `org.oci-rs.native` | the manifest in the index | the version of the format: `1` |
//! | `org.oci-rs.native.metadata` | a layer | bytes of the metadata, at the beginning of the layer |
//! | `org.oci-rs.native.verity` | a layer | the root of its hash tree |

use std::collections::BTreeMap;

use layer::Digest;
use serde::{Deserialize, Serialize};

/// The annotations of a descriptor.
type Annotations = BTreeMap<String, String>;

/// The media type of a layer.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.erofs.layer.v1";
/// The annotation of a manifest in an index, and the version of the format.
pub(crate) const FORMAT: (&str, &str) = ("org.oci-rs.native", "1");
/// The annotations of a layer.
pub(crate) const METADATA: &str = "org.oci-rs.native.metadata";
pub(crate) const HASH_ROOT: &str = "org.oci-rs.native.verity";

/// What a manifest says about a layer that is a native image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeLayer {
    /// Bytes of the metadata.
    pub metadata: u64,
    /// The root of the hash tree.
    pub hash_root: Digest,
}

/// Whether an entry of an index with these annotations is an image in a version of the format that is known here.
pub(crate) fn is_native_image(annotations: &Annotations) -> bool {
    annotations.get(FORMAT.0).is_some_and(|version| version == FORMAT.1)
}

/// What the descriptor of a layer says. `Ok(None)`: it is an archive.
pub(crate) fn of_layer(media_type: &str, annotations: &Annotations) -> Result<Option<NativeLayer>, &'static str> {
    if media_type != MEDIA_TYPE {
        return Ok(None);
    }
    let metadata = annotations.get(METADATA).and_then(|bytes| bytes.parse().ok());
    let hash_root = annotations.get(HASH_ROOT).and_then(|root| root.parse::<Digest>().ok());
    let hash_root = hash_root.filter(|root| root.as_str().starts_with("sha256:"));
    match (metadata, hash_root) {
        (Some(metadata), Some(hash_root)) => Ok(Some(NativeLayer { metadata, hash_root })),
        _ => Err("an EROFS layer that oci-rs did not make; use the image with archives for layers"),
    }
}
