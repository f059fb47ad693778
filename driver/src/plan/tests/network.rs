//! The network namespace, ports, addresses, /etc/hosts and /etc/resolv.conf.

use std::{collections::BTreeMap, path::PathBuf};

use cdi::{ContainerEdits, NetDevice};
use network::{Attachment, Dns as NetworkDns, LendTarget, NetworkChoice, Protocol};
use runtime::plan::Network;
use serde_json::json;

use super::{
    super::{AllocatedPort, GroupDns, HostsEntry, OwnNetwork},
    ALLOC, Case, file, node,
};

#[test]
fn network_mode_overrides_the_groups_network() {
    let group = Some(PathBuf::from("/run/netns/x"));
    for (mode, path, expected) in [
        ("", None, Network::Host),
        ("", group.clone(), Network::Path("/run/netns/x".into())),
        ("host", group.clone(), Network::Host),
        ("none", group, Network::Private),
    ] {
        let mut case = Case::new(json!({ "network_mode": mode }));
        case.task.network_path = path;
        let namespaces = case.container().namespaces;
        assert_eq!(namespaces.network, expected, "{mode}");
        assert!(namespaces.private_pid && namespaces.private_ipc && namespaces.private_uts);
    }
}

#[test]
fn ports_and_network_sysctls_are_refused_on_the_hosts_network() {
    let mut case = Case::new(json!({ "ports": ["http"], "sysctl": { "net.core.somaxconn": "9", "kernel.sem": "1" } }));
    let text = case.error();
    assert!(text.contains("ports: cannot be mapped: on this node tasks use the host's network"), "{text}");
    assert!(text.contains("sysctl: net.core.somaxconn cannot be set") && !text.contains("kernel.sem"), "{text}");
    case.task.network_path = Some("/run/netns/x".into());
    assert_eq!(case.container().sysctl.len(), 2);
    assert!(Case::new(json!({ "ports": ["http"], "network_mode": "host" })).plan().is_ok());
}

#[test]
fn aliases_lead_to_the_address_that_the_groups_other_tasks_reach() {
    let aliases = json!({ "network_aliases": ["db", "db.internal"] });
    let mut case = Case::new(aliases.clone());
    assert!(case.error().starts_with("network_aliases: needs a network of the group's or of the task's own"));
    case.task.network_path = Some("/run/netns/x".into());
    case.task.hosts_entry = Some(HostsEntry { hostname: "shop".into(), address: "10.0.0.5".into() });
    let container = case.container();
    assert_eq!(container.shared_names, ["10.0.0.5\tdb db.internal"]);
    let hosts = file(&container, "/etc/hosts");
    assert!(hosts.contains("10.0.0.5\tshop\n10.0.0.5\tdb db.internal\n"), "{hosts}");

    let mut case = Case::under(json!({}), aliases);
    assert!(case.container().shared_names.is_empty(), "the address of its own network is not known yet");
    case.attachment = Some(Attachment {
        namespace: "/netns".into(),
        addresses: vec!["172.26.80.7".parse().unwrap()],
        gateways: Vec::new(),
        dns: NetworkDns::default(),
    });
    assert_eq!(case.container().shared_names, ["172.26.80.7\tdb db.internal"]);
    assert!(file(&case.container(), "/etc/hosts").contains("172.26.80.7\tdb db.internal\n"));
    assert!(Case::under(json!({}), json!({})).container().shared_names.is_empty());
}

/// The own network in a case's plan.
fn own(case: &Case) -> OwnNetwork {
    let plan = case.plan().unwrap();
    let path = format!("/run/oci-rs/networks/{ALLOC}.web.01234567/netns");
    assert_eq!(plan.container.namespaces.network, Network::Path(path.into()));
    plan.own_network.unwrap()
}

fn port(label: &str, host_ip: &str, host_port: u16, container_port: u16) -> AllocatedPort {
    AllocatedPort { label: label.into(), host_ip: host_ip.parse().ok(), host_port, container_port }
}

