//! The volumes of this node, for the operator's commands. They take no lock.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use runtime::file_system::is_mount;
use rustix::fs::statvfs;

use super::{directories, file_system::size, place::Place, record::Record, storage::Storage};

/// A complete volume.
pub struct HostVolume {
    /// Nomad's id of it.
    pub id: String,
    /// What it is.
    pub record: Record,
    /// What tasks mount.
    pub path: PathBuf,
    /// The file or the directory with its content.
    pub content: PathBuf,
    /// Whether it is available at its path.
    pub is_available: bool,
    /// The limit of its content in bytes, if it has one and it is known.
    pub limit: Option<u64>,
    /// The bytes that its file takes on the node's disk, if it has one.
    pub disk: Option<u64>,
}

/// The complete volumes of this node, and the problems of those that cannot be read.
pub fn host_volumes() -> (Vec<HostVolume>, Vec<String>) {
    let (directories, mut problems) = directories::found();
    let mut volumes = Vec::new();
    for directory in directories {
        match Place::all(&directory) {
            Ok(places) => {
                for place in places {
                    match Record::read(&place) {
                        Ok(record) => volumes.extend(record.map(|record| describe(&place, record))),
                        Err(error) => problems.push(error.to_string()),
                    }
                }
            }
            Err(error) => problems.push(error.to_string()),
        }
    }
    volumes.sort_by(|one, other| (&one.record.name, &one.id).cmp(&(&other.record.name, &other.id)));
    (volumes, problems)
}

fn describe(place: &Place, record: Record) -> HostVolume {
    let path = place.path();
    let content = match record.storage.format() {
        Some(format) => place.file(format),
        None if record.is_mounted() => place.data(),
        None => path.clone(),
    };
    let is_available = if record.is_mounted() { is_mount(&path).unwrap_or_default() } else { path.exists() };
    let limit = match record.storage {
        Storage::Directory => None,
        Storage::Quota { bytes } => Some(bytes),
        Storage::File { .. } | Storage::Encrypted { .. } => {
            is_available.then(|| statvfs(&path).ok()).flatten().map(|found| size(&found))
        }
    };
    let disk = record.storage.format().and_then(|_| disk_bytes(&content));
    HostVolume { id: place.id().to_owned(), record, path, content, is_available, limit, disk }
}

/// The bytes that a file takes on the disk.
fn disk_bytes(file: &Path) -> Option<u64> {
    const UNIT: u64 = 512;
    fs::metadata(file).ok().map(|found| found.blocks().saturating_mul(UNIT))
}
