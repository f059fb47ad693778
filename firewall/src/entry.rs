//! Published ports as elements of the maps of a table.
//!
//! A port of one address is an element of the map [`OF_ADDRESS`]. A port of every address is one of [`OF_ANY`]. The
//! rules look the first map up first.

use std::net::SocketAddr;

use crate::{
    error::Error,
    nft::Map,
    port::{Family, Protocol, PublishedPort, address_of, octets},
};

/// The map of ports of one address.
pub(crate) const OF_ADDRESS: &str = "published";
/// The map of ports of every local address.
pub(crate) const OF_ANY: &str = "published-on-any";

/// The length of a number in a key or in data.
const WORD: usize = 4;

/// The place of an element.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) family: Family,
    pub(crate) map: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// An element: its place, and the container's address and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) data: Vec<u8>,
}

/// The maps of a table.
pub(crate) fn maps(family: Family) -> [Map; 2] {
    // The types of nft: addresses, protocol, port. A list of types has six bits for each.
    let (address, protocol, port) = (if family == Family::V4 { 7 } else { 8 }, 12, 13);
    let types = |list: &[u32]| list.iter().fold(0, |all, kind| all << 6 | kind);
    let length = family.address_length();
    let (data_type, data_length) = (types(&[address, port]), length + WORD as u32);
    let key_type = types(&[address, protocol, port]);
    let number = if family == Family::V4 { 1 } else { 3 };
    let of_address = Map { name: OF_ADDRESS, number, key_type, key_length: length + 8, data_type, data_length };
    let key_type = types(&[protocol, port]);
    [of_address, Map { name: OF_ANY, number: number + 1, key_type, key_length: 8, ..of_address }]
}

impl Entry {
    /// The element of a port.
    pub(crate) fn of(port: &PublishedPort) -> Result<Self, Error> {
        let family = port.family();
        let mut key = Vec::new();
        let map = match port.address() {
            Some(address) if Family::of(address) != family => return Err(Error::Families(*port)),
            Some(address) => {
                key.extend(octets(address));
                OF_ADDRESS
            }
            None => OF_ANY,
        };
        key.extend([port.protocol.number(), 0, 0, 0]);
        key.extend(padded(port.host_port));
        let mut data = octets(port.container.ip());
        data.extend(padded(port.container.port()));
        Ok(Self { key: Key { family, map, bytes: key }, data })
    }

    /// The port of an element. An element that is not from this crate may have none.
    pub(crate) fn port(&self) -> Option<PublishedPort> {
        let Key { family, map, bytes } = &self.key;
        let length = if *map == OF_ADDRESS { family.address_length() as usize } else { 0 };
        let (host_ip, rest) = bytes.split_at_checked(length)?;
        let (protocol, host_port) = rest.split_at_checked(WORD)?;
        let (address, container_port) = self.data.split_at_checked(family.address_length() as usize)?;
        Some(PublishedPort {
            host_ip: address_of(host_ip),
            host_port: number(host_port)?,
            protocol: Protocol::of(*protocol.first()?)?,
            container: SocketAddr::new(address_of(address)?, number(container_port)?),
        })
    }
}

fn padded(port: u16) -> [u8; WORD] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

fn number(padded: &[u8]) -> Option<u16> {
    padded.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use proptest::prelude::*;

    use super::{Entry, OF_ADDRESS, OF_ANY};
    use crate::port::{Family, Protocol, PublishedPort};

    fn port(host_ip: Option<&str>, host_port: u16, protocol: Protocol, container: &str) -> PublishedPort {
        let host_ip = host_ip.map(|address| address.parse().expect("an address"));
        PublishedPort { host_ip, host_port, protocol, container: container.parse().expect("an address") }
    }

    #[test]
    fn elements_have_the_layout_that_nft_gives_them() {
        // The bytes were read from `nft -f` by strace.
        let entry = Entry::of(&port(Some("192.0.2.1"), 8080, Protocol::Tcp, "172.26.80.5:80")).expect("an entry");
        assert_eq!((entry.key.family, entry.key.map), (Family::V4, OF_ADDRESS));
        assert_eq!(entry.key.bytes, [0xc0, 0, 2, 1, 6, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        assert_eq!(entry.data, [0xac, 0x1a, 0x50, 5, 0, 0x50, 0, 0]);
        for any in [None, Some("0.0.0.0")] {
            let entry = Entry::of(&port(any, 8080, Protocol::Udp, "172.26.80.5:80")).expect("an entry");
            assert_eq!((entry.key.map, entry.key.bytes.as_slice()), (OF_ANY, &[17, 0, 0, 0, 0x1f, 0x90, 0, 0][..]));
        }
        let entry = Entry::of(&port(Some("::"), 9, Protocol::Sctp, "[fd00::5]:80")).expect("an entry");
        assert_eq!((entry.key.family, entry.key.map, entry.data.len()), (Family::V6, OF_ANY, 20));
        assert_eq!(entry.key.bytes, [132, 0, 0, 0, 0, 9, 0, 0]);
    }

    #[test]
    fn an_address_of_the_other_family_is_refused() {
        let error = Entry::of(&port(Some("::1"), 80, Protocol::Tcp, "172.26.80.5:80")).expect_err("an error");
        let expected = "port [::1]:80/Tcp to 172.26.80.5:80 cannot be published: its address and the container's \
                        address are of different families";
        assert_eq!(error.to_string(), expected);
    }

    fn ports() -> impl Strategy<Value = PublishedPort> {
        let protocol = prop::sample::select(Protocol::ALL.to_vec());
        let address = |v6: bool| {
            if v6 {
                any::<[u8; 16]>().prop_map(IpAddr::from).boxed()
            } else {
                any::<[u8; 4]>().prop_map(IpAddr::from).boxed()
            }
        };
        (any::<bool>(), any::<u16>(), protocol, any::<u16>()).prop_flat_map(move |(v6, host_port, protocol, port)| {
            let host_ip = prop::option::of(address(v6).prop_filter("any", |address| !address.is_unspecified()));
            (host_ip, address(v6)).prop_map(move |(host_ip, container)| PublishedPort {
                host_ip,
                host_port,
                protocol,
                container: SocketAddr::new(container, port),
            })
        })
    }

    proptest! {
        #[test]
        fn the_element_of_a_port_means_that_port(port in ports()) {
            let entry = Entry::of(&port).expect("an entry");
            prop_assert_eq!(entry.port(), Some(port));
        }

        #[test]
        fn different_ports_of_the_node_have_different_keys(one in ports(), other in ports()) {
            let key = |port: &PublishedPort| Entry::of(port).expect("an entry").key;
            let same = (one.family(), one.host_ip, one.host_port, one.protocol)
                == (other.family(), other.host_ip, other.host_port, other.protocol);
            prop_assert_eq!(key(&one) == key(&other), same);
        }

        #[test]
        fn no_element_makes_the_reader_panic(
            key in prop::collection::vec(any::<u8>(), 0..30), data in prop::collection::vec(any::<u8>(), 0..30),
        ) {
            for (family, map) in [(Family::V4, OF_ADDRESS), (Family::V4, OF_ANY), (Family::V6, OF_ADDRESS)] {
                Entry { key: super::Key { family, map, bytes: key.clone() }, data: data.clone() }.port();
            }
        }
    }
}
