//! A volume with a limit by a project quota: a directory whose files belong to a project of their own.
//!
//! The file system itself says which projects are in use: a project that has a file. A new volume takes a project
//! without files, and its directory is the first file, under a lock of all volumes. So no list of projects can be wrong
//! after a kill. The numbers come from the id of the volume, so that the limit of another program's project is never
//! touched.

use std::{fs::File, io, path::Path};

use host::{Context, hash::fnv1a};
use runtime::project_quota;
use rustix::fs::{FlockOperation, flock};

use super::{error::PluginError, place::Place};

/// Projects are at and above this number.
const FIRST: u32 = 0x4000_0000;
/// So many projects of one volume are tried.
const TRIES: u8 = 16;

/// Whether volumes of this directory can be limited in this way. If it has a project itself, no other project can be in
/// it.
pub fn is_available(place: &Place) -> bool {
    File::open(place.volumes()).is_ok_and(|volumes| {
        project_quota::is_enforced(&volumes) && project_quota::project_of(&volumes).is_ok_and(|project| project == 0)
    })
}

/// Gives a new directory a project of its own, and the project a limit.
pub fn assign(place: &Place, directory: &File, bytes: u64) -> Result<(), PluginError> {
    let action = || "giving the volume a project quota".to_owned();
    if !project_quota::is_enforced(directory) {
        return Err(lost(place.volumes()));
    }
    let all = File::open(place.own_parent()).context(action)?;
    // Held until the end of this function.
    flock(&all, FlockOperation::LockExclusive).context(action)?;
    for project in projects(place) {
        let used = project_quota::usage(directory, project).context(action)?;
        if used.inodes == 0 && used.bytes == 0 {
            project_quota::set_project(directory, project).context(action)?;
            failpoint::at("volume-before-limit");
            return Ok(project_quota::set_limit(directory, project, bytes).context(action)?);
        }
    }
    Err(PluginError::new("capacity_max: other volumes have every project that the id of this one leads to: repeat"))
}

/// Makes sure that the limit of a complete volume holds. Its quota may have been switched off meanwhile.
pub fn enforce(place: &Place, directory: &Path, bytes: u64) -> Result<(), PluginError> {
    let action = || format!("limiting {}", directory.display());
    let opened = File::open(directory).context(action)?;
    let project = project_quota::project_of(&opened).context(action)?;
    if !project_quota::is_enforced(&opened) || !is_own(place, project) {
        return Err(lost(directory));
    }
    if project_quota::usage(&opened, project).context(action)?.limit != bytes {
        project_quota::set_limit(&opened, project, bytes).context(action)?;
    }
    Ok(())
}

fn lost(directory: &Path) -> PluginError {
    PluginError::new(format!(
        "capacity_max: project quotas of {} are not enforced any more: mount its file system with prjquota",
        directory.display()
    ))
}

/// Fails if a directory has more than its limit: root may exceed it on ext4.
pub fn check_fits(directory: &File) -> Result<(), PluginError> {
    let action = || "measuring the volume".to_owned();
    let project = project_quota::project_of(directory).context(action)?;
    let used = project_quota::usage(directory, project).context(action)?;
    if used.bytes <= used.limit {
        return Ok(());
    }
    let (bytes, limit) = (used.bytes, used.limit);
    Err(PluginError::new(format!("capacity_max: the content has {bytes} bytes, and the limit is {limit}: give more")))
}

/// The project of a directory, if the plugin has given it one for this volume.
pub fn project_of(place: &Place, directory: &Path) -> Option<u32> {
    let project = File::open(directory).and_then(|opened| project_quota::project_of(&opened)).ok()?;
    is_own(place, project).then_some(project)
}

/// Removes the limit of a project whose files are gone.
pub fn release(place: &Place, project: u32) -> Result<(), PluginError> {
    let action = || "removing a project quota".to_owned();
    let volumes = File::open(place.volumes()).context(action)?;
    match project_quota::set_limit(&volumes, project, 0) {
        // Without quotas there is no limit.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) || error.kind() == io::ErrorKind::Unsupported => Ok(()),
        set => Ok(set.context(action)?),
    }
}

fn is_own(place: &Place, project: u32) -> bool {
    projects(place).any(|own| own == project)
}

/// The projects that a volume may have, in the order in which they are tried.
fn projects(place: &Place) -> impl Iterator<Item = u32> {
    let id = place.id().to_owned();
    (0..TRIES).map(move |number| {
        let hash = fnv1a(format!("{id}.{number}").as_bytes());
        FIRST | (hash as u32 & (FIRST - 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_projects_of_a_volume_are_its_own() {
        let place = |id: &str| Place::new("/volumes".into(), id.to_owned());
        let [one, other] = ["4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d01", "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d02"].map(place);
        for project in projects(&one) {
            assert!(project >= FIRST && is_own(&one, project) && !is_own(&other, project), "{project}");
        }
        assert!(!is_own(&one, 0) && !is_own(&one, 1000));
    }
}
