//! Removes connections that the kernel tracks, so that later packets meet the rules again.
//!
//! The kernel applies translations of addresses only to the first packet of a connection. UDP has no end of a
//! connection, so a client that keeps sending would reach a container that is gone, or none after a port was published.
//!
//! Kernels from 6.11 on remove selected connections in one pass through their table, which takes 0.2 to 0.5 ms with the
//! usual size of the table. Older ones show all connections, which takes 30 ms. A thread does both, so that no start
//! and no end of a container waits for it.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use ipnet::IpNet;

use crate::{
    netlink::{Attributes, Connection, Message, find, find_number},
    port::{Family, Protocol, address_of, octets},
};

const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;

/// The two directions of a connection, as attributes of a connection and of a filter.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const ID: u16 = 12;
const FILTER: u16 = 25;
const STATUS_MASK: u16 = 26;

/// The source, or the destination, was replaced.
const SOURCE_REPLACED: u32 = 1 << 4;
const DESTINATION_REPLACED: u32 = 1 << 5;

/// Connections to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Selection {
    /// A container answers.
    AnsweredBy(IpAddr),
    /// UDP to this port, without any translation.
    UntranslatedUdp(Family, u16),
}

/// Removes connections in a thread that ends when there is nothing more to remove.
#[derive(Debug, Default)]
pub(crate) struct Forgetter(Arc<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    selections: BTreeSet<Selection>,
    /// A thread works on the queue.
    running: bool,
    /// The socket while no thread has it. It stays open: when a socket of netfilter is closed, the kernel first frees
    /// what transactions removed, which takes milliseconds, and no transaction can begin meanwhile.
    connection: Option<Connection>,
}

impl Forgetter {
    /// Removes the selected connections in a thread.
    pub(crate) fn soon(&self, selections: BTreeSet<Selection>) -> io::Result<()> {
        if selections.is_empty() {
            return Ok(());
        }
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.selections.extend(selections);
        if !queue.running {
            let shared = Arc::clone(&self.0);
            thread::Builder::new().name("conntrack".to_owned()).spawn(move || work(&shared))?;
            queue.running = true;
        }
        Ok(())
    }
}

/// Works on the queue until it is empty.
fn work(queue: &Mutex<Queue>) {
    let mut connection = None;
    loop {
        let selections = {
            let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
            connection = connection.or_else(|| queue.connection.take());
            queue.running = !queue.selections.is_empty();
            if !queue.running {
                queue.connection = connection;
                return;
            }
            std::mem::take(&mut queue.selections)
        };
        if let Err(error) = forget(&mut connection, &selections) {
            tracing::warn!("connections cannot be removed from the kernel's table: {error}");
        }
    }
}

fn forget(connection: &mut Option<Connection>, selections: &BTreeSet<Selection>) -> io::Result<()> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(Connection::open(&[])?),
    };
    if !flush_all(connection, selections)? {
        let selected = |family, tracked: &Tracked| selections.iter().any(|one| one.selects(family, tracked));
        forget_one_by_one(connection, selected)?;
    }
    Ok(())
}

/// Removes connections to containers of this subnet whose port is not published: those of a process that was killed
/// before it removed them.
pub(crate) fn forget_stale(
    connection: &Connection,
    subnets: &[IpNet],
    published: &BTreeSet<(Protocol, SocketAddr)>,
) -> io::Result<()> {
    forget_one_by_one(connection, |_, tracked| {
        let known =
            || Protocol::of(tracked.protocol).is_some_and(|protocol| published.contains(&(protocol, tracked.server)));
        tracked.status & DESTINATION_REPLACED != 0
            && subnets.iter().any(|subnet| subnet.contains(&tracked.server.ip()))
            && !known()
    })
}

/// Lets the kernel remove the selected connections. Returns `false` if it cannot select.
fn flush_all(connection: &Connection, selections: &BTreeSet<Selection>) -> io::Result<bool> {
    for selection in selections {
        match connection.request(&[selection.flush()], |_, _| {})?.first().map(|refusal| refusal.error) {
            None => {}
            // Such a kernel looks for one connection instead.
            Some(libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP) => return Ok(false),
            Some(error) => return Err(io::Error::from_raw_os_error(error)),
        }
    }
    Ok(true)
}

