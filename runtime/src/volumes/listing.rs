//! The volumes with a name, as files describe them. Nothing is locked, and no mounted file system is asked.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use super::{
    options::VolumeOptions,
    shared::{VolumeKey, Volumes},
    table::mounts_at,
};
use crate::{
    directory_watch,
    error::{Context, RuntimeError},
};

/// A volume with a name.
#[derive(Debug)]
pub struct NamedVolumeRecord {
    /// The name in jobs.
    pub name: String,
    /// The directory that tasks get: of the data directory, or the mount point of a volume with options.
    pub directory: PathBuf,
    /// The options with which it was mounted, without passwords; `None` for a plain directory.
    pub options: Option<VolumeOptions>,
    /// A volume with options is mounted now.
    pub mounted: bool,
}

/// The volumes with a name, and the problems of those whose options cannot be read.
pub(crate) fn named_volumes(
    state_dir: &Path,
    data_dir: &Path,
) -> Result<(Vec<NamedVolumeRecord>, Vec<String>), RuntimeError> {
    let directory = data_dir.join("volumes");
    let files = match directory_watch::list(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeSet::new(),
        listed => listed.context(|| format!("listing {}", directory.display()))?,
    };
    let volumes = Volumes::new(state_dir, data_dir);
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    let names: BTreeSet<&str> = files.iter().filter_map(|file| volume_name(file)).collect();
    for name in names {
        let options = volumes.stored_options(name).unwrap_or_else(|error| {
            problems.push(error.to_string());
            None
        });
        let key = VolumeKey::named(name);
        let mount_point = key.mount_point(state_dir);
        let mounted =
            options.is_some() && mounts_at(&mount_point).context(|| "reading the table of mounts".to_owned())? > 0;
        let directory = if options.is_some() { mount_point } else { directory.join(name) };
        found.push(NamedVolumeRecord { name: name.to_owned(), directory, options, mounted });
    }
    Ok((found, problems))
}

/// The volume that a file of the directory belongs to. Other names with a dot are those of unfinished volumes.
fn volume_name(file: &str) -> Option<&str> {
    match file.strip_prefix(".options.") {
        Some(rest) => rest.strip_suffix(".json"),
        None => (!file.starts_with('.')).then_some(file),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::named_volumes;

    #[test]
    fn volumes_are_listed_with_their_options_and_problems() {
        let node = tempfile::tempdir().expect("a directory");
        let (state, data) = (node.path().join("state"), node.path().join("data"));
        assert!(named_volumes(&state, &data).expect("none").0.is_empty());
        for directory in ["plain", ".new.half", ".import.other"] {
            fs::create_dir_all(data.join("volumes").join(directory)).expect("made");
        }
        let options = r#"{"version":1,"kind":"nfs","device":":/export","mount_options":"addr=192.0.2.1"}"#;
        fs::write(data.join("volumes/.options.share.json"), options).expect("written");
        fs::write(data.join("volumes/.options.half.json"), "{").expect("written");
        let (found, problems) = named_volumes(&state, &data).expect("listed");
        let names: Vec<(&str, bool, bool)> =
            found.iter().map(|volume| (volume.name.as_str(), volume.options.is_some(), volume.mounted)).collect();
        assert_eq!(names, [("half", false, false), ("plain", false, false), ("share", true, false)]);
        assert_eq!(found[1].directory, data.join("volumes/plain"));
        assert_eq!(found[2].directory, state.join("volumes/share/mount"));
        assert!(problems.len() == 1 && problems[0].contains(".options.half.json"), "{problems:?}");
    }
}
