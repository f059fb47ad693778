//! A network's directory in the state directory: its record, its pinned namespace, its log, and the lock on all of it.
//!
//! The lock (flock) is on the log, which every plugin has as its standard error: a plugin that outlives the process that started it
//! keeps others from its network until it has come to its end.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use host::{
    Context,
    durable::{self, Durability},
    lock::{Locked, Wait, lock},
    record,
};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{conflist::Conflist, error::NetworkError};

/// The version of records that this build writes; it rises when an older build would misread one.
const VERSION: u32 = 1;

const RECORD: &str = "network.json";
const LOG: &str = "plugins.log";

/// The namespace's file in a network's directory.
pub(crate) const NAMESPACE: &str = "netns";

/// What a container's network is, and how far it got. Everything that taking it down needs, whatever the plugin block says by
/// then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The container as plugins know it.
    pub container: String,
    /// The interface in the container.
    pub interface: String,
    /// The network.
    pub network: Conflist,
    /// What was asked of its plugins.
    pub asked: Map<String, Value>,
    /// Where the plugins were found.
    pub directories: Vec<PathBuf>,
    /// How many plugins have been called, the one that is being called included.
    pub called: usize,
    /// The answer of the last one that has answered.
    pub result: Option<Value>,
}

impl Record {
    pub fn new(container: String, network: Conflist, asked: Map<String, Value>, directories: Vec<PathBuf>) -> Self {
        let interface = "eth0".to_owned();
        Self { container, interface, network, asked, directories, called: 0, result: None }
    }
}

/// A network's directory under lock. Dropped, it lets go, unless a plugin still runs.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    log: File,
}

impl Directory {
    /// Makes the directory if there is none, and waits for its lock.
    pub fn make(path: &Path) -> io::Result<Self> {
        loop {
            DirBuilder::new().recursive(true).mode(0o700).create(path)?;
            // Between the two the one who had the lock may have removed it.
            if let Some(directory) = Self::lock(path)? {
                return Ok(directory);
            }
        }
    }

    /// Waits for the lock of a directory; `None` when there is none, or no more.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        if path.is_dir() { Self::lock(path) } else { Ok(None) }
    }

    fn lock(path: &Path) -> io::Result<Option<Self>> {
        let file = path.join(LOG);
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        match lock(&file, Wait::Forever, false, || options.open(&file))? {
            Locked::Held(log) => Ok(Some(Self { path: path.to_owned(), log })),
            Locked::Missing | Locked::Busy => Ok(None),
        }
    }

    /// Where the namespace is pinned.
    pub fn namespace(&self) -> PathBuf {
        self.path.join(NAMESPACE)
    }

    /// What plugins have as their standard error.
    pub fn log(&self) -> &File {
        &self.log
    }

    /// The record; `None` when there is none.
    pub fn read(&self) -> Result<Option<Record>, NetworkError> {
        Ok(record::read(VERSION, &self.path.join(RECORD))?)
    }

    /// Writes the record so that it is there completely or not at all, and lasts.
    pub fn commit(&self, record: &Record) -> Result<(), NetworkError> {
        let path = self.path.join(RECORD);
        let temporary = self.path.join(format!("{RECORD}.tmp"));
        let written = record::encode(VERSION, record).and_then(|bytes| {
            durable::write(&path, &temporary, &bytes, Durability::Now, |_| {})?;
            Ok(())
        });
        Ok(written.context(|| format!("writing {}", path.display()))?)
    }

    /// Removes the directory, the lock last. The namespace must be gone.
    pub fn remove(self) -> io::Result<()> {
        for name in [RECORD.to_owned(), format!("{RECORD}.tmp"), LOG.to_owned()] {
            match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match fs::remove_dir(&self.path) {
            // Somebody has made it anew since the lock went.
            Err(error) if [ErrorKind::DirectoryNotEmpty, ErrorKind::NotFound].contains(&error.kind()) => Ok(()),
            removed => removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::mpsc, thread};

    use serde_json::{Map, json};

    use super::{Directory, RECORD, Record};
    use crate::{Conflist, Settings};

    fn record() -> Record {
        let network = Conflist::of_bridge(&Settings::default(), Path::new("/leases"), false);
        Record::new("web".into(), network, Map::new(), vec!["/opt/cni/bin".into()])
    }

    #[test]
    fn a_record_replaces_the_one_before_and_survives() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("networks/web");
        let directory = Directory::make(&path).expect("made");
        assert_eq!(directory.read().expect("read"), None);
        fs::write(path.join("network.json.tmp"), "{").expect("half a record");
        let mut record = record();
        directory.commit(&record).expect("written");
        record.called = 1;
        record.result = Some(json!({"ips": []}));
        directory.commit(&record).expect("written again");
        drop(directory);
        let directory = Directory::take(&path).expect("a look").expect("a directory");
        assert_eq!(directory.read().expect("read"), Some(record));
        directory.remove().expect("removed");
        assert!(!path.exists() && Directory::take(&path).expect("a look").is_none());
    }

    #[test]
    fn damaged_and_newer_records_are_errors_that_name_the_file() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("web");
        let directory = Directory::make(&path).expect("made");
        directory.commit(&record()).expect("written");
        let text = fs::read_to_string(path.join(RECORD)).expect("a record");
        for (text, expected) in
            [(text.replace("\"version\":1", "\"version\":7"), "newer oci-rs"), ("{".to_owned(), "not a record")]
        {
            fs::write(path.join(RECORD), text).expect("written");
            let error = directory.read().expect_err("refused").to_string();
            assert!(error.contains(RECORD) && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn whoever_waited_for_a_directory_that_was_removed_finds_none_or_a_new_one() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("web");
        let directory = Directory::make(&path).expect("made");
        let (told, listen) = mpsc::channel();
        let waiting = thread::spawn({
            let path = path.clone();
            move || {
                told.send(()).expect("a listener");
                Directory::make(&path).expect("made anew")
            }
        });
        listen.recv().expect("the other one");
        directory.remove().expect("removed");
        let anew = waiting.join().expect("the other one");
        anew.commit(&record()).expect("written");
        anew.remove().expect("removed");
        assert!(!path.exists());
    }
}
