//! The task's folder: where everything stands, and the one way in which records are written.
//!
//! A record is absent, complete, or a temporary file that the next writer replaces: it is written under another name in the
//! same folder, synced, renamed, and the folder is synced.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{error::RuntimeError, plan::ContainerId, process::ProcessRecord};

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The command's exit code; 128 + n when signal n ended it.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    /// Whether the kernel killed something in the container for want of memory.
    pub oom_killed: bool,
    /// When the command was started.
    pub started_at: SystemTime,
    /// When its end was seen.
    pub finished_at: SystemTime,
}

/// A container as `container.json` remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub init: ProcessRecord,
    pub started_at: SystemTime,
}

/// Folder and files of one container.
#[derive(Debug, Clone)]
pub(crate) struct TaskDir {
    path: PathBuf,
}

impl TaskDir {
    pub fn new(state_dir: &Path, id: &ContainerId) -> Self {
        Self { path: state_dir.join("tasks").join(id.as_str()) }
    }

    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The record of this name; `None` when there is none.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RuntimeError> {
        let path = self.file(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RuntimeError::Io { action: format!("reading {}", path.display()), source }),
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| RuntimeError::Record { path, problem: error.to_string() })
    }
}
