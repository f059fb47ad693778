//! The record of a volume: a versioned file that says that the volume is complete, and of what it consists.

use std::{fmt, path::PathBuf};

use host::{
    Context,
    durable::{self, Durability, Step},
    record,
};
use runtime::file_system::FileSystem;
use serde::{Deserialize, Serialize};

use super::{
    error::PluginError,
    parameters::Source,
    place::Place,
    request::{Capacity, Request},
};

/// The version of the form. New fields need a default and no new version (docs/on-disk.md, "Versions"): builds that do
/// not know `origin` mount and remove such a volume as any other, and never write its record again. A new kind of
/// origin or storage needs a new version, because older builds cannot read it.
const VERSION: u32 = 1;

/// A complete volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name, for a reader of the file.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The size that the specification gave.
    pub capacity: Capacity,
    /// Of what it consists.
    pub storage: Storage,
    /// What it was filled with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// What a volume was filled with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// An image.
    Image {
        /// Its name at that time.
        reference: String,
        /// The digest of its manifest.
        digest: String,
        /// The directory of it; without one, all of it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<PathBuf>,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image { reference, path: None, .. } => write!(f, "image {reference}"),
            Self::Image { reference, path: Some(path), .. } => write!(f, "{path:?} of image {reference}"),
        }
    }
}

impl Origin {
    /// Whether a volume of this origin has the content that a later request names. The content does not follow the tag.
    fn is(&self, wanted: &Source) -> bool {
        match (self, wanted) {
            (Self::Image { reference, path, .. }, Source::Image { reference: name, part }) => {
                *reference == name.to_string() && path == part
            }
        }
    }
}

/// Of what a volume consists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Storage {
    /// A directory of the node's file system.
    Directory,
    /// A file system of its own in a sparse file.
    File {
        /// Its kind.
        #[serde(with = "kind")]
        file_system: FileSystem,
    },
}

/// Kinds of file systems as text.
mod kind {
    use runtime::file_system::FileSystem;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(kind: &FileSystem, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kind.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FileSystem, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = [FileSystem::Ext4, FileSystem::Xfs].into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| D::Error::custom(format!("unknown file system {name:?}")))
    }
}

impl Record {
    /// The record of a request, whose volume has this content.
    pub fn of(request: &Request, origin: Option<Origin>) -> Self {
        let file_system = request.parameters.file_system.unwrap_or(FileSystem::Ext4);
        Self {
            name: request.name.clone(),
            namespace: request.namespace.clone(),
            capacity: request.capacity,
            storage: if request.capacity.is_limit() { Storage::File { file_system } } else { Storage::Directory },
            origin,
        }
    }

    /// The record of a complete volume; `None` if there is none.
    pub fn read(place: &Place) -> Result<Option<Self>, PluginError> {
        Ok(record::read(VERSION, &place.record())?)
    }

    /// The record of a volume whose removal has begun; `None` if there is none.
    pub fn read_removed(place: &Place) -> Result<Option<Self>, PluginError> {
        Ok(record::read(VERSION, &place.mark())?)
    }

    /// Writes the record, durably.
    pub fn write(&self, place: &Place) -> Result<(), PluginError> {
        let path = place.record();
        let action = || format!("writing {}", path.display());
        let bytes = record::encode(VERSION, self).context(action)?;
        let before = |step: Step| match step {
            Step::Write => failpoint::at("volume-before-record"),
            Step::Rename => failpoint::at("volume-before-commit"),
            Step::Sync | Step::SyncDirectory => {}
        };
        let temporary = path.with_extension("json.tmp");
        Ok(durable::write(&path, &temporary, &bytes, Durability::Now, before).context(action)?)
    }

