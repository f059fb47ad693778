//! The directory of one network in the state directory. It holds the network's record, its pinned namespace and its
//! log.
//!
//! The lock (flock) of the directory is on the log. The log is the standard error of every plugin, so a running plugin
//! shares the lock: after its parent was killed, the plugin keeps the directory locked until it ends.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use host::{
    Context,
    durable::{self, Durability},
    lock::{Locked, Wait, lock, open_directory},
    record,
};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::{
    bridge::record::BridgeRecord,
    cni::record::CniRecord,
    error::NetworkError,
    interfaces::record::{self as interfaces, InterfaceRecord},
    namespace,
};

/// The newest version of records. It increases when an older build would misread a record.
pub(crate) const VERSION: u32 = 2;

/// The name of the file with the record.
pub(crate) const RECORD: &str = "network.json";
/// The name of the file with the record of the node's interfaces in the container.
pub(crate) const INTERFACES: &str = "interfaces.json";
const LOG: &str = "plugins.log";

/// The name of the file to which the namespace is pinned.
pub(crate) const NAMESPACE: &str = "netns";

/// The record of a container's network, by its kind. A record of the driver's bridge has a field `bridge`, a record of
/// CNI plugins has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum NetworkRecord {
    /// The driver's bridge connects the container.
    Bridge(BridgeRecord),
    /// CNI plugins connect the container.
    Cni(CniRecord),
}

impl NetworkRecord {
    /// The oldest version of the form that has records of this kind.
    fn version(&self) -> u32 {
        match self {
            Self::Bridge(_) => VERSION,
            Self::Cni(_) => 1,
        }
    }
}

/// The locked directory of a network. Dropping it unlocks the directory, unless a plugin still runs.
#[derive(Debug)]
pub(crate) struct NetworkDirectory {
    path: PathBuf,
    log: File,
}

