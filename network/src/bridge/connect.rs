//! Connects a container to the driver's bridge, and disconnects it.

use std::{
    fs::File,
    io,
    net::IpAddr,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use firewall::Firewall;
use host::Context;
use ipnet::IpNet;
use rustix::io::Errno;

use super::{
    addresses::Range,
    allocator::Allocator,
    link::{self, INTERFACE, Link, Mac, Pair},
    netlink::Connection,
    node::{NodeBridge, find, gateway, gateway_ipv6, is, mac_of, set_parameter},
    record::BridgeRecord,
};
use crate::{
    attachment::{Attachment, Dns},
    error::NetworkError,
    namespace,
    record::{NetworkDirectory, NetworkRecord},
    request::AttachRequest,
    settings::Settings,
};

/// The driver's bridge, and the addresses of the containers on it.
#[derive(Debug)]
pub(crate) struct DriverBridge {
    settings: Settings,
    node: NodeBridge,
    allocator: Allocator,
}

/// A new network namespace.
struct Inside {
    namespace: File,
    connection: Connection,
}

impl DriverBridge {
    /// Creates and reads nothing on disk. `networks` has the directories of all networks, `addresses` is the
    /// allocator's.
    pub fn new(settings: &Settings, networks: PathBuf, addresses: PathBuf) -> Self {
        Self {
            settings: settings.clone(),
            node: NodeBridge::new(settings),
            allocator: Allocator::new(networks, addresses),
        }
    }

    /// Connects the container. An error leaves the record, and what it describes.
    pub fn connect(
        &self,
        container: &str,
        directory: &NetworkDirectory,
        request: &AttachRequest,
    ) -> Result<Attachment, NetworkError> {
        let mac = request.mac.as_deref().map(parse_mac).transpose()?;
        let bridge = self.node.ensure(None)?;
        let record = self.recorded(container, directory, request)?;
        let file = directory.namespace();
        failpoint::at("start-before-bridge-namespace");
        let mut inside = namespace::pin(&file, || prepare(self.settings.subnet_ipv6.is_some()))
            .context(|| format!("making the network namespace {}", file.display()))?;
        failpoint::at("start-before-link");
        let mac = mac.unwrap_or_else(|| record.addresses.first().map_or([2; 6], |address| mac_of(*address)));
        self.make_pair(&record, &bridge, mac, &inside.namespace)?;
        failpoint::at("start-before-link-addresses");
        self.configure(&mut inside.connection, &record)
            .context(|| format!("giving the container {container} its addresses"))?;
        if !record.ports.is_empty() {
            failpoint::at("start-before-published-ports");
            self.node.firewall().publish(&record.published())?;
        }
        let gateways = self.gateways();
        Ok(Attachment { namespace: file, addresses: record.addresses, gateways, dns: Dns::default() })
    }

    /// Assigns addresses, and writes the record.
    fn recorded(
        &self,
        container: &str,
        directory: &NetworkDirectory,
        request: &AttachRequest,
    ) -> Result<BridgeRecord, NetworkError> {
        let record = |addresses: &[IpAddr]| BridgeRecord::new(&self.settings, addresses, &request.ports);
        let commit = |addresses: &[IpAddr]| directory.commit(&NetworkRecord::Bridge(record(addresses)));
        let ranges = Range::of(&self.settings);
        let addresses = self.allocator.assign(container, &self.settings.bridge, &ranges, &request.addresses, commit)?;
        Ok(record(&addresses))
    }

    fn gateways(&self) -> Vec<IpAddr> {
        let ipv6 = self.settings.subnet_ipv6.map(gateway_ipv6);
        [Some(gateway(self.settings.subnet)), ipv6].into_iter().flatten().collect()
    }

    /// Makes the pair of interfaces, one end on the bridge and the other in the container's namespace.
    fn make_pair(&self, record: &BridgeRecord, bridge: &Link, mac: Mac, namespace: &File) -> Result<(), NetworkError> {
        let failed = || format!("making the interface {} on the bridge {}", record.link, record.bridge);
        let mut connection = Connection::open().context(failed)?;
        let mut make = |bridge: &Link| {
            let (host, namespace) = (record.link.as_str(), namespace.as_raw_fd());
            let pair = Pair { host, bridge: bridge.index, mtu: bridge.mtu, mac, namespace };
            match connection.execute(vec![link::new_pair(&pair), link::set_port_up(host)]) {
                // The kernel has not yet removed the interface of the former holder of this address.
                Err(error) if is(&error, Errno::EXIST) => {
                    delete(&mut connection, host)?;
                    connection.execute(vec![link::new_pair(&pair), link::set_port_up(host)])
                }
                made => made,
            }
        };
        match make(bridge) {
            // No bridge has this index: an operator has removed it.
            Err(error) if is(&error, Errno::INVAL) => Ok(make(&self.node.ensure(Some(bridge))?).context(failed)?),
            Err(error) if is(&error, Errno::XFULL) => Err(NetworkError::BridgeFull { network: record.bridge.clone() }),
            made => Ok(made.context(failed)?),
        }
    }

    /// Gives the container's interface its addresses and routes.
    fn configure(&self, connection: &mut Connection, record: &BridgeRecord) -> io::Result<()> {
        let link = find(connection, INTERFACE)?;
        let addresses = record.addresses.iter().filter_map(|address| {
            let length = if address.is_ipv4() { Some(record.subnet.prefix_len()) } else { self.prefix_length_ipv6() };
            IpNet::new(*address, length?).ok()
        });
        let mut requests: Vec<_> = addresses.map(|address| link::add_address(link.index, address)).collect();
        // With an address, the interface announces itself when it is switched on. Routes need an interface that is on.
        requests.push(link::set_up(link.index, link.mtu));
        requests.extend(self.gateways().into_iter().map(|gateway| link::add_default_route(link.index, gateway)));
        connection.execute(requests)
    }

    fn prefix_length_ipv6(&self) -> Option<u8> {
        self.settings.subnet_ipv6.map(|subnet| subnet.prefix_len())
    }

    /// Takes the container from the bridge, and removes its namespace. It can be repeated until it succeeds.
    ///
    /// The interfaces end with the namespace, in the kernel's own time: their removal takes tens of milliseconds. Until
    /// then the host's end is off and on no bridge.
    pub fn disconnect(&self, directory: &NetworkDirectory, record: &BridgeRecord) -> Result<(), NetworkError> {
        if !record.ports.is_empty() {
            failpoint::at("destroy-before-published-ports");
            self.firewall_of(record).withdraw(&record.published())?;
        }
        failpoint::at("destroy-before-link");
        let failed = || format!("taking the interface {} from the bridge {}", record.link, record.bridge);
        let mut connection = Connection::open().context(failed)?;
        match connection.execute(vec![link::detach(&record.link)]) {
            // It was never made, or the kernel has removed it already.
            Err(error) if is(&error, Errno::NODEV) => {}
            detached => detached.context(failed)?,
        }
        failpoint::at("destroy-before-bridge-namespace");
        directory.remove_namespace()
    }

    /// Publishes the ports of a connected container again, and makes the rules of the bridge again, if they were
    /// deleted.
    pub fn publish_again(&self, record: &BridgeRecord) -> Result<(), NetworkError> {
        self.node.ensure_rules()?;
        if *self.node.firewall().bridge() != record.firewall() {
            Firewall::new(record.firewall()).ensure()?;
        }
        Ok(self.firewall_of(record).publish(&record.published())?)
    }

    /// Removes the bridge and its rules, unless it is `used`; whether it did. A container that is connected meanwhile
    /// waits for its address, and then makes a new bridge.
    pub fn remove_unless(&self, used: impl FnOnce() -> Result<bool, NetworkError>) -> Result<bool, NetworkError> {
        let _no_assignment = self.allocator.lock()?;
        if used()? { Ok(false) } else { self.node.remove().map(|()| true) }
    }

    /// Removes tracked connections to containers that a killed process removed. The ports of all containers must be
    /// published.
    pub fn forget_stale_connections(&self) -> Result<(), NetworkError> {
        Ok(self.node.firewall().forget_stale()?)
    }

    /// Forgets the addresses of a container whose record was removed.
    pub fn forget(&self, container: &str, record: &BridgeRecord) {
        self.allocator.release(container, &record.addresses);
    }

    /// The rules of the bridge of a record. The settings may have changed since. Published ports do not depend on the
    /// subnet.
    fn firewall_of(&self, record: &BridgeRecord) -> Arc<Firewall> {
        let own = self.node.firewall();
        if own.bridge().name == record.bridge { own.clone() } else { Arc::new(Firewall::new(record.firewall())) }
    }
}

fn delete(connection: &mut Connection, name: &str) -> io::Result<()> {
    match connection.execute(vec![link::delete(name)]) {
        Err(error) if is(&error, Errno::NODEV) => Ok(()),
        deleted => deleted,
    }
}

/// Prepares the new network namespace of this thread.
fn prepare(ipv6: bool) -> io::Result<Inside> {
    const IPV6: &[(&str, &str)] = &[
        ("ipv6/conf/default/ndisc_notify", "1"),
        // Addresses are of use at once: the allocator never assigns one twice.
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/disable_ipv6", "0"),
    ];
    // Without a subnet the interface has no link-local address: it would lead to the node and to other tasks.
    const NO_IPV6: &[(&str, &str)] = &[("ipv6/conf/default/disable_ipv6", "1")];
    // The container announces its address, in case that the former holder had another hardware address.
    set_parameter("ipv4/conf/default/arp_notify", "1").map_err(io::Error::other)?;
    for (name, value) in if ipv6 { IPV6 } else { NO_IPV6 } {
        set_parameter(name, value).map_err(io::Error::other)?;
    }
    let namespace = File::open(Path::new("/proc/thread-self/ns/net"))?;
    Ok(Inside { namespace, connection: Connection::open()? })
}

/// The bytes of a hardware address (`aa:bb:cc:dd:ee:ff`).
fn parse_mac(text: &str) -> Result<Mac, NetworkError> {
    let bytes: Vec<u8> = text.split([':', '-']).filter_map(|part| u8::from_str_radix(part, 16).ok()).collect();
    let refused = || NetworkError::Unsupported(format!("mac_address: {text:?} is no hardware address"));
    Mac::try_from(bytes).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::parse_mac;

    #[test]
    fn hardware_addresses_have_six_bytes() {
        assert_eq!(parse_mac("02:42:ac:11:00:63").expect("an address"), [0x02, 0x42, 0xac, 0x11, 0x00, 0x63]);
        for text in ["", "02:42:ac:11:00", "02:42:ac:11:00:63:64", "02:42:ac:11:00:xx"] {
            assert!(parse_mac(text).expect_err(text).to_string().contains("mac_address"), "{text}");
        }
    }
}
