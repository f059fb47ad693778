//! The pointer: a file by which the operator's commands find the plugin's directories and configuration.
//!
//! Always holds:
//!
//! - There is one file per driver name, in a directory that does not depend on the configuration. Only root can read
//!   it: the plugin block may hold passwords of registries.
//! - The plugin writes it when it opens its directories, whole or not at all. It stays when the plugin ends, because
//!   the tasks stay too. The next plugin of the name replaces it.
//! - A pointer that cannot be used is reported and skipped. No task depends on one.

use std::{
    env, fs,
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use host::{
    durable::{self, Durability},
    record,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{config::PluginConfig, name::DriverName};

/// The variable that names another directory than [`RUN_DIR`], for plugins and for commands.
pub const RUN_DIR_VARIABLE: &str = "OCI_RS_RUN_DIR";
const RUN_DIR: &str = "/run/oci-rs";

/// The version of the form.
const VERSION: u32 = 1;

/// What a plugin leaves for commands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The plugin's name.
    pub driver: String,
    /// The version of its build.
    pub build: String,
    /// Its process.
    pub pid: u32,
    /// Its socket, to which the agent connects.
    pub socket: PathBuf,
    /// State of running tasks.
    pub state_dir: PathBuf,
    /// Images and writable layers.
    pub data_dir: PathBuf,
    /// Its log, unless the configuration switches it off.
    pub log_file: Option<PathBuf>,
    /// The plugin block as the agent sent it.
    pub config: Value,
}

/// The pointers of a node, and why others cannot be used.
#[derive(Default)]
pub struct Pointers {
    /// The usable ones, `oci-rs` before `docker`.
    pub found: Vec<Pointer>,
    /// Problems, each with the file's name.
    pub problems: Vec<String>,
}

impl Pointer {
    /// The pointer of this process.
    pub fn of(config: &PluginConfig, log_file: Option<PathBuf>, socket: &Path, block: Value) -> Self {
        Self {
            driver: config.driver.to_string(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            socket: socket.to_owned(),
            state_dir: config.state_dir.clone(),
            data_dir: config.data_dir.clone(),
            log_file,
            config: block,
        }
    }

    /// Writes the file, in place of that of the name's last plugin.
    pub fn leave(&self) -> io::Result<()> {
        self.leave_in(&directory())
    }

    fn leave_in(&self, directory: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let name = format!("{}.json", self.driver);
        remove_unfinished(directory, &name)?;
        let bytes = record::encode(VERSION, self)?;
        // The name of the temporary file is this process's own: a predecessor may still be writing.
        let temporary = directory.join(format!(".{name}.{}.tmp", self.pid));
        let written = durable::write(&directory.join(name), &temporary, &bytes, Durability::Later, |_| {});
        Ok(written?)
    }
}

/// Removes the temporary files of processes that were killed while they wrote this pointer.
fn remove_unfinished(directory: &Path, name: &str) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        let file = entry.file_name();
        let writer = file.to_str().and_then(|file| file.strip_prefix('.')?.strip_prefix(name)?.strip_prefix('.'));
        let Some(pid) = writer.and_then(|rest| rest.strip_suffix(".tmp")) else { continue };
        if !Path::new("/proc").join(pid).exists() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The directory of what plugins leave for commands.
pub fn run_dir() -> PathBuf {
    env::var_os(RUN_DIR_VARIABLE).map_or_else(|| PathBuf::from(RUN_DIR), PathBuf::from)
}

/// The directory of the pointers.
fn directory() -> PathBuf {
    run_dir().join("plugins")
}

/// The pointers of this node.
pub fn found() -> Pointers {
    found_in(&directory())
}

fn found_in(directory: &Path) -> Pointers {
    let mut pointers = Pointers::default();
    for driver in [DriverName::OciRs, DriverName::Docker] {
        let path = directory.join(format!("{driver}.json"));
        match read(&path, driver) {
            Ok(Some(pointer)) => pointers.found.push(pointer),
            Ok(None) => {}
            Err(problem) => pointers.problems.push(format!("{}: {problem}", path.display())),
        }
    }
    pointers
}

/// Reads a pointer; `None` if there is none. A file that others than this user can write is not trusted.
fn read(path: &Path, driver: DriverName) -> Result<Option<Pointer>, String> {
    let trusted = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        Ok(found) => {
            let owner = rustix::process::geteuid().as_raw();
            found.is_file() && (found.uid() == owner || found.uid() == 0) && found.mode() & 0o022 == 0
        }
    };
    if !trusted {
        return Err("is ignored: another user may have written it".to_owned());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let pointer: Pointer = record::decode(VERSION, &bytes).map_err(|problem| format!("is ignored: {problem}"))?;
    if pointer.driver != driver.as_str() {
        return Err(format!("is ignored: it is the pointer of {:?}", pointer.driver));
    }
    if !pointer.data_dir.is_dir() {
        return Err(format!("is ignored: {} does not exist any more", pointer.data_dir.display()));
    }
    Ok(Some(pointer))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn pointer(driver: DriverName, data_dir: &Path) -> Pointer {
        let config = PluginConfig { driver, data_dir: data_dir.to_owned(), ..PluginConfig::default() };
        Pointer::of(
            &config,
            Some("/log".into()),
            Path::new("/socket"),
            json!({"registry": {"r": {"password": "hunter2"}}}),
        )
    }

    #[test]
    fn each_name_has_one_pointer_that_only_its_owner_reads() {
        let node = tempfile::tempdir().unwrap();
        let directory = node.path().join("run/plugins");
        assert!(found_in(&directory).found.is_empty() && found_in(&directory).problems.is_empty());
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(directory.join(".oci-rs.json.99999999.tmp"), "of a killed writer").unwrap();
        for driver in [DriverName::Docker, DriverName::OciRs, DriverName::OciRs] {
            pointer(driver, node.path()).leave_in(&directory).unwrap();
        }
        let names: Vec<_> = found_in(&directory).found.iter().map(|pointer| pointer.driver.clone()).collect();
        assert_eq!(names, ["oci-rs", "docker"]);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "no temporary file is left");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&directory.join("docker.json"))), (0o700, 0o600));
        assert!(found_in(&directory).found[0] == pointer(DriverName::OciRs, node.path()), "it is read as written");
    }

    #[test]
    fn a_pointer_that_cannot_be_used_is_reported_and_skipped() {
        let node = tempfile::tempdir().unwrap();
        let path = node.path().join("oci-rs.json");
        pointer(DriverName::OciRs, node.path()).leave_in(node.path()).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        let gone = good.replace(&node.path().display().to_string(), "/no/such/directory");
        for (text, mode, expected) in [
            (good.clone(), 0o600, None),
            (good.clone(), 0o620, Some("another user")),
            (good[..20].to_owned(), 0o600, Some("ignored")),
            (good.replace("\"version\":1", "\"version\":9"), 0o600, Some("newer oci-rs")),
            (good.replace("\"driver\":\"oci-rs\"", "\"driver\":\"docker\""), 0o600, Some("pointer of \"docker\"")),
            (gone, 0o600, Some("/no/such/directory")),
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let Pointers { found, problems } = found_in(node.path());
            assert_eq!(found.is_empty(), expected.is_some());
            match expected {
                Some(expected) => assert!(problems[0].contains("oci-rs.json") && problems[0].contains(expected)),
                None => assert!(problems.is_empty(), "{problems:?}"),
            }
            assert!(problems.iter().all(|problem| !problem.contains("hunter2")));
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(found_in(node.path()).problems[0].contains("another user"));
    }
}