/// Reads all connections and removes those that are selected.
fn forget_one_by_one(connection: &Connection, selected: impl Fn(Family, &Tracked) -> bool) -> io::Result<()> {
    for family in Family::ALL {
        let mut requests = Vec::new();
        connection.dump(&message(family, GET, Attributes::new()), |attributes| {
            if Tracked::read(family, attributes).is_some_and(|tracked| selected(family, &tracked)) {
                requests.extend(deletion(family, attributes));
            }
        })?;
        for request in requests {
            let refused = connection.request(&[request], |_, _| {})?;
            if let Some(refusal) = refused.iter().find(|refusal| refusal.error != libc::ENOENT) {
                return Err(io::Error::from_raw_os_error(refusal.error));
            }
        }
    }
    Ok(())
}

/// A tracked connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tracked {
    protocol: u8,
    /// The port to which the client sent.
    port: u16,
    /// The address and port that answers.
    server: SocketAddr,
    status: u32,
}

impl Tracked {
    /// Reads a connection of a protocol with ports.
    fn read(family: Family, attributes: &[u8]) -> Option<Self> {
        let port = |transport, kind| Some(u16::from_be_bytes(find(transport, kind)?.try_into().ok()?));
        let (original, reply) = (find(find(attributes, ORIGINAL)?, 2)?, find(attributes, REPLY)?);
        let server = address_of(find(find(reply, 1)?, source_kind(family))?)?;
        Some(Self {
            protocol: *find(original, 1)?.first()?,
            port: port(original, 3)?,
            server: SocketAddr::new(server, port(find(reply, 2)?, 2)?),
            status: find_number(attributes, STATUS)?,
        })
    }
}

impl Selection {
    fn selects(&self, family: Family, tracked: &Tracked) -> bool {
        match *self {
            Self::AnsweredBy(address) => tracked.server.ip() == address,
            Self::UntranslatedUdp(of, port) => {
                (of, Protocol::Udp.number(), port) == (family, tracked.protocol, tracked.port)
                    && tracked.status & (SOURCE_REPLACED | DESTINATION_REPLACED) == 0
            }
        }
    }

    /// The request that removes all selected connections. It names one direction, so that a kernel that does not know
    /// filters never removes all connections.
    fn flush(&self) -> Message {
        const SOURCE_ADDRESS: u32 = 1 << 0;
        const PROTOCOL: u32 = 1 << 3;
        const DESTINATION_PORT: u32 = 1 << 5;
        let flags = |direction, flags: u32| Attributes::new().bytes(direction, &flags.to_ne_bytes());
        match self {
            Self::AnsweredBy(address) => {
                let family = Family::of(*address);
                let ip = Attributes::new().bytes(source_kind(family), &octets(*address));
                let attributes = Attributes::new().nested(REPLY, &Attributes::new().nested(1, &ip));
                message(family, DELETE, attributes.nested(FILTER, &flags(REPLY, SOURCE_ADDRESS)))
            }
            Self::UntranslatedUdp(family, port) => {
                let transport = Attributes::new().bytes(1, &[Protocol::Udp.number()]).bytes(3, &port.to_be_bytes());
                let attributes = Attributes::new().nested(ORIGINAL, &Attributes::new().nested(2, &transport));
                let mask = SOURCE_REPLACED | DESTINATION_REPLACED;
                let attributes = attributes.number(STATUS, 0).number(STATUS_MASK, mask);
                message(*family, DELETE, attributes.nested(FILTER, &flags(ORIGINAL, PROTOCOL | DESTINATION_PORT)))
            }
        }
    }
}

/// The type of the attribute with a source address.
fn source_kind(family: Family) -> u16 {
    match family {
        Family::V4 => 1,
        Family::V6 => 3,
    }
}

/// The request that removes this connection.
fn deletion(family: Family, attributes: &[u8]) -> Option<Message> {
    let copy = Attributes::new().nested_bytes(ORIGINAL, find(attributes, ORIGINAL)?);
    let copy = find(attributes, ID).into_iter().fold(copy, |copy, id| copy.bytes(ID, id));
    Some(message(family, DELETE, copy))
}