impl NetworkDirectory {
    /// Creates the directory unless it exists, and waits for its lock.
    pub fn create(path: &Path) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        loop {
            open_directory(path)?;
            // The previous holder of the lock may have removed the directory before this call locked it.
            if let Some(directory) = Self::lock(path, Wait::Forever)? {
                return Ok(directory);
            }
        }
    }

    /// Waits for the lock of an existing directory. `None` if it does not exist, or was removed meanwhile.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        if path.is_dir() { Self::lock(path, Wait::Forever) } else { Ok(None) }
    }

    /// Locks an existing directory, unless another process or thread works on the network.
    pub fn open_unless_busy(path: &Path) -> io::Result<Option<Self>> {
        if path.is_dir() { Self::lock(path, Wait::No) } else { Ok(None) }
    }

    fn lock(path: &Path, wait: Wait) -> io::Result<Option<Self>> {
        let file = path.join(LOG);
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        match lock(&file, wait, false, || options.open(&file))? {
            Locked::Held(log) => Ok(Some(Self { path: path.to_owned(), log })),
            Locked::Missing | Locked::Busy => Ok(None),
        }
    }

    /// The file to which the namespace is pinned.
    pub fn namespace(&self) -> PathBuf {
        self.path.join(NAMESPACE)
    }

    /// Removes the namespace. It ends with its last process. A missing one is no error.
    pub fn remove_namespace(&self) -> Result<(), NetworkError> {
        let namespace = self.namespace();
        namespace::unpin(&namespace).context(|| format!("removing the network namespace {}", namespace.display()))?;
        Ok(())
    }

    /// The log, which is the standard error of plugins.
    pub fn log(&self) -> &File {
        &self.log
    }

    /// Reads the record. `None` if there is none.
    pub fn read(&self) -> Result<Option<NetworkRecord>, NetworkError> {
        Ok(record::read(VERSION, &self.path.join(RECORD))?)
    }

    /// Writes the record atomically and durably.
    pub fn commit(&self, record: &NetworkRecord) -> Result<(), NetworkError> {
        self.write(RECORD, record.version(), record)
    }

    /// Reads the record of the node's interfaces in the container. `None` if there is none.
    pub fn interfaces(&self) -> Result<Option<InterfaceRecord>, NetworkError> {
        Ok(record::read(interfaces::VERSION, &self.path.join(INTERFACES))?)
    }

    /// The record of the node's interfaces in a container, without the lock.
    pub fn interfaces_of(path: &Path) -> Option<InterfaceRecord> {
        record::read(interfaces::VERSION, &path.join(INTERFACES)).ok().flatten()
    }

    /// Writes the record of the node's interfaces in the container atomically and durably.
    pub fn commit_interfaces(&self, record: &InterfaceRecord) -> Result<(), NetworkError> {
        self.write(INTERFACES, interfaces::VERSION, record)
    }

    /// Removes the record of the node's interfaces in the container. They must be back on the node.
    pub fn remove_interfaces(&self) -> Result<(), NetworkError> {
        let removed = self.remove_record_file(INTERFACES);
        Ok(removed.context(|| format!("removing {}", self.path.join(INTERFACES).display()))?)
    }

    fn write<T: Serialize>(&self, name: &str, version: u32, record: &T) -> Result<(), NetworkError> {
        let path = self.path.join(name);
        let temporary = self.path.join(format!("{name}.tmp"));
        let written = record::encode(version, record).and_then(|bytes| {
            durable::write(&path, &temporary, &bytes, Durability::Now, |_| {})?;
            Ok(())
        });
        Ok(written.context(|| format!("writing {}", path.display()))?)
    }

    /// Removes the record. The network must have been removed before.
    pub fn remove_record(&self) -> io::Result<()> {
        self.remove_record_file(RECORD)
    }

    /// Removes a record, and what an interrupted write of it left.
    fn remove_record_file(&self, name: &str) -> io::Result<()> {
        [name.to_owned(), format!("{name}.tmp")].iter().try_for_each(|name| self.remove_file(name))
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the directory, its lock last. The namespace must have been removed before.
    pub fn remove(self) -> io::Result<()> {
        self.remove_record()?;
        self.remove_file(&format!("{INTERFACES}.tmp"))?;
        self.remove_file(LOG)?;
        match fs::remove_dir(&self.path) {
            // Another process has created the directory again after the lock was removed.
            Err(error) if [ErrorKind::DirectoryNotEmpty, ErrorKind::NotFound].contains(&error.kind()) => Ok(()),
            removed => removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::mpsc, thread};

    use serde_json::{Map, json};

    use super::{INTERFACES, NetworkDirectory, NetworkRecord, RECORD, VERSION};
    use crate::{
        Conflist, Settings,
        bridge::record::BridgeRecord,
        cni::record::CniRecord,
        request::{PortMapping, Protocol},
    };

    fn cni_record() -> CniRecord {
        let network = Conflist::parse(r#"{"name": "lan", "type": "bridge"}"#).expect("a network");
        CniRecord::new("web".into(), network, Map::new(), vec!["/opt/cni/bin".into()])
    }

    fn record() -> NetworkRecord {
        NetworkRecord::Cni(cni_record())
    }

    /// The files hold every field. No field changes its name: networks of older builds have records with it.
    #[test]
    fn records_keep_the_names_of_their_fields() {
        for text in [include_str!("../tests/records/network.json"), include_str!("../tests/records/bridge.json")] {
            let record: NetworkRecord = host::record::decode(VERSION, text.as_bytes()).expect("a record");
            let written = host::record::encode(record.version(), &record).expect("written");
            let value = |bytes| serde_json::from_slice::<serde_json::Value>(bytes).expect("JSON");
            let (recorded, written) = (value(text.as_bytes()), value(&written));
            assert!(host::record::keeps_fields(&recorded, &written), "{recorded} became {written}");
        }
    }

    #[test]
    fn a_record_of_interfaces_keeps_the_names_of_its_fields() {
        let text = include_str!("../tests/records/interfaces.json");
        let root = tempfile::tempdir().expect("a directory");
        let directory = NetworkDirectory::create(&root.path().join("web")).expect("created");
        fs::write(root.path().join("web").join(INTERFACES), text).expect("a record");
        let record = directory.interfaces().expect("read").expect("a record");
        directory.commit_interfaces(&record).expect("written");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        let written = fs::read_to_string(root.path().join("web").join(INTERFACES)).expect("a record");
        assert_eq!(value(text), value(&written));
        directory.remove_interfaces().expect("removed");
        assert_eq!(directory.interfaces().expect("read"), None);
    }

    #[test]
    fn a_record_of_the_bridge_is_read_as_it_was_written() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = NetworkDirectory::create(&root.path().join("web")).expect("created");
        let port = PortMapping {
            host_ip: "192.0.2.1".parse().ok(),
            host_port: 20080,
            container_port: 80,
            protocol: Protocol::Udp,
        };
        let settings = Settings { subnet_ipv6: "fd00::/64".parse().ok(), ..Settings::default() };
        for (settings, ports) in [(Settings::default(), vec![]), (settings, vec![port])] {
            let addresses = ["172.26.80.2".parse().expect("an address")];
            let record = NetworkRecord::Bridge(BridgeRecord::new(&settings, &addresses, &ports));
            directory.commit(&record).expect("written");
            assert_eq!(directory.read().expect("read"), Some(record));
        }
    }

    #[test]
    fn a_record_replaces_the_previous_one_and_persists() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("networks/web");
        let directory = NetworkDirectory::create(&path).expect("created");
        assert_eq!(directory.read().expect("read"), None);
        fs::write(path.join("network.json.tmp"), "{").expect("half of a record");
        directory.commit(&record()).expect("written");
        let record = CniRecord { plugins_called: 1, result: Some(json!({"ips": []})), ..cni_record() };
        let record = NetworkRecord::Cni(record);
        directory.commit(&record).expect("written again");
        drop(directory);
        let directory = NetworkDirectory::open(&path).expect("a look").expect("a directory");
        assert_eq!(directory.read().expect("read"), Some(record));
        directory.remove().expect("removed");
        assert!(!path.exists() && NetworkDirectory::open(&path).expect("a look").is_none());
    }

    #[test]
    fn damaged_and_newer_records_are_errors_that_name_the_file() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("web");
        let directory = NetworkDirectory::create(&path).expect("created");
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
    fn a_waiter_for_the_lock_of_a_removed_directory_gets_a_new_directory() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("web");
        let directory = NetworkDirectory::create(&path).expect("created");
        let (send, receive) = mpsc::channel();
        let waiter = thread::spawn({
            let path = path.clone();
            move || {
                send.send(()).expect("a receiver");
                NetworkDirectory::create(&path).expect("created again")
            }
        });
        receive.recv().expect("the other thread");
        directory.remove().expect("removed");
        let created = waiter.join().expect("the other thread");
        created.commit(&record()).expect("written");
        created.remove().expect("removed");
        assert!(!path.exists());
    }

    #[test]
    fn directories_are_made_while_others_remove_them() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("web");
        let make_and_remove = || {
            for _ in 0..2000 {
                NetworkDirectory::create(&path).expect("created").remove().expect("removed");
            }
        };
        thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(make_and_remove))));
        assert!(!path.exists());
        fs::write(&path, "").expect("a file in its place");
        NetworkDirectory::create(&path).expect_err("a file is no directory");
    }
}
