//! The record of a volume: a versioned file that says that the volume is complete, and what it is.

use std::{fmt, path::PathBuf};

use host::{
    Context,
    durable::{self, Durability, Step},
    record,
};
use runtime::Blocks;
use serde::{Deserialize, Serialize};

use super::{
    error::PluginError,
    parameters::Source,
    place::Place,
    request::{Capacity, Request},
    storage::Storage,
};

/// The newest version of the form. A record has the oldest version whose builds treat the volume correctly:
///
/// - Version 1 has directories and file systems in sparse files, empty or filled from an image. `origin` came later and
///   without a new version (docs/on-disk.md, "Versions"): builds that do not know it mount and remove such a volume as
///   any other. They never write a record again, and builds that make volumes larger know `origin`.
/// - Version 2 has `read_only`, which older builds would ignore, and origins and storages that they cannot read.
const VERSION: u32 = 2;

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
    /// Whether nothing can write to it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
    /// What it was filled with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
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
    /// Another volume.
    Volume {
        /// Its id.
        id: String,
        /// How it was copied.
        method: Method,
    },
}

/// How a volume was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The copy shares the blocks that neither volume has changed since.
    Reflink,
    /// The copy has blocks of its own.
    Copy,
}

impl From<Blocks> for Method {
    fn from(blocks: Blocks) -> Self {
        match blocks {
            Blocks::Shared => Self::Reflink,
            Blocks::Copied => Self::Copy,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image { reference, path: None, .. } => write!(f, "image {reference}"),
            Self::Image { reference, path: Some(path), .. } => write!(f, "{path:?} of image {reference}"),
            Self::Volume { id, method: Method::Reflink } => write!(f, "volume {id} by reflink"),
            Self::Volume { id, method: Method::Copy } => write!(f, "volume {id} by a full copy"),
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
            (Self::Volume { id, .. }, Source::Volume(wanted)) => id == wanted,
            (Self::Image { .. }, Source::Volume(_)) | (Self::Volume { .. }, Source::Image { .. }) => false,
        }
    }
}

impl Record {
    /// The record of a request, whose volume consists of `storage` and has this content.
    pub fn of(request: &Request, storage: Storage, origin: Option<Origin>) -> Self {
        Self {
            name: request.name.clone(),
            namespace: request.namespace.clone(),
            capacity: request.capacity,
            storage,
            read_only: request.parameters.read_only,
            origin,
        }
    }

    /// Of what the volume consists, in a few words.
    pub fn mechanism(&self) -> String {
        match self.storage {
            Storage::Directory => "directory".to_owned(),
            Storage::Quota { .. } => "project quota".to_owned(),
            Storage::File { file_system } => format!("{} in a file", file_system.name()),
            Storage::Encrypted { file_system } => format!("{} in an encrypted file", file_system.name()),
        }
    }

    /// What the volume is, for a reader of the log. `bytes` is its limit.
    pub fn describe(&self, bytes: u64) -> String {
        let mut text = match self.storage {
            Storage::Directory => "a directory without a limit".to_owned(),
            Storage::Quota { .. } => format!("{bytes} bytes, a directory with a project quota"),
            Storage::File { file_system } => {
                format!("{bytes} bytes, {} in a sparse file on a loop device", file_system.name())
            }
            Storage::Encrypted { file_system } => {
                format!("{bytes} bytes, {} in a sparse file on a loop device, encrypted by LUKS", file_system.name())
            }
        };
        if self.read_only {
            text.push_str(", read-only");
        }
        if let Some(origin) = &self.origin {
            text = format!("{text}, filled from {origin}");
        }
        text
    }

    /// Whether the volume is mounted at its path. Otherwise its directory is there.
    pub fn is_mounted(&self) -> bool {
        self.read_only || self.storage.format().is_some()
    }

    /// Whether a later request can make the volume larger.
    pub fn can_grow(&self) -> bool {
        !self.read_only && matches!(self.storage, Storage::Quota { .. } | Storage::File { .. })
    }

