//! The network namespace of a group, which several tasks join.
//!
//! Always holds: the node's own network namespace is never changed, and a value that is not the kernel's default is
//! kept. So a task that starts again, or a second task of the group, does not undo the choice of an operator's CNI
//! plugin or of a task.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::{fd::AsFd, unix::fs::MetadataExt},
    path::Path,
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::namespace;

/// Kernel parameters of the namespaces that docker makes: every user may listen on every port, and ping.
pub const UNPRIVILEGED: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")];

/// The values of [`UNPRIVILEGED`] in a new namespace.
const KERNEL_DEFAULTS: [&str; 2] = ["1024", "1 0"];

/// Lets every user listen on every port and ping in the namespace that is pinned to `file`. Docker does it in the
/// namespaces of its pause containers. A file without a namespace is left to the start, which reports it.
pub fn allow_unprivileged(file: &Path) -> io::Result<()> {
    if !namespace::is_pinned(file) {
        return Ok(());
    }
    // Only this new thread enters the namespace. It ends here.
    thread::scope(|scope| {
        let changed = scope.spawn(|| -> io::Result<()> {
            let (own, group) = (File::open("/proc/thread-self/ns/net")?, File::open(file)?);
            let identity = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
            if identity(&own)? == identity(&group)? {
                return Ok(());
            }
            move_into_link_name_space(group.as_fd(), Some(LinkNameSpaceType::Network))?;
            UNPRIVILEGED.iter().zip(KERNEL_DEFAULTS).try_for_each(|((name, value), default)| {
                replace(Path::new(&format!("/proc/sys/{}", name.replace('.', "/"))), default, value)
            })
        });
        changed.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the group's namespace panicked")))
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
