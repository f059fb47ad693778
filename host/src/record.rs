//! Versioned JSON records.
//!
//! Every record carries the version of its form. A build reads all versions up to its own, because an older build may
//! have written the record, and refuses a newer version by its number.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::error::{Context, IoError};

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The operating system refused to read it.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Its content is not a record that this build reads.
    #[error("{path}: not a record of this version: {problem}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
}

/// A record together with its version, as it is written.
#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    record: &'a T,
}

/// The bytes of a record: a JSON object with `version` as its first field. `record` must become a JSON object without a
/// field of that name.
pub fn encode<T: Serialize>(version: u32, record: &T) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&Versioned { version, record })?)
}

/// The record of these bytes. A missing version is 1: the first builds wrote none. `newest` is the newest version that
/// the caller can read.
///
/// # Errors
///
/// The reason as text, for a message that names the file.
pub fn decode<T: DeserializeOwned>(newest: u32, bytes: &[u8]) -> Result<T, String> {
    const fn first() -> u32 {
        1
    }
    #[derive(Deserialize)]
    struct Version {
        #[serde(default = "first")]
        version: u32,
    }
    let Version { version } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if version > newest {
        return Err(format!("it has version {version}, this build reads up to {newest}: a newer oci-rs wrote it"));
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// Whether a record that was read and written again still has every field of its earlier form. Tests of formats use it:
/// `recorded` is a record with every field, and a renamed field is missing in `written`. New fields are no difference.
pub fn keeps_fields(recorded: &Value, written: &Value) -> bool {
    match (recorded, written) {
        (Value::Object(recorded), Value::Object(written)) => {
            recorded.iter().all(|(name, value)| written.get(name).is_some_and(|written| keeps_fields(value, written)))
        }
        (Value::Array(recorded), Value::Array(written)) => {
            recorded.len() == written.len()
                && recorded.iter().zip(written).all(|(recorded, written)| keeps_fields(recorded, written))
        }
        (recorded, written) => recorded == written,
    }
}

/// The record in a file; `None` when there is no file.
pub fn read<T: DeserializeOwned>(newest: u32, path: &Path) -> Result<Option<T>, RecordError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.context(|| format!("reading {}", path.display()))?,
    };
    let decoded = decode(newest, &bytes);
    decoded.map(Some).map_err(|problem| RecordError::Invalid { path: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Example {
        name: String,
    }

    #[test]
    fn the_version_comes_first_and_a_missing_one_is_the_first() {
        let example = Example { name: "web".to_owned() };
        let bytes = encode(3, &example).unwrap();
        assert_eq!(bytes, br#"{"version":3,"name":"web"}"#);
        assert_eq!(decode::<Example>(3, &bytes), Ok(Example { name: "web".to_owned() }));
        assert_eq!(decode::<Example>(3, br#"{"name":"web"}"#), Ok(example));
    }

    #[test]
    fn a_renamed_field_is_lost_and_a_new_one_is_no_difference() {
        use serde_json::json;
        let recorded = json!({"a": [{"b": 1}], "c": null});
        for (written, kept) in [
            (json!({"a": [{"b": 1, "new": 2}], "c": null, "new": 3}), true),
            (json!({"a": [{"renamed": 1}], "c": null}), false),
            (json!({"a": [{"b": 2}], "c": null}), false),
            (json!({"a": [], "c": null}), false),
            (json!({"a": [{"b": 1}]}), false),
        ] {
            assert_eq!(keeps_fields(&recorded, &written), kept, "{written}");
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number() {
        let error = decode::<Example>(2, br#"{"version":7,"name":"web"}"#).unwrap_err();
        assert!(error.contains("version 7") && error.contains("newer oci-rs"), "{error}");
    }

    #[test]
    fn a_missing_file_is_none_and_a_damaged_one_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("example.json");
        assert_eq!(read::<Example>(1, &path).unwrap(), None);
        fs::write(&path, "{").unwrap();
        let error = read::<Example>(1, &path).unwrap_err().to_string();
        assert!(error.contains("example.json") && error.contains("not a record"), "{error}");
    }
}