    /// The version that the record is written with.
    fn version(&self) -> u32 {
        let is_copy = matches!(self.origin, Some(Origin::Volume { .. }));
        let is_newer = matches!(self.storage, Storage::Encrypted { .. } | Storage::Quota { .. });
        if self.read_only || is_copy || is_newer { VERSION } else { 1 }
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
        let bytes = record::encode(self.version(), self).context(action)?;
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
        let has = self.storage.format();
        let problem = match self.storage {
            _ if request.capacity == self.capacity => None,
            Storage::Directory => Some("the volume was made without a limit and cannot get one".to_owned()),
            _ if max > 0 && max < bytes => Some(format!("the volume has {bytes} bytes and cannot become smaller")),
            _ if min > bytes && !self.can_grow() => {
                let is = if self.read_only { "read-only" } else { "encrypted" };
                Some(format!("the volume has {bytes} bytes, and cannot become larger because it is {is}"))
            }
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(PluginError::new(format!("capacity_min, capacity_max: {problem}: make another volume")));
        }
        self.check_origin(request.parameters.source.as_ref())?;
        if request.parameters.read_only != self.read_only {
            let is = if self.read_only { "is read-only" } else { "can be written" };
            let problem =
                format!("parameter read_only: the volume {is}, and stays so: make another volume with `from`");
            return Err(PluginError::new(problem));
        }
        let is_encrypted = has.is_some_and(|has| has.is_encrypted);
        if request.parameters.key_file.is_some() != is_encrypted {
            let is = if is_encrypted { "is" } else { "is not" };
            let problem = format!("parameter encryption: the volume {is} encrypted, and stays so: make another volume");
            return Err(PluginError::new(problem));
        }
        match (has, request.parameters.file_system) {
            (None, Some(wanted)) => {
                let problem =
                    format!("the volume has no {} of its own: remove fs, or make another volume", wanted.name());
                Err(PluginError::new(format!("parameter fs: {problem}")))
            }
            (Some(has), Some(wanted)) if has.file_system != wanted => {
                let (has, wanted) = (has.file_system.name(), wanted.name());
                Err(PluginError::new(format!(
                    "parameter fs: the volume has {has}: write that, or make another volume with {wanted}"
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
            "parameters image, path, from: the volume {has}, and stays as it is: write that, or make another volume"
        )))
    }
}

#[cfg(test)]
mod tests {
    use runtime::file_system::FileSystem;
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

    fn of(request: &Request, origin: Option<Origin>) -> Record {
        Record::of(request, Storage::of(request, None, false).unwrap(), origin)
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
            serde_json::from_str(include_str!("../../tests/records/volume_2.json")).unwrap(),
            json!({"version": 2, "name": "db", "namespace": "default", "capacity": {"min": 0, "max": 9},
                "storage": {"kind": "encrypted", "file_system": "ext4"}}),
            json!({"version": 2, "name": "db", "namespace": "default", "capacity": {"min": 0, "max": 4096},
                "storage": {"kind": "quota", "bytes": 4096}}),
        ] {
            let record: Record = record::decode(VERSION, recorded.to_string().as_bytes()).unwrap();
            let written: Value = serde_json::from_slice(&record::encode(record.version(), &record).unwrap()).unwrap();
            assert!(record::keeps_fields(&recorded, &written), "{written}");
        }
    }

    /// Builds of version 1 would mount a read-only volume so that it can be written.
    #[test]
    fn a_build_of_version_1_refuses_what_it_would_treat_wrongly() {
        let with = |read_only: bool, source: Option<Origin>| {
            let mut wanted = request(0, 0, None);
            wanted.parameters.read_only = read_only;
            let record = Record::of(&wanted, Storage::Directory, source);
            record::encode(record.version(), &record).unwrap()
        };
        let copy = || Origin::Volume { id: "id".to_owned(), method: Method::Copy };
        assert!(record::decode::<Value>(1, &with(false, None)).is_ok());
        for newer in [with(true, None), with(false, Some(copy()))] {
            let problem = record::decode::<Value>(1, &newer).unwrap_err();
            assert!(problem.contains("version 2"), "{problem}");
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
        let record = of(&first, None);
        // The room of the file system may be less than the minimum.
        assert!(record.check(&first, 90).is_ok());
        assert!(record.check(&request(80, 90, Some(FileSystem::Ext4)), 90).is_ok());
        for (later, problem) in [
            (request(50, 80, None), "cannot become smaller"),
            (request(100, 200, Some(FileSystem::Xfs)), "parameter fs: the volume has ext4"),
        ] {
            let error = record.check(&later, 90).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let larger = request(150, 200, None);
        assert!(record.check(&larger, 90).is_ok() && record.can_grow());
        let encrypted = Record { storage: Storage::Encrypted { file_system: FileSystem::Ext4 }, ..record.clone() };
        for (fixed, is) in [(Record { read_only: true, ..record }, "read-only"), (encrypted, "encrypted")] {
            let error = fixed.check(&larger, 90).unwrap_err().to_string();
            assert!(error.contains(&format!("cannot become larger because it is {is}")), "{error}");
        }
        let directory = of(&request(0, 0, None), None);
        assert!(directory.check(&request(0, 0, None), 0).is_ok());
        assert!(directory.check(&first, 0).unwrap_err().to_string().contains("without a limit"));
    }

    #[test]
    fn a_later_request_cannot_change_whether_the_volume_is_read_only() {
        let mut wanted = request(0, 0, None);
        let writable = of(&wanted, None);
        wanted.parameters.read_only = true;
        let read_only = of(&wanted, None);
        assert!(read_only.check(&wanted, 0).is_ok());
        assert!(writable.check(&wanted, 0).unwrap_err().to_string().contains("read_only: the volume can be written"));
        wanted.parameters.read_only = false;
        assert!(read_only.check(&wanted, 0).unwrap_err().to_string().contains("read_only: the volume is read-only"));
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
        let record = of(&with(None), Some(origin));
        for same in [None, Some(image("r.example/m:1", Some("/srv")))] {
            assert!(record.check(&with(same), 0).is_ok());
        }
        for other in [image("r.example/m:1", None), image("r.example/m:2", Some("/srv"))] {
            let error = record.check(&with(Some(other.clone())), 0).unwrap_err().to_string();
            assert!(error.contains("filled from \"/srv\" of image r.example/m:1"), "{error}");
            let error = of(&with(None), None).check(&with(Some(other)), 0).unwrap_err().to_string();
            assert!(error.contains("was made empty"), "{error}");
        }
        let copy = of(&with(None), Some(Origin::Volume { id: "1".to_owned(), method: Method::Reflink }));
        assert!(copy.check(&with(Some(Source::Volume("1".to_owned()))), 0).is_ok());
        for other in [image("r.example/m:1", None), Source::Volume("2".to_owned())] {
            let error = copy.check(&with(Some(other)), 0).unwrap_err().to_string();
            assert!(error.contains("filled from volume 1 by reflink"), "{error}");
        }
    }
}
