//! Learns from the kernel that others changed the rules, and restores what is missing.
//!
//! A bridge's own table is restored at once. The accept rules in iptables' filter are restored when their chains have
//! been unchanged for a moment: between two steps of a program that empties the table, a new rule could make its next
//! step fail.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::{Errno, retry_on_intr, write},
    time::Timespec,
};

use crate::{
    accept,
    error::Error,
    firewall::{Firewall, Repair},
    netlink::{Connection, Reply, find_text},
    nft::Change,
    table,
};

/// The group of sockets that learn about changes of nf_tables.
const CHANGES: u32 = 7;
/// How long the chains of the accept rules must be unchanged.
const MOMENT: Duration = Duration::from_millis(250);

/// Restores the rules of a bridge until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

/// Which rules a change concerns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Concern {
    table: bool,
    accept: bool,
}

impl Firewall {
    /// Starts a thread that restores rules which others delete: the table with its published ports, and the accept
    /// rules. While it runs, [`Firewall::ensure`] costs almost nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the kernel does not announce changes, or the rules cannot be checked.
    pub fn watch(self: &Arc<Self>) -> Result<Watcher, Error> {
        let failed = || Error::kernel("watch the rules");
        let connection = Connection::open(&[CHANGES]).map_err(failed())?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed()(error.into()))?;
        let stopped = stop.try_clone().map_err(failed())?;
        self.repair(Repair::Missing)?;
        self.repair_accept()?;
        self.set_present(true);
        let firewall = Arc::clone(self);
        let work = move || {
            if let Err(error) = watch(&firewall, &connection, &stopped) {
                tracing::error!("the rules of {} are no longer watched: {error}", firewall.bridge().name);
            }
            firewall.set_present(false);
        };
        let thread = thread::Builder::new().name("firewall".to_owned()).spawn(work).map_err(failed())?;
        Ok(Watcher { stop, thread: Some(thread) })
    }
}

impl Watcher {
    /// Whether the thread has ended after an error.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Without the event the thread goes on, and waiting for it would take for ever.
        if write(&self.stop, &1_u64.to_ne_bytes()).is_ok()
            && let Some(thread) = self.thread.take()
        {
            thread.join().ok();
        }
    }
}

fn watch(firewall: &Firewall, connection: &Connection, stop: &OwnedFd) -> io::Result<()> {
    let table = table::name(&firewall.bridge().name);
    // The time at which the accept rules are checked.
    let mut due: Option<Instant> = None;
    loop {
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) });
        let mut events = [PollFd::new(connection, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        retry_on_intr(|| poll(&mut events, left.as_ref()))?;
        if !events[1].revents().is_empty() {
            return Ok(());
        }
        let changed = match events[0].revents().is_empty() {
            true => Concern::default(),
            false => concern_of_changes(connection, &table)?,
        };
        if changed.accept {
            due = Some(Instant::now() + MOMENT);
        }
        if changed.table {
            firewall.set_present(false);
            let repaired = firewall.repair(Repair::Missing);
            firewall.set_present(report(firewall, "its table was changed by others", repaired));
        }
        if due.is_some_and(|due| due <= Instant::now()) {
            due = None;
            report(firewall, "iptables' filter was changed by others", firewall.repair_accept());
        }
    }
}

/// Reads the changes that were announced.
fn concern_of_changes(connection: &Connection, table: &str) -> io::Result<Concern> {
    let mut concern = Concern::default();
    let read = connection.drain(|reply| {
        let change = concern_of(&reply, table);
        concern.table |= change.table;
        concern.accept |= change.accept;
    });
    match read {
        // More changes than the socket can hold: any of them may concern the rules.
        Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {
            Ok(Concern { table: true, accept: true })
        }
        read => read.map(|()| concern),
    }
}

/// Which rules an announced change concerns. New rules of others and elements of maps do not.
fn concern_of(reply: &Reply<'_>, table: &str) -> Concern {
    let Reply::Object { kind, attributes, .. } = reply else { return Concern::default() };
    let Some((change, chain)) = Change::of(*kind, attributes) else { return Concern::default() };
    let changed = find_text(attributes, 1);
    let of_accept = chain.is_none_or(|chain| [accept::FORWARD, accept::CHAIN].contains(&chain));
    Concern {
        table: changed == Some(table) && change == Change::Deleted,
        accept: changed == Some(accept::TABLE)
            && of_accept
            && (change == Change::Deleted || (change == Change::NewChain && chain == Some(accept::FORWARD))),
    }
}

/// Logs the result of a repair. Returns whether it succeeded.
fn report(firewall: &Firewall, reason: &str, result: Result<(), Error>) -> bool {
    match &result {
        Ok(()) => tracing::debug!("the rules of {} were checked: {reason}", firewall.bridge().name),
        Err(error) => tracing::warn!("the rules of {} cannot be restored ({reason}): {error}", firewall.bridge().name),
    }
    result.is_ok()
}

#[cfg(test)]
mod tests {
    use super::{Concern, concern_of};
    use crate::netlink::{Attributes, Reply};

    #[test]
    fn deletions_in_our_table_and_in_iptables_filter_concern_the_rules() {
        let (table, accept) = (Concern { table: true, accept: false }, Concern { table: false, accept: true });
        // The numbers are those of nf_tables: table 0 to 2, chain 3 to 5, rule 6 to 8, set 9 to 11, element 12 to 14.
        for (operation, name, chain, expected) in [
            (2, "oci-rs-x", None, table),
            (5, "oci-rs-x", Some((3, "prerouting")), table),
            (8, "oci-rs-x", Some((2, "prerouting")), table),
            (11, "oci-rs-x", None, table),
            // Ports that are published and withdrawn, and rules that are added.
            (12, "oci-rs-x", None, Concern::default()),
            (14, "oci-rs-x", None, Concern::default()),
            (0, "oci-rs-x", None, Concern::default()),
            (6, "oci-rs-x", Some((2, "prerouting")), Concern::default()),
            (2, "oci-rs-y", None, Concern::default()),
            // dockerd begins, or a program empties the filter.
            (3, "filter", Some((3, "FORWARD")), accept),
            (8, "filter", Some((2, "FORWARD")), accept),
            (5, "filter", Some((3, "OCI-RS-ADMIN")), accept),
            (8, "filter", Some((2, "OCI-RS-ADMIN")), accept),
            // A container of docker ends.
            (8, "filter", Some((2, "DOCKER")), Concern::default()),
            (3, "filter", Some((3, "DOCKER")), Concern::default()),
            (6, "filter", Some((2, "FORWARD")), Concern::default()),
        ] {
            let attributes = Attributes::new().text(1, name);
            let attributes = chain.into_iter().fold(attributes, |list, (kind, chain)| list.text(kind, chain));
            let reply =
                Reply::Object { kind: 0x0a00 | operation, sequence: 0, family: 2, attributes: attributes.as_bytes() };
            assert_eq!(concern_of(&reply, "oci-rs-x"), expected, "{operation} {name} {chain:?}");
        }
        let other = Reply::Object { kind: 0x0102, sequence: 0, family: 2, attributes: &[] };
        assert_eq!(concern_of(&other, "oci-rs-x"), Concern::default());
    }
}