    /// Checks a later request of the same volume, whose limit allows `bytes` bytes. After a restart, the agent repeats
    /// the first request.
    pub fn check(&self, request: &Request, bytes: u64) -> Result<(), PluginError> {
        let Capacity { min, max } = request.capacity;
        let problem = match (self.storage, request.parameters.file_system) {
            _ if request.capacity == self.capacity => None,
            (Storage::Directory, _) => Some("the volume was made without a limit and cannot get one".to_owned()),
            (Storage::File { .. }, _) if max > 0 && max < bytes => {
                Some(format!("the volume has {bytes} bytes and cannot become smaller"))
            }
            (Storage::File { .. }, _) if min > bytes => {
                Some(format!("the volume has {bytes} bytes and cannot become larger"))
            }
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(PluginError::new(format!("capacity_min, capacity_max: {problem}: make another volume")));
        }
        self.check_origin(request.parameters.source.as_ref())?;
        match (self.storage, request.parameters.file_system) {
            (Storage::File { file_system }, Some(wanted)) if file_system != wanted => {
                let (has, wanted) = (file_system.name(), wanted.name());
                Err(PluginError::new(format!(
                    "parameter fs: the volume has {has}: write that, or make another volume \
                                              with {wanted}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Content that is not that of the volume is refused, because the volume would keep its own.
    fn check_origin(&self, wanted: Option<&Source>) -> Result<(), PluginError> {
        let Some(wanted) = wanted else { return Ok(()) };
        if self.origin.as_ref().is_some_and(|origin| origin.is(wanted)) {
            return Ok(());
        }
        let has =
            self.origin.as_ref().map_or_else(|| "was made empty".to_owned(), |has| format!("was filled from {has}"));
        Err(PluginError::new(format!(
            "parameters image, path: the volume {has}, and stays as it is: write that, or make another volume"
        )))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::volume_plugin::parameters::Parameters;

    fn request(min: u64, max: u64, file_system: Option<FileSystem>) -> Request {
        Request {
            place: Place::new("/volumes".into(), "id".to_owned()),
            name: "db".to_owned(),
            namespace: "default".to_owned(),
            capacity: Capacity { min, max },
            parameters: Parameters { file_system, ..Parameters::default() },
            plugins: None,
        }
    }

    /// A later release reads these forms.
    #[test]
    fn the_forms_on_disk_are_read() {
        for recorded in [
            json!({"version": 1, "name": "db", "namespace": "default", "capacity": {"min": 1, "max": 2},
                "storage": {"kind": "file", "file_system": "xfs"}}),
            json!({"version": 1, "name": "db", "namespace": "default", "capacity": {"min": 0, "max": 0},
                "storage": {"kind": "directory"}}),
            json!({"version": 1, "name": "db", "namespace": "default", "capacity": {"min": 0, "max": 0},
                "storage": {"kind": "directory"}, "origin": {"kind": "image", "reference": "m", "digest": "sha256:0"}}),
            serde_json::from_str(include_str!("../../tests/records/volume.json")).unwrap(),
        ] {
            let record: Record = record::decode(VERSION, recorded.to_string().as_bytes()).unwrap();
            let written: Value = serde_json::from_slice(&record::encode(VERSION, &record).unwrap()).unwrap();
            assert!(record::keeps_fields(&recorded, &written), "{written}");
        }
    }

    /// `origin` has no version of its own: builds of version 1 that do not know it read such a record as any other.
    #[test]
    fn a_build_without_origins_reads_a_record_with_one() {
        #[derive(Deserialize)]
        struct WithoutOrigin {
            name: String,
            storage: Storage,
        }
        let recorded = include_str!("../../tests/records/volume.json");
        let older: WithoutOrigin = record::decode(1, recorded.as_bytes()).unwrap();
        assert_eq!((older.name.as_str(), older.storage), ("models", Storage::File { file_system: FileSystem::Xfs }));
        let without = r#"{"version": 1, "name": "db", "namespace": "default", "capacity": {"min": 0, "max": 0},
            "storage": {"kind": "directory"}}"#;
        assert_eq!(record::decode::<Record>(VERSION, without.as_bytes()).unwrap().origin, None);
    }

    #[test]
    fn a_later_request_must_fit_the_volume() {
        let first = request(100, 200, None);
        let record = Record::of(&first, None);
        // The room of the file system may be less than the minimum.
        assert!(record.check(&first, 90).is_ok());
        assert!(record.check(&request(80, 90, Some(FileSystem::Ext4)), 90).is_ok());
        for (later, problem) in [
            (request(50, 80, None), "cannot become smaller"),
            (request(150, 200, None), "cannot become larger"),
            (request(100, 200, Some(FileSystem::Xfs)), "parameter fs: the volume has ext4"),
        ] {
            let error = record.check(&later, 90).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let directory = Record::of(&request(0, 0, None), None);
        assert!(directory.check(&request(0, 0, None), 0).is_ok());
        assert!(directory.check(&first, 0).unwrap_err().to_string().contains("without a limit"));
    }
    #[test]
    fn a_later_request_cannot_name_other_content() {
        let image = |name: &str, part: Option<&str>| Source::Image {
            reference: name.parse().unwrap(),
            part: part.map(PathBuf::from),
        };
        let with = |source: Option<Source>| {
            let mut wanted = request(0, 0, None);
            wanted.parameters.source = source;
            wanted
        };
        let reference = "r.example/m:1".to_owned();
        let origin = Origin::Image { reference, digest: "sha256:00".to_owned(), path: Some("/srv".into()) };
        let record = Record::of(&with(None), Some(origin));
        for same in [None, Some(image("r.example/m:1", Some("/srv")))] {
            assert!(record.check(&with(same), 0).is_ok());
        }
        for other in [image("r.example/m:1", None), image("r.example/m:2", Some("/srv"))] {
            let error = record.check(&with(Some(other.clone())), 0).unwrap_err().to_string();
            assert!(error.contains("filled from \"/srv\" of image r.example/m:1"), "{error}");
            let error = Record::of(&with(None), None).check(&with(Some(other)), 0).unwrap_err().to_string();
            assert!(error.contains("was made empty"), "{error}");
        }
    }
}
