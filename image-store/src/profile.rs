//! What containers read first of images, as `image profile` shows it and `image convert` takes it. Pure.
//!
//! A profile names files of a layer, not places in one native image of it. So it applies to each image that has the
//! layer, wherever the data is in it.

use std::{collections::BTreeMap, ops::Range};

use layer::{Digest, FileReads};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::native::{format_chunks, parse_chunks};

/// What containers read first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The files of each layer in the order of their first reads, by the UUID of the layer's file system.
    pub layers: BTreeMap<String, Vec<ProfiledFile>>,
}

/// What is read first of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfiledFile {
    /// The path of the file in the layer, without a slash at its beginning.
    pub path: String,
    /// Parts of 128 KiB; in JSON as in `0-3,17`.
    #[serde(serialize_with = "write_parts", deserialize_with = "read_parts")]
    pub parts: Vec<Range<usize>>,
}

impl Profile {
    /// The files of the layer with this diff id, which is that of the original image.
    pub(crate) fn of_layer(&self, diff_id: &Digest) -> Vec<FileReads> {
        let files = self.layers.get(&hex::encode(layer::uuid(diff_id))).into_iter().flatten();
        files.map(|file| FileReads { path: file.path.clone().into_bytes(), parts: file.parts.clone() }).collect()
    }
}

impl ProfiledFile {
    /// `None`: JSON has no such names.
    pub(crate) fn new(FileReads { path, parts }: FileReads) -> Option<Self> {
        Some(Self { path: String::from_utf8(path).ok()?, parts })
    }
}

fn write_parts<S: Serializer>(parts: &[Range<usize>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format_chunks(parts))
}

fn read_parts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Range<usize>>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_chunks(&text).ok_or_else(|| D::Error::custom(format!("{text:?} is no list of parts, as in 0-3,17")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_names_files_by_the_uuid_of_their_layer() {
        let diff_id = Digest::sha256(b"a layer");
        let uuid = &diff_id.hex()[..32];
        let text = format!(r#"{{"layers":{{"{uuid}":[{{"path":"usr/bin/env","parts":"0-3,17"}}]}}}}"#);
        let profile: Profile = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&profile).unwrap(), text);
        let expected = FileReads { path: b"usr/bin/env".to_vec(), parts: vec![0..4, 17..18] };
        assert_eq!(profile.of_layer(&diff_id), std::slice::from_ref(&expected));
        assert_eq!(profile.of_layer(&Digest::sha256(b"another layer")), []);
        assert_eq!(ProfiledFile::new(expected).as_ref(), Some(&profile.layers[uuid][0]));
        assert_eq!(ProfiledFile::new(FileReads { path: vec![0xff], parts: Vec::new() }), None);
        for wrong in [r#"{"sha256:00":"0-3"}"#, &text.replace("0-3", "3-0"), &text.replace("path", "name")] {
            assert!(serde_json::from_str::<Profile>(wrong).is_err(), "{wrong}");
        }
    }
}
