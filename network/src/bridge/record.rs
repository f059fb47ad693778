//! The record of a network on the driver's bridge.

use std::{
    fmt::Display,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    str::FromStr,
};

use firewall::PublishedPort;
use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    request::{PortMapping, Protocol},
    settings::Settings,
};

/// The record of a container's network. It is complete before anything is made, and it does not change. It holds
/// everything that removing the network needs, because the settings may have changed by then. As long as it exists, no
/// other container gets one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BridgeRecord {
    /// The name of the bridge.
    pub bridge: String,
    /// The bridge's IPv4 subnet.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub subnet: Ipv4Net,
    /// The bridge's IPv6 subnet.
    #[serde(default, serialize_with = "option_as_text", deserialize_with = "option_from_text")]
    pub subnet_ipv6: Option<Ipv6Net>,
    /// The host's end of the pair of interfaces.
    pub link: String,
    /// The container's addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// The published ports.
    pub ports: Vec<PortMapping>,
}

/// The part of a record that all versions have in common with regard to addresses.
#[derive(Debug, Deserialize)]
struct Held {
    #[serde(default)]
    addresses: Vec<IpAddr>,
}

impl BridgeRecord {
    /// A record of a network with these addresses.
    pub fn new(settings: &Settings, addresses: &[IpAddr], ports: &[PortMapping]) -> Self {
        Self {
            bridge: settings.bridge.clone(),
            subnet: settings.subnet,
            subnet_ipv6: settings.subnet_ipv6,
            link: link_name(addresses),
            addresses: addresses.to_vec(),
            ports: ports.to_vec(),
        }
    }

    /// The bridge as the firewall knows it.
    pub fn firewall(&self) -> firewall::Bridge {
        firewall::Bridge { name: self.bridge.clone(), subnet: self.subnet, subnet_ipv6: self.subnet_ipv6 }
    }

    /// The published ports as the firewall knows them. A port of one of the host's addresses leads to the container's
    /// address of the same family. A port of every address leads to each of the container's addresses.
    pub fn published(&self) -> Vec<PublishedPort> {
        let published = |port: &PortMapping, address: IpAddr| PublishedPort {
            // 0.0.0.0 and :: mean every address.
            host_ip: port.host_ip.filter(|host| !host.is_unspecified()),
            host_port: port.host_port,
            protocol: match port.protocol {
                Protocol::Tcp => firewall::Protocol::Tcp,
                Protocol::Udp => firewall::Protocol::Udp,
            },
            container: SocketAddr::new(address, port.container_port),
        };
        let all = self.ports.iter().flat_map(|port| self.addresses.iter().map(|address| published(port, *address)));
        all.filter(|port| port.host_ip.is_none_or(|host| host.is_ipv4() == port.container.is_ipv4())).collect()
    }
}

/// The name of the host's end of the pair of interfaces: the container's IPv4 address in hexadecimal digits. Docker and
/// CNI plugins choose names without a dash.
fn link_name(addresses: &[IpAddr]) -> String {
    let ipv4 = addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    format!("veth-{:08x}", u32::from(ipv4.unwrap_or(Ipv4Addr::UNSPECIFIED)))
}

/// The addresses that a record of any version holds. Records of CNI plugins have no such list.
pub(crate) fn addresses_in(record: &[u8]) -> serde_json::Result<Vec<IpAddr>> {
    serde_json::from_slice(record).map(|Held { addresses }| addresses)
}

fn as_text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn from_text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

fn option_as_text<S: Serializer>(value: &Option<impl Display>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(serializer)
}

fn option_from_text<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use super::{BridgeRecord, addresses_in};
    use crate::{
        request::{PortMapping, Protocol},
        settings::Settings,
    };

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    #[test]
    fn a_port_leads_to_the_addresses_of_its_family() {
        let settings = Settings { subnet_ipv6: "fd00::/64".parse().ok(), ..Settings::default() };
        let port = |host_ip: &str, protocol| PortMapping {
            host_ip: host_ip.parse().ok(),
            host_port: 8080,
            container_port: 80,
            protocol,
        };
        let ports = [
            port("192.0.2.1", Protocol::Tcp),
            port("2001:db8::1", Protocol::Tcp),
            port("", Protocol::Udp),
            port("0.0.0.0", Protocol::Udp),
        ];
        let record = BridgeRecord::new(&settings, &addresses(&["172.26.80.2", "fd00::2"]), &ports);
        let published: Vec<(Option<IpAddr>, SocketAddr)> =
            record.published().into_iter().map(|port| (port.host_ip, port.container)).collect();
        let expected = [
            ("192.0.2.1", "172.26.80.2:80"),
            ("2001:db8::1", "[fd00::2]:80"),
            ("", "172.26.80.2:80"),
            ("", "[fd00::2]:80"),
            ("", "172.26.80.2:80"),
            ("", "[fd00::2]:80"),
        ]
        .map(|(host, container)| (host.parse().ok(), container.parse().expect("an address with a port")));
        assert_eq!(published, expected);
        assert_eq!(record.link, "veth-ac1a5002");
    }

    #[test]
    fn addresses_are_read_from_records_of_every_form() {
        let record = BridgeRecord::new(&Settings::default(), &addresses(&["172.26.80.2"]), &[]);
        let bytes = host::record::encode(99, &record).expect("a record");
        assert_eq!(addresses_in(&bytes).expect("addresses"), record.addresses);
        let none = addresses_in(include_bytes!("../../tests/records/network.json")).expect("no addresses");
        assert!(none.is_empty(), "{none:?}");
        assert!(addresses_in(b"{").is_err());
    }
}
