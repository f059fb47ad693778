//! The tables as nft and other programs see them.

use std::time::Instant;

use firewall::{
    Firewall,
    Protocol::{Sctp, Tcp, Udp},
    PublishedPort,
};
use fixtures::{must::Must, netns::TestNetwork};

use crate::node::{Node, bridge, node, port, run, tcp};

/// All rules of the node, with their handles: a rule that is created again has another one.
fn ruleset() -> String {
    run("nft", &["--handle", "list", "ruleset"])
}

#[test]
fn nft_shows_readable_tables() {
    let Some(host) = Node::new() else { return };
    let web = "172.26.80.5:80".parse().must("an address");
    host.publish(&[port(Some("192.0.2.1"), 8080, Tcp, web), port(None, 8081, Sctp, web)]);
    host.publish(&[port(Some("2001:db8::1"), 8080, Udp, "[fd00:26::5]:80".parse().must("an address"))]);
    let found = run("nft", &["--numeric-priority", "list", "ruleset"]);
    assert_eq!(found, include_str!("expected.nft"), "(the rules as nft shows them)\n{found}");
}

#[test]
fn rules_that_exist_are_not_created_again() {
    let Some(host) = Node::new() else { return };
    let before = ruleset();
    host.firewall.ensure().must("once more");
    Firewall::new(bridge()).ensure().must("by another process");
    assert_eq!(ruleset(), before);
}

#[test]
fn rules_of_another_subnet_are_added_and_published_ports_stay() {
    let Some(host) = Node::new() else { return };
    let web = host.container(5);
    web.serve("web", 80);
    let published = port(Some("192.0.2.1"), 8080, Tcp, web.at(80));
    host.publish(&[published]);
    let changed = firewall::Bridge { subnet: "172.26.64.0/18".parse().must("a subnet"), ..bridge() };
    let changed = Firewall::new(changed);
    changed.ensure().must("add");
    // Containers of both subnets are masqueraded, also when the rules are checked again.
    let both = ruleset();
    assert!(both.contains("what leaves 172.26.64.0/18") && both.contains("what leaves 172.26.80.0/20"), "{both}");
    host.firewall.ensure().must("the old subnet");
    changed.ensure().must("the new subnet");
    let without_ipv6 = Firewall::new(firewall::Bridge { subnet_ipv6: None, ..bridge() });
    without_ipv6.ensure().must("the record of an earlier configuration");
    assert_eq!(ruleset(), both);
    assert_eq!(changed.published().must("published"), [published]);
    assert_eq!(host.network.outside(|| tcp(node(8080))), format!("web {}", TestNetwork::OUTSIDE));
}

#[test]
fn a_deleted_table_comes_back_with_the_next_port() {
    let Some(host) = Node::new() else { return };
    let first = port(Some("192.0.2.1"), 8080, Tcp, "172.26.80.5:80".parse().must("an address"));
    let second = PublishedPort { host_port: 8081, ..first };
    host.publish(&[first]);
    run("nft", &["flush", "ruleset"]);
    // A port of a table that does not exist is not published.
    host.withdraw(&[second]);
    host.publish(&[second]);
    let mut published = host.firewall.published().must("published");
    published.sort();
    assert_eq!(published, [first, second]);
}

#[test]
fn a_port_leads_to_the_container_that_was_published_last() {
    let Some(host) = Node::new() else { return };
    let old = port(None, 8080, Tcp, "172.26.80.5:80".parse().must("an address"));
    let new = PublishedPort { container: "172.26.80.6:80".parse().must("an address"), ..old };
    let other = PublishedPort { host_port: 8081, ..old };
    host.publish(&[old]);
    host.publish(&[other, new]);
    // The old container's end does not take the port of the new one.
    host.withdraw(&[old, PublishedPort { host_port: 8082, ..old }]);
    let mut published = host.firewall.published().must("published");
    published.sort();
    assert_eq!(published, [new, other]);
    host.withdraw(&[new, other]);
    assert_eq!(host.firewall.published().must("published"), []);
}

