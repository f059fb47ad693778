//! Whether this kernel can connect containers to a bridge.

use std::{fs::File, io, os::fd::AsRawFd, sync::OnceLock, thread};

use firewall::Firewall;

use super::{
    link::{self, Pair},
    netlink::Connection,
    node::find,
};
use crate::{settings::Settings, sys};

/// Why this process cannot make the driver's bridge; `None` if it can. The first call finds out in a network namespace
/// that ends with the call.
pub fn bridge_problem(settings: &Settings) -> Option<String> {
    static PROBLEM: OnceLock<Option<String>> = OnceLock::new();
    let bridge =
        firewall::Bridge { name: "probe".to_owned(), subnet: settings.subnet, subnet_ipv6: settings.subnet_ipv6 };
    PROBLEM
        .get_or_init(|| {
            // Only this new thread leaves the host's network namespace. It ends here.
            let probe = thread::spawn(move || {
                links().map_err(|error| format!("the kernel makes no bridge (CONFIG_BRIDGE, CONFIG_VETH): {error}"))?;
                Firewall::new(bridge).ensure().map_err(|error| error.to_string())
            });
            probe.join().unwrap_or_else(|_| Err("the thread that makes a bridge panicked".to_owned())).err()
        })
        .clone()
}

/// Makes a bridge and a pair of interfaces in a new network namespace, which this thread stays in.
fn links() -> io::Result<()> {
    sys::unshare_network()?;
    let namespace = File::open("/proc/thread-self/ns/net")?;
    let mut connection = Connection::open()?;
    connection.execute(vec![link::new_bridge("probe", [2; 6])])?;
    let bridge = find(&mut connection, "probe")?;
    let pair = Pair {
        host: "veth",
        bridge: bridge.index,
        mtu: bridge.mtu,
        mac: [2, 2, 2, 2, 2, 3],
        namespace: namespace.as_raw_fd(),
    };
    connection.execute(vec![link::new_pair(&pair), link::set_port_up("veth")])
}

#[cfg(test)]
mod tests {
    use super::bridge_problem;
    use crate::settings::Settings;

    #[test]
    fn a_machine_that_runs_containers_has_a_bridge() {
        if rustix::process::geteuid().is_root() {
            assert_eq!(bridge_problem(&Settings::default()), None);
        }
    }
}
