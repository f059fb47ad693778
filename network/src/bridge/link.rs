//! Requests about links, addresses and routes, and the parts of the kernel's answers that are of use here.
//!
//! Answers are not parsed as a whole: a new kernel may describe a link with attributes that the library cannot parse.

use std::{net::IpAddr, os::fd::RawFd};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NlaBuffer, NlasIterator};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::{
        AfSpecInet6, AfSpecUnspec, BridgeStpState, In6AddrGenMode, InfoBridge, InfoBridgePort, InfoData, InfoKind,
        InfoPortData, InfoPortKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    },
    route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType},
};

use super::netlink::Request;

/// The interface in a container.
pub(crate) const INTERFACE: &str = "eth0";

/// The length of the fixed part of a message about a link, and of one about a route.
pub(crate) const LINK_HEADER: usize = 16;
const ROUTE_HEADER: usize = 12;

/// A hardware address.
pub(crate) type Mac = [u8; 6];

/// A link as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub index: u32,
    pub mtu: u32,
    /// `bridge`, `veth` …; empty for a hardware device.
    pub kind: String,
    /// The hardware address, if it has the length of one.
    pub mac: Option<Mac>,
}

/// A pair of interfaces: one on a bridge, the other in a container's network namespace.
#[derive(Debug)]
pub(crate) struct Pair<'a> {
    /// The name on the host.
    pub host: &'a str,
    /// The index of the bridge.
    pub bridge: u32,
    pub mtu: u32,
    /// The hardware address in the container.
    pub mac: Mac,
    /// The container's network namespace.
    pub namespace: RawFd,
}

/// Asks for a link.
pub(crate) fn get(name: &str) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetLink(named(name))
}

/// Asks for a link by its index.
pub(crate) fn get_by_index(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetLink(indexed(index))
}

/// Makes a bridge that forwards at once. Without a hardware address of its own it would take those of its ports, one
/// after the other.
pub(crate) fn new_bridge(name: &str, mac: Mac) -> Request {
    let mut message = named(name);
    let options = vec![InfoBridge::StpState(BridgeStpState::Disabled), InfoBridge::ForwardDelay(0)];
    message.attributes.extend([
        LinkAttribute::Address(mac.into()),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(InfoData::Bridge(options))]),
    ]);
    (RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
}

/// Sets the MTU of a link and switches the link on.
pub(crate) fn set_up(index: u32, mtu: u32) -> Request {
    let mut message = indexed(index);
    message.attributes.push(LinkAttribute::Mtu(mtu));
    (RouteNetlinkMessage::SetLink(switched_on(message)), 0)
}

/// Makes a pair of interfaces. Both ends are off. Each has one queue: the kernel's default is one per processor, which
/// takes longer and does not make a pair faster.
pub(crate) fn new_pair(pair: &Pair) -> Request {
    let end = |name: &str| {
        let mut message = named(name);
        message.attributes.extend([
            LinkAttribute::Mtu(pair.mtu),
            LinkAttribute::NumTxQueues(1),
            LinkAttribute::NumRxQueues(1),
        ]);
        message
    };
    let (mut host, mut container) = (end(pair.host), end(INTERFACE));
    container.attributes.extend([LinkAttribute::Address(pair.mac.into()), LinkAttribute::NetNsFd(pair.namespace)]);
    host.attributes.extend([
        LinkAttribute::Controller(pair.bridge),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(container))),
        ]),
    ]);
    (RouteNetlinkMessage::NewLink(host), NLM_F_CREATE | NLM_F_EXCL)
}

/// Switches a port of a bridge on. It sends packets back to where they came from (hairpin), so that a container reaches
/// its own published port. It has no IPv6 address of its own.
pub(crate) fn set_port_up(name: &str) -> Request {
    let mut message = named(name);
    let options = vec![InfoBridgePort::HairpinMode(true)];
    message.attributes.extend([
        LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(options)),
        ]),
        LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)])]),
    ]);
    // As a "new" link without NLM_F_CREATE: RTM_SETLINK ignores the options of ports.
    (RouteNetlinkMessage::NewLink(switched_on(message)), 0)
}

