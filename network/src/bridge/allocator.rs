//! Assigns the addresses of the driver's bridge.
//!
//! Always true:
//!
//! - An address is in use if and only if the record of a network names it. There is no second record of it that a kill
//!   could leave behind.
//! - Addresses are assigned under a lock of the state directory, which is held until the record exists. So processes
//!   that overlap never assign the same address.
//!
//! The records are read once. From then on this process remembers the addresses in use, until another process has
//! assigned one: the locked file names the process that was the last to do so. A remembered address may be free
//! already, because another process removed its network. So the records are read again before an address is refused.
//!
//! The same file has the addresses that were assigned last, so that a freed address is used again as late as possible.
//! They are a hint only: without the file, the search begins at the first address.

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File},
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, ErrorKind, Read, Seek, Write},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use host::{
    Context,
    lock::{Locked, Wait, lock},
};

use super::{
    addresses::{Range, Unavailable, choose},
    record::addresses_in,
};
use crate::{error::NetworkError, record::RECORD};

/// The name of the locked file, beside the directories of the CNI plugin host-local.
///
/// No bridge has a name that begins with a dot, so no directory of host-local has this name.
const FILE: &str = ".last";

/// The addresses in use, each with its container. The plugin host-local's have none.
type InUse = HashMap<IpAddr, String>;

/// The allocator of one state directory.
#[derive(Debug)]
pub(crate) struct Allocator {
    /// The directories of the networks.
    networks: PathBuf,
    /// The directory of the locked file, and of the addresses that the plugin host-local assigned for an earlier
    /// release.
    addresses: PathBuf,
    /// A number that names this process.
    process: u64,
    in_use: Mutex<Option<InUse>>,
}

/// The content of the locked file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Last {
    /// The process that assigned addresses last.
    process: Option<u64>,
    /// The addresses that were assigned last.
    addresses: Vec<IpAddr>,
}

impl Allocator {
    /// Creates and reads nothing on disk.
    pub fn new(networks: PathBuf, addresses: PathBuf) -> Self {
        let process = RandomState::new().build_hasher().finish();
        Self { networks, addresses, process, in_use: Mutex::default() }
    }

    /// Assigns an address of each range to a container. `fixed` are those that it must have. `record` writes the record
    /// that names them.
    pub fn assign(
        &self,
        container: &str,
        network: &str,
        ranges: &[Range],
        fixed: &[IpAddr],
        record: impl FnOnce(&[IpAddr]) -> Result<(), NetworkError>,
    ) -> Result<Vec<IpAddr>, NetworkError> {
        let mut remembered = self.remembered();
        let mut file = self.lock()?;
        let last = Last::read(&mut file);
        let known = if last.process == Some(self.process) { remembered.take() } else { None };
        let chosen_in =
            |in_use: &InUse| choose(ranges, fixed, &last.addresses, &|address| in_use.contains_key(&address));
        let first = known.as_ref().map(chosen_in);
        let (in_use, chosen) = match (known, first) {
            (Some(in_use), Some(Ok(chosen))) => (in_use, Ok(chosen)),
            _ => {
                let in_use = self.read()?;
                let chosen = chosen_in(&in_use);
                (in_use, chosen)
            }
        };
        let in_use = remembered.insert(in_use);
        let chosen = chosen.map_err(|unavailable| error(network, unavailable))?;
        failpoint::at("start-before-last-addresses");
        // Before the record, so that another process reads it.
        let assigned = last.followed_by(self.process, &chosen, fixed);
        assigned.write(&mut file).context(|| format!("writing {}", self.addresses.join(FILE).display()))?;
        failpoint::at("start-before-bridge-record");
        if let Err(error) = record(&chosen) {
            // The record may be on disk all the same, so the next call reads the records again.
            *remembered = None;
            return Err(error);
        }
        in_use.extend(chosen.iter().map(|address| (*address, container.to_owned())));
        Ok(chosen)
    }

    /// Forgets the addresses of a container. Its record must have been removed before.
    pub fn release(&self, container: &str, addresses: &[IpAddr]) {
        if let Some(in_use) = self.remembered().as_mut() {
            for address in addresses {
                if in_use.get(address).is_some_and(|holder| holder == container) {
                    in_use.remove(address);
                }
            }
        }
    }

    fn remembered(&self) -> MutexGuard<'_, Option<InUse>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no process assigns addresses. None does so until the file is closed.
    pub fn lock(&self) -> Result<File, NetworkError> {
        Ok(self.locked_file().context(|| format!("locking {}", self.addresses.join(FILE).display()))?)
    }