#[test]
fn a_task_without_a_group_network_gets_its_own_network() {
    let group = Some(PathBuf::from("/run/netns/x"));
    for (mode, path, expected) in [
        ("", None, Some(NetworkChoice::Bridge)),
        ("bridge", None, Some(NetworkChoice::Bridge)),
        ("default", None, Some(NetworkChoice::Bridge)),
        ("cni/lan", None, Some(NetworkChoice::Named("lan".into()))),
        ("", group.clone(), None),
        ("bridge", group.clone(), None),
        ("host", None, None),
        ("none", None, None),
    ] {
        let mut case = Case::under(json!({}), json!({ "network_mode": mode }));
        case.task.network_path = path.clone();
        let plan = case.plan().unwrap();
        assert_eq!(plan.own_network.as_ref().map(|own| own.request.network.clone()), expected, "{mode}");
        let namespace = plan.container.namespaces.network;
        assert_eq!(matches!(namespace, Network::Path(_)), expected.is_some() || path.is_some(), "{mode}");
        assert_eq!(plan.group_namespace, path, "{mode}");
        let docker_sets_parameters = expected.is_some() || mode == "none";
        assert_eq!(plan.container.sysctl.len(), if docker_sets_parameters { 2 } else { 0 }, "{mode}");
    }
    let chosen = json!({ "sysctl": { "net.ipv4.ip_unprivileged_port_start": "80", "net.core.somaxconn": "9" } });
    let sysctl = Case::under(json!({}), chosen).container().sysctl;
    let expected = [
        ("net.core.somaxconn", "9"),
        ("net.ipv4.ip_unprivileged_port_start", "80"),
        ("net.ipv4.ping_group_range", "0 2147483647"),
    ];
    assert_eq!(sysctl, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    // A task can ask for the bridge where the operator's default is the host's network.
    assert_eq!(own(&Case::new(json!({ "network_mode": "bridge" }))).request.network, NetworkChoice::Bridge);
    let mut case = Case::new(json!({ "network_mode": "cni/lan" }));
    case.task.network_path = group;
    assert!(case.error().starts_with("network_mode: \"cni/lan\" is not possible in a group that has a network"));
}

#[test]
fn interfaces_of_the_node_move_to_the_network_that_the_task_uses() {
    let group = Some(PathBuf::from("/run/netns/x"));
    let own = Network::Path(format!("/run/oci-rs/networks/{ALLOC}.web.01234567/netns").into());
    for (mode, path, expected) in [
        ("bridge", None, Some((LendTarget::Attached, own.clone()))),
        ("cni/lan", None, Some((LendTarget::Attached, own.clone()))),
        ("none", None, Some((LendTarget::Unconnected, own.clone()))),
        ("none", group.clone(), Some((LendTarget::Unconnected, own))),
        ("", group.clone(), Some((LendTarget::Group("/run/netns/x".into()), Network::Path("/run/netns/x".into())))),
        ("host", group.clone(), None),
        ("", None, None),
    ] {
        let mut case = Case::new(json!({ "network_mode": mode }));
        case.task.network_path = path.clone();
        let device = NetDevice { host_interface_name: "enp3s0".into(), name: "fast0".into() };
        case.edits = Some(ContainerEdits { net_devices: vec![device], ..ContainerEdits::default() });
        let Some((target, namespace)) = expected else {
            let text = case.error();
            assert!(
                text.starts_with("devices: the network interface \"enp3s0\" of a device's spec cannot move"),
                "{text}"
            );
            continue;
        };
        let plan = case.plan().unwrap();
        let is_group = matches!(target, LendTarget::Group(_));
        let lend = plan.lend.unwrap();
        assert_eq!((lend.target, lend.interfaces[0].name()), (target, "fast0"), "{mode}");
        assert_eq!(plan.container.namespaces.network, namespace, "{mode}");
        assert_eq!(plan.group_namespace, path.filter(|_| is_group), "{mode}");
        // Docker's parameters, in a namespace that is the task's own.
        assert_eq!(plan.container.sysctl.len(), if is_group { 0 } else { 2 }, "{mode}");
    }
}

#[test]
fn listed_ports_are_published_for_both_protocols() {
    let mut case = Case::under(json!({}), json!({ "ports": ["http", "db", "http"] }));
    case.task.resources.ports =
        vec![port("db", "", 20001, 20001), port("http", "192.0.2.1", 20000, 80), port("admin", "192.0.2.1", 20002, 9)];
    let found = own(&case);
    let published: Vec<_> = found
        .request
        .ports
        .iter()
        .map(|port| {
            (port.host_ip.map(|address| address.to_string()), port.host_port, port.container_port, port.protocol)
        })
        .collect();
    let node = Some("192.0.2.1".to_owned());
    assert_eq!(
        published,
        [
            (node.clone(), 20000, 80, Protocol::Tcp),
            (node, 20000, 80, Protocol::Udp),
            (None, 20001, 20001, Protocol::Tcp),
            (None, 20001, 20001, Protocol::Udp),
        ]
    );
    assert_eq!(found.ports, BTreeMap::from([("http".into(), 80), ("db".into(), 20001)]));
    assert!(!found.auto_advertise(), "services on docker's default bridge advertise the host's address");

    let case = Case::under(json!({}), json!({ "ports": ["web"] }));
    assert!(case.error().starts_with("ports: \"web\" is no port of the group's network block"), "{}", case.error());
}

#[test]
fn port_map_maps_ports_and_sets_their_variables() {
    let mut case = Case::under(json!({}), json!({ "port_map": [{ "my-db": 6379 }] }));
    case.task.resources.task_ports = vec![port("my-db", "192.0.2.1", 20000, 20000), port("admin", "", 20001, 20001)];
    case.task.env.insert("NOMAD_PORT_my_db".into(), "20000".into());
    assert_eq!(own(&case).ports, BTreeMap::from([("my-db".into(), 6379), ("admin".into(), 20001)]));
    let env = case.container().env;
    assert!(env.contains(&("NOMAD_PORT_my_db".into(), "6379".into())), "{env:?}");

    // A label without a port publishes nothing. Its variable and its entry for services exist, as with docker.
    case.spec.port_map.insert("web.ui".into(), 8080);
    let found = own(&case);
    assert!(found.request.ports.iter().all(|port| [6379, 20001].contains(&port.container_port)), "{found:?}");
    assert_eq!(found.ports.get("web.ui"), Some(&8080));
    let variable = ("NOMAD_PORT_web.ui".to_owned(), "8080".to_owned());
    assert!(case.container().env.contains(&variable));
    // `ports` selects the published ports, and the variables of `port_map` stay.
    let mut listed = Case::under(json!({}), json!({ "port_map": [{ "web.ui": 8080 }], "ports": ["db"] }));
    listed.task.resources.ports = vec![port("db", "", 20001, 20001)];
    assert_eq!(own(&listed).request.ports.len(), 2);
    listed.task.network_path = Some("/run/netns/x".into());
    assert!(listed.container().env.contains(&variable));
    let mut on_host = Case::under(json!({}), json!({ "port_map": [{ "web.ui": 8080 }], "network_mode": "host" }));
    assert!(on_host.container().env.contains(&variable));
    on_host.spec.network_mode = crate::config::NetworkMode::Unset;
    assert!(on_host.error().starts_with("port_map: cannot map ports of the group's network"), "{}", on_host.error());

    case.task.resources.task_ports.clear();
    assert!(case.error().starts_with("port_map: cannot map ports of the group's network"), "{}", case.error());
    case.task.network_path = Some("/run/netns/x".into());
    assert!(case.error().starts_with("port_map: cannot map ports of the group's network"), "{}", case.error());
}

#[test]
fn addresses_outside_the_bridges_subnets_are_refused() {
    let six = json!({ "network": { "subnet_ipv6": "fd00:1::/64" } });
    let block = json!({
        "mac_address": "02:42:ac:11:00:02", "ipv4_address": "172.26.80.9", "ipv6_address": "fd00:1::9",
        "advertise_ipv6_address": true,
    });
    let found = own(&Case::under(six.clone(), block.clone()));
    assert_eq!(found.request.mac.as_deref(), Some("02:42:ac:11:00:02"));
    let addresses: Vec<String> = found.request.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["172.26.80.9", "fd00:1::9"]);
    assert!(found.auto_advertise());

    for (option, value, expected) in [
        (
            "ipv4_address",
            json!("172.26.96.1"),
            "ipv4_address: 172.26.96.1 is not an address that a task can have on this",
        ),
        (
            "ipv4_address",
            json!("172.26.80.1"),
            "ipv4_address: 172.26.80.1 is not an address that a task can have on this",
        ),
        ("ipv6_address", json!("fd00:2::9"), "ipv6_address: fd00:2::9 is not an address that a task can have on this"),
        ("ipv6_address", json!("fd00:1::1"), "ipv6_address: fd00:1::1 is not an address that a task can have on this"),
    ] {
        let text = Case::under(six.clone(), json!({ option: value })).error();
        assert!(text.starts_with(expected), "{text}");
    }
    for option in ["ipv6_address", "advertise_ipv6_address"] {
        let text = Case::under(json!({}), json!({ option: block[option] })).error();
        assert!(text.starts_with(&format!("{option}: is not possible: this node's bridge has no IPv6")), "{text}");
    }
    let mut case = Case::under(json!({}), json!({ "ports": ["http"] }));
    case.task.resources.ports = vec![port("http", "2001:db8::1", 20000, 80)];
    assert!(case.error().starts_with("ports: \"http\" on an IPv6 address of the host is not possible"));
    for option in ["mac_address", "ipv4_address", "ipv6_address", "advertise_ipv6_address"] {
        let text = Case::under(six.clone(), json!({ option: block[option], "network_mode": "host" })).error();
        assert!(text.starts_with(&format!("{option}: needs a network of the task's own")), "{text}");
    }
}

