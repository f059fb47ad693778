//! The bridge itself, which containers share. It stays after the last container, as docker0 does.

use std::{
    fs, io,
    net::IpAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use firewall::{Firewall, Watcher};
use host::Context;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rustix::io::Errno;

use super::{
    link::{self, Link, Mac},
    netlink::Connection,
};
use crate::{error::NetworkError, settings::Settings};

/// The MTU of the bridge on a node without a default route.
const DEFAULT_MTU: u32 = 1500;

/// The bridge of the settings.
#[derive(Debug)]
pub(crate) struct NodeBridge {
    settings: Settings,
    firewall: Arc<Firewall>,
    made: Mutex<Made>,
}

/// What this process has found or made.
#[derive(Debug, Default)]
struct Made {
    bridge: Option<Link>,
    /// Makes rules again that others delete.
    watcher: Option<Watcher>,
}

impl NodeBridge {
    /// Makes nothing yet.
    pub fn new(settings: &Settings) -> Self {
        let bridge = firewall::Bridge {
            name: settings.bridge.clone(),
            subnet: settings.subnet,
            subnet_ipv6: settings.subnet_ipv6,
        };
        Self { settings: settings.clone(), firewall: Arc::new(Firewall::new(bridge)), made: Mutex::default() }
    }

    /// The rules of the bridge.
    pub fn firewall(&self) -> &Arc<Firewall> {
        &self.firewall
    }

    /// Makes the bridge and its rules unless they exist. `gone` is a bridge that does not exist any more.
    pub fn ensure(&self, gone: Option<&Link>) -> Result<Link, NetworkError> {
        let mut made = self.made();
        let link = match &made.bridge {
            Some(link) if Some(link) != gone => link.clone(),
            _ => {
                failpoint::at("start-before-bridge");
                self.make()?
            }
        };
        made.bridge = Some(link.clone());
        self.guard(&mut made)?;
        Ok(link)
    }

    /// Makes the rules of the bridge unless they exist, and watches them from now on.
    pub fn ensure_rules(&self) -> Result<(), NetworkError> {
        self.guard(&mut self.made())
    }

    /// Removes the bridge and its rules. A bridge that the driver did not make stays.
    pub fn remove(&self) -> Result<(), NetworkError> {
        let mut made = self.made();
        // The watcher would make the rules again.
        *made = Made::default();
        let Settings { bridge: name, subnet, .. } = &self.settings;
        let failed = || format!("removing the bridge {name}");
        let mut connection = Connection::open().context(failed)?;
        match find(&mut connection, name) {
            Err(error) if is(&error, Errno::NODEV) => {}
            Ok(link) if link.kind != "bridge" || link.mac != Some(mac_of(gateway(*subnet))) => return Ok(()),
            Ok(_) => connection.execute(vec![link::delete(name)]).context(failed)?,
            Err(error) => Err(error).context(failed)?,
        }
        Ok(self.firewall.remove_all()?)
    }

    fn guard(&self, made: &mut Made) -> Result<(), NetworkError> {
        self.firewall.ensure()?;
        if made.watcher.as_ref().is_none_or(Watcher::has_ended) {
            made.watcher = Some(self.firewall.watch()?);
        }
        Ok(())
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the bridge unless it exists.
    fn make(&self) -> Result<Link, NetworkError> {
        let Settings { bridge: name, subnet, subnet_ipv6, .. } = &self.settings;
        let mtu = uplink_mtu().context(|| "looking for the node's default route".to_owned())?.unwrap_or(DEFAULT_MTU);
        let failed = || format!("making the bridge {name}");
        let mut connection = Connection::open().context(failed)?;
        let link = find_or_make(&mut connection, name, mac_of(gateway(*subnet))).context(failed)?;
        if link.kind != "bridge" {
            return Err(NetworkError::Unsupported(format!(
                "the interface {name} of this node is no bridge: choose another name for the driver's bridge \
                 (`network {{ bridge = … }}` in the plugin block)"
            )));
        }
        // The kernel's own IPv6 address is of use at once, and no router changes this node's routes.
        for (parameter, value) in [("accept_dad", "0"), ("accept_ra", "0")] {
            set_parameter(&format!("ipv6/conf/{name}/{parameter}"), value)?;
        }
        let mut addresses = vec![prefixed(gateway(*subnet), subnet.prefix_len())];
        if let Some(subnet) = subnet_ipv6 {
            set_parameter(&format!("ipv6/conf/{name}/disable_ipv6"), "0")?;
            addresses.push(prefixed(gateway_ipv6(*subnet), subnet.prefix_len()));
        }
        connection.execute(vec![link::set_up(link.index, mtu)]).context(failed)?;
        for address in addresses {
            match connection.execute(vec![link::add_address(link.index, address)]) {
                Err(error) if is(&error, Errno::EXIST) => {}
                added => added.context(|| format!("giving the bridge {name} the address {address}"))?,
            }
        }
        // The node routes between the bridge and its other interfaces.
        set_parameter("ipv4/ip_forward", "1")?;
        if subnet_ipv6.is_some() {
            set_parameter("ipv6/conf/all/forwarding", "1")?;
        }
        Ok(Link { mtu, ..link })
    }
}

/// Whether an error has this number.
pub(crate) fn is(error: &io::Error, number: Errno) -> bool {
    Errno::from_io_error(error) == Some(number)
}

/// The address of the bridge: the first one of its subnet.
pub(crate) fn gateway(subnet: Ipv4Net) -> IpAddr {
    subnet.hosts().next().unwrap_or(subnet.network()).into()
}

/// The IPv6 address of the bridge.
pub(crate) fn gateway_ipv6(subnet: Ipv6Net) -> IpAddr {
    // The first of the hosts that the library counts is the subnet's own address.
    subnet.hosts().nth(1).unwrap_or(subnet.network()).into()
}

fn prefixed(address: IpAddr, prefix_len: u8) -> IpNet {
    // The length is that of a subnet of the same family.
    IpNet::new(address, prefix_len).unwrap_or_else(|_| address.into())
}

/// The hardware address of the holder of an IPv4 address, as docker has derived it: a local one. An address that is
/// used again then has the same hardware address, so that entries in the neighbours' tables stay right.
pub(crate) fn mac_of(address: IpAddr) -> Mac {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(_) => [0; 4],
    };
    [0x02, 0x42, a, b, c, d]
}

/// Finds the link of this name, or makes it as a bridge.
fn find_or_make(connection: &mut Connection, name: &str, mac: Mac) -> io::Result<Link> {
    match find(connection, name) {
        Err(error) if is(&error, Errno::NODEV) => {}
        found => return found,
    }
    match connection.execute(vec![link::new_bridge(name, mac)]) {
        // Another process was faster.
        Err(error) if is(&error, Errno::EXIST) => {}
        made => made?,
    }
    find(connection, name)
}

/// Finds the link of this name.
pub(crate) fn find(connection: &mut Connection, name: &str) -> io::Result<Link> {
    parsed(&connection.get(link::get(name))?)
}

fn parsed(answer: &[u8]) -> io::Result<Link> {
    link::parse(answer).ok_or_else(|| io::Error::other("the kernel's answer describes no link"))
}

/// The MTU of the device of the node's default route: packets of containers leave the node there.
fn uplink_mtu() -> io::Result<Option<u32>> {
    for ipv6 in [false, true] {
        if let Some(index) = Connection::open()?.find(link::get_routes(ipv6), link::default_route_link)? {
            let answer = Connection::open()?.get(link::get_by_index(index))?;
            return Ok(Some(parsed(&answer)?.mtu));
        }
    }
    Ok(None)
}

/// Sets a kernel parameter below `net` in the network namespace of this thread, unless it has the value. A parameter
/// that the kernel lacks, for example without IPv6, is left out.
pub(crate) fn set_parameter(name: &str, value: &str) -> Result<(), NetworkError> {
    let file = Path::new("/proc/sys/net").join(name);
    match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(current) if current.trim_end() == value => Ok(()),
        _ => Ok(fs::write(&file, value).context(|| format!("setting {} to {value}", file.display()))?),
    }
}

#[cfg(test)]
mod tests {
    use super::{gateway, gateway_ipv6, mac_of};

    #[test]
    fn the_bridge_has_the_first_address_and_a_hardware_address_of_its_own() {
        let address = gateway("172.26.80.0/20".parse().expect("a subnet"));
        assert_eq!(address.to_string(), "172.26.80.1");
        assert_eq!(gateway_ipv6("fd00:26:80::/64".parse().expect("a subnet")).to_string(), "fd00:26:80::1");
        assert_eq!(mac_of(address), [0x02, 0x42, 172, 26, 80, 1]);
    }
}
