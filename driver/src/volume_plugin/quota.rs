//! A volume with a limit by a project quota: a directory whose files belong to a project of their own.
//!
//! The project is found again by the directory. Its number comes from the id of the volume.

use std::{fs::File, path::Path};

use host::Context;
use runtime::project_quota::{self, ProjectRange};
use rustix::fs::{FlockOperation, flock};

use super::{error::PluginError, place::Place};

/// Whether volumes of this directory can be limited in this way.
pub fn is_available(place: &Place) -> bool {
    File::open(place.volumes()).is_ok_and(|volumes| project_quota::is_available(&volumes))
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
    let Some(project) = project_quota::take(directory, ProjectRange::VOLUMES.of(place.id())).context(action)? else {
        let problem = "capacity_max: other volumes have every project that the id of this one leads to: repeat";
        return Err(PluginError::new(problem));
    };
    failpoint::at("volume-before-limit");
    Ok(project_quota::set_limits(directory, project, bytes, None).context(action)?)
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
        project_quota::set_limits(&opened, project, bytes, None).context(action)?;
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
    Ok(project_quota::remove_limits(&volumes, project).context(action)?)
}

fn is_own(place: &Place, project: u32) -> bool {
    ProjectRange::VOLUMES.has(place.id(), project)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_projects_of_a_volume_are_its_own() {
        let place = |id: &str| Place::new("/volumes".into(), id.to_owned());
        let [one, other] = ["4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d01", "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d02"].map(place);
        for project in ProjectRange::VOLUMES.of(one.id()) {
            assert!(is_own(&one, project) && !is_own(&other, project), "{project}");
        }
        assert!(!is_own(&one, 0) && !is_own(&one, 1000));
    }
}
