//! A bridge and the ports that are published for the containers on it.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A bridge of containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// The name of the interface.
    pub name: String,
    /// The IPv4 subnet of the containers.
    pub subnet: Ipv4Net,
    /// Their IPv6 subnet, if they have one.
    pub subnet_ipv6: Option<Ipv6Net>,
}

impl Bridge {
    /// The protocol families of the containers, each with its subnet.
    pub(crate) fn subnets(&self) -> impl Iterator<Item = (Family, IpNet)> {
        let ipv6 = self.subnet_ipv6.map(|subnet| (Family::V6, IpNet::V6(subnet)));
        [(Family::V4, IpNet::V4(self.subnet))].into_iter().chain(ipv6)
    }
}

/// A transport protocol whose ports can be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The number in an IP header.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this number.
    pub(crate) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.number() == number)
    }
}

/// A port of the node that leads to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishedPort {
    /// The node's address. Without one, or with an unspecified one, the port is published on every local address of the
    /// container's family.
    pub host_ip: Option<IpAddr>,
    /// The node's port.
    pub host_port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The container's address and port.
    pub container: SocketAddr,
}

impl PublishedPort {
    /// The address, if the port is not published on every address.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.host_ip.filter(|address| !address.is_unspecified())
    }

    /// The protocol family.
    pub(crate) fn family(&self) -> Family {
        Family::of(self.container.ip())
    }
}

impl fmt::Display for PublishedPort {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) => write!(text, "{}", SocketAddr::new(address, self.host_port))?,
            None => write!(text, "*:{}", self.host_port)?,
        }
        write!(text, "/{:?} to {}", self.protocol, self.container)
    }
}

/// A protocol family, and what differs between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The number in messages.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// The length of an address.
    pub(crate) fn address_length(self) -> u32 {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    /// The position of the source address in the IP header.
    pub(crate) fn source(self) -> u32 {
        match self {
            Self::V4 => 12,
            Self::V6 => 8,
        }
    }

    /// The position of the destination address in the IP header.
    pub(crate) fn destination(self) -> u32 {
        self.source() + self.address_length()
    }
}

/// The bytes of an address.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

/// The address with these bytes.
pub(crate) fn address_of(octets: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(octets).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}
