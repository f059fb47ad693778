//! The request for one container's network.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The network that a container is attached to, with the options of the attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachRequest {
    /// The network.
    pub network: NetworkChoice,
    /// Ports of the host that are forwarded to the container.
    pub ports: Vec<PortMapping>,
    /// The MAC address (`aa:bb:cc:dd:ee:ff`). Without it, the network chooses one.
    pub mac: Option<String>,
    /// The addresses that the container must have. If the list is empty, the network chooses free ones.
    pub addresses: Vec<IpAddr>,
}

/// The network of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkChoice {
    /// Our own bridge.
    Bridge,
    /// A network that the operator configured, by its name.
    Named(String),
}

/// One port of the host that is forwarded to a port of the container. Records have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    /// The host's address. Without it, connections to every address are forwarded.
    pub host_ip: Option<IpAddr>,
    /// The port on the host.
    pub host_port: u16,
    /// The port in the container.
    pub container_port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl AttachRequest {
    /// The arguments of the capabilities that the request needs, by their names in CNI.
    pub(crate) fn capability_arguments(&self) -> Map<String, Value> {
        let mut arguments = Map::new();
        if !self.ports.is_empty() {
            arguments.insert("portMappings".to_owned(), self.ports.iter().map(|port| port.to_json()).collect());
        }
        if let Some(mac) = &self.mac {
            arguments.insert("mac".to_owned(), json!(mac));
        }
        if !self.addresses.is_empty() {
            arguments.insert("ips".to_owned(), json!(self.addresses));
        }
        arguments
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
        // 0.0.0.0 and :: mean every address. A firewall rule with such an address would match no packet.
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

    use super::{AttachRequest, NetworkChoice, PortMapping, Protocol};

    #[test]
    fn options_become_capability_arguments() {
        let port = |host_ip: &str, protocol| PortMapping {
            host_ip: host_ip.parse().ok(),
            host_port: 8080,
            container_port: 80,
            protocol,
        };
        let request = AttachRequest {
            network: NetworkChoice::Bridge,
            ports: vec![port("192.0.2.1", Protocol::Tcp), port("0.0.0.0", Protocol::Udp), port("::", Protocol::Udp)],
            mac: Some("02:42:ac:11:00:02".into()),
            addresses: vec!["172.26.80.9".parse().expect("an address")],
        };
        let any = json!({"hostPort": 8080, "containerPort": 80, "protocol": "udp"});
        assert_eq!(
            Value::Object(request.capability_arguments()),
            json!({
                "portMappings": [
                    {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}, any, any,
                ],
                "mac": "02:42:ac:11:00:02",
                "ips": ["172.26.80.9"],
            })
        );
        let nothing =
            AttachRequest { network: NetworkChoice::Bridge, ports: Vec::new(), mac: None, addresses: Vec::new() };
        assert!(nothing.capability_arguments().is_empty());
    }
}
