//! Published ports as their clients see them.

use std::{
    net::{SocketAddr, UdpSocket},
    time::Instant,
};

use firewall::Protocol::{Tcp, Udp};
use fixtures::{
    must::Must,
    netns::TestNetwork,
    wait::{patient, seconds},
};

use crate::node::{GATEWAY, Node, answer, loopback, node, node_v6, port, run, sockets, tcp, udp, udp_from};

#[test]
fn a_port_of_one_address_is_reached_from_outside_with_the_clients_address() {
    let Some(host) = Node::new() else { return };
    let web = host.container(5);
    web.serve("web", 80);
    let address = TestNetwork::NODE.to_string();
    let both = [Tcp, Udp].map(|protocol| port(Some(&address), 8080, protocol, web.at(80)));
    host.publish(&both);
    let outside = TestNetwork::OUTSIDE;
    assert_eq!(host.network.outside(|| tcp(node(8080))), format!("web {outside}"));
    assert_eq!(host.network.outside(|| udp(node(8080))), format!("web {outside}"));
    // The node itself, by its own address.
    assert_eq!(tcp(node(8080)), format!("web {address}"));
    assert_eq!(udp(node(8080)), format!("web {address}"));
    // Not on another address of the node.
    assert_eq!(tcp(loopback(8080)), "ConnectionRefused");
    host.withdraw(&both);
    assert_eq!(host.network.outside(|| tcp(node(8080))), "ConnectionRefused");
    assert_eq!(host.network.outside(|| udp(node(8080))), "ConnectionRefused");
}

#[test]
fn a_port_of_every_address_is_reached_on_each_and_on_loopback() {
    let Some(host) = Node::new() else { return };
    run("ip", &["address", "add", "192.0.2.9/24", "dev", "wire0"]);
    let web = host.container(5);
    web.serve("web", 80);
    host.publish(&[Tcp, Udp].map(|protocol| port(None, 8080, protocol, web.at(80))));
    let second: SocketAddr = "192.0.2.9:8080".parse().must("an address");
    let outside = format!("web {}", TestNetwork::OUTSIDE);
    for address in [node(8080), second] {
        assert_eq!(host.network.outside(|| tcp(address)), outside);
        assert_eq!(host.network.outside(|| udp(address)), outside);
        assert_eq!(tcp(address), format!("web {}", TestNetwork::NODE));
    }
    // A packet from 127.0.0.1 cannot leave the node as it is, so the bridge's address replaces it.
    assert_eq!(tcp(loopback(8080)), format!("web {GATEWAY}"));
    assert_eq!(udp(loopback(8080)), format!("web {GATEWAY}"));
    // Packets that only pass through the node are not meant for it.
    let elsewhere: SocketAddr = "198.51.100.7:8080".parse().must("an address");
    run("ip", &["route", "add", "198.51.100.0/24", "via", &TestNetwork::OUTSIDE.to_string()]);
    host.network.outside(|| run("ip", &["address", "add", "198.51.100.7/24", "dev", "lo"]));
    let (listener, socket) = host.network.outside(|| sockets(elsewhere));
    answer("elsewhere", listener, socket);
    assert_eq!(web.inside(|| tcp(elsewhere)), format!("elsewhere {}", TestNetwork::NODE));
}

#[test]
fn a_port_of_one_address_has_precedence_over_that_of_every_address() {
    let Some(host) = Node::new() else { return };
    let (any, one) = (host.container(5), host.container(6));
    any.serve("any", 80);
    one.serve("one", 81);
    let of_one = port(Some("192.0.2.1"), 8080, Tcp, one.at(81));
    host.publish(&[port(None, 8080, Tcp, any.at(80)), of_one]);
    let outside = TestNetwork::OUTSIDE;
    assert_eq!(host.network.outside(|| tcp(node(8080))), format!("one {outside}"));
    assert_eq!(tcp(loopback(8080)), format!("any {GATEWAY}"));
    host.withdraw(&[of_one]);
    assert_eq!(host.network.outside(|| tcp(node(8080))), format!("any {outside}"));
}

#[test]
fn containers_reach_published_ports_by_the_nodes_address() {
    let Some(host) = Node::new() else { return };
    let (web, neighbour) = (host.container(5), host.container(6));
    web.serve("web", 80);
    host.publish(&[Tcp, Udp].map(|protocol| port(Some("192.0.2.1"), 8080, protocol, web.at(80))));
    for container in [&web, &neighbour] {
        assert_eq!(container.inside(|| tcp(node(8080))), format!("web {GATEWAY}"));
        assert_eq!(container.inside(|| udp(node(8080))), format!("web {GATEWAY}"));
    }
    // Without a published port the neighbour's own address is seen.
    assert_eq!(neighbour.inside(|| tcp(web.at(80))), "web 172.26.80.6");
}

