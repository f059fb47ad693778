//! Native images in manifests: images whose layers are EROFS images that this program wrote. Pure.
//!
//! The media type of a layer is containerd's. Annotations say what this program needs beyond the layer's digest:
//!
//! | annotation | on | value |
//! |---|---|---|
//! | `org.oci-rs.native` | the manifest in the index | the version of the format, see [`version`] |
//! | `org.oci-rs.native.manifest` | the same | the manifest, in base64 |
//! | `org.oci-rs.native.metadata` | a layer | bytes of the metadata, at the beginning of the layer |
//! | `org.oci-rs.native.verity` | a layer | the root of its hash tree |
//! | `org.oci-rs.native.first` | a layer | chunks of its data that are read first, as in `0-3,17` |

use std::{collections::BTreeMap, ops::Range};

use layer::Digest;
use serde::{Deserialize, Serialize};

use crate::platform::Platform;

/// The annotations of a descriptor.
type Annotations = BTreeMap<String, String>;

/// The media type of a layer.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.erofs.layer.v1";
/// The annotation of a manifest in an index. Its value is the version of the format.
pub(crate) const FORMAT: &str = "org.oci-rs.native";
/// The annotation that holds the manifest. The specification has the field `data` for this, but skopeo does not copy an
/// index with that field when it must keep digests.
pub(crate) const DOCUMENT: &str = "org.oci-rs.native.manifest";
/// The annotations of a layer.
pub(crate) const METADATA: &str = "org.oci-rs.native.metadata";
pub(crate) const HASH_ROOT: &str = "org.oci-rs.native.verity";
pub(crate) const FIRST: &str = "org.oci-rs.native.first";
/// Ranges of chunks in that annotation.
const MAX_FIRST: usize = 4096;

/// What a manifest says about a layer that is a native image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeLayer {
    /// Bytes of the metadata.
    pub metadata: u64,
    /// The root of the hash tree.
    pub hash_root: Digest,
    /// Chunks of 128 KiB that a container reads first, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<Range<usize>>,
}

/// Whether an entry of an index with these annotations is an image in a version of the format that is known here.
pub(crate) fn is_native_image(annotations: &Annotations) -> bool {
    is_compressed(annotations).is_some()
}

/// The version of the format in which data may be compressed with zstd, and may have another order than the files.
/// Releases before the third version accept one order only.
pub(crate) fn version(compressed: bool, reordered: bool) -> &'static str {
    match (compressed, reordered) {
        (false, false) => "1",
        (true, false) => "2",
        (false, true) => "3",
        (true, true) => "4",
    }
}

/// Whether it is one that a machine mounts.
pub(crate) fn is_mountable(annotations: &Annotations, machine: &Platform) -> bool {
    is_compressed(annotations).is_some_and(|compressed| machine.has_erofs_zstd() || !compressed)
}

/// Whether the data of an image with these annotations may be compressed; `None`: the version is not known here.
fn is_compressed(annotations: &Annotations) -> Option<bool> {
    match annotations.get(FORMAT)?.as_str() {
        "1" | "3" => Some(false),
        "2" | "4" => Some(true),
        _ => None,
    }
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
        (Some(metadata), Some(hash_root)) => {
            // A list in another form only costs time.
            let first = annotations.get(FIRST).and_then(|list| parse_chunks(list)).unwrap_or_default();
            Ok(Some(NativeLayer { metadata, hash_root, first }))
        }
        _ => Err("an EROFS layer that oci-rs did not make; use the image with archives for layers"),
    }
}

/// Chunks as text: `0-3,17`.
pub(crate) fn format_chunks(chunks: &[Range<usize>]) -> String {
    let text = |chunks: &Range<usize>| match chunks.end - chunks.start {
        1 => chunks.start.to_string(),
        _ => format!("{}-{}", chunks.start, chunks.end - 1),
    };
    chunks.iter().filter(|chunks| !chunks.is_empty()).map(text).collect::<Vec<_>>().join(",")
}

pub(crate) fn parse_chunks(text: &str) -> Option<Vec<Range<usize>>> {
    let parse = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some(first..last.checked_add(1)?)
    };
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(',').take(MAX_FIRST).map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_survive_their_text() {
        for chunks in [vec![], vec![0..4, 17..18, 3..9], vec![5..6, 0..1]] {
            assert_eq!(parse_chunks(&format_chunks(&chunks)), Some(chunks));
        }
        assert_eq!(format_chunks(&[0..4, 17..18, 5..5]), "0-3,17");
        for wrong in ["x", "1-", "-1", "3-2", "1,,2", "1-18446744073709551615", ","] {
            assert_eq!(parse_chunks(wrong), None, "{wrong:?}");
        }
    }
}
