//! The rules and published ports of one bridge.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    accept,
    conntrack::{self, Forgetter, Selection},
    entry::{Entry, Key, OF_ADDRESS, OF_ANY},
    error::Error,
    netlink::{Connection, Message, Refusal},
    nft::{
        Rule, create_table, delete_element, delete_table, dump_elements, dump_rules, elements_of, get_element,
        insert_element, rule_of,
    },
    port::{Bridge, Family, Protocol, PublishedPort},
    table::{self, Condition},
};

/// The number of elements in one transaction. The kernel's answers to them fit into the socket's buffer.
const AT_ONCE: usize = 128;

/// The rules of one bridge. The value remembers the ports that were published through it, so that a table that another
/// program deleted can be created again with its ports.
#[derive(Debug)]
pub struct Firewall {
    bridge: Bridge,
    /// Whether the rules are present. Only a watcher sets this, and clears it when they are deleted.
    present: AtomicBool,
    /// Only its owner changes the rules.
    state: Mutex<State>,
    connections: Forgetter,
}

#[derive(Debug, Default)]
struct State {
    /// The socket, in the network namespace of the thread that used it first.
    connection: Option<Connection>,
    /// The published ports, each with the container's address.
    published: BTreeMap<Key, Vec<u8>>,
    /// The tables of iptables-legacy after the last check.
    legacy: accept::Seen,
}

/// Which tables are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repair {
    /// Tables without a rule, and tables with the rules of another version.
    All,
    /// Only tables without a rule. A running plugin does not undo the work of a newer one.
    Missing,
}

impl Firewall {
    /// The rules of this bridge. Nothing is done yet.
    pub fn new(bridge: Bridge) -> Self {
        Self { bridge, present: AtomicBool::new(false), state: Mutex::default(), connections: Forgetter::default() }
    }

    /// The bridge.
    pub fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// Creates the rules that do not belong to a single container, unless they exist.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the kernel lacks nf_tables or the right is missing.
    pub fn ensure(&self) -> Result<(), Error> {
        let legacy = accept::seen(&self.bridge);
        let mut state = self.lock();
        if state.legacy != legacy {
            accept::ensure_legacy(&self.bridge, &legacy)?;
            state.legacy = accept::seen(&self.bridge);
        }
        if self.present.load(Ordering::Acquire) {
            return Ok(());
        }
        let (connection, published) = state.parts()?;
        self.restore(connection, published, Repair::All)?;
        self.accept(connection)
    }

    /// Publishes ports, in one transaction. Ports that are published already may be among them. A port that led to
    /// another container leads to the new one. Soon after, clients that sent to a UDP port before reach the container.
    ///
    /// # Errors
    ///
    /// [`Error::Families`] for a port whose addresses differ in their family; [`Error::Kernel`].
    pub fn publish(&self, ports: &[PublishedPort]) -> Result<(), Error> {
        let entries = entries(ports)?;
        if entries.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        let (connection, published) = state.parts()?;
        let known = entries.iter().all(|entry| published.get(&entry.key) == Some(&entry.data));
        if let Err(error) = self.insert(connection, &entries) {
            let Error::Kernel { source, .. } = &error else { return Err(error) };
            if source.raw_os_error() != Some(libc::ENOENT) {
                return Err(error);
            }
            // The table does not exist, or no longer.
            self.restore(connection, published, Repair::All)?;
            self.insert(connection, &entries)?;
        }
        published.extend(entries.into_iter().map(|entry| (entry.key, entry.data)));
        if ports.iter().any(reaches_loopback) {
            self.route_from_loopback()?;
        }
        if known {
            return Ok(());
        }
        let udp = ports.iter().filter(|port| port.protocol == Protocol::Udp);
        let stale = udp.map(|port| Selection::UntranslatedUdp(port.family(), port.host_port)).collect();
        self.connections.soon(stale).map_err(Error::kernel("remove connections to published ports"))
    }

    /// Removes published ports, in one transaction, and soon after the connections to their containers. A port that is
    /// not published, or that leads to another container by now, is left out.
    ///
    /// # Errors
    ///
    /// [`Error::Families`] for a port whose addresses differ in their family; [`Error::Kernel`].
    pub fn withdraw(&self, ports: &[PublishedPort]) -> Result<(), Error> {
        let entries = entries(ports)?;
        if entries.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        let (connection, published) = state.parts()?;
        for Entry { key, data } in &entries {
            if published.get(key) == Some(data) {
                published.remove(key);
            }
        }
        for some in entries.chunks(AT_ONCE) {
            self.remove(connection, some)?;
        }
        let containers = ports.iter().map(|port| Selection::AnsweredBy(port.container.ip())).collect();
        self.connections.soon(containers).map_err(Error::kernel("remove connections to a container"))
    }