#[test]
fn host_names_and_dns_follow_from_the_attachment() {
    let mut case = Case::under(json!({}), json!({ "hostname": "web1", "extra_hosts": ["up:host-gateway"] }));
    // Before the network exists, `host-gateway` is not refused.
    assert!(case.plan().is_ok());
    let address = |text: &str| text.parse().unwrap();
    case.attachment = Some(Attachment {
        namespace: "/netns".into(),
        addresses: vec![address("172.26.80.7"), address("fd00::7")],
        gateways: vec![address("172.26.80.1")],
        dns: NetworkDns { servers: vec!["10.9.9.9".into()], ..NetworkDns::default() },
    });
    let hosts = file(&case.container(), "/etc/hosts");
    assert!(hosts.ends_with("172.26.80.7\tweb1\nfd00::7\tweb1\n172.26.80.1\tup\n"), "{hosts}");
    let resolv = |case: &Case| file(&case.container(), "/etc/resolv.conf");
    assert_eq!(resolv(&case), "search lan\nnameserver 10.9.9.9\noptions edns0\n");
    case.spec.dns.servers = vec!["10.0.0.2".into()];
    assert_eq!(resolv(&case), "search lan\nnameserver 10.0.0.2\noptions edns0\n");
    case.task.dns = Some(GroupDns::default());
    assert_eq!(resolv(&case), "search lan\nnameserver 10.0.0.1\noptions edns0\n");

    let found = own(&case);
    let attachment = case.attachment.clone().unwrap();
    assert_eq!(found.address(&attachment), Some(address("172.26.80.7")));
    assert_eq!(OwnNetwork { advertise_ipv6: true, ..found }.address(&attachment), Some(address("fd00::7")));
    case.attachment = Some(Attachment { gateways: Vec::new(), ..attachment });
    assert!(case.error().contains("the address of the host is not known for \"up\""), "{}", case.error());
}

