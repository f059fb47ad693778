//! `delete`: a volume is removed with everything that belongs to it.
//!
//! First the volume is unmounted: if that fails, it is as before. Then the record becomes the mark of the removal. From
//! then on each call for the volume completes the removal first.

use std::{fs, io};

use host::{Context, durable::sync_directory, tree};
use runtime::file_system::is_mount;

use super::{
    error::PluginError,
    expose::Volume,
    file_system::{self, OwnFileSystem},
    place::{Format, Place},
    quota,
    record::Record,
};

/// Removes a volume. A missing volume is no error.
pub fn delete(place: &Place) -> Result<(), PluginError> {
    let Some(_lock) = place.lock_existing()? else {
        return if place.is_taken()? { Err(place.foreign()) } else { Ok(()) };
    };
    if let Some(record) = Record::read(place)? {
        begin(place, &record)?;
    }
    complete(place)?;
    place.check_not_lost()?;
    content(place)?;
    let foreign = place.is_taken()?;
    forget(place)?;
    if foreign { Err(place.foreign()) } else { Ok(()) }
}

/// Unmounts the volume, and puts the mark in place of the record.
fn begin(place: &Place, record: &Record) -> Result<(), PluginError> {
    if record.is_mounted() {
        Volume { place, record, key: None }.hide()?
    } else {
        check_unmounted(place)?
    }
    failpoint::at("volume-before-mark");
    let action = || format!("marking {}", place.own().display());
    fs::rename(place.record(), place.mark()).context(action)?;
    Ok(sync_directory(&place.own()).context(action)?)
}

/// A directory on which something is mounted cannot be removed.
fn check_unmounted(place: &Place) -> Result<(), PluginError> {
    let path = place.path();
    let mounted = place.is_taken()? && is_mount(&path).context(|| format!("looking at {}", path.display()))?;
    let problem = || PluginError::new(format!("something is mounted on {}: unmount it", path.display()));
    if mounted { Err(problem()) } else { Ok(()) }
}

/// Completes a removal that has begun. Without the mark it does nothing.
pub fn complete(place: &Place) -> Result<(), PluginError> {
    let Some(record) = Record::read_removed(place)? else { return Ok(()) };
    let path = place.path();
    if place.is_taken()? {
        failpoint::at("volume-before-removal");
        let action = || format!("removing {}", path.display());
        if record.is_mounted() {
            fs::remove_dir(&path).context(action)?;
        } else {
            // From here on, the volume is no longer at its path, however long the removal takes.
            remove_data(place)?;
            fs::rename(&path, place.data()).context(action)?;
        }
    }
    failpoint::at("volume-before-content");
    content(place)?;
    failpoint::at("volume-before-unmark");
    Ok(fs::remove_file(place.mark()).context(|| format!("removing {}", place.mark().display()))?)
}

/// Removes the content in the plugin's own directory.
pub fn content(place: &Place) -> Result<(), PluginError> {
    remove_data(place)?;
    for format in Format::NAMES {
        OwnFileSystem { place, format, key: None }.remove()?;
    }
    file_system::remove(&place.record().with_extension("json.tmp"))
}

fn remove_data(place: &Place) -> Result<(), PluginError> {
    let data = place.data();
    let project = quota::project_of(place, &data);
    match tree::remove(&data) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context(|| format!("removing {}", data.display()))?
        }
        _ => project.map_or(Ok(()), |project| quota::release(place, project)),
    }
}

/// Removes the plugin's own directory for the volume, whose lock the caller holds.
pub fn forget(place: &Place) -> Result<(), PluginError> {
    failpoint::at("volume-before-forget");
    let own = place.own();
    Ok(fs::remove_dir(&own).context(|| format!("removing {}", own.display()))?)
}