fn message(family: Family, kind: u16, attributes: Attributes) -> Message {
    // With this version the family is part of the request.
    Message { kind, flags: 0, family: family.number(), version: 1, resource: 0, attributes }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        net::{Ipv4Addr, SocketAddr, UdpSocket},
    };

    use fixtures::{must::Must, netns::TestNetwork};
    use proptest::prelude::*;

    use super::{GET, Selection, Tracked, flush_all, forget_one_by_one, forget_stale, message};
    use crate::{
        Bridge, Firewall, PublishedPort,
        netlink::{Attributes, Connection},
        port::{Family, Protocol},
    };

    /// A node on which one client sent to port 5353, which leads to a container, and to port 5354, which does not.
    fn node() -> Option<(TestNetwork, Connection)> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let network = TestNetwork::enter();
        let subnet = "172.26.80.0/20".parse().must("a subnet");
        let bridge = Bridge { name: "wire0".to_owned(), subnet, subnet_ipv6: None };
        let firewall = Firewall::new(bridge);
        firewall.ensure().must("the rules");
        let container = SocketAddr::from((TestNetwork::OUTSIDE, 53));
        let port = PublishedPort { host_ip: None, host_port: 5353, protocol: Protocol::Udp, container };
        firewall.publish(&[port]).must("publish");
        for port in [5353, 5354] {
            let socket = UdpSocket::bind("0.0.0.0:0").must("bind");
            socket.send_to(b"a", SocketAddr::from((TestNetwork::NODE, port))).must("send");
        }
        Some((network, Connection::open(&[]).must("a socket")))
    }

    /// The ports of all connections to these two.
    fn tracked(connection: &Connection) -> BTreeSet<u16> {
        let mut ports = BTreeSet::new();
        let request = message(Family::V4, GET, Attributes::new());
        let read = connection.dump(&request, |one| {
            ports.extend(Tracked::read(Family::V4, one).map(|one| one.port).filter(|port| *port / 10 == 535));
        });
        read.must("read");
        ports
    }

    #[test]
    fn only_selected_connections_are_removed() {
        let container = Selection::AnsweredBy(TestNetwork::OUTSIDE);
        let untranslated = |port| Selection::UntranslatedUdp(Family::V4, port);
        for (selection, expected) in [
            (container, &[5354][..]),
            (untranslated(5354), &[5353]),
            (untranslated(5353), &[5353, 5354]),
            (Selection::AnsweredBy(Ipv4Addr::new(192, 0, 2, 77).into()), &[5353, 5354]),
            (Selection::UntranslatedUdp(Family::V6, 5354), &[5353, 5354]),
        ] {
            for old_kernel in [false, true] {
                let Some((network, connection)) = node() else { return };
                assert_eq!(tracked(&connection), [5353, 5354].into());
                if old_kernel {
                    let selected = |family, one: &Tracked| selection.selects(family, one);
                    forget_one_by_one(&connection, selected).must("remove");
                } else if !flush_all(&connection, &[selection].into()).must("remove") {
                    continue;
                }
                let left: Vec<_> = tracked(&connection).into_iter().collect();
                assert_eq!(left, expected, "{selection:?} old kernel: {old_kernel}");
                drop(network);
            }
        }
    }

    #[test]
    fn connections_to_containers_without_a_published_port_are_stale() {
        let container = SocketAddr::from((TestNetwork::OUTSIDE, 53));
        for (subnet, published, expected) in [
            ("192.0.2.0/24", Some((Protocol::Udp, container)), &[5353, 5354][..]),
            ("192.0.2.0/24", Some((Protocol::Tcp, container)), &[5354]),
            ("192.0.2.0/24", None, &[5354]),
            ("198.51.100.0/24", None, &[5353, 5354]),
        ] {
            let Some((network, connection)) = node() else { return };
            let subnets = [subnet.parse().must("a subnet")];
            forget_stale(&connection, &subnets, &published.into_iter().collect()).must("remove");
            assert_eq!(tracked(&connection).into_iter().collect::<Vec<_>>(), expected, "{subnet} {published:?}");
            drop(network);
        }
    }

    proptest! {
        #[test]
        fn no_connection_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            Tracked::read(Family::V4, &bytes);
        }
    }
}