    /// Opens the file, and waits for its lock.
    fn locked_file(&self) -> io::Result<File> {
        let path = self.addresses.join(FILE);
        let open = || {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.addresses)?;
            File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)
        };
        match lock(&path, Wait::Forever, true, open)? {
            Locked::Held(file) => Ok(file),
            Locked::Missing | Locked::Busy => Err(io::Error::other("the file was removed while it was locked")),
        }
    }

    /// Reads the addresses in use: those that records name, and those that the plugin host-local assigned.
    fn read(&self) -> Result<InUse, NetworkError> {
        let mut in_use = InUse::new();
        for directory in entries(&self.networks)? {
            let file = directory.join(RECORD);
            let container = name_of(&directory);
            match fs::read(&file) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                bytes => match addresses_in(&bytes.context(|| format!("reading {}", file.display()))?) {
                    Ok(addresses) => {
                        in_use.extend(addresses.into_iter().map(|address| (address, container.clone())));
                    }
                    Err(error) => tracing::warn!(%error, file = %file.display(), "a network's record is damaged"),
                },
            }
        }
        for network in entries(&self.addresses)?.into_iter().filter(|entry| entry.is_dir()) {
            let leases = entries(&network)?;
            let addresses = leases.iter().filter_map(|lease| name_of(lease).parse().ok());
            in_use.extend(addresses.map(|address| (address, String::new())));
        }
        Ok(in_use)
    }
}

impl Last {
    /// The content of the file. If it is damaged, no process and no addresses.
    fn read(file: &mut File) -> Self {
        let mut text = String::new();
        match file.read_to_string(&mut text) {
            Ok(_) => Self::parse(&text),
            Err(_) => Self::default(),
        }
    }

    fn parse(text: &str) -> Self {
        let mut words = text.trim_end_matches('\n').split(' ');
        let process = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        Self { process, addresses: words.filter_map(|word| word.parse().ok()).collect() }
    }

    /// The content after this process has assigned addresses. The search does not go on behind a fixed address.
    fn followed_by(&self, process: u64, chosen: &[IpAddr], fixed: &[IpAddr]) -> Self {
        let same_family = |address: &IpAddr| self.addresses.iter().find(|last| last.is_ipv4() == address.is_ipv4());
        let last =
            |address: &IpAddr| if fixed.contains(address) { same_family(address).copied() } else { Some(*address) };
        Self { process: Some(process), addresses: chosen.iter().filter_map(last).collect() }
    }

    fn write(&self, file: &mut File) -> io::Result<()> {
        let process = self.process.map(|process| format!("{process:016x}"));
        let words: Vec<String> = process.into_iter().chain(self.addresses.iter().map(ToString::to_string)).collect();
        let line = words.join(" ") + "\n";
        file.rewind()?;
        file.write_all(line.as_bytes())?;
        file.set_len(line.len() as u64)
    }
}