/// Takes a port from its bridge and switches it off.
pub(crate) fn detach(name: &str) -> Request {
    let mut message = named(name);
    message.attributes.push(LinkAttribute::Controller(0));
    message.header.change_mask = LinkFlags::Up;
    (RouteNetlinkMessage::SetLink(message), 0)
}

/// Removes a link. The kernel returns when it is gone, which takes tens of milliseconds.
pub(crate) fn delete(name: &str) -> Request {
    (RouteNetlinkMessage::DelLink(named(name)), 0)
}

/// Gives a link an address. An IPv6 address is of use at once, without a search for other owners.
pub(crate) fn add_address(index: u32, address: IpNet) -> Request {
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.index = index;
    message.attributes = vec![AddressAttribute::Local(address.addr()), AddressAttribute::Address(address.addr())];
    match address {
        IpNet::V4(address) => message.attributes.push(AddressAttribute::Broadcast(address.broadcast())),
        IpNet::V6(_) => message.header.flags = AddressHeaderFlags::Nodad,
    }
    (RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
}

/// The default route by a gateway.
pub(crate) fn add_default_route(index: u32, gateway: IpAddr) -> Request {
    let mut message = routes(family(gateway));
    message.header.protocol = RouteProtocol::Boot;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![RouteAttribute::Gateway(RouteAddress::from(gateway)), RouteAttribute::Oif(index)];
    (RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
}

/// Asks for the routes of the main table.
pub(crate) fn get_routes(ipv6: bool) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetRoute(routes(if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet }))
}

/// The link of a default route of the main table, from the payload of a message about a route.
pub(crate) fn default_route_link(route: &[u8]) -> Option<u32> {
    let header: &[u8; ROUTE_HEADER] = route.first_chunk()?;
    let (prefix_length, table, kind) = (header[1], header[4], header[7]);
    if prefix_length != 0 || table != RouteHeader::RT_TABLE_MAIN || kind != u8::from(RouteType::Unicast) {
        return None;
    }
    /// Numbers of attributes (linux/rtnetlink.h).
    const RTA_OIF: u16 = 4;
    const RTA_MULTIPATH: u16 = 9;
    let attributes = &route[ROUTE_HEADER..];
    let single = attribute(attributes, RTA_OIF).and_then(|value| number(&value));
    // The first next hop: its length, flags and weight, then the link.
    single.or_else(|| attribute(attributes, RTA_MULTIPATH).and_then(|hops| number(hops.get(4..8)?)))
}

/// The link that a message describes, from the message's payload.
pub(crate) fn parse(link: &[u8]) -> Option<Link> {
    /// Numbers of attributes (linux/if_link.h).
    const IFLA_ADDRESS: u16 = 1;
    const IFLA_MTU: u16 = 4;
    const IFLA_LINKINFO: u16 = 18;
    const IFLA_INFO_KIND: u16 = 1;
    let attributes = link.get(LINK_HEADER..)?;
    let kind = attribute(attributes, IFLA_LINKINFO).and_then(|info| attribute(&info, IFLA_INFO_KIND));
    let kind = String::from_utf8_lossy(&kind.unwrap_or_default()).trim_end_matches('\0').to_owned();
    Some(Link {
        index: number(link.get(4..8)?)?,
        mtu: attribute(attributes, IFLA_MTU).and_then(|value| number(&value)).unwrap_or(0),
        kind,
        mac: attribute(attributes, IFLA_ADDRESS).and_then(|address| address.try_into().ok()),
    })
}

/// The value of an attribute.
pub(crate) fn attribute(attributes: &[u8], number: u16) -> Option<Vec<u8>> {
    let all = NlasIterator::new(attributes).map_while(Result::ok);
    let found = |attribute: NlaBuffer<&[u8]>| (attribute.kind() == number).then(|| attribute.value().to_vec());
    all.into_iter().find_map(found)
}

/// The number at the beginning of a value.
pub(crate) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn named(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message
}

/// A message about the link with this index.
pub(crate) fn indexed(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

/// The same message, which also switches the link on.
pub(crate) fn switched_on(mut message: LinkMessage) -> LinkMessage {
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message
}

fn routes(family: AddressFamily) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet }
}
