//! The networks of containers, as their records describe them. Nothing is locked or changed.

use std::{io::ErrorKind, net::IpAddr, path::Path};

use host::{Context, record};

use crate::{
    cni::result,
    error::NetworkError,
    networks::root_in,
    record::{NAMESPACE, NetworkRecord, RECORD, VERSION},
    request::{PortMapping, Protocol},
};

/// The network of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkView {
    /// The container.
    pub container: String,
    /// How it is connected; `None` if its record is missing or cannot be read.
    pub connection: Option<Connection>,
    /// Why the record cannot be read.
    pub problem: Option<String>,
}

/// How a container is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The name of the network: that of the driver's bridge, or of the operator's CNI configuration.
    pub network: String,
    /// CNI plugins connect the container.
    pub is_cni: bool,
    /// The container's addresses.
    pub addresses: Vec<IpAddr>,
    /// The published ports.
    pub ports: Vec<PortMapping>,
}

/// All networks of a state directory, by their containers.
pub fn networks(state_dir: &Path) -> Result<Vec<NetworkView>, NetworkError> {
    let root = root_in(state_dir);
    let entries = match std::fs::read_dir(&root) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.context(|| format!("listing {}", root.display()))?,
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<NetworkView> = names.map(|name| network(state_dir, &name)).collect();
    found.sort_by(|a, b| a.container.cmp(&b.container));
    Ok(found)
}

/// The network of one container.
pub fn network(state_dir: &Path, container: &str) -> NetworkView {
    let directory = root_in(state_dir).join(container);
    let (record, problem) = match record::read::<NetworkRecord>(VERSION, &directory.join(RECORD)) {
        Ok(record) => (record, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let connection = record.map(|record| connection(record, &directory));
    NetworkView { container: container.to_owned(), connection, problem }
}

fn connection(record: NetworkRecord, directory: &Path) -> Connection {
    match record {
        NetworkRecord::Bridge(record) => {
            Connection { network: record.bridge, is_cni: false, addresses: record.addresses, ports: record.ports }
        }
        NetworkRecord::Cni(record) => {
            let attachment = record.result.and_then(|result| result::parse(directory.join(NAMESPACE), &result).ok());
            let ports = record.capability_arguments.get("portMappings").and_then(serde_json::Value::as_array);
            Connection {
                network: record.network.name.clone(),
                is_cni: true,
                addresses: attachment.map(|attachment| attachment.addresses).unwrap_or_default(),
                ports: ports.into_iter().flatten().filter_map(mapping).collect(),
            }
        }
    }
}

/// A port as CNI's capability `portMappings` has it.
fn mapping(port: &serde_json::Value) -> Option<PortMapping> {
    let number = |name: &str| u16::try_from(port.get(name)?.as_u64()?).ok();
    Some(PortMapping {
        host_ip: port.get("hostIP").and_then(|address| address.as_str()?.parse().ok()),
        host_port: number("hostPort")?,
        container_port: number("containerPort")?,
        protocol: match port.get("protocol").and_then(serde_json::Value::as_str) {
            Some("udp") => Protocol::Udp,
            _ => Protocol::Tcp,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{network, networks};

    #[test]
    fn networks_are_listed_with_addresses_ports_and_problems() {
        let state = tempfile::tempdir().expect("a directory");
        assert_eq!(networks(state.path()).expect("none"), []);
        let records = [
            ("bridge", Some(include_str!("../tests/records/bridge.json"))),
            ("cni", Some(include_str!("../tests/records/network.json"))),
            ("half", Some("{")),
            ("none", None),
        ];
        for (container, record) in records {
            let directory = state.path().join("networks").join(container);
            fs::create_dir_all(&directory).expect("made");
            record.into_iter().for_each(|text| fs::write(directory.join("network.json"), text).expect("written"));
        }
        let found = networks(state.path()).expect("listed");
        let names: Vec<&str> = found.iter().map(|one| one.container.as_str()).collect();
        assert_eq!(names, ["bridge", "cni", "half", "none"]);
        let bridge = found[0].connection.as_ref().expect("connected");
        assert_eq!((bridge.network.as_str(), bridge.is_cni, bridge.ports[0].host_port), ("oci-rs", false, 20080));
        assert_eq!(bridge.addresses.len(), 2);
        assert!(found[1].connection.as_ref().is_some_and(|cni| cni.is_cni && cni.network == "oci-rs"));
        assert!(found[2].connection.is_none() && found[2].problem.is_some(), "{:?}", found[2]);
        assert_eq!((&found[3].connection, &found[3].problem), (&None, &None));
        assert_eq!(network(state.path(), "bridge"), found[0]);
    }
}