#[test]
fn etc_hosts_has_the_container_and_its_extra_hosts() {
    let mut case = Case::new(json!({ "hostname": "web1", "extra_hosts": ["db:10.0.0.5", "up:host-gateway"] }));
    case.spec.network_mode = crate::config::NetworkMode::None;
    let hosts = |case: &Case| file(&case.container(), "/etc/hosts");
    let gateway = case.spec.extra_hosts.pop().unwrap();
    assert!(hosts(&case).starts_with("127.0.0.1\tlocalhost\n::1\tlocalhost"), "{}", hosts(&case));
    assert!(hosts(&case).ends_with("127.0.1.1\tweb1\n10.0.0.5\tdb\n"), "{}", hosts(&case));
    assert_eq!(file(&case.container(), "/etc/hostname"), "web1\n");
    case.spec.hostname = Some("web1.shop.example".into());
    assert!(hosts(&case).contains("127.0.1.1\tweb1.shop.example web1\n"), "{}", hosts(&case));
    assert_eq!(file(&case.container(), "/etc/hostname"), "web1.shop.example\n");

    case.spec.hostname = Some("web1".into());
    case.spec.network_mode = crate::config::NetworkMode::Unset;
    case.spec.extra_hosts.push(gateway);
    case.task.network_path = Some("/run/netns/x".into());
    assert!(case.error().contains("extra_hosts: the address of the host is not known for \"up\""), "{}", case.error());
    case.spec.extra_hosts.pop();
    let learned = |case: &Case| case.plan().unwrap().with_group_address("172.26.64.7".parse().ok()).container;
    assert!(file(&case.container(), "/etc/hosts").contains("127.0.1.1\tweb1\n"));
    assert!(file(&learned(&case), "/etc/hosts").contains("172.26.64.7\tweb1\n"));
    case.task.env.insert("NOMAD_ALLOC_IP_http".into(), "172.26.64.5".into());
    assert!(file(&learned(&case), "/etc/hosts").contains("172.26.64.5\tweb1\n"), "Nomad's address comes first");
    assert!(file(&case.container(), "/etc/hosts").contains("172.26.64.5\tweb1\n"));
    case.task.hosts_entry = Some(HostsEntry { hostname: "group".into(), address: "172.26.64.9".into() });
    assert!(file(&case.container(), "/etc/hosts").contains("172.26.64.9\tweb1\n"));
    case.spec.hostname = None;
    assert_eq!(case.container().hostname.as_deref(), Some("group"));
}