/// The entries of a directory; none if it does not exist.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, NetworkError> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => {
            let entries = entries.context(|| format!("listing {}", directory.display()))?;
            Ok(entries.flatten().map(|entry| entry.path()).collect())
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn error(network: &str, unavailable: Unavailable) -> NetworkError {
    let network = network.to_owned();
    match unavailable {
        Unavailable::InUse(address) => NetworkError::AddressInUse { network, address },
        Unavailable::Full(range) => {
            NetworkError::NoFreeAddress { network, detail: format!("tasks have all {}", range.size()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        net::IpAddr,
        path::{Path, PathBuf},
        thread,
    };

    use super::{Allocator, FILE, Last};
    use crate::{
        bridge::{addresses::Range, record::BridgeRecord},
        error::NetworkError,
        record::{NetworkDirectory, NetworkRecord},
        settings::Settings,
    };

    struct State(tempfile::TempDir);

    impl State {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a directory"))
        }

        fn networks(&self) -> PathBuf {
            self.0.path().join("networks")
        }

        fn addresses(&self) -> PathBuf {
            self.0.path().join("addresses")
        }

        /// The allocator of a process.
        fn allocator(&self) -> Allocator {
            Allocator::new(self.networks(), self.addresses())
        }

        /// Assigns an address and writes the record of the container's network.
        fn assign(&self, allocator: &Allocator, container: &str, fixed: &[&str]) -> Result<String, NetworkError> {
            let settings = Settings { subnet: "10.0.0.0/29".parse().expect("a subnet"), ..Settings::default() };
            let fixed: Vec<IpAddr> = fixed.iter().map(|text| text.parse().expect("an address")).collect();
            let directory = NetworkDirectory::create(&self.networks().join(container)).expect("a directory");
            let assigned = allocator.assign(container, "oci-rs", &Range::of(&settings), &fixed, |addresses| {
                directory.commit(&NetworkRecord::Bridge(BridgeRecord::new(&settings, addresses, &[])))
            });
            assigned.map(|addresses| addresses[0].to_string())
        }

        /// Removes the record of a container's network, and tells the allocator.
        fn release(&self, allocator: &Allocator, container: &str, address: &str) {
            fs::remove_dir_all(self.networks().join(container)).expect("a network");
            allocator.release(container, &[address.parse().expect("an address")]);
        }
    }

    #[test]
    fn a_freed_address_is_used_again_after_all_others() {
        let state = State::new();
        let allocator = state.allocator();
        let first = state.assign(&allocator, "a", &[]).expect("an address");
        assert_eq!(first, "10.0.0.2");
        let fixed = state.assign(&allocator, "fixed", &["10.0.0.6"]).expect("a fixed address");
        state.release(&allocator, "fixed", &fixed);
        state.release(&allocator, "a", &first);
        let next: Vec<String> =
            ["b", "c", "d", "e"].map(|container| state.assign(&allocator, container, &[]).expect("an address")).into();
        assert_eq!(next, ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
        // A new process knows which address was the last.
        assert_eq!(state.assign(&state.allocator(), "f", &[]).expect("an address"), first);
        let full = state.assign(&allocator, "g", &[]).expect_err("no address").to_string();
        assert!(full.contains("oci-rs has no free address left") && full.contains("all 5"), "{full}");
    }

    #[test]
    fn processes_that_overlap_never_assign_the_same_address() {
        let state = State::new();
        let (one, other) = (state.allocator(), state.allocator());
        let assigned: Vec<String> = thread::scope(|scope| {
            let assign = |allocator, container| {
                let state = &state;
                scope.spawn(move || state.assign(allocator, container, &[]).expect("an address"))
            };
            let threads = [assign(&one, "a"), assign(&other, "b"), assign(&one, "c"), assign(&other, "d")];
            threads.map(|thread| thread.join().expect("the other thread")).into()
        });
        let mut distinct = assigned.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 4, "{assigned:?}");
        // The other process removes a network. This one finds out when it needs the address.
        state.release(&other, "b", &assigned[1]);
        state.assign(&one, "e", &[]).expect("the last free address");
        assert_eq!(state.assign(&one, "f", &[]).expect("the freed address"), assigned[1]);
        assert!(matches!(state.assign(&one, "g", &[]), Err(NetworkError::NoFreeAddress { .. })));
    }

    #[test]
    fn an_address_that_was_assigned_again_stays_in_use_when_its_former_holder_is_forgotten() {
        let state = State::new();
        let (one, other) = (state.allocator(), state.allocator());
        let address = state.assign(&one, "a", &["10.0.0.4"]).expect("the address");
        fs::remove_dir_all(state.networks().join("a")).expect("a network");
        state.assign(&other, "x", &[]).expect("an address, so that the records are read again");
        assert_eq!(state.assign(&one, "b", &["10.0.0.4"]).expect("the free address"), address);
        one.release("a", &[address.parse().expect("an address")]);
        let taken = state.assign(&one, "c", &["10.0.0.4"]).expect_err("taken");
        assert!(taken.to_string().contains("10.0.0.4") && taken.recoverable(), "{taken}");
    }

    #[test]
    fn addresses_that_the_plugin_host_local_assigned_stay_in_use() {
        let state = State::new();
        let leases = state.addresses().join("oci-rs");
        fs::create_dir_all(&leases).expect("a directory");
        for name in ["10.0.0.2", "10.0.0.3", "last_reserved_ip.0", "lock"] {
            fs::write(leases.join(name), "task eth0").expect("a lease");
        }
        let allocator = state.allocator();
        assert_eq!(state.assign(&allocator, "a", &[]).expect("an address"), "10.0.0.4");
        assert!(state.assign(&allocator, "b", &["10.0.0.3"]).is_err());
        fs::remove_file(leases.join("10.0.0.3")).expect("a lease");
        assert_eq!(state.assign(&allocator, "b", &["10.0.0.3"]).expect("the address is free"), "10.0.0.3");
    }

    #[test]
    fn a_failed_record_assigns_nothing_and_damage_is_tolerated() {
        let state = State::new();
        let allocator = state.allocator();
        let range = [Range::ipv4("10.0.0.0/30".parse().expect("a subnet"))];
        let failed = allocator.assign("a", "oci-rs", &range, &[], |_| Err(NetworkError::Unsupported("no".into())));
        assert!(failed.is_err());
        assert_eq!(state.assign(&allocator, "a", &["10.0.0.2"]).expect("the address"), "10.0.0.2");
        fs::write(state.addresses().join(FILE), b"\xff what").expect("damage");
        fs::create_dir_all(state.networks().join("damaged")).expect("a directory");
        fs::write(state.networks().join("damaged/network.json"), "{").expect("damage");
        assert_eq!(state.assign(&allocator, "b", &[]).expect("an address"), "10.0.0.3");
        fs::remove_dir_all(state.addresses()).expect("the directory of the file");
        assert_eq!(state.assign(&allocator, "c", &[]).expect("an address"), "10.0.0.4");
        assert!(Path::new(&state.addresses().join(FILE)).exists());
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("last");
        let open =
            || fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).expect("a file");
        let long = Last { process: Some(u64::MAX), addresses: vec!["172.26.80.255".parse().expect("an address")] };
        long.write(&mut open()).expect("written");
        let last = Last {
            process: Some(7),
            addresses: ["1.2.3.4", "fd00::2"].map(|text| text.parse().expect("an address")).into(),
        };
        last.write(&mut open()).expect("written");
        assert_eq!(Last::read(&mut open()), last);
        for damaged in ["", "\n", "x y", "-"] {
            assert_eq!(Last::parse(damaged), Last::default(), "{damaged:?}");
        }
    }
}
