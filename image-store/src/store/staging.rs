//! Where layers are built before they are committed.
//!
//! Every process has a directory of its own and holds a lock on it for as long as it lives, so a sweep can tell dead staging from
//! live without guessing by process ids. A [`Staged`] layer removes itself unless it was committed.

use std::{
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use ::layer::{MemoryCounter, Output, Unpacked};
use rustix::fs::FlockOperation;
use tokio::sync::mpsc;

use super::{
    layer,
    layout::{Layout, open_directory},
};
use crate::{commit, config::LayerFormat, error::StoreError};

/// This process's staging directory.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Staging {
    pub(crate) fn create(layout: &Layout) -> Result<Staging, StoreError> {
        // A sweep holds this lock alone, so it never sees a directory that is not locked yet.
        let _adding = layout.lock(false)?;
        let path = layout.directory("staging").join(commit::unique());
        fs::create_dir(&path).map_err(StoreError::io("creating", &path))?;
        failpoint::at("staging-before-lock");
        let lock = open_directory(&path)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(StoreError::io("locking", &path))?;
        Ok(Staging { path, _lock: lock })
    }

    /// For files that need no name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A directory with an empty `fs` in it, for the pull that wants to know when it is gone.
    pub(crate) fn layer_for(&self, work: &Work) -> Result<Staged, StoreError> {
        let mut staged = self.layer()?;
        staged.work = Some(work.clone());
        Ok(staged)
    }

    /// A directory with an empty `fs` in it.
    pub(crate) fn layer(&self) -> Result<Staged, StoreError> {
        let staged = Staged { path: self.path.join(commit::unique()), work: None };
        let fs = staged.fs();
        fs::create_dir_all(&fs).map_err(StoreError::io("creating", &fs))?;
        failpoint::at("staging-before-use");
        Ok(staged)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What still stages keeps the directory alive; the next sweep gets it then.
        if let Err(error) = fs::remove_dir(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "staging left for the sweep");
        }
    }
}

/// A layer that is being built.
#[derive(Debug)]
pub(crate) struct Staged {
    path: PathBuf,
    /// Let go after `drop` below has removed the directory.
    work: Option<Work>,
}

/// Held by whatever a pull has under way on other threads.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    _part: mpsc::Sender<()>,
    /// Of what it is a part.
    _whole: Option<Box<Work>>,
}

/// Waits for everything that a pull has under way on other threads: staged layers to be committed or removed, leases to be undone.
#[derive(Debug)]
pub(crate) struct Outstanding {
    work: Work,
    ended: mpsc::Receiver<()>,
}

impl Outstanding {
    pub(crate) fn new() -> Self {
        Self::of(None)
    }

    /// A part of other work, which is not done before this is.
    pub(crate) fn within(whole: &Work) -> Self {
        Self::of(Some(Box::new(whole.clone())))
    }

    fn of(whole: Option<Box<Work>>) -> Self {
        let (part, ended) = mpsc::channel(1);
        Self { work: Work { _part: part, _whole: whole }, ended }
    }

    pub(crate) fn work(&self) -> Work {
        self.work.clone()
    }

    /// Until nothing is left of it. The tasks that feed it must have ended.
    pub(crate) async fn settled(self) {
        let Self { work, mut ended } = self;
        drop(work);
        // Nobody ever sends: this ends when the last sender is gone.
        while ended.recv().await.is_some() {}
    }
}

impl Staged {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn fs(&self) -> PathBuf {
        self.path.join(layer::DIRECTORY)
    }

    fn image(&self) -> PathBuf {
        self.path.join(layer::IMAGE)
    }

    /// What a layer of this store is unpacked into.
    pub(crate) fn output(&self, format: LayerFormat, memory: &MemoryCounter) -> Result<Output, StoreError> {
        let (fs, image) = (self.fs(), self.image());
        let directory = open_directory(&fs)?;
        let make = || File::options().read(true).write(true).create_new(true).mode(0o600).open(&image);
        let image = (format == LayerFormat::Erofs).then(make).transpose();
        let image = image.map_err(StoreError::io("creating", self.image()))?;
        Ok(Output { directory, image: image.map(|file| (file, memory.clone())) })
    }

    /// Removes what the layer's files did not go to.
    pub(crate) fn settle(&self, unpacked: &Unpacked) -> Result<(), StoreError> {
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
        // A committed layer was renamed away.
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(path = %self.path.display(), %error, "staging left for the sweep");
            }
            _ => {}
        }
    }
}

/// Whether the process that staged here is gone. What is no directory was never anybody's.
pub(crate) fn is_dead(path: &Path) -> Result<bool, StoreError> {
    if !path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        return Ok(false);
    }
    let directory = open_directory(path)?;
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(StoreError::io("locking", path)(errno)),
    }
}
