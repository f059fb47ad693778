//! Another volume, of which a new one is a copy.
//!
//! The sparse file of a volume is cloned where the node's file system can share blocks (reflink). All data that tasks
//! have written before are in the clone: the file system is synced first, and its journal makes the rest of the clone
//! consistent, as after a power failure. Freezing it meanwhile would add nothing, and a killed call would leave it
//! frozen.
//!
//! Otherwise files are copied one after the other, each by reflink if that is possible.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use host::Context;
use runtime::{Blocks, RuntimeError, file_system::mount_directory};
use rustix::fs::{Mode, OFlags, openat, syncfs};

use super::{
    error::PluginError,
    expose::Volume,
    file_system::{OwnFileSystem, lost},
    place::Place,
    record::Record,
    request::{Capacity, Request},
    storage::Storage,
};

/// A complete volume. No other call works on it until the value is dropped.
pub struct Snapshot {
    place: Place,
    record: Record,
    /// The key of the copy, which opens this volume too if it is encrypted and not open.
    key: Option<PathBuf>,
    _lock: File,
}

impl Snapshot {
    /// The volume with this id. It must have the namespace of the request: who may use the volumes of one namespace may
    /// not read those of another.
    pub fn open(request: &Request, id: &str) -> Result<Self, PluginError> {
        let Request { place, namespace, .. } = request;
        let source = Place::new(place.volumes().to_owned(), id.to_owned());
        let missing = || {
            PluginError::new(format!(
                "parameter from: this node has no volume {id} of this plugin in namespace {namespace}: write the id of \
                 a volume from `nomad volume status -type host`"
            ))
        };
        let is_usable = |record: Option<Record>| record.filter(|record| record.namespace == *namespace);
        // A volume without a record may be in the making, and then its call could wait for this volume.
        if source == *place || is_usable(Record::read(&source)?).is_none() {
            return Err(missing());
        }
        let lock = source.lock_existing()?.ok_or_else(missing)?;
        let record = is_usable(Record::read(&source)?).ok_or_else(missing)?;
        let key = request.parameters.key_file.clone();
        let snapshot = Self { place: source, record, key, _lock: lock };
        snapshot.check_capacity(request.capacity)?;
        Ok(snapshot)
    }

    /// Its id.
    pub fn id(&self) -> &str {
        self.place.id()
    }

    fn volume(&self) -> Volume<'_> {
        Volume { place: &self.place, record: &self.record, key: self.key.as_deref() }
    }

    /// Of what it consists.
    pub fn storage(&self) -> Storage {
        self.record.storage
    }

    /// Whether programs and devices in it may have an effect that its mount prevents.
    pub fn is_restricted(&self) -> bool {
        self.record.is_mounted()
    }

    /// The capacity of the copy.
    pub fn capacity(&self, wanted: Capacity) -> Result<Capacity, PluginError> {
        Ok(if wanted.is_limit() { wanted } else { Capacity { min: 0, max: self.bytes()? } })
    }

    /// The size of its file system, or its limit; 0 for a directory without a limit.
    fn bytes(&self) -> Result<u64, PluginError> {
        let volume = self.volume();
        match (volume.own_file_system(), self.record.storage) {
            (Some(own), _) => own.bytes(&own.open()?),
            (None, Storage::Quota { bytes }) => Ok(bytes),
            (None, _) => Ok(0),
        }
    }

    fn check_capacity(&self, wanted: Capacity) -> Result<(), PluginError> {
        let bytes = self.bytes()?;
        if wanted.max == 0 || wanted.max >= bytes {
            return Ok(());
        }
        let id = self.place.id();
        Err(PluginError::new(format!(
            "capacity_max: volume {id} has {bytes} bytes, and a copy of it cannot be smaller: give {bytes} or more, or \
             remove capacity_min and capacity_max"
        )))
    }

    /// Makes a file system that shares the blocks of this volume, as [`OwnFileSystem::make_clone`] does.
    pub fn clone_to(
        &self,
        copy: OwnFileSystem<'_>,
        capacity: Capacity,
    ) -> Result<Option<(File, OwnedFd)>, PluginError> {
        let volume = self.volume();
        let Some(own) = volume.own_file_system().filter(|own| own.format == copy.format) else { return Ok(None) };
        if own.device_number()?.is_some() {
            let mount = volume.detached()?;
            syncfs(self.root(&mount)?).context(|| format!("syncing volume {}", self.place.id()))?;
        }
        copy.make_clone(capacity, &own.open()?)
    }

    /// A mount of this volume on which device nodes have no effect: a task that puts one in the place of a file, while
    /// the file is opened, must not get the content of the device.
    pub fn mount(&self) -> Result<OwnedFd, PluginError> {
        if self.record.is_mounted() {
            return self.volume().detached();
        }
        // A killed call may not have moved it to its path yet.
        let directory = if self.place.is_taken()? { self.place.path() } else { self.place.data() };
        let action = || format!("mounting {} (Linux 5.12)", directory.display());
        match mount_directory(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(lost(&self.place.path())),
            mounted => Ok(mounted.context(action)?),
        }
    }

    /// Copies the files of this volume, which is mounted at `mount`, to the empty directory `target`.
    pub fn copy(&self, mount: &OwnedFd, target: &Path, cancelled: &dyn Fn() -> bool) -> Result<Blocks, RuntimeError> {
        let source = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        runtime::copy_directory(&source, target, cancelled)
    }

    fn root(&self, mount: &OwnedFd) -> Result<OwnedFd, PluginError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(mount, ".", flags, Mode::empty());
        Ok(root.context(|| format!("opening volume {}", self.place.id()))?)
    }
}
