//! The task's directory: where everything stands, and the one way in which records are written.
//!
//! A record is absent, complete, or a temporary file that the next writer replaces: it is written under another name in the
//! same directory, synced, renamed, and the directory is synced.
//!
//! Every record carries the version of its form. A build reads all versions up to its own, because a task may have been started by
//! an older one, and refuses a newer one by name.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cgroup::{LimitHits, OutOfMemory},
    error::{Context, RuntimeError},
    logs::OutputStream,
    plan::ContainerId,
    process::ProcessRecord,
    user::ResolvedUser,
};

/// The version of records that this build writes. It rises when an older build would misread a record; a field that may be left out
/// needs no new version.
const VERSION: u32 = 1;

/// The plan as it was asked for.
pub(crate) const PLAN: &str = "plan.json";
/// The monitor's process.
pub(crate) const MONITOR: &str = "monitor.json";
/// The container's first process, once the command runs.
pub(crate) const CONTAINER: &str = "container.json";
/// How it ended.
pub(crate) const EXIT: &str = "exit.json";
/// The plugin process that watches the log FIFOs.
pub(crate) const LOG_WATCHER: &str = "keeper.json";
/// The groups that the container's processes live in, and which of them are ours to remove.
pub(crate) const CGROUP: &str = "cgroup.json";

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// The command's exit code; 128 + n when signal n ended it.
    pub exit_code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    /// Whether the kernel killed something in the container for want of memory.
    pub oom_killed: bool,
    /// What is known of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<OutOfMemory>,
    /// Processes and threads that the container was not allowed to make, because of its limit.
    #[serde(default)]
    pub forks_refused: u64,
    /// When the command was started.
    pub started_at: SystemTime,
    /// When its end was seen.
    pub finished_at: SystemTime,
}

/// A running container as its file remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub init: ProcessRecord,
    pub started_at: SystemTime,
    pub user: ResolvedUser,
    /// All its processes end with the first one.
    pub private_pid: bool,
    /// What its groups had counted before it; unknown of containers that older builds started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hits: Option<LimitHits>,
}

/// Directory and files of one container.
#[derive(Debug, Clone)]
pub(crate) struct TaskDir {
    path: PathBuf,
}

impl TaskDir {
    pub fn new(state_dir: &Path, id: &ContainerId) -> Self {
        Self { path: tasks(state_dir).join(id.as_str()) }
    }

    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state directory that it is in.
    pub fn state_dir(&self) -> &Path {
        self.path.parent().and_then(Path::parent).unwrap_or(&self.path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The complete OCI bundle, for tools.
    pub fn bundle(&self) -> PathBuf {
        self.file("bundle")
    }

    /// What libcontainer is given instead.
    pub fn engine_bundle(&self) -> PathBuf {
        self.file("engine")
    }

    /// libcontainer's own state.
    pub fn engine_state(&self) -> PathBuf {
        self.file("libcontainer")
    }

    /// Where the root file system is mounted, for the monitor alone.
    pub fn rootfs(&self) -> PathBuf {
        self.file("rootfs")
    }

    /// Files made for the container (`/etc/hosts` …).
    pub fn files(&self) -> PathBuf {
        self.file("etc")
    }

    /// Sources of mounts that need preparing.
    pub fn mounts(&self) -> PathBuf {
        self.file("mounts")
    }

    /// The count of dropped bytes of a stream.
    pub fn dropped(&self, stream: OutputStream) -> PathBuf {
        self.file(&format!("{}.lost", stream.name()))
    }

    /// Makes the directory; one that is there already is an error of the kind `AlreadyExists`.
    pub fn create(&self) -> io::Result<()> {
        private_dir(&self.path)
    }

    /// The record of this name; `None` when there is none.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RuntimeError> {
        let path = self.file(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RuntimeError::Io { action: format!("reading {}", path.display()), source }),
        };
        decode(&bytes).map(Some).map_err(|problem| RuntimeError::Record { path, problem })
    }

    /// Whether a record was written at least so long ago.
    pub fn is_older(&self, name: &str, age: Duration) -> bool {
        let written = fs::metadata(self.file(name)).and_then(|metadata| metadata.modified());
        written.is_ok_and(|written| written.elapsed().is_ok_and(|passed| passed >= age))
    }

