//! The network namespace of a group, which several tasks join.
//!
//! Always holds: the node's own network namespace is never changed, and a value that is not the kernel's default is
//! kept. So a task that starts again, or a second task of the group, does not undo the choice of an operator's CNI
//! plugin or of a task.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::unix::fs::MetadataExt,
    path::Path,
};

use crate::namespace;

/// Kernel parameters of the namespaces that docker makes: every user may listen on every port, and ping.
pub const UNPRIVILEGED: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")];

/// The values of [`UNPRIVILEGED`] in a new namespace.
const KERNEL_DEFAULTS: [&str; 2] = ["1024", "1 0"];

/// Documentation addresses (RFC 5737 and RFC 3849): the kernel finds a route to them, and nothing is sent.
const ANY_HOST: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// A group's network that is ready for a task.
#[derive(Debug)]
pub struct GroupNetwork {
    /// The address with which the group reaches others; `None` if it has no route.
    pub address: Option<IpAddr>,
    /// Whether the loopback device is on, and every user may listen on every port and ping.
    pub ready: io::Result<()>,
}

/// Makes the namespace that is pinned to `file` as docker makes those of its pause containers: the loopback device is
/// on, which nothing else does in a group without a network, and every user may listen on every port and ping. Finds
/// the namespace's address. A file without a namespace is left to the start, which reports it.
pub fn prepare_group(file: &Path) -> GroupNetwork {
    let untouched = || GroupNetwork { address: None, ready: Ok(()) };
    if !namespace::is_pinned(file) {
        return untouched();
    }
    let prepared = || -> io::Result<GroupNetwork> {
        let (own, group) = (File::open("/proc/thread-self/ns/net")?, File::open(file)?);
        let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
        if identity(&own)? == identity(&group)? {
            return Ok(untouched());
        }
        namespace::inside(&group, || {
            let (loopback, allowed) = (host::sys::loopback_up(), allow());
            let ready = loopback.and(allowed);
            Ok(GroupNetwork { address: ANY_HOST.iter().find_map(|host| address_towards(host)), ready })
        })
    };
    prepared().unwrap_or_else(|error| GroupNetwork { address: None, ready: Err(error) })
}

/// The address that this thread's namespace uses towards a host.
fn address_towards(host: &str) -> Option<IpAddr> {
    let host: SocketAddr = host.parse().ok()?;
    let any = if host.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(host).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then_some(address)
}

/// Sets the parameters in this thread's namespace.
fn allow() -> io::Result<()> {
    UNPRIVILEGED.iter().zip(KERNEL_DEFAULTS).try_for_each(|((name, value), default)| {
        replace(Path::new(&format!("/proc/sys/{}", name.replace('.', "/"))), default, value)
    })
}

/// Writes a parameter that has the kernel's default. A kernel without the parameter has no such restriction.
fn replace(file: &Path, default: &str, value: &str) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    let current = match fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        current => current.map_err(named)?,
    };
    if current.split_whitespace().eq(default.split_whitespace()) {
        fs::write(file, value).map_err(named)
    } else {
        Ok(())
    }
}
