//! Staging: layers are built here before they are committed.
//!
//! Each process has its own directory and holds a lock on it. The kernel frees the lock when the process ends, so a
//! sweep recognizes the directories of ended processes without process ids. A [`Staged`] layer removes itself unless it
//! was committed.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

use host::lock::Locked;
use layer::{MemoryCounter, Output, Unpacked};

use super::{
    layers,
    layout::{LayerFormat, Layout, open_directory},
    staging_lock,
};
use crate::{error::StoreError, files, tracker::TaskToken};

/// The staging directory of this process, made at its first use.
#[derive(Debug, Default)]
pub(crate) struct LazyStaging {
    staging: OnceLock<Staging>,
    /// Held while the directory is made. Layers start in parallel, and there must not be a second directory.
    making: Mutex<()>,
}

impl LazyStaging {
    pub(crate) fn get(&self, layout: &Layout) -> Result<&Staging, StoreError> {
        if let Some(staging) = self.staging.get() {
            return Ok(staging);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        match self.staging.get() {
            Some(staging) => Ok(staging),
            None => {
                let staging = Staging::create(layout)?;
                Ok(self.staging.get_or_init(|| staging))
            }
        }
    }
}

/// The staging directory of this process.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Staging {
    fn create(layout: &Layout) -> Result<Staging, StoreError> {
        // A sweep holds the store lock exclusively, so it never sees a directory that is not locked yet.
        let _adding = layout.lock_shared()?;
        let path = layout.directory("staging").join(files::unique());
        fs::create_dir(&path).map_err(StoreError::io("creating", &path))?;
        failpoint::at("staging-before-lock");
        match staging_lock::lock(&path)? {
            Locked::Held(lock) => Ok(Staging { path, _lock: lock }),
            Locked::Busy | Locked::Missing => Err(StoreError::io("locking", path)(io::Error::other("it is in use"))),
        }
    }

    /// The name of the directory.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The directory, for temporary files that lose their name at once.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A directory with an empty `fs` in it. It keeps the token until it is committed or removed.
    pub(crate) fn tracked_layer(&self, token: &TaskToken) -> Result<Staged, StoreError> {
        let mut staged = self.layer()?;
        staged.token = Some(token.clone());
        Ok(staged)
    }

    /// A directory with an empty `fs` in it.
    pub(crate) fn layer(&self) -> Result<Staged, StoreError> {
        let staged = Staged { path: self.path.join(files::unique()), token: None };
        let fs = staged.fs();
        fs::create_dir_all(&fs).map_err(StoreError::io("creating", &fs))?;
        failpoint::at("staging-before-use");
        Ok(staged)
    }

    /// An empty directory.
    pub(crate) fn directory(&self) -> Result<Staged, StoreError> {
        let staged = Staged { path: self.path.join(files::unique()), token: None };
        fs::create_dir(&staged.path).map_err(StoreError::io("creating", &staged.path))?;
        Ok(staged)
    }

    /// An empty directory. It keeps the token until it is committed or removed.
    pub(crate) fn tracked_directory(&self, token: &TaskToken) -> Result<Staged, StoreError> {
        let mut staged = self.directory()?;
        staged.token = Some(token.clone());
        Ok(staged)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // A layer that is still staged keeps the directory; the next sweep removes it then.
        if let Err(error) = fs::remove_dir(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "staging left for the sweep");
        }
    }
}

/// A layer that is being built.
#[derive(Debug)]
pub(crate) struct Staged {
    path: PathBuf,
    /// Dropped after `drop` below has removed the directory.
    token: Option<TaskToken>,
}

impl Staged {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn fs(&self) -> PathBuf {
        self.path.join(layers::DIRECTORY)
    }

    fn image(&self) -> PathBuf {
        self.path.join(layers::IMAGE)
    }

    /// The target of the unpacker.
    pub(crate) fn output(&self, format: LayerFormat, memory: &MemoryCounter) -> Result<Output, StoreError> {
        let directory = open_directory(&self.fs())?;
        let image = (format != LayerFormat::Directory).then(|| self.image_file()).transpose()?;
        Ok(Output { directory, image: image.map(|file| (file, memory.clone())) })
    }

    /// The target of a native image: an empty file, and the directory, which stays empty.
    pub(crate) fn native_output(&self) -> Result<(File, OwnedFd), StoreError> {
        Ok((self.image_file()?, open_directory(&self.fs())?))
    }

    /// An empty file that becomes the layer's EROFS image.
    fn image_file(&self) -> Result<File, StoreError> {
        let image = self.image();
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&image);
        file.map_err(StoreError::io("creating", image))
    }

    /// Removes the target that the unpacker did not use: the directory or the EROFS image.
    pub(crate) fn remove_unused_target(&self, unpacked: &Unpacked) -> Result<(), StoreError> {
        let (path, removed) = match unpacked.is_image {
            true => (self.fs(), fs::remove_dir(self.fs())),
            false => (self.image(), fs::remove_file(self.image())),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("removing", path)(error)),
            _ => Ok(()),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // A committed layer was renamed, so there is nothing to remove.
        match host::tree::remove(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(path = %self.path.display(), %error, "staging left for the sweep");
            }
            _ => {}
        }
    }
}