#[test]
fn only_what_leaves_is_masqueraded() {
    let Some(host) = Node::new() else { return };
    let client = host.container(5);
    let address = SocketAddr::from((TestNetwork::OUTSIDE, 7000));
    let (listener, socket) = host.network.outside(|| sockets(address));
    answer("outside", listener, socket);
    let node = TestNetwork::NODE;
    assert_eq!(client.inside(|| tcp(address)), format!("outside {node}"));
    assert_eq!(client.inside(|| udp(address)), format!("outside {node}"));
    // The node itself sees the container's address.
    let (listener, socket) = sockets(SocketAddr::from((node, 7001)));
    answer("node", listener, socket);
    assert_eq!(client.inside(|| tcp(crate::node::node(7001))), "node 172.26.80.5");
}

#[test]
fn ipv6_ports_have_the_same_rules() {
    let Some(host) = Node::new() else { return };
    let (web, neighbour) = (host.container(5), host.container(6));
    web.serve("web", 80);
    let (one, any) = (node_v6(8080), node_v6(8081));
    let address = one.ip().to_string();
    host.publish(&[Tcp, Udp].map(|protocol| port(Some(&address), 8080, protocol, web.at_v6(80))));
    host.publish(&[port(None, 8081, Tcp, web.at_v6(80)), port(None, 8081, Udp, web.at_v6(80))]);
    for published in [one, any] {
        assert_eq!(host.network.outside(|| tcp(published)), "web 2001:db8::2");
        assert_eq!(host.network.outside(|| udp(published)), "web 2001:db8::2");
        assert_eq!(tcp(published), "web 2001:db8::1");
        assert_eq!(neighbour.inside(|| tcp(published)), "web fd00:26::1");
        assert_eq!(web.inside(|| tcp(published)), "web fd00:26::1");
    }
    // A packet from ::1 cannot leave the node. The client learns it at once.
    assert_eq!(tcp("[::1]:8081".parse().must("an address")), "ConnectionRefused");
    let outside: SocketAddr = "[2001:db8::2]:7000".parse().must("an address");
    let (listener, socket) = host.network.outside(|| sockets(outside));
    answer("outside", listener, socket);
    assert_eq!(web.inside(|| tcp(outside)), "outside 2001:db8::1");
}

#[test]
fn a_udp_client_that_keeps_sending_reaches_the_next_container() {
    let Some(host) = Node::new() else { return };
    let (old, new) = (host.container(5), host.container(6));
    old.serve("old", 53);
    new.serve("new", 53);
    let [to_old, to_new] = [&old, &new].map(|container| port(Some("192.0.2.1"), 5353, Udp, container.at(53)));
    let client = host.network.outside(|| UdpSocket::bind("0.0.0.0:0").must("bind"));
    let outside = TestNetwork::OUTSIDE;
    // Without a published port the node tracks the client's packets too.
    assert_eq!(udp_from(&client, node(5353)), "ConnectionRefused");
    host.publish(&[to_old]);
    reaches(&client, &format!("old {outside}"));
    host.withdraw(&[to_old]);
    host.publish(&[to_new]);
    reaches(&client, &format!("new {outside}"));
}

/// A client that keeps sending gets this answer soon.
fn reaches(client: &UdpSocket, expected: &str) {
    let end = Instant::now() + patient(seconds(10));
    loop {
        let answer = udp_from(client, node(5353));
        if answer == expected {
            return;
        }
        assert!(Instant::now() < end, "{answer}, not {expected}");
    }
}

#[test]
fn containers_do_not_reach_the_nodes_loopback() {
    let Some(host) = Node::new() else { return };
    let web = host.container(5);
    web.serve("web", 80);
    // This opens the way for packets from the node's loopback to the bridge.
    host.publish(&[port(None, 8080, Tcp, web.at(80))]);
    assert_eq!(tcp(loopback(8080)), format!("web {GATEWAY}"));
    let secret = UdpSocket::bind(loopback(9000)).must("bind");
    web.inside(|| {
        run("ip", &["address", "delete", "127.0.0.1/8", "dev", "lo"]);
        run("ip", &["route", "add", "127.0.0.1/32", "via", GATEWAY]);
        std::fs::write("/proc/sys/net/ipv4/conf/eth0/route_localnet", "1").must("route_localnet");
        let socket = UdpSocket::bind("172.26.80.5:0").must("bind");
        socket.send_to(b"from the container", loopback(9000)).must("send");
    });
    UdpSocket::bind(loopback(0)).and_then(|socket| socket.send_to(b"from the node", loopback(9000))).must("send");
    let mut buffer = [0; 64];
    let length = secret.recv(&mut buffer).must("receive");
    assert_eq!(String::from_utf8_lossy(&buffer[..length]), "from the node");
}