#[test]
fn a_port_that_is_named_twice_is_published_and_withdrawn_once() {
    let Some(host) = Node::new() else { return };
    let port = port(None, 8080, Tcp, "172.26.80.5:80".parse().must("an address"));
    host.publish(&[port, port]);
    assert_eq!(host.firewall.published().must("published"), [port]);
    host.withdraw(&[port, port]);
    assert_eq!(host.firewall.published().must("published"), []);
    // Two labels of a job with the same port of the node: the last one counts.
    let other = PublishedPort { container: "172.26.80.5:81".parse().must("an address"), ..port };
    host.publish(&[port, other]);
    assert_eq!(host.firewall.published().must("published"), [other]);
    host.withdraw(&[port, other]);
    assert_eq!(host.firewall.published().must("published"), []);
}

/// Prints the median times of a call: `cargo test --workspace --test rules -- --ignored --nocapture durations`.
#[test]
#[ignore = "it only measures"]
#[allow(clippy::print_stdout, reason = "the result of a measurement")]
fn durations() {
    let Some(host) = Node::new() else { return };
    let web = host.container(5);
    web.serve("web", 80);
    let watcher = host.firewall.watch().must("watch");
    // A pass through an empty table of connections would cost nothing.
    host.publish(&[port(None, 9999, Tcp, web.at(80))]);
    assert_eq!(host.network.outside(|| tcp(node(9999))), format!("web {}", TestNetwork::OUTSIDE));
    let beside: Vec<_> = (10_000..14_000).map(|number| port(Some("192.0.2.1"), number, Tcp, web.at(80))).collect();
    for others in [&[][..], &beside] {
        host.publish(others);
        for count in [1, 10] {
            let of = |number| [Tcp, Udp].map(|protocol| port(Some("192.0.2.1"), number, protocol, web.at(80)));
            let ports: Vec<_> = (8080..8080 + count).flat_map(of).collect();
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..200 {
                let start = Instant::now();
                host.publish(&ports);
                times[0].push(start.elapsed());
                let start = Instant::now();
                host.withdraw(&ports);
                times[1].push(start.elapsed());
                let start = Instant::now();
                host.firewall.ensure().must("the rules");
                times[2].push(start.elapsed());
            }
            let [publish, withdraw, ensure] = times.map(|mut times| {
                times.sort();
                times[times.len() / 2]
            });
            let others = others.len();
            println!("{count} ports beside {others}: publish {publish:?}, withdraw {withdraw:?}, ensure {ensure:?}");
        }
    }
    drop(watcher);
}

#[test]
fn thousands_of_ports_add_no_rule() {
    let Some(host) = Node::new() else { return };
    let rules = || ruleset().lines().filter(|line| line.contains("# handle") && !line.contains('{')).count();
    let before = rules();
    let web = host.container(5);
    web.serve("web", 80);
    let ports: Vec<_> = (10_000..14_000).map(|number| port(Some("192.0.2.1"), number, Tcp, web.at(80))).collect();
    host.publish(&ports);
    assert_eq!(rules(), before);
    assert_eq!(host.firewall.published().must("published").len(), ports.len());
    assert_eq!(host.network.outside(|| tcp(node(13_999))), format!("web {}", TestNetwork::OUTSIDE));
    // All of them lead to another container, then back.
    let neighbour = ports.iter().map(|one| PublishedPort { container: "172.26.80.6:80".parse().must("it"), ..*one });
    host.publish(&neighbour.collect::<Vec<_>>());
    assert!(host.firewall.published().must("published").iter().all(|one| one.container != web.at(80)));
    host.publish(&ports);
    // A table that was deleted comes back with all of them.
    run("nft", &["flush", "ruleset"]);
    host.publish(&ports[..1]);
    assert_eq!(host.firewall.published().must("published").len(), ports.len());
    host.withdraw(&ports);
    assert_eq!(host.firewall.published().must("published"), []);
}