    /// Removes tracked connections to containers of this bridge whose port is not published. A process that was killed
    /// may have left them. It reads all connections of the node, which takes up to 50 ms.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn forget_stale(&self) -> Result<(), Error> {
        let published = self.published()?.into_iter().map(|port| (port.protocol, port.container)).collect();
        let subnets: Vec<_> = self.bridge.subnets().map(|(_, subnet)| subnet).collect();
        let removed =
            Connection::open(&[]).and_then(|connection| conntrack::forget_stale(&connection, &subnets, &published));
        removed.map_err(Error::kernel("remove stale connections"))
    }

    /// The ports that the kernel leads to containers of this bridge.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn published(&self) -> Result<Vec<PublishedPort>, Error> {
        let mut state = self.lock();
        let (connection, _) = state.parts()?;
        let mut ports = Vec::new();
        for family in Family::ALL {
            let entries = self.entries_of(connection, family)?;
            ports.extend(entries.iter().filter_map(Entry::port));
        }
        Ok(ports)
    }

    /// Checks the rules, and creates what is missing. The known ports are published again: another process may have
    /// created the table before, without them.
    pub(crate) fn repair(&self, repair: Repair) -> Result<(), Error> {
        let mut state = self.lock();
        let (connection, published) = state.parts()?;
        self.restore(connection, published, repair)?;
        let known: Vec<_> =
            published.iter().map(|(key, data)| Entry { key: key.clone(), data: data.clone() }).collect();
        self.insert(connection, &known)
    }

    /// Checks the accept rules in iptables' filter, and creates what is missing.
    pub(crate) fn repair_accept(&self) -> Result<(), Error> {
        self.accept(self.lock().parts()?.0)
    }

    /// Notes whether a watcher knows that the rules are present.
    pub(crate) fn set_present(&self, present: bool) {
        self.present.store(present, Ordering::Release);
    }

    fn accept(&self, connection: &Connection) -> Result<(), Error> {
        accept::ensure(connection, &self.bridge).map_err(Error::kernel("create the rules in iptables' chain FORWARD"))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn restore(
        &self,
        connection: &Connection,
        published: &BTreeMap<Key, Vec<u8>>,
        repair: Repair,
    ) -> Result<(), Error> {
        for (family, subnet) in self.bridge.subnets() {
            let wanted = table::rules(&self.bridge, family, subnet);
            let name = table::name(&self.bridge.name);
            let replaced = match self.condition(connection, family, &wanted)? {
                Condition::Complete => continue,
                Condition::Lacks(rules) => {
                    let added = connection.transact(&table::addition(&self.bridge, family, &rules));
                    let refused = added.map_err(Error::kernel(format!("add rules to the table {name}")))?;
                    if refused.is_empty() {
                        continue;
                    }
                    // A chain or a map is missing too.
                    true
                }
                Condition::Incomplete => true,
                Condition::Different => repair == Repair::All,
            };
            if !replaced {
                continue;
            }
            // What another process published stays.
            let mut entries: BTreeMap<_, _> =
                self.entries_of(connection, family)?.into_iter().map(|entry| (entry.key, entry.data)).collect();
            let known = published.iter().filter(|(key, _)| key.family == family);
            entries.extend(known.map(|(key, data)| (key.clone(), data.clone())));
            // Creating the table first makes its deletion succeed in any case.
            let mut requests = vec![create_table(family, &name), delete_table(family, &name)];
            requests.extend(table::creation(&self.bridge, family, subnet));
            let entries: Vec<_> = entries.into_iter().map(|(key, data)| Entry { key, data }).collect();
            let (first, rest) = entries.split_at(entries.len().min(AT_ONCE));
            requests.extend(first.iter().map(|entry| self.insertion(entry)));
            let refused = connection.transact(&requests);
            refused.and_then(all_accepted).map_err(Error::kernel(format!("create the table {name}")))?;
            self.insert(connection, rest)?;
        }
        Ok(())
    }

    /// The condition of a family's table.
    fn condition(&self, connection: &Connection, family: Family, wanted: &[Rule]) -> Result<Condition, Error> {
        let name = table::name(&self.bridge.name);
        let found = connection.list(&dump_rules(family, &name, None));
        let found = found.map_err(Error::kernel(format!("read the table {name}")))?;
        let found = found.iter().filter_map(|attributes| match rule_of(attributes)? {
            (table, chain, comment, _) if table == name => Some((chain, comment)),
            _ => None,
        });
        Ok(table::condition(wanted, found))
    }

    /// The elements of both maps of a family.
    fn entries_of(&self, connection: &Connection, family: Family) -> Result<Vec<Entry>, Error> {
        let name = table::name(&self.bridge.name);
        let mut entries = Vec::new();
        for map in [OF_ADDRESS, OF_ANY] {
            let found = connection.list(&dump_elements(family, &name, map));
            let found = found.map_err(Error::kernel(format!("read the published ports of the table {name}")))?;
            entries.extend(
                found
                    .iter()
                    .flat_map(|attributes| elements_of(attributes))
                    .map(|(key, data)| Entry { key: Key { family, map, bytes: key.to_vec() }, data: data.to_vec() }),
            );
        }
        Ok(entries)
    }

    /// Inserts elements. An element whose key leads to another container is replaced.
    fn insert(&self, connection: &Connection, entries: &[Entry]) -> Result<(), Error> {
        let failed = || Error::kernel("publish ports");
        for entries in entries.chunks(AT_ONCE) {
            let requests: Vec<_> = entries.iter().map(|entry| self.insertion(entry)).collect();
            let refused = connection.transact(&requests).map_err(failed())?;
            let taken = |refusal: &Refusal| matches!(refusal.error, libc::EBUSY | libc::EEXIST);
            let taken: BTreeSet<_> =
                refused.iter().filter(|refusal| taken(refusal)).filter_map(|one| one.index).collect();
            if taken.is_empty() {
                all_accepted(refused).map_err(failed())?;
                continue;
            }
            let replaced = |index: usize| taken.contains(&index).then(|| self.deletion(&entries[index].key));
            let requests: Vec<_> = requests
                .into_iter()
                .enumerate()
                .flat_map(|(index, insertion)| replaced(index).into_iter().chain([insertion]))
                .collect();
            connection.transact(&requests).and_then(all_accepted).map_err(failed())?;
        }
        Ok(())
    }

    /// Removes the elements that exist with exactly this data.
    fn remove(&self, connection: &Connection, entries: &[Entry]) -> Result<(), Error> {
        let failed = || Error::kernel("withdraw ports");
        let table = table::name(&self.bridge.name);
        loop {
            let get = |entry: &Entry| get_element(entry.key.family, &table, entry.key.map, &entry.key.bytes);
            let requests: Vec<_> = entries.iter().map(get).collect();
            let mut present = BTreeSet::new();
            let refused = connection.request(&requests, |index, attributes| {
                let same = |(_, data): (&[u8], &[u8])| entries.get(index).is_some_and(|entry| entry.data == data);
                if elements_of(attributes).any(same) {
                    present.insert(index);
                }
            });
            let refused: Vec<_> =
                refused.map_err(failed())?.into_iter().filter(|one| one.error != libc::ENOENT).collect();
            all_accepted(refused).map_err(failed())?;
            let requests: Vec<_> = present.iter().map(|index| self.deletion(&entries[*index].key)).collect();
            let refused = connection.transact(&requests).map_err(failed())?;
            if refused.is_empty() || refused.iter().any(|refusal| refusal.error != libc::ENOENT) {
                return all_accepted(refused).map_err(failed());
            }
            // Another process removed an element meanwhile.
        }
    }

    fn insertion(&self, entry: &Entry) -> Message {
        let Key { family, map, bytes } = &entry.key;
        insert_element(*family, &table::name(&self.bridge.name), map, bytes, &entry.data)
    }

    fn deletion(&self, key: &Key) -> Message {
        delete_element(key.family, &table::name(&self.bridge.name), key.map, &key.bytes)
    }

    /// Lets packets from 127.0.0.1 leave by the bridge. Rules of the table keep the node's loopback from the
    /// containers.
    fn route_from_loopback(&self) -> Result<(), Error> {
        let path = format!("/proc/sys/net/ipv4/conf/{}/route_localnet", self.bridge.name);
        let set = || if fs::read(&path)?.starts_with(b"1") { Ok(()) } else { fs::write(&path, "1") };
        set().map_err(Error::kernel(format!("write {path}")))
    }
}

impl State {
    /// The socket, which is opened by the first use, and the published ports.
    fn parts(&mut self) -> Result<(&Connection, &mut BTreeMap<Key, Vec<u8>>), Error> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&[]).map_err(Error::kernel("open a socket"))?,
        };
        Ok((self.connection.insert(connection), &mut self.published))
    }
}

/// The elements of these ports. Of ports with the same key, the last one counts: a transaction that names a key twice
/// is refused.
fn entries(ports: &[PublishedPort]) -> Result<Vec<Entry>, Error> {
    let mut entries = BTreeMap::new();
    for port in ports {
        let Entry { key, data } = Entry::of(port)?;
        entries.insert(key, data);
    }
    Ok(entries.into_iter().map(|(key, data)| Entry { key, data }).collect())
}

/// Whether the node reaches a port by an address like 127.0.0.1.
fn reaches_loopback(port: &PublishedPort) -> bool {
    port.family() == Family::V4 && port.address().is_none_or(|address| address.is_loopback())
}

/// The error of a transaction that was refused.
pub(crate) fn all_accepted(refused: Vec<Refusal>) -> io::Result<()> {
    match refused.first() {
        None => Ok(()),
        Some(refusal) => Err(io::Error::from_raw_os_error(refusal.error)),
    }
}
