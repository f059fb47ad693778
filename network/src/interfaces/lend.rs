//! Moves interfaces of the node to a container's network namespace.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::Path,
};

use host::{Context, boot};
use ipnet::IpNet;
use rustix::io::Errno;

use super::{
    Interface,
    messages::{LOOPBACK, addresses, find, move_to, switch_on},
    record::{InterfaceRecord, LentInterface},
};
use crate::{
    bridge::{
        link,
        netlink::Connection,
        node::{is, set_parameter},
    },
    error::NetworkError,
    namespace,
    record::NetworkDirectory,
};

/// Moves interfaces of this thread's network namespace to the namespace that is pinned to a file. There they have their
/// addresses and are on, as the OCI runtime specification demands of `netDevices`. An error leaves the record, and what
/// it describes.
pub(crate) fn lend(directory: &NetworkDirectory, file: &Path, wanted: &[Interface]) -> Result<(), NetworkError> {
    let opened = || format!("opening the network namespace {}", file.display());
    let namespace = File::open(file).context(opened)?;
    let mut record = InterfaceRecord {
        boot: boot::id().context(|| "reading the id of this boot".to_owned())?,
        namespace: file.to_owned(),
        inode: namespace.metadata().context(opened)?.ino(),
        interfaces: Vec::new(),
    };
    let mut node = Connection::open().context(|| "connecting to the kernel's network".to_owned())?;
    let of_node = addresses().context(|| "listing the node's addresses".to_owned())?;
    let mut indexes = Vec::new();
    for interface in wanted {
        let (index, lent) = describe(&mut node, interface, &of_node)?;
        indexes.push(index);
        record.interfaces.push(lent);
    }
    let names: Vec<&str> = wanted.iter().map(|interface| interface.name.as_str()).collect();
    check_names(&namespace, &names)?;
    failpoint::at("start-before-interface-record");
    directory.commit_interfaces(&record)?;
    for (index, interface) in indexes.into_iter().zip(wanted) {
        failpoint::at("start-before-interface-move");
        let moved = node.execute(vec![move_to(index, &interface.name, namespace.as_raw_fd())]);
        moved.map_err(|error| problem(interface, &error))?;
    }
    failpoint::at("start-before-interface-settings");
    for (lent, interface) in record.interfaces.iter_mut().zip(wanted) {
        let index = namespace::inside(&namespace, || settle(lent, &lent.name, true))
            .map_err(|error| problem(interface, &error))?;
        lent.index = index;
    }
    failpoint::at("start-before-interface-indexes");
    directory.commit_interfaces(&record)
}

/// The index of an interface of the node, and its part of the record.
fn describe(
    node: &mut Connection,
    interface: &Interface,
    of_node: &[(u32, IpNet)],
) -> Result<(u32, LentInterface), NetworkError> {
    let found = find(node, &interface.host_name).map_err(|error| problem(interface, &error))?;
    let link = found.ok_or_else(|| NetworkError::NoInterface { name: interface.host_name.clone() })?;
    if link.kind == LOOPBACK {
        return Err(problem(interface, &Errno::INVAL.into()));
    }
    let own = of_node.iter().filter(|(index, _)| *index == link.index);
    let lent = LentInterface {
        host_name: interface.host_name.clone(),
        name: interface.name.clone(),
        index: None,
        addresses: own.map(|(_, address)| address.to_string()).collect(),
        kind: link.kind,
        device: link.device,
        up: link.up,
    };
    Ok((link.index, lent))
}

/// Refuses names that interfaces of the namespace have. A rename would fail only after the move.
fn check_names(namespace: &File, names: &[&str]) -> Result<(), NetworkError> {
    let taken = namespace::inside(namespace, || {
        let mut inside = Connection::open()?;
        let mut taken = None;
        for name in names {
            taken = taken.or(find(&mut inside, name)?);
        }
        Ok(taken)
    });
    match taken.context(|| "listing the interfaces of the task's network".to_owned())? {
        Some(taken) => Err(NetworkError::InterfaceNameTaken { name: taken.name }),
        None => Ok(()),
    }
}

/// Gives an interface of this thread's namespace its addresses, and switches it `on`. Returns its index.
pub(super) fn settle(lent: &LentInterface, name: &str, on: bool) -> io::Result<Option<u32>> {
    let mut connection = Connection::open()?;
    let Some(link) = find(&mut connection, name)? else { return Ok(None) };
    if lent.networks().any(|network| network.addr().is_ipv6()) {
        // A network of the driver's bridge without an IPv6 subnet has switched it off.
        set_parameter(&format!("ipv6/conf/{name}/disable_ipv6"), "0").map_err(io::Error::other)?;
    }
    for address in lent.networks() {
        match connection.execute(vec![link::add_address(link.index, address)]) {
            Err(error) if is(&error, Errno::EXIST) => {}
            added => added?,
        }
    }
    if on {
        connection.execute(vec![switch_on(link.index)])?;
    }
    Ok(Some(link.index))
}

fn problem(interface: &Interface, error: &io::Error) -> NetworkError {
    let problem = match Errno::from_io_error(error) {
        Some(Errno::INVAL) => {
            "the kernel does not move interfaces of its type (for example lo and bridges) to another network namespace"
                .to_owned()
        }
        _ => error.to_string(),
    };
    NetworkError::InterfaceNotMoved { name: interface.host_name.clone(), problem }
}