/// Docker copies the node's file, or with `extra_hosts` writes one without the node's lines.
#[test]
fn the_hosts_network_has_the_nodes_names() {
    let plain = Case::new(json!({ "network_mode": "host" })).container();
    assert_eq!(plain.hostname.as_deref(), Some("node-1"));
    assert_eq!(file(&plain, "/etc/hosts"), node().hosts);
    assert_eq!(file(&plain, "/etc/hostname"), "node-1\n");
    assert!(plain.env.contains(&("HOSTNAME".into(), "node-1".into())));
    let named = Case::new(json!({ "network_mode": "host", "hostname": "web1" })).container();
    assert_eq!((named.hostname.as_deref(), file(&named, "/etc/hosts")), (Some("web1"), node().hosts));
    let extra = json!({ "network_mode": "host", "extra_hosts": ["db:10.0.0.5", "up:host-gateway"] });
    let hosts = file(&Case::new(extra).container(), "/etc/hosts");
    assert!(
        hosts.starts_with("127.0.0.1\tlocalhost\n") && hosts.ends_with("\n10.0.0.5\tdb\n127.0.0.1\tup\n"),
        "{hosts}"
    );
    assert!(!hosts.contains("node-1"), "{hosts}");
    let mut unread = Case::new(json!({ "network_mode": "host" }));
    unread.node.hosts.clear();
    assert!(file(&unread.container(), "/etc/hosts").ends_with("127.0.1.1\tnode-1\n"));
    // In a group with a network, the task on the host's network does not have the group's name.
    let mut case = Case::new(json!({ "network_mode": "host" }));
    case.task.network_path = Some("/run/netns/x".into());
    case.task.hosts_entry = Some(HostsEntry { hostname: "group".into(), address: "172.26.64.9".into() });
    assert_eq!(case.container().hostname.as_deref(), Some("node-1"));
}