    /// Writes a record so that it is there completely or not at all.
    pub fn commit<T: Serialize>(&self, name: &str, record: &T) -> Result<(), RuntimeError> {
        let write = || -> io::Result<()> {
            let (temporary, file) = self.temporary(name, record)?;
            file.sync_all()?;
            failpoint::at(before_rename(name));
            fs::rename(&temporary, self.file(name))?;
            File::open(&self.path)?.sync_all()
        };
        write().context(|| format!("writing {}", self.file(name).display()))
    }

    /// Like [`TaskDir::commit`], for a record that is worth nothing after a reboot: nothing is waited for.
    pub fn note<T: Serialize>(&self, name: &str, record: &T) -> Result<(), RuntimeError> {
        let write = || fs::rename(self.temporary(name, record)?.0, self.file(name));
        write().context(|| format!("writing {}", self.file(name).display()))
    }

    fn temporary<T: Serialize>(&self, name: &str, record: &T) -> io::Result<(PathBuf, File)> {
        let path = self.file(&format!("{name}.tmp"));
        let mut file = private_file(&path)?;
        file.write_all(&serde_json::to_vec(&Versioned { version: VERSION, record })?)?;
        Ok((path, file))
    }
}

/// A record as it is written.
#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    record: &'a T,
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    /// The first records had no version.
    const fn first() -> u32 {
        1
    }
    #[derive(Deserialize)]
    struct Version {
        #[serde(default = "first")]
        version: u32,
    }
    let Version { version } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if version > VERSION {
        return Err(format!("it has version {version}, this build reads up to {VERSION}: a newer oci-rs wrote it"));
    }
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// The failpoint between writing a record and giving it its name.
fn before_rename(name: &str) -> &'static str {
    match name {
        PLAN => "start-before-plan-rename",
        MONITOR => "monitor-before-record-rename",
        CGROUP => "creator-before-groups-rename",
        CONTAINER => "monitor-before-container-rename",
        EXIT => "monitor-before-exit-rename",
        _ => "record-before-rename",
    }
}

/// The directory of all containers' directories.
pub(crate) fn tasks(state_dir: &Path) -> PathBuf {
    state_dir.join("tasks")
}

/// Makes a directory that only we can enter.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Opens an empty file that only we can read.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_and_replaces_what_a_killed_writer_left() {
        let directory = tempfile::tempdir().expect("a directory");
        let task = TaskDir::at(directory.path().to_owned());
        assert_eq!(task.read::<ExitRecord>(EXIT).expect("read"), None);
        fs::write(task.file("exit.json.tmp"), "{\"exit_co").expect("half a record");
        let record = ExitRecord {
            exit_code: 137,
            signal: 9,
            oom_killed: true,
            out_of_memory: Some(OutOfMemory { kills: 1, ..OutOfMemory::default() }),
            forks_refused: 2,
            started_at: SystemTime::UNIX_EPOCH,
            finished_at: SystemTime::now(),
        };
        task.commit(EXIT, &record).expect("written");
        assert_eq!(task.read(EXIT).expect("read"), Some(record));
        assert!(!task.file("exit.json.tmp").exists());
    }

    #[test]
    fn versions_of_records() {
        let directory = tempfile::tempdir().expect("a directory");
        let task = TaskDir::at(directory.path().to_owned());
        let record = ProcessRecord { pid: 1, start_time: 2, boot_id: "b".to_owned() };
        task.commit(MONITOR, &record).expect("written");
        let text = fs::read_to_string(task.file(MONITOR)).expect("a file");
        assert_eq!(text, r#"{"version":1,"pid":1,"start_time":2,"boot_id":"b"}"#);
        fs::write(task.file(MONITOR), text.replace("\"version\":1,", "")).expect("as the first builds wrote it");
        assert_eq!(task.read(MONITOR).expect("read"), Some(record));
        fs::write(task.file(MONITOR), text.replace("\"version\":1", "\"version\":7"))
            .expect("as a newer build writes it");
        let error = task.read::<ProcessRecord>(MONITOR).expect_err("refused");
        assert!(error.to_string().contains("version 7") && error.to_string().contains("newer oci-rs"), "{error}");
    }

    #[test]
    fn a_damaged_record_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let task = TaskDir::at(directory.path().to_owned());
        fs::write(task.file(EXIT), "{").expect("written");
        let error = task.read::<ExitRecord>(EXIT).expect_err("damaged");
        assert!(error.to_string().contains("exit.json"), "{error}");
    }
}
