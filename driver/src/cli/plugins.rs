//! The running plugins of this node, with their agent or without it.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use crate::{name::DriverName, plugin::COOKIE_NAME};

/// The plugins that have a file open in one of these directories, by their pids: those of this name, or all.
pub fn running(proc: &Path, only: Option<DriverName>, directories: &[&Path]) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(proc)?.flatten();
    let processes = entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    let found = processes.filter(|(_, process)| is_plugin(process, only) && uses(process, directories));
    Ok(found.map(|(pid, _)| pid).collect())
}

/// Whether a process has the cookie of Nomad in its environment, and the name. Docker's own programs and the driver's
/// other processes lack the cookie.
fn is_plugin(process: &Path, only: Option<DriverName>) -> bool {
    let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
    let (command, environment) = (read("cmdline"), read("environ"));
    let program = command.split(|byte| *byte == 0).next().unwrap_or_default();
    let cookie = format!("{COOKIE_NAME}=");
    only.is_none_or(|only| DriverName::of_program(OsStr::from_bytes(program)) == only)
        && environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(cookie.as_bytes()))
}

/// Whether a process has one of the directories open, or a file in it.
fn uses(process: &Path, directories: &[&Path]) -> bool {
    let links = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut files = links.filter_map(|link| fs::read_link(link.path()).ok());
    files.any(|file: PathBuf| directories.iter().any(|directory| file.starts_with(directory)))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, os::unix::fs::symlink, path::Path};

    use super::running;
    use crate::name::DriverName;

    #[test]
    fn only_plugins_of_the_name_and_the_directories_are_found() {
        let proc = tempfile::tempdir().unwrap();
        let cookie = "PATH=/bin\0NOMAD_PLUGIN_MAGIC_COOKIE=e4\0";
        for (pid, command, environment, file) in [
            ("7", "/opt/plugins/docker\0", cookie, "/data/docker.log"),
            ("8", "/opt/plugins/oci-rs\0", cookie, "/data/oci-rs.log"),
            ("9", "/usr/bin/docker\0ps\0", "PATH=/bin\0", "/data/x"),
            ("10", "/opt/plugins/docker\0", cookie, "/other/docker.log"),
            ("11", "", "", "/data/x"),
            ("12", "/opt/plugins/docker\0", cookie, "/database/docker.log"),
        ] {
            let process = proc.path().join(pid);
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::write(process.join("cmdline"), command).unwrap();
            fs::write(process.join("environ"), environment).unwrap();
            symlink(file, process.join("fd/3")).unwrap();
        }
        fs::create_dir(proc.path().join("sys")).unwrap();
        let directories = [Path::new("/state"), Path::new("/data")];
        let of = |only| running(proc.path(), only, &directories).unwrap();
        assert_eq!((of(Some(DriverName::Docker)), of(Some(DriverName::OciRs))), (vec![7], vec![8]));
        assert_eq!(BTreeSet::from_iter(of(None)), BTreeSet::from([7, 8]));
        assert!(running(&proc.path().join("missing"), None, &[]).is_err());
    }
}
