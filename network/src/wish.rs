//! What one container's network is to be.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

/// Which network the container is connected to, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The network.
    pub network: Choice,
    /// Ports of the host that lead into the container.
    pub ports: Vec<PortMapping>,
    /// Hardware address, `aa:bb:cc:dd:ee:ff`; any without one.
    pub mac: Option<String>,
    /// Addresses that it must have; free ones are chosen without them.
    pub addresses: Vec<IpAddr>,
}

/// A network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The bridge of our own.
    Bridge,
    /// One that the operator configured, by its name.
    Named(String),
}

/// One port of the host that leads to a port of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortMapping {
    /// The host's address; every one of them without it.
    pub host_ip: Option<IpAddr>,
    /// On the host.
    pub host_port: u16,
    /// In the container.
    pub container_port: u16,
    /// For which protocol.
    pub protocol: Protocol,
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Wish {
    /// What is asked of the network's plugins at run time, by CNI's names of these capabilities.
    pub(crate) fn capabilities(&self) -> Map<String, Value> {
        let mut asked = Map::new();
        if !self.ports.is_empty() {
            asked.insert("portMappings".to_owned(), self.ports.iter().map(|port| port.to_json()).collect());
        }
        if let Some(mac) = &self.mac {
            asked.insert("mac".to_owned(), json!(mac));
        }
        if !self.addresses.is_empty() {
            asked.insert("ips".to_owned(), json!(self.addresses));
        }
        asked
    }
}

impl PortMapping {
    fn to_json(self) -> Value {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        let mut mapping =
            json!({ "hostPort": self.host_port, "containerPort": self.container_port, "protocol": protocol });
        // 0.0.0.0 and :: are every address, which a rule that names an address never matches.
        if let (Some(address), Value::Object(mapping)) =
            (self.host_ip.filter(|address| !address.is_unspecified()), &mut mapping)
        {
            mapping.insert("hostIP".to_owned(), json!(address));
        }
        mapping
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Choice, PortMapping, Protocol, Wish};

    #[test]
    fn what_is_asked_of_plugins() {
        let port = |host_ip: &str, protocol| PortMapping {
            host_ip: host_ip.parse().ok(),
            host_port: 8080,
            container_port: 80,
            protocol,
        };
        let wish = Wish {
            network: Choice::Bridge,
            ports: vec![port("192.0.2.1", Protocol::Tcp), port("0.0.0.0", Protocol::Udp), port("::", Protocol::Udp)],
            mac: Some("02:42:ac:11:00:02".into()),
            addresses: vec!["172.26.80.9".parse().expect("an address")],
        };
        let any = json!({"hostPort": 8080, "containerPort": 80, "protocol": "udp"});
        assert_eq!(
            Value::Object(wish.capabilities()),
            json!({
                "portMappings": [
                    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}, any, any,
                ],
                "mac": "02:42:ac:11:00:02",
                "ips": ["172.26.80.9"],
            })
        );
        let nothing = Wish { network: Choice::Bridge, ports: Vec::new(), mac: None, addresses: Vec::new() };
        assert!(nothing.capabilities().is_empty());
    }
}
