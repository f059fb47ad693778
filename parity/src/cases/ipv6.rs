//! Addresses and ports on default bridges with IPv6.

use std::{net::TcpListener, time::Duration};

use e2e::{
    Outcome,
    network::{NODE6, OUTSIDE6},
};

use crate::{case::Case, observed::Observed, seen::Seen};

const LIMIT: Duration = Duration::from_secs(30);
const ADDRESSES: &str = "ip -o -6 address show dev eth0 scope global | awk '{ print $2, $4 }' | sed 's#/[0-9]*$##'; \
    ip -6 route | grep default | sed 's/ via .* dev/ via gateway dev/; s/ *metric.*//'; \
    cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6 /proc/sys/net/ipv6/conf/all/forwarding \
    /proc/sys/net/ipv6/conf/eth0/accept_ra";
const SERVE: &str = "mkdir /www; echo served >/www/index.html; httpd -p 8080 -h /www; trap 'exit 0' TERM; sleep 1000 & \
    wait";
/// The name of the container differs between the drivers.
const HOSTS: &str = "awk '$1 ~ /:/ { print $1, ($2 ~ /^(ip6|localhost)/ ? $2 : \"own\") }' /etc/hosts";
const CONNECT: &str = "n=0; while [ $n -lt 100 ]; do nc -w 2 2001:db8:51::1 9009 </dev/null 2>/dev/null && break; \
    sleep 0.1; n=$((n + 1)); done; trap 'exit 0' TERM; sleep 1000 & wait";
const PORT: &str = "network {\nport \"http\" {\nto = 8080\n}\n}";
const PORT6: &str = "network {\nport \"http\" {\nto = 8080\nhost_network = \"six\"\n}\n}";

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::script("ipv6_addresses", ADDRESSES).ipv6(),
    Case::script("ipv6_hosts_file", HOSTS).ipv6(),
    Case::script("ipv6_the_outside_is_reached", CONNECT).look(listen).ipv6(),
    Case::script("ipv6_on_the_network_none", "ip -o -6 address | awk '{ print $2, $4 }'")
        .config("network_mode = \"none\"")
        .ipv6(),
    Case::script("ipv6_a_port_on_the_address_of_version_4", SERVE)
        .group(PORT)
        .config("ports = [\"http\"]")
        .look(fetch)
        .ipv6(),
    Case::script("ipv6_a_port_from_outside", SERVE).group(PORT6).config("ports = [\"http\"]").look(fetch6).ipv6(),
    Case::script("ipv6_variables_of_a_port", "env | grep -E 'NOMAD_(PORT|HOST_PORT|ADDR|HOST_ADDR|IP|HOST_IP)' | sort")
        .group(PORT6)
        .config("ports = [\"http\"]")
        .ipv6(),
    Case::script("ipv6_address_of_a_service", SERVE)
        .group(PORT)
        .config("ports = [\"http\"]\nadvertise_ipv6_address = true")
        .task("service {\nprovider = \"nomad\"\nname = \"six-@JOB@\"\nport = \"http\"\naddress_mode = \"driver\"\n}")
        .look(service)
        .ipv6(),
    Case::script("ipv6_address_of_a_service_by_default", SERVE)
        .group(PORT)
        .config("ports = [\"http\"]")
        .task("service {\nprovider = \"nomad\"\nname = \"four-@JOB@\"\nport = \"http\"\naddress_mode = \"driver\"\n}")
        .look(service)
        .ipv6(),
    // The same without IPv6 on the bridges.
    Case::quick_script(
        "without_ipv6_on_the_bridge",
        "ip -o -6 address show dev eth0 | wc -l; cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6; \
         awk '$1 ~ /:/' /etc/hosts",
    ),
];

fn fetch(seen: &Seen, observed: &mut Observed) -> Outcome {
    match seen.fetch("http") {
        Ok(page) => observed.add_lines("page", &page),
        Err(_) => observed.add("page", "none"),
    }
    Ok(())
}

fn fetch6(seen: &Seen, observed: &mut Observed) -> Outcome {
    match seen.fetch_from("http", NODE6.into()) {
        Ok(page) => observed.add_lines("page", &page),
        Err(_) => observed.add("page", "none"),
    }
    Ok(())
}

/// A server outside of the node tells which address connects to it.
fn listen(seen: &Seen, observed: &mut Observed) -> Outcome {
    let peer = seen.node.outside.run(|| {
        let listener = TcpListener::bind((OUTSIDE6, 9009))?;
        Ok(listener.accept()?.1.ip())
    })?;
    observed.add("connected from", peer);
    Ok(())
}

/// The address of the task's service in Nomad's catalogue.
fn service(seen: &Seen, observed: &mut Observed) -> Outcome {
    let path = format!("/v1/allocation/{}/services", seen.task.id);
    let address = seen
        .node
        .agent
        .api()
        .wait(&path, "the service", LIMIT, |services| services[0]["Address"].as_str().map(str::to_owned))?;
    observed.add("address", address);
    Ok(())
}
