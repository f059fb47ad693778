//! `create`: a volume is made, or found complete, made available and, for a larger capacity, made larger.
//!
//! The content is made in the plugin's own directory and written to the disk. Then comes the record, which makes the
//! volume complete. Only then the volume appears at its path. A call that was killed is repeated from the record, or
//! from the beginning.

use std::{
    fs::{DirBuilder, File, Permissions},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, PermissionsExt, fchown},
    },
    path::PathBuf,
};

use host::{Context, durable::sync_directory};
use runtime::Blocks;
use rustix::fs::{Mode, OFlags, openat, syncfs};

use super::{
    content::{Content, Deadline},
    delete,
    error::PluginError,
    expose::Volume,
    file_system::OwnFileSystem,
    grow::grow,
    parameters::Parameters,
    place::{Format, Place},
    quota,
    record::Record,
    request::Request,
    storage::Storage,
    sweep::sweep,
};

/// The mode of an empty volume whose parameters give none, as Nomad's plugin `mkdir` has it.
const MODE: u32 = 0o700;

/// A volume that tasks can mount.
pub struct Created {
    /// What they mount.
    pub path: PathBuf,
    /// The limit of its content in bytes, or 0.
    pub bytes: u64,
    /// Of what it consists, for a reader of the log.
    pub description: String,
}

/// Makes a volume, or finds it.
pub fn create(request: &Request) -> Result<Created, PluginError> {
    let (place, deadline) = (&request.place, Deadline::of_this_call());
    let _lock = place.lock()?;
    delete::complete(place)?;
    let record = match Record::read(place)? {
        Some(record) => record,
        None => make(request, deadline)?,
    };
    let key = request.parameters.key_file.as_deref();
    let bytes = Volume { place, record: &record, key }.expose()?;
    record.check(request, bytes)?;
    let (record, bytes) = grow(request, record, bytes)?;
    Ok(Created { path: place.path(), bytes, description: record.describe(bytes) })
}

/// Makes the content and the record. What a killed call has left is removed.
fn make(request: &Request, deadline: Deadline) -> Result<Record, PluginError> {
    let place = &request.place;
    place.check_not_lost()?;
    if place.is_taken()? {
        leave_nothing(place);
        return Err(place.foreign());
    }
    delete::content(place)?;
    sweep(place, deadline);
    let made = make_content(request, deadline);
    if made.is_err() {
        leave_nothing(place);
    }
    let record = made?;
    sync_directory(&place.own()).context(|| format!("syncing {}", place.own().display()))?;
    record.write(place)?;
    Ok(record)
}

/// Makes the content, and writes it to the disk.
fn make_content(request: &Request, deadline: Deadline) -> Result<Record, PluginError> {
    let (content, storage) = Content::open(request, deadline)?;
    let blocks = match storage.format() {
        None => make_directory(request, storage, &content, deadline)?,
        Some(format) => make_file_system(request, format, &content, deadline)?,
    };
    Ok(Record::of(request, storage, content.origin(blocks)))
}

/// Removes what a failed call has made: Nomad does not call `delete` after it. What cannot be removed is found by the
/// next call, which then fails for that reason.
fn leave_nothing(place: &Place) {
    delete::content(place).and_then(|()| delete::forget(place)).ok();
}

fn make_directory(
    request: &Request,
    storage: Storage,
    content: &Content,
    deadline: Deadline,
) -> Result<Blocks, PluginError> {
    let data = request.place.data();
    let action = || format!("making {}", data.display());
    DirBuilder::new().mode(MODE).create(&data).context(action)?;
    let root = File::open(&data).context(action)?;
    let is_limited = if let Storage::Quota { bytes } = storage {
        quota::assign(&request.place, &root, bytes)?;
        true
    } else {
        false
    };
    let blocks = content.copy(&data, is_limited, deadline)?;
    failpoint::at("volume-before-sync");
    if is_limited {
        quota::check_fits(&root)?;
    }
    set_attributes(&root, &request.parameters, content)?;
    if !content.is_nothing() {
        // One call for all files that were copied.
        syncfs(&root).context(action)?;
    }
    root.sync_all().context(action)?;
    Ok(blocks)
}

fn make_file_system(
    request: &Request,
    format: Format,
    content: &Content,
    deadline: Deadline,
) -> Result<Blocks, PluginError> {
    let capacity = content.capacity(request.capacity)?;
    let own = OwnFileSystem { place: &request.place, format, key: request.parameters.key_file.as_deref() };
    let clone = content.snapshot().map(|snapshot| snapshot.clone_to(own, capacity)).transpose()?.flatten();
    let is_clone = clone.is_some();
    let (file, mount) = match clone {
        Some(clone) => clone,
        None => own.make(capacity)?,
    };
    let action = || format!("writing {}", request.place.file(format).display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd = openat(&mount, ".", flags, Mode::empty()).context(action)?;
    let root = File::from(root);
    let target = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    let blocks = match is_clone {
        true => Blocks::Shared,
        false => content.copy(&target, true, deadline)?,
    };
    set_attributes(&root, &request.parameters, content)?;
    failpoint::at("volume-before-sync");
    syncfs(&root).context(action)?;
    file.sync_all().context(action)?;
    Ok(blocks)
}

/// Content that was copied has owner and mode already. The owner is set first, because a change of the owner clears
/// bits of the mode.
fn set_attributes(root: &File, parameters: &Parameters, content: &Content) -> Result<(), PluginError> {
    let Parameters { uid, gid, mode, .. } = parameters;
    fchown(root, *uid, *gid).context(|| "parameters uid, gid: changing the owner of the volume".to_owned())?;
    let Some(mode) = mode.or_else(|| content.is_nothing().then_some(MODE)) else { return Ok(()) };
    Ok(root
        .set_permissions(Permissions::from_mode(mode))
        .context(|| "parameter mode: changing the mode of the volume".to_owned())?)
}
