//! Requests about interfaces that move, and the parts of the kernel's answers that are of use here.

use std::{io, net::IpAddr, os::fd::RawFd};

use ipnet::IpNet;
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::AddressMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage},
};
use rustix::io::Errno;

use crate::bridge::{
    link::{self, LINK_HEADER, attribute, indexed, number, switched_on},
    netlink::{Connection, Request},
    node::is,
};

/// The length of the fixed part of a message about an address.
const ADDRESS_HEADER: usize = 8;

/// The kind of the loopback interface, for which the kernel has no name.
pub(crate) const LOOPBACK: &str = "loopback";

/// What tells one interface from another, and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkFacts {
    /// The index in its namespace.
    pub index: u32,
    pub name: String,
    /// Whether it is on.
    pub up: bool,
    /// `bridge`, `veth` …; [`LOOPBACK`]; empty for a hardware device.
    pub kind: String,
    /// The hardware device, as in `0000:3b:00.0`.
    pub device: Option<String>,
}

/// Moves an interface to another network namespace. It is off there, has no address, and gets the name.
pub(crate) fn move_to(index: u32, name: &str, namespace: RawFd) -> Request {
    let mut message = indexed(index);
    message.attributes.extend([LinkAttribute::IfName(name.to_owned()), LinkAttribute::NetNsFd(namespace)]);
    (RouteNetlinkMessage::SetLink(message), 0)
}

/// Switches an interface off and gives it another name.
pub(crate) fn rename(index: u32, name: &str) -> [Request; 2] {
    let (mut off, mut named) = (indexed(index), indexed(index));
    off.header.change_mask = LinkFlags::Up;
    named.attributes.push(LinkAttribute::IfName(name.to_owned()));
    [off, named].map(|message| (RouteNetlinkMessage::SetLink(message), 0))
}

/// Switches an interface on.
pub(crate) fn switch_on(index: u32) -> Request {
    (RouteNetlinkMessage::SetLink(switched_on(indexed(index))), 0)
}

/// The interface of this name.
pub(crate) fn find(connection: &mut Connection, name: &str) -> io::Result<Option<LinkFacts>> {
    answered(connection.get(link::get(name)))
}

/// The interface with this index.
pub(crate) fn find_index(connection: &mut Connection, index: u32) -> io::Result<Option<LinkFacts>> {
    answered(connection.get(link::get_by_index(index)))
}

fn answered(answer: io::Result<Vec<u8>>) -> io::Result<Option<LinkFacts>> {
    match answer {
        Err(error) if is(&error, Errno::NODEV) => Ok(None),
        answer => Ok(parse(&answer?)),
    }
}

/// All interfaces of this thread's namespace.
pub(crate) fn all() -> io::Result<Vec<LinkFacts>> {
    Connection::open()?.list(RouteNetlinkMessage::GetLink(LinkMessage::default()), parse)
}

/// The permanent global addresses of this thread's namespace, each with the index of its interface.
pub(crate) fn addresses() -> io::Result<Vec<(u32, IpNet)>> {
    Connection::open()?.list(RouteNetlinkMessage::GetAddress(AddressMessage::default()), parse_address)
}

/// The interface that a message describes, from the message's payload.
fn parse(link: &[u8]) -> Option<LinkFacts> {
    /// Numbers of attributes and flags (linux/if_link.h, linux/if.h).
    const IFLA_IFNAME: u16 = 3;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_INFO_KIND: u16 = 1;
    const IFLA_PARENT_DEV_NAME: u16 = 56;
    const IFF_UP: u32 = 1;
    const IFF_LOOPBACK: u32 = 8;
    let attributes = link.get(LINK_HEADER..)?;
    let text = |value: Vec<u8>| String::from_utf8_lossy(&value).trim_end_matches('\0').to_owned();
    let kind = attribute(attributes, IFLA_LINKINFO).and_then(|info| attribute(&info, IFLA_INFO_KIND));
    let flags = number(link.get(8..12)?)?;
    Some(LinkFacts {
        index: number(link.get(4..8)?)?,
        name: text(attribute(attributes, IFLA_IFNAME)?),
        up: flags & IFF_UP != 0,
        kind: if flags & IFF_LOOPBACK != 0 { LOOPBACK.to_owned() } else { text(kind.unwrap_or_default()) },
        device: attribute(attributes, IFLA_PARENT_DEV_NAME).map(text),
    })
}

/// The index and the address that a message describes, if that is permanent and global, from the message's payload.
fn parse_address(address: &[u8]) -> Option<(u32, IpNet)> {
    /// Numbers of attributes, flags and scopes (linux/if_addr.h, linux/rtnetlink.h).
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    const IFA_F_PERMANENT: u8 = 0x80;
    const RT_SCOPE_UNIVERSE: u8 = 0;
    let header: &[u8; ADDRESS_HEADER] = address.first_chunk()?;
    let (prefix_length, flags, scope) = (header[1], header[2], header[3]);
    if flags & IFA_F_PERMANENT == 0 || scope != RT_SCOPE_UNIVERSE {
        return None;
    }
    let attributes = &address[ADDRESS_HEADER..];
    let bytes = attribute(attributes, IFA_LOCAL).or_else(|| attribute(attributes, IFA_ADDRESS))?;
    let address = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some((number(&header[4..])?, IpNet::new(address, prefix_length).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [(4 + value.len() as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn an_interface_has_its_kind_or_its_device() {
        let message = |flags: u32, attributes: &[Vec<u8>]| {
            let numbers = [0, 7, flags, 0].map(u32::to_ne_bytes).concat();
            [numbers, attributes.concat()].concat()
        };
        let name = attribute(3, b"enp3s0\0");
        let facts = LinkFacts { index: 7, name: "enp3s0".into(), up: true, kind: String::new(), device: None };
        let physical = message(1, &[name.clone(), attribute(56, b"0000:3b:00.0\0")]);
        assert_eq!(parse(&physical), Some(LinkFacts { device: Some("0000:3b:00.0".into()), ..facts.clone() }));
        let veth = message(2, &[attribute(18, &attribute(1, b"veth\0")), name]);
        assert_eq!(parse(&veth), Some(LinkFacts { up: false, kind: "veth".into(), ..facts }));
        assert_eq!(parse(&message(1, &[])), None, "without a name");
    }

    #[test]
    fn only_permanent_global_addresses_count() {
        let message = |flags: u8, scope: u8, attributes: &[Vec<u8>]| {
            [vec![2, 24, flags, scope], 7u32.to_ne_bytes().to_vec(), attributes.concat()].concat()
        };
        let peer = [attribute(1, &[192, 0, 2, 9]), attribute(2, &[192, 0, 2, 1])];
        let address = |text: &str| Some((7, text.parse().expect("an address")));
        assert_eq!(parse_address(&message(0x80, 0, &peer)), address("192.0.2.1/24"));
        assert_eq!(parse_address(&message(0x80, 0, &peer[..1])), address("192.0.2.9/24"));
        assert_eq!(parse_address(&message(0, 0, &peer)), None, "not permanent");
        assert_eq!(parse_address(&message(0x80, 253, &peer)), None, "of the link only");
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_parsers_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            parse(&bytes);
            parse_address(&bytes);
        }
    }
}
