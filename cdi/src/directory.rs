//! Reading the documents of directories.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};

use crate::{
    document::Spec,
    parse::Format,
    registry::{Registry, Source},
};

/// The directories of specs: those of the administrator, and those that are made while the node runs. Later ones have
/// the higher priority.
pub const DEFAULT_DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// The largest document that is read, in bytes. That of a node with eight GPUs has some hundred KiB.
const LARGEST: u64 = 16 << 20;

/// Reads all specs of these directories. Later directories have the higher priority. A missing directory is an empty
/// one. What cannot be read is a problem of the registry. Blocks on the file system.
pub fn load(directories: &[PathBuf]) -> Registry {
    let found = directories.iter().enumerate().flat_map(|(priority, directory)| match specs(directory) {
        Ok(paths) => paths.into_iter().map(|path| Source { spec: read(&path), path, priority }).collect::<Vec<_>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => vec![Source { path: directory.clone(), priority, spec: Err(error.to_string()) }],
    });
    Registry::new(found)
}

/// The paths of the files that are specs by their names, sorted.
fn specs(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if Format::of(&path).is_some() && !entry.file_type()?.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Spec, String> {
    let format = Format::of(path).ok_or("neither .json nor .yaml")?;
    Spec::parse(format, &content(path)?).map_err(|error| error.to_string())
}

/// The content of a file that only root may change: its hooks run as root.
fn content(path: &Path) -> Result<Vec<u8>, String> {
    // NONBLOCK: a FIFO must not block here. It is refused below.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(|error| error.to_string())?;
    let stat = fstat(&file).map_err(|error| error.to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("not a regular file".to_owned());
    }
    if stat.st_uid != 0 || stat.st_mode & 0o022 != 0 {
        return Err("can be changed by others than root: give it to root, with mode 0644".to_owned());
    }
    let mut text = Vec::new();
    File::from(file).take(LARGEST + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > LARGEST {
        return Err(format!("larger than {} MiB", LARGEST >> 20));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt, chown, symlink},
    };

    use super::*;

    const SPEC: &str =
        r#"{"cdiVersion":"0.3.0","kind":"a.b/c","devices":[{"name":"d","containerEdits":{"env":["A=1"]}}]}"#;

    #[test]
    fn only_regular_files_of_root_with_the_right_names_are_specs() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        let write = |name: &str, mode: u32| {
            fs::write(at(name), SPEC).unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        };
        write("open.json", 0o664);
        write("theirs.json", 0o644);
        chown(at("theirs.json"), Some(1000), Some(1000)).unwrap();
        write("good.txt", 0o644);
        fs::create_dir(at("directory.json")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo.yaml"), Mode::from_raw_mode(0o600)).unwrap();
        fs::write(at("large.json"), vec![b' '; LARGEST as usize + 1]).unwrap();
        symlink("nowhere", at("link.json")).unwrap();
        let directories = [base.path().to_owned(), at("missing")];
        let none = load(&directories);
        assert_eq!(none.devices().count(), 0);
        let problems: Vec<String> = none.problems().collect();
        for (name, problem) in [
            ("open.json", "can be changed by others than root"),
            ("theirs.json", "can be changed by others than root"),
            ("fifo.yaml", "not a regular file"),
            ("large.json", "larger than 16 MiB"),
            ("link.json", "No such file"),
        ] {
            assert!(problems.iter().any(|text| text.contains(name) && text.contains(problem)), "{name}: {problems:?}");
        }
        assert_eq!(problems.len(), 5, "{problems:?}");
        fs::rename(at("good.txt"), at("good.json")).unwrap();
        assert_eq!(load(&directories).devices().map(|(name, _)| name.to_string()).collect::<Vec<_>>(), ["a.b/c=d"]);
    }
}
