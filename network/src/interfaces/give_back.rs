//! Brings interfaces of the node back from a container's network namespace.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, RawFd},
};

use host::{Context, boot};

use super::{
    lend::settle,
    messages::{LinkFacts, all, find, find_index, move_to, rename},
    record::{InterfaceRecord, LentInterface},
};
use crate::{bridge::netlink::Connection, error::NetworkError, namespace, record::NetworkDirectory};

/// The name that the kernel makes unique, for an interface whose name another one has taken meanwhile.
const ANY_NAME: &str = "dev%d";

/// Brings the interfaces of the record back to this thread's network namespace, with their names, addresses and states,
/// and removes the record. It can be repeated until it succeeds.
pub(crate) fn give_back(directory: &NetworkDirectory) -> Result<(), NetworkError> {
    let Some(record) = directory.interfaces()? else { return Ok(()) };
    let boot = boot::id().context(|| "reading the id of this boot".to_owned())?;
    if record.boot == boot {
        for interface in &record.interfaces {
            bring(&record, interface)
                .context(|| format!("bringing the network interface {} back to the node", interface.host_name))?;
        }
    }
    failpoint::at("destroy-before-interface-record");
    directory.remove_interfaces()
}

/// Brings one interface back, if it is not here.
fn bring(record: &InterfaceRecord, interface: &LentInterface) -> io::Result<()> {
    let (name, node) = (interface.host_name.as_str(), File::open("/proc/thread-self/ns/net")?);
    failpoint::at("destroy-before-interface-move");
    let holder_of_name = find(&mut Connection::open()?, name)?;
    // Without an index, it has perhaps not moved yet.
    let is_here = interface.index.is_none() && holder_of_name.as_ref().is_some_and(|link| interface.is(link));
    if !is_here && let Some(namespace) = record.open_namespace()? {
        let taken = holder_of_name.is_some();
        let new_name = if taken { ANY_NAME } else { name };
        if namespace::inside(&namespace, || send(interface, new_name, node.as_raw_fd()))? && taken {
            tracing::warn!(
                interface = name,
                "the node has another network interface of this name: the one of a task came back as {ANY_NAME}"
            );
            return Ok(());
        }
    }
    let links = all()?;
    let Some(back) = returned(&links, interface) else {
        tracing::warn!(interface = name, "a network interface of a task did not come back to the node");
        return Ok(());
    };
    if back.name != name {
        Connection::open()?.execute(rename(back.index, name).into())?;
    }
    failpoint::at("destroy-before-interface-settings");
    settle(interface, name, interface.up).map(drop)
}

/// Moves an interface from this thread's namespace to the node. Tells whether it was here.
fn send(interface: &LentInterface, new_name: &str, node: RawFd) -> io::Result<bool> {
    let mut connection = Connection::open()?;
    let found = match interface.index {
        Some(index) => find_index(&mut connection, index)?,
        // A move that failed halfway has left it the node's name.
        None => match find(&mut connection, &interface.name)? {
            None => find(&mut connection, &interface.host_name)?,
            found => found,
        },
    };
    let Some(link) = found.filter(|link| interface.is(link)) else { return Ok(false) };
    connection.execute(vec![move_to(link.index, new_name, node)]).map(|()| true)
}

/// The interface among those of the node. The kernel itself returns a physical one when its namespace ends: with its
/// name in the container, or with one of the form `dev0` if that is taken.
fn returned<'a>(links: &'a [LinkFacts], interface: &LentInterface) -> Option<&'a LinkFacts> {
    let named = |name: &str| links.iter().find(|link| link.name == name && interface.is(link));
    let by_kernel = |link: &&LinkFacts| {
        let number = link.name.strip_prefix("dev").is_some_and(|number| number.parse::<u32>().is_ok());
        interface.is(link) && (link.name == interface.name || number)
    };
    let physical = interface.device.is_some();
    named(&interface.host_name).or_else(|| links.iter().find(by_kernel).filter(|_| physical))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, device: Option<&str>) -> LinkFacts {
        let kind = if device.is_some() { "" } else { "veth" }.to_owned();
        LinkFacts { index: 7, name: name.to_owned(), up: false, kind, device: device.map(str::to_owned) }
    }

    #[test]
    fn a_physical_interface_is_found_under_the_name_that_the_kernel_gave_it() {
        let lent = |device: Option<&str>| LentInterface {
            host_name: "enp3s0".to_owned(),
            name: "fast0".to_owned(),
            index: Some(9),
            kind: link("", device).kind,
            device: device.map(str::to_owned),
            up: true,
            addresses: Vec::new(),
        };
        let nic = Some("0000:3b:00.0");
        let other = Some("0000:3b:00.1");
        for (links, interface, expected) in [
            (vec![link("lo", None), link("enp3s0", nic)], lent(nic), Some("enp3s0")),
            (vec![link("fast0", other), link("fast0", nic)], lent(nic), Some("fast0")),
            (vec![link("dev3", nic)], lent(nic), Some("dev3")),
            (vec![link("device", nic), link("enp3s0", other)], lent(nic), None),
            (vec![link("enp3s0", None)], lent(nic), None),
            (vec![link("enp3s0", None)], lent(None), Some("enp3s0")),
            (vec![link("fast0", None), link("dev0", None)], lent(None), None),
        ] {
            let found = returned(&links, &interface);
            assert_eq!(found.map(|link| link.name.as_str()), expected, "{links:?}");
            assert!(found.is_none_or(|link| link.device == interface.device));
        }
    }
}
