//! The task's directory: the places of its files, and reading and writing its records.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use host::{
    durable::{self, Durability, Step},
    record,
};
use serde::{Serialize, de::DeserializeOwned};

use super::records::{CGROUP, CONTAINER, EXIT, MONITOR, PLAN};
use crate::{
    error::{Context, RuntimeError},
    logs::OutputStream,
    plan::ContainerId,
};

/// The version of records that this build writes. It rises when an older build would misread a record. An optional
/// field needs no new version.
const VERSION: u32 = 1;

/// Directory and files of one container.
#[derive(Debug, Clone)]
pub(crate) struct TaskDir {
    path: PathBuf,
}

impl TaskDir {
    /// The directory of a container in a state directory.
    pub fn new(state_dir: &Path, id: &ContainerId) -> Self {
        Self { path: tasks(state_dir).join(id.as_str()) }
    }

    /// The directory at `path`.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state directory that contains it.
    pub fn state_dir(&self) -> &Path {
        self.path.parent().and_then(Path::parent).unwrap_or(&self.path)
    }

    /// The file of that name.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The complete OCI bundle, for tools.
    pub fn bundle(&self) -> PathBuf {
        self.file("bundle")
    }

    /// The engine's sockets.
    pub fn engine_state(&self) -> PathBuf {
        self.file("libcontainer")
    }

    /// Everything that belongs to an installed runtime. It exists if the container has one.
    pub fn installed(&self) -> PathBuf {
        self.file("runtime")
    }

    /// The mount point of the root file system, in the creator's mount namespace alone.
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

    /// The monitor's log.
    pub fn monitor_log(&self) -> PathBuf {
        self.file("monitor.log")
    }

    /// The FIFO of a stream from which a log relay reads.
    pub fn relayed(&self, stream: OutputStream) -> PathBuf {
        self.file(&format!("{}.fifo", stream.name()))
    }

    /// The count of messages that a log relay could not deliver.
    pub fn undelivered(&self) -> PathBuf {
        self.file("undelivered")
    }

    /// Why the last one of them was not delivered, as text.
    pub fn undelivered_reason(&self) -> PathBuf {
        self.file("undelivered.reason")
    }

    /// The count of log relays that were killed.
    pub fn relay_ends(&self) -> PathBuf {
        self.file("relay.ends")
    }

    /// The count of dropped bytes of a stream.
    pub fn dropped(&self, stream: OutputStream) -> PathBuf {
        self.file(&format!("{}.lost", stream.name()))
    }

    /// Creates the directory. An existing one is an error of the kind `AlreadyExists`.
    pub fn create(&self) -> io::Result<()> {
        private_dir(&self.path)
    }

    /// The record of this name; `None` if there is none.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, RuntimeError> {
        Ok(record::read(VERSION, &self.file(name))?)
    }

    /// Whether a record was written at least `age` ago.
    pub fn is_older(&self, name: &str, age: Duration) -> bool {
        let written = fs::metadata(self.file(name)).and_then(|metadata| metadata.modified());
        written.is_ok_and(|written| written.elapsed().is_ok_and(|passed| passed >= age))
    }

    /// Writes a record durably.
    pub fn commit<T: Serialize>(&self, name: &str, record: &T) -> Result<(), RuntimeError> {
        let failpoint = before_rename(name);
        self.write(name, record, Durability::Now, |step| {
            if step == Step::Rename {
                failpoint::at(failpoint);
            }
        })
    }

    /// Like [`TaskDir::commit`], for a record that has no value after a reboot: nothing is synced.
    pub fn note<T: Serialize>(&self, name: &str, record: &T) -> Result<(), RuntimeError> {
        self.write(name, record, Durability::Later, |_| {})
    }

    fn write<T: Serialize>(
        &self,
        name: &str,
        record: &T,
        durability: Durability,
        before: impl Fn(Step),
    ) -> Result<(), RuntimeError> {
        let (path, temporary) = (self.file(name), self.file(&format!("{name}.tmp")));
        let write = || -> io::Result<()> {
            let bytes = record::encode(VERSION, record)?;
            Ok(durable::write(&path, &temporary, &bytes, durability, before)?)
        };
        write().context(|| format!("writing {}", path.display()))
    }
}

/// The failpoint between writing a record and giving it its name.
fn before_rename(name: &str) -> &'static str {
    match name {
        PLAN => "start-before-plan-rename",
        MONITOR => "monitor-before-record-rename",
        CGROUP => "creator-before-cgroups-rename",
        CONTAINER => "monitor-before-container-rename",
        EXIT => "monitor-before-exit-rename",
        _ => "record-before-rename",
    }
}

/// The directory that contains the directories of all containers.
pub(crate) fn tasks(state_dir: &Path) -> PathBuf {
    state_dir.join("tasks")
}

/// Creates a directory that only its owner can enter (mode 0700).
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{
        cgroup::OutOfMemory,
        process::ProcessRecord,
        state::{EXIT, ExitRecord, MONITOR},
    };

    #[test]
    fn a_record_replaces_the_temporary_file_of_a_killed_writer() {
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
    fn a_record_of_an_older_version_is_read_and_a_newer_one_refused() {
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
