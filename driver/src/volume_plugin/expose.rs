//! The path of a complete volume, which tasks mount.
//!
//! The directory of a volume is moved there. Everything else is mounted there: a file system of its own, or the
//! directory of a read-only volume. After a reboot such a path is an empty directory, until Nomad's next `create`.

use std::{
    fs::{self, DirBuilder},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::Path,
};

use host::{Context, durable::sync_directory};
use runtime::file_system::{self as kernel, Access, Mounted};
use rustix::fs::statvfs;

use super::{
    error::PluginError,
    file_system::{self, OwnFileSystem, lost},
    place::Place,
    quota,
    record::Record,
    storage::Storage,
};

/// A complete volume.
#[derive(Debug, Clone, Copy)]
pub struct Volume<'a> {
    /// Where it is.
    pub place: &'a Place,
    /// What it is.
    pub record: &'a Record,
    /// The file with its key, if the request names one. Without it, an encrypted volume must be open already.
    pub key: Option<&'a Path>,
}

impl<'a> Volume<'a> {
    /// Makes the volume available at its path, unless it is. Returns the limit of its content in bytes, or 0.
    pub fn expose(&self) -> Result<u64, PluginError> {
        if self.record.is_mounted() {
            self.mount()?;
        } else {
            move_directory(self.place)?;
        }
        failpoint::at("volume-before-answer");
        let path = self.place.path();
        match self.record.storage {
            Storage::Directory => Ok(0),
            Storage::Quota { bytes } => {
                // A limit cannot be set through a read-only mount.
                let directory = if self.record.is_mounted() { self.place.data() } else { path };
                quota::enforce(self.place, &directory, bytes).map(|()| bytes)
            }
            Storage::File { .. } | Storage::Encrypted { .. } => {
                Ok(file_system::size(&statvfs(&path).context(|| format!("looking at {}", path.display()))?))
            }
        }
    }

    /// Its file system, if it has one of its own.
    pub fn own_file_system(&self) -> Option<OwnFileSystem<'a>> {
        let format = self.record.storage.format()?;
        Some(OwnFileSystem { place: self.place, format, key: self.key })
    }

    /// Mounts the volume at its path, unless it is mounted there.
    fn mount(&self) -> Result<(), PluginError> {
        let target = self.place.path();
        self.check_content()?;
        match DirBuilder::new().mode(0o700).create(&target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.context(|| format!("making {}", target.display()))?,
        }
        match self.mounted()? {
            Mounted::This => {}
            Mounted::Nothing => {
                failpoint::at("volume-before-mount");
                let mount = self.detached()?;
                failpoint::at("volume-before-attach");
                kernel::attach(&mount, &target).context(|| format!("mounting the volume on {}", target.display()))?;
            }
            Mounted::Other => {
                let target = target.display();
                return Err(PluginError::new(format!("something else is mounted on {target}: unmount it")));
            }
        }
        Ok(())
    }

    /// Fails if the content of the volume is gone. Nothing may be made in its place.
    fn check_content(&self) -> Result<(), PluginError> {
        if let Some(own) = self.own_file_system() {
            return own.open().map(drop);
        }
        let data = self.place.data();
        let found = data.try_exists().context(|| format!("looking at {}", data.display()))?;
        if found { Ok(()) } else { Err(lost(&data)) }
    }

    /// A mount of the volume that is not attached.
    pub fn detached(&self) -> Result<OwnedFd, PluginError> {
        if let Some(own) = self.own_file_system() {
            return own.mount(if self.record.read_only { Access::Read } else { Access::Write });
        }
        let data = self.place.data();
        Ok(kernel::mount_directory(&data).context(|| format!("mounting {} (Linux 5.12)", data.display()))?)
    }

    /// What is mounted at the path of the volume.
    fn mounted(&self) -> Result<Mounted, PluginError> {
        let target = self.place.path();
        let found = if let Some(own) = self.own_file_system() {
            let device = own.device_number()?;
            kernel::mounted_at(&target, |found| device == Some(found.dev()))
        } else {
            let data = fs::metadata(self.place.data()).ok().map(|data| (data.dev(), data.ino()));
            kernel::mounted_at(&target, |found| data == Some((found.dev(), found.ino())))
        };
        Ok(found.context(|| format!("looking at {}", target.display()))?)
    }

    /// Unmounts a volume that is mounted at its path. An error says that processes of the node use it.
    pub fn hide(&self) -> Result<(), PluginError> {
        let target = self.place.path();
        if self.place.is_taken()? && self.mounted()? == Mounted::This {
            failpoint::at("volume-before-unmount");
            kernel::detach(&target).context(|| {
                format!("unmounting {} (end the processes of the node that use it: fuser -vm)", target.display())
            })?;
        }
        Ok(())
    }
}

/// Moves the directory of a complete volume to its path, unless it is there.
fn move_directory(place: &Place) -> Result<(), PluginError> {
    let (data, path) = (place.data(), place.path());
    let action = || format!("making {}", path.display());
    if place.is_taken()? {
        return Ok(());
    }
    failpoint::at("volume-before-rename");
    match fs::rename(&data, &path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(lost(&path)),
        renamed => renamed.context(action)?,
    }
    failpoint::at("volume-before-sync-name");
    Ok(sync_directory(place.volumes()).context(action)?)
}
