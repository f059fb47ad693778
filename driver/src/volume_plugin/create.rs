//! `create`: a volume is made, or found complete and made available.
//!
//! The content is made in the plugin's own directory and written to the disk. Then comes the record, which makes the
//! volume complete. Only then the volume appears at its path. A call that was killed is repeated from the record, or
//! from the beginning.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{DirBuilderExt, PermissionsExt, fchown},
    },
    path::PathBuf,
};

use host::{Context, durable::sync_directory};
use runtime::file_system::FileSystem;
use rustix::fs::{Mode, OFlags, openat, syncfs};

use super::{
    content::{Content, Deadline},
    delete,
    error::PluginError,
    file_system,
    parameters::Parameters,
    place::Place,
    record::{Record, Storage},
    request::Request,
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
    let (bytes, mut description) = match record.storage {
        Storage::Directory => (expose_directory(place)?, "a directory without a limit".to_owned()),
        Storage::File { file_system: kind } => {
            let bytes = file_system::expose(place, kind)?;
            (bytes, format!("{bytes} bytes, {} in a sparse file on a loop device", kind.name()))
        }
    };
    record.check(request, bytes)?;
    if let Some(origin) = &record.origin {
        description = format!("{description}, filled from {origin}");
    }
    Ok(Created { path: place.path(), bytes, description })
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

/// A directory of the node's file system cannot switch off the set-user-id programs and device nodes that an image may
/// have. So no user of the node may reach it. A file system of the volume's own is mounted without both.
fn check_private(request: &Request) -> Result<(), PluginError> {
    if request.parameters.source.is_none() || request.capacity.is_limit() || request.place.is_private()? {
        return Ok(());
    }
    let volumes = request.place.volumes().display();
    Err(PluginError::new(format!(
        "parameter image: users of the node can reach {volumes}, and an image may have set-user-id programs and \
         devices: run chmod 0700 {volumes}, or give capacity_max, because the file system of such a volume is mounted \
         without both"
    )))
}

/// Makes the content, and writes it to the disk.
fn make_content(request: &Request, deadline: Deadline) -> Result<Record, PluginError> {
    check_private(request)?;
    let content = Content::open(request, deadline)?;
    let record = Record::of(request, content.origin());
    match record.storage {
        Storage::Directory => make_directory(request, &content, deadline)?,
        Storage::File { file_system } => make_file_system(request, file_system, &content, deadline)?,
    }
    Ok(record)
}

/// Removes what a failed call has made: Nomad does not call `delete` after it. What cannot be removed is found by the
/// next call, which then fails for that reason.
fn leave_nothing(place: &Place) {
    delete::content(place).and_then(|()| delete::forget(place)).ok();
}

fn make_directory(request: &Request, content: &Content, deadline: Deadline) -> Result<(), PluginError> {
    let data = request.place.data();
    let action = || format!("making {}", data.display());
    DirBuilder::new().mode(MODE).create(&data).context(action)?;
    content.copy(&data, Storage::Directory, deadline)?;
    failpoint::at("volume-before-sync");
    let root = File::open(&data).context(action)?;
    set_attributes(&root, &request.parameters, content)?;
    if !content.is_nothing() {
        // One call for all files that were copied.
        syncfs(&root).context(action)?;
    }
    Ok(root.sync_all().context(action)?)
}

fn make_file_system(
    request: &Request,
    kind: FileSystem,
    content: &Content,
    deadline: Deadline,
) -> Result<(), PluginError> {
    let (file, mount) = file_system::make(&request.place, kind, request.capacity)?;
    let action = || format!("writing {}", request.place.file(kind).display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd = openat(&mount, ".", flags, Mode::empty()).context(action)?;
    let root = File::from(root);
    let target = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    content.copy(&target, Storage::File { file_system: kind }, deadline)?;
    set_attributes(&root, &request.parameters, content)?;
    failpoint::at("volume-before-sync");
    syncfs(&root).context(action)?;
    Ok(file.sync_all().context(action)?)
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

/// Moves the directory of a complete volume to its path, unless it is there. It has no limit.
fn expose_directory(place: &Place) -> Result<u64, PluginError> {
    let (data, path) = (place.data(), place.path());
    let action = || format!("making {}", path.display());
    if place.is_taken()? {
        return Ok(0);
    }
    failpoint::at("volume-before-rename");
    match fs::rename(&data, &path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(file_system::lost(&path)),
        renamed => renamed.context(action)?,
    }
    failpoint::at("volume-before-sync-name");
    sync_directory(place.volumes()).context(action)?;
    Ok(0)
}