#[test]
fn the_nodes_hosts_are_read_for_tasks_on_its_network() {
    for (plugin, mode, group, expected) in [
        (json!({}), "host", false, true),
        (json!({}), "host", true, true),
        (json!({}), "", false, false),
        (json!({}), "none", false, false),
        (json!({ "network": { "default_mode": "host" } }), "", false, true),
        (json!({ "network": { "default_mode": "host" } }), "", true, false),
        (json!({ "network": { "default_mode": "host" } }), "bridge", false, false),
    ] {
        let mut case = Case::under(plugin, json!({ "network_mode": mode }));
        case.task.network_path = group.then(|| "/run/netns/x".into());
        assert_eq!(crate::plan::uses_host_network(&case.spec, &case.task, &case.policy), expected, "{mode} {group}");
        assert_eq!(case.container().namespaces.network == Network::Host, expected, "{mode} {group}");
    }
}

#[test]
fn each_list_of_resolv_conf_comes_from_group_task_or_host() {
    let resolv = |case: &Case| file(&case.container(), "/etc/resolv.conf");
    assert_eq!(resolv(&Case::new(json!({}))), node().host_resolv_conf);
    let task = json!({ "dns_servers": ["1.1.1.1"], "dns_search_domains": ["a.b", "c"] });
    assert_eq!(resolv(&Case::new(task.clone())), "search a.b c\nnameserver 1.1.1.1\noptions edns0\n");
    let bare = Case::new(json!({ "dns_search_domains": ["."], "dns_options": ["ndots:2", "rotate"] }));
    assert_eq!(resolv(&bare), "nameserver 127.0.0.1\nnameserver 10.0.0.1\noptions ndots:2 rotate\n");

    let mut case = Case::new(task);
    case.task.dns = Some(GroupDns { options: vec!["ndots:5\nnameserver 6.6.6.6".into()], ..GroupDns::default() });
    case.task.network_path = Some("/run/netns/x".into());
    assert_eq!(resolv(&case), "search lan\nnameserver 10.0.0.1\noptions ndots:5 nameserver 6.6.6.6\n");
    case.task.dns = Some(GroupDns::default());
    assert_eq!(resolv(&case), "search lan\nnameserver 10.0.0.1\noptions edns0\n");
    assert_eq!(case.plan().unwrap().dns_warning, None);
    case.node.host_resolv_conf = "nameserver ::1\n".into();
    assert_eq!(resolv(&case), "nameserver ::1\n", "an unreachable server is better than none of the operator's choice");
    let told = case.plan().unwrap().dns_warning.unwrap().to_string();
    assert!(told.contains("the node's name servers (::1) listen on its loopback"), "{told}");
    case.task.dns = Some(GroupDns { servers: vec!["127.0.0.1".into()], ..GroupDns::default() });
    assert_eq!(case.plan().unwrap().dns_warning, None, "a server may listen there in the group's network");
    case.task.dns = None;
    case.spec.dns.servers.clear();
    case.task.network_path = None;
    assert_eq!(case.plan().unwrap().dns_warning, None, "the host's network reaches them");
}
