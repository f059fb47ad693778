//! Of what a volume consists.

use runtime::file_system::FileSystem;
use serde::{Deserialize, Serialize};

use super::{error::PluginError, place::Format, request::Request};

/// Of what a volume consists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Storage {
    /// A directory of the node's file system.
    Directory,
    /// A directory of the node's file system with a limit by a project quota.
    Quota {
        /// The limit.
        bytes: u64,
    },
    /// A file system of its own in a sparse file.
    File {
        /// Its kind.
        #[serde(with = "kind")]
        file_system: FileSystem,
    },
    /// The same, encrypted.
    Encrypted {
        /// Its kind.
        #[serde(with = "kind")]
        file_system: FileSystem,
    },
}

impl Storage {
    /// That of a new volume. A copy of a volume is what its source is, unless it gets a capacity of its own. A copy of
    /// an encrypted volume is encrypted. `has_quotas`: directories can be limited by project quotas, which is the first
    /// choice if the request does not name a file system.
    pub fn of(request: &Request, source: Option<Self>, has_quotas: bool) -> Result<Self, PluginError> {
        let is_encrypted = request.parameters.key_file.is_some();
        let of_source = source.and_then(Self::format);
        if of_source.is_some_and(|source| source.is_encrypted) && !is_encrypted {
            let problem =
                "parameter encryption: the volume is a copy of an encrypted one: give encryption and key_file";
            return Err(PluginError::new(problem));
        }
        let wanted = match (request.capacity.is_limit(), of_source) {
            (true, None) if has_quotas && !is_encrypted && request.parameters.file_system.is_none() => {
                return Ok(Self::Quota { bytes: request.capacity.first_size() });
            }
            (true, source) => {
                request.parameters.file_system.or(source.map(|source| source.file_system)).unwrap_or(FileSystem::Ext4)
            }
            (false, Some(source)) => source.file_system,
            (false, None) if is_encrypted => {
                let problem = "parameter encryption: the volume would be a directory: give capacity_max";
                return Err(PluginError::new(problem));
            }
            (false, None) => return Ok(source.unwrap_or(Self::Directory)),
        };
        Ok(match is_encrypted {
            true => Self::Encrypted { file_system: wanted },
            false => Self::File { file_system: wanted },
        })
    }

    /// What its file contains, if it has a file system of its own.
    pub fn format(self) -> Option<Format> {
        match self {
            Self::Directory | Self::Quota { .. } => None,
            Self::File { file_system } => Some(Format { file_system, is_encrypted: false }),
            Self::Encrypted { file_system } => Some(Format { file_system, is_encrypted: true }),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume_plugin::{parameters::Parameters, place::Place, request::Capacity};

    fn of(max: u64, wanted: Option<FileSystem>, key: bool, source: Option<Storage>) -> Result<Storage, String> {
        with_quotas(false, max, wanted, key, source)
    }

    fn with_quotas(
        has_quotas: bool,
        max: u64,
        wanted: Option<FileSystem>,
        key: bool,
        source: Option<Storage>,
    ) -> Result<Storage, String> {
        let key_file = key.then(|| "/key".into());
        let request = Request {
            place: Place::new("/volumes".into(), "id".to_owned()),
            name: "db".to_owned(),
            namespace: "default".to_owned(),
            capacity: Capacity { min: 0, max },
            parameters: Parameters { file_system: wanted, key_file, ..Parameters::default() },
            plugins: None,
        };
        Storage::of(&request, source, has_quotas).map_err(|error| error.to_string())
    }

    #[test]
    fn a_copy_is_what_its_source_is_unless_it_has_a_capacity() {
        let directory = Storage::Directory;
        let [ext4, xfs] = [FileSystem::Ext4, FileSystem::Xfs].map(|file_system| Storage::File { file_system });
        for (max, wanted, source, expected) in [
            (0, None, None, directory),
            (9, None, None, ext4),
            (9, Some(FileSystem::Xfs), None, xfs),
            (0, None, Some(directory), directory),
            (0, None, Some(xfs), xfs),
            (9, None, Some(xfs), xfs),
            (9, Some(FileSystem::Ext4), Some(xfs), ext4),
            (9, None, Some(directory), ext4),
        ] {
            assert_eq!(of(max, wanted, false, source), Ok(expected), "{max} {wanted:?} {source:?}");
        }
    }

    #[test]
    fn a_project_quota_is_the_first_choice() {
        let of = |max, wanted, key, source| with_quotas(true, max, wanted, key, source);
        let quota = Storage::Quota { bytes: 8192 };
        let [ext4, xfs] = [FileSystem::Ext4, FileSystem::Xfs].map(|file_system| Storage::File { file_system });
        for (max, wanted, source, expected) in [
            (0, None, None, Storage::Directory),
            (8192, None, None, quota),
            (8192, None, Some(Storage::Directory), quota),
            (8192, None, Some(Storage::Quota { bytes: 4096 }), quota),
            (0, None, Some(quota), quota),
            (8192, None, Some(xfs), xfs),
            (8192, Some(FileSystem::Ext4), None, ext4),
        ] {
            assert_eq!(of(max, wanted, false, source), Ok(expected), "{max} {wanted:?} {source:?}");
        }
        assert_eq!(of(8192, None, true, None), Ok(Storage::Encrypted { file_system: FileSystem::Ext4 }));
        assert_eq!(with_quotas(false, 8192, None, false, Some(quota)), Ok(ext4));
    }

    #[test]
    fn encryption_is_never_lost() {
        let (file, encrypted) =
            (Storage::File { file_system: FileSystem::Xfs }, Storage::Encrypted { file_system: FileSystem::Xfs });
        for source in [file, encrypted] {
            for max in [0, 9] {
                assert_eq!(of(max, None, true, Some(source)), Ok(encrypted));
            }
        }
        for max in [0, 9] {
            assert!(of(max, None, false, Some(encrypted)).unwrap_err().contains("give encryption and key_file"));
        }
        for source in [None, Some(Storage::Directory)] {
            assert!(of(0, None, true, source).unwrap_err().contains("give capacity_max"));
            assert_eq!(of(9, None, true, source), Ok(Storage::Encrypted { file_system: FileSystem::Ext4 }));
        }
    }
}
