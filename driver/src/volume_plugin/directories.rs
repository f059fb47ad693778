//! Where the volumes of this node are, for the operator's commands.
//!
//! Nomad tells the plugin the directory of the volumes with each call, and no other program. So the plugin leaves a
//! file for each directory, beside the pointers of the driver's plugins. It is lost with a reboot, and written again
//! when the agent calls `create` for each volume.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use host::{
    durable::{self, Durability},
    hash::fnv1a,
    record,
};
use serde::{Deserialize, Serialize};

use crate::pointer::run_dir;

/// The version of the form.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Pointer {
    /// The directory of the volumes.
    volumes: PathBuf,
}

/// Leaves the directory of volumes for commands, unless it is there. Files about directories that are gone are removed.
pub fn leave(volumes: &Path) -> io::Result<()> {
    leave_in(&directory(), volumes)
}

fn leave_in(directory: &Path, volumes: &Path) -> io::Result<()> {
    let name = format!("{:016x}.json", fnv1a(volumes.as_os_str().as_encoded_bytes()));
    let path = directory.join(&name);
    if path.exists() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    for (known, volumes) in pointers(directory) {
        if volumes.is_ok_and(|volumes| !volumes.exists()) {
            fs::remove_file(known)?;
        }
    }
    let bytes = record::encode(VERSION, &Pointer { volumes: volumes.to_owned() })?;
    let temporary = directory.join(format!(".{name}.{}.tmp", std::process::id()));
    Ok(durable::write(&path, &temporary, &bytes, Durability::Later, |_| {})?)
}

/// The directories of volumes that exist, and why others are not known.
pub fn found() -> (Vec<PathBuf>, Vec<String>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (_, volumes) in pointers(&directory()) {
        match volumes {
            Ok(volumes) if volumes.is_dir() => found.push(volumes),
            Ok(_) => {}
            Err(problem) => problems.push(problem),
        }
    }
    found.sort();
    (found, problems)
}

fn pointers(directory: &Path) -> Vec<(PathBuf, Result<PathBuf, String>)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let read = |path: PathBuf| match record::read::<Pointer>(VERSION, &path) {
        Ok(Some(pointer)) => Some((path, Ok(pointer.volumes))),
        Ok(None) => None,
        Err(error) => Some((path, Err(error.to_string()))),
    };
    files.filter_map(read).collect()
}

fn directory() -> PathBuf {
    run_dir().join("host_volumes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_left_once_and_forgotten_when_it_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let (run, [one, other]) = (root.path().join("run"), ["one", "other"].map(|name| root.path().join(name)));
        fs::create_dir(&one).unwrap();
        for _ in 0..2 {
            leave_in(&run, &one).unwrap();
        }
        let known = |run: &Path| pointers(run).into_iter().map(|(_, volumes)| volumes.unwrap()).collect::<Vec<_>>();
        assert_eq!(known(&run), std::slice::from_ref(&one));
        fs::remove_dir(&one).unwrap();
        leave_in(&run, &other).unwrap();
        assert_eq!(known(&run), [other]);
        fs::write(run.join("broken.json"), "{").unwrap();
        assert!(pointers(&run).iter().any(|(_, volumes)| volumes.as_ref().is_err_and(|text| text.contains("broken"))));
    }
}
