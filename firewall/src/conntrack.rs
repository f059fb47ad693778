//! Removes connections that the kernel tracks, so that later packets meet the rules again.
//!
//! The kernel applies translations of addresses only to the first packet of a connection. UDP has no end of a
//! connection, so a client that keeps sending would reach a container that is gone, or none after a port was published.

use std::{collections::BTreeSet, io, net::IpAddr};

use crate::{
    netlink::{Attributes, Connection, Message, find, find_number},
    port::{Family, address_of, octets},
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

/// The source or the destination was replaced.
const TRANSLATED: u32 = 1 << 4 | 1 << 5;
const UDP: u8 = 17;

/// Connections to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Selection {
    /// A container answers.
    AnsweredBy(IpAddr),
    /// UDP to this port, without any translation.
    UntranslatedUdp(Family, u16),
}

/// Removes the selected connections.
pub(crate) fn forget(connection: &Connection, selections: &BTreeSet<Selection>) -> io::Result<()> {
    for selection in selections {
        let refused = connection.request(&[flush(selection)], |_, _| {})?;
        // Kernels before 6.11 look for one connection instead.
        if refused.iter().any(|refusal| matches!(refusal.error, libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP)) {
            return forget_one_by_one(connection, selections);
        }
        if let Some(refusal) = refused.first() {
            return Err(io::Error::from_raw_os_error(refusal.error));
        }
    }
    Ok(())
}

/// The same by reading all connections.
fn forget_one_by_one(connection: &Connection, selections: &BTreeSet<Selection>) -> io::Result<()> {
    for family in Family::ALL {
        let wanted: Vec<_> = selections.iter().filter(|selection| selection.family() == family).collect();
        if wanted.is_empty() {
            continue;
        }
        let mut requests = Vec::new();
        connection.dump(&message(family, GET, Attributes::new()), |attributes| {
            if wanted.iter().any(|selection| selection.selects(attributes)) {
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

impl Selection {
    fn family(&self) -> Family {
        match self {
            Self::AnsweredBy(address) => Family::of(*address),
            Self::UntranslatedUdp(family, _) => *family,
        }
    }

    /// Whether a connection is selected.
    fn selects(&self, attributes: &[u8]) -> bool {
        match self {
            Self::AnsweredBy(address) => {
                let family = Family::of(*address);
                find(attributes, REPLY).and_then(|tuple| source(family, tuple)) == Some(*address)
            }
            Self::UntranslatedUdp(_, port) => {
                let destination = find(attributes, ORIGINAL).and_then(|tuple| find(tuple, 2)).unwrap_or_default();
                find(destination, 1) == Some(&[UDP])
                    && find(destination, 3) == Some(&port.to_be_bytes())
                    && find_number(attributes, STATUS).is_some_and(|status| status & TRANSLATED == 0)
            }
        }
    }
}

/// The source address of one direction.
fn source(family: Family, tuple: &[u8]) -> Option<IpAddr> {
    address_of(find(find(tuple, 1)?, source_kind(family))?)
}

fn source_kind(family: Family) -> u16 {
    match family {
        Family::V4 => 1,
        Family::V6 => 3,
    }
}

/// The request that removes all selected connections. It names one direction, so that a kernel that does not know
/// filters never removes all connections.
fn flush(selection: &Selection) -> Message {
    const SOURCE_ADDRESS: u32 = 1 << 0;
    const PROTOCOL: u32 = 1 << 3;
    const DESTINATION_PORT: u32 = 1 << 5;
    let flags = |direction, flags: u32| Attributes::new().bytes(direction, &flags.to_ne_bytes());
    match selection {
        Selection::AnsweredBy(address) => {
            let family = Family::of(*address);
            let ip = Attributes::new().bytes(source_kind(family), &octets(*address));
            let attributes = Attributes::new().nested(REPLY, &Attributes::new().nested(1, &ip));
            message(family, DELETE, attributes.nested(FILTER, &flags(REPLY, SOURCE_ADDRESS)))
        }
        Selection::UntranslatedUdp(family, port) => {
            let transport = Attributes::new().bytes(1, &[UDP]).bytes(3, &port.to_be_bytes());
            let attributes = Attributes::new().nested(ORIGINAL, &Attributes::new().nested(2, &transport));
            let attributes = attributes.number(STATUS, 0).number(STATUS_MASK, TRANSLATED);
            message(*family, DELETE, attributes.nested(FILTER, &flags(ORIGINAL, PROTOCOL | DESTINATION_PORT)))
        }
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
