//! The log directory of the allocation's tasks. It is made beside the phases that do not need it, because a file system
//! can take a millisecond for a new directory.

use std::{
    io,
    path::{Path, PathBuf},
};

use tokio::task::{JoinHandle, spawn_blocking};

use crate::{
    error::TaskError,
    log_directory::{self, LogDirectory},
};

/// A log directory that another thread makes.
pub struct LogDirectoryInMaking {
    alloc_dir: PathBuf,
    /// `None` if its result was taken.
    making: Option<JoinHandle<io::Result<LogDirectory>>>,
}

impl LogDirectoryInMaking {
    /// Begins to make the directory.
    pub fn begin(alloc_dir: &Path) -> Self {
        let alloc_dir = alloc_dir.to_owned();
        let directory = alloc_dir.clone();
        Self { alloc_dir, making: Some(spawn_blocking(move || LogDirectory::make(&directory))) }
    }

    /// Waits for the directory, and makes links to the files that Nomad's has now.
    pub async fn finish(&mut self) -> Result<(), TaskError> {
        let Some(making) = self.making.take() else { return Ok(()) };
        let made = making.await.map_err(io::Error::other).and_then(|made| made?.link_all());
        made.map_err(|error| {
            let directory = log_directory::of_tasks(&self.alloc_dir);
            TaskError::Internal(format!("the log directory of the allocation's tasks, {directory:?}: {error}"))
        })
    }

    /// Waits until a start that failed before it needed the directory makes nothing any more.
    pub async fn settle(mut self) {
        if let Some(making) = self.making.take() {
            // The start has its own error.
            drop(making.await);
        }
    }
}
