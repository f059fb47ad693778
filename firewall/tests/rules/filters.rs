//! Filters of others that drop forwarded packets: iptables with nf_tables, and iptables-legacy.

use std::{net::SocketAddr, process::Command, sync::Arc, time::Instant};

use firewall::{Firewall, Protocol::Tcp, PublishedPort};
use fixtures::{
    must::Must,
    netns::TestNetwork,
    program::missing,
    wait::{patient, seconds},
};

use crate::node::{Container, Node, bridge, node, node_v6, port, run, tcp};

/// A node whose container publishes a port, and the filter drops forwarded packets.
fn published(host: &Node) -> Container {
    let web = host.container(5);
    web.serve("web", 80);
    host.publish(&[
        port(Some("192.0.2.1"), 8080, Tcp, web.at(80)),
        port(Some("2001:db8::1"), 8080, Tcp, web.at_v6(80)),
    ]);
    web
}

/// Whether packets pass from outside to the container and from the container to the outside.
fn passes(host: &Node, web: &Container) {
    let outside = TestNetwork::OUTSIDE;
    assert_eq!(host.network.outside(|| tcp(node(8080))), format!("web {outside}"));
    assert_eq!(host.network.outside(|| tcp(node_v6(8080))), "web 2001:db8::2");
    // No process listens there, and the outside says so.
    assert_eq!(web.inside(|| tcp(SocketAddr::from((outside, 1)))), "ConnectionRefused");
}

#[test]
fn packets_pass_the_policy_of_iptables_with_nf_tables() {
    let Some(host) = Node::new() else { return };
    let web = published(&host);
    for program in ["iptables-nft", "ip6tables-nft"] {
        run(program, &["-P", "FORWARD", "DROP"]);
        // What dockerd and an administrator may have.
        run(program, &["-A", "FORWARD", "-i", "docker0", "-m", "comment", "--comment", "else", "-j", "ACCEPT"]);
    }
    host.firewall.ensure().must("the rules");
    passes(&host, &web);
    // The program reads the rules.
    let rules = run("iptables-nft", &["-S"]);
    let expected = "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n-N OCI-RS-ADMIN\n-A FORWARD -j OCI-RS-ADMIN\n\
                    -A FORWARD -i docker0 -m comment --comment else -j ACCEPT\n\
                    -A OCI-RS-ADMIN -s 172.26.80.0/20 -i oci-rs -j ACCEPT\n\
                    -A OCI-RS-ADMIN -d 172.26.80.0/20 -o oci-rs -j ACCEPT\n";
    assert_eq!(rules, expected);
    run("iptables-nft", &["-L", "-v", "-n"]);
    for (program, subnet) in [("iptables-nft", "172.26.80.0/20"), ("ip6tables-nft", "fd00:26::/64")] {
        for rule in [["-s", subnet, "-i", "oci-rs"], ["-d", subnet, "-o", "oci-rs"]] {
            run(program, &[&["-C", "OCI-RS-ADMIN"], &rule[..], &["-j", "ACCEPT"]].concat());
        }
    }
    // Nothing is created twice, also if the program wrote the rules.
    let saved = run("iptables-nft-save", &["-t", "filter"]);
    host.firewall.ensure().must("once more");
    restore(&saved);
    host.firewall.ensure().must("after iptables-restore");
    assert_eq!(run("iptables-nft", &["-S"]), rules);
}

/// An administrator's rule keeps the chain.
#[test]
fn removed_rules_leave_nothing_but_those_of_others() {
    let Some(host) = Node::new() else { return };
    published(&host);
    for program in ["iptables-nft", "ip6tables-nft"] {
        run(program, &["-P", "FORWARD", "DROP"]);
    }
    let before = run("iptables-nft", &["-S"]);
    host.firewall.ensure().must("the rules");
    run("iptables-nft", &["-I", "OCI-RS-ADMIN", "-i", "eth7", "-j", "DROP"]);
    host.firewall.remove_all().must("removed");
    let kept = run("iptables-nft", &["-S"]);
    assert!(kept.contains("-A FORWARD -j OCI-RS-ADMIN\n") && !kept.contains("172.26.80.0"), "{kept}");
    run("iptables-nft", &["-D", "OCI-RS-ADMIN", "-i", "eth7", "-j", "DROP"]);
    for _ in 0..2 {
        host.firewall.remove_all().must("removed");
        assert_eq!(run("iptables-nft", &["-S"]), before);
    }
    assert!(!run("ip6tables-nft", &["-S"]).contains("OCI-RS-ADMIN"));
    assert!(!run("nft", &["list", "tables"]).contains("oci-rs"));
}

/// Writes rules by iptables-restore.
fn restore(rules: &str) {
    let file = std::env::temp_dir().join(format!("oci-rs-rules-{}", fixtures::random::uuid()));
    std::fs::write(&file, rules).must("write");
    run("iptables-nft-restore", &[&file.to_string_lossy()]);
    std::fs::remove_file(&file).must("remove");
}

#[test]
fn packets_pass_the_policy_of_iptables_legacy() {
    let Some(host) = Node::new() else { return };
    if Command::new("iptables-legacy").arg("-V").output().is_err() {
        return missing("iptables-legacy");
    }
    let web = published(&host);
    for program in ["iptables-legacy", "ip6tables-legacy"] {
        run(program, &["-P", "FORWARD", "DROP"]);
    }
    let watcher = host.firewall.watch().must("watch");
    host.firewall.ensure().must("the rules");
    passes(&host, &web);
    let rules = run("iptables-legacy", &["-S"]);
    // The kernel does not announce it. The next task finds it.
    run("iptables-legacy", &["-F"]);
    run("iptables-legacy", &["-X"]);
    host.firewall.ensure().must("the rules");
    assert_eq!(run("iptables-legacy", &["-S"]), rules);
    host.firewall.ensure().must("once more");
    assert_eq!(run("iptables-legacy", &["-S"]), rules);
    drop(watcher);
    for _ in 0..2 {
        host.firewall.remove_all().must("removed");
        assert_eq!(run("iptables-legacy", &["-S"]), "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n");
    }
}

#[test]
fn a_node_without_iptables_gets_no_tables_of_iptables() {
    let Some(host) = Node::new() else { return };
    let web = published(&host);
    host.firewall.ensure().must("the rules");
    passes(&host, &web);
    let tables = run("nft", &["list", "tables"]);
    assert_eq!(tables, "table ip oci-rs-oci-rs\ntable ip6 oci-rs-oci-rs\n");
    for list in ["ip_tables_names", "ip6_tables_names"] {
        let names = std::fs::read_to_string(format!("/proc/thread-self/net/{list}")).unwrap_or_default();
        assert_eq!(names, "", "{list}");
    }
}

#[test]
fn flushed_rules_come_back() {
    let Some(host) = Node::new() else { return };
    let web = published(&host);
    run("iptables-nft", &["-P", "FORWARD", "DROP"]);
    let watcher = host.firewall.watch().must("watch");
    passes(&host, &web);
    let rules = |needle: &str| run("nft", &["list", "ruleset"]).contains(needle);
    let published = || {
        let mut ports = host.firewall.published().must("published");
        ports.sort();
        ports
    };
    let before = published();
    // Everything at once.
    run("nft", &["flush", "ruleset"]);
    wait(|| rules("table ip6 oci-rs-oci-rs") && rules("172.26.80.5 . 80"));
    assert_eq!(published(), before);
    // A single chain of ours.
    run("nft", &["flush", "chain", "ip", "oci-rs-oci-rs", "to-container"]);
    wait(|| rules("dnat ip to ip daddr"));
    passes(&host, &web);
    // dockerd begins.
    run("iptables-nft", &["-P", "FORWARD", "DROP"]);
    wait(|| rules("jump OCI-RS-ADMIN"));
    // A script empties the filter in two steps.
    run("iptables-nft", &["-F"]);
    run("iptables-nft", &["-X"]);
    wait(|| rules("jump OCI-RS-ADMIN"));
    passes(&host, &web);
    drop(watcher);
    run("nft", &["flush", "ruleset"]);
    assert_eq!(run("nft", &["list", "tables"]), "");
}

#[test]
fn each_plugin_publishes_its_ports_again() {
    let Some(host) = Node::new() else { return };
    let first = port(None, 8080, Tcp, "172.26.80.5:80".parse().must("an address"));
    let second = PublishedPort { host_port: 8081, ..first };
    let other = Arc::new(Firewall::new(bridge()));
    host.publish(&[first]);
    other.publish(&[second]).must("by another process");
    let watchers = [host.firewall.watch().must("watch"), other.watch().must("watch")];
    for command in [&["flush", "ruleset"][..], &["delete", "table", "ip", "oci-rs-oci-rs"]] {
        run("nft", command);
        wait(|| {
            let mut ports = host.firewall.published().must("published");
            ports.sort();
            ports == [first, second]
        });
    }
    drop(watchers);
}

#[test]
fn a_running_plugin_does_not_undo_the_rules_of_a_newer_one() {
    let Some(host) = Node::new() else { return };
    let watcher = host.firewall.watch().must("watch");
    let newer = firewall::Bridge { subnet: "172.26.64.0/18".parse().must("a subnet"), ..bridge() };
    let newer = Arc::new(Firewall::new(newer));
    newer.ensure().must("replace");
    // The older plugin has read all changes when it has restored this.
    run("nft", &["delete", "table", "ip6", "oci-rs-oci-rs"]);
    wait(|| run("nft", &["list", "tables"]).contains("ip6"));
    assert!(run("nft", &["list", "ruleset"]).contains("172.26.64.0/18"));
    drop(watcher);
}

/// What dockerd and Nomad's bridge (by CNI's plugins) write, as far as packets of our bridge meet it.
const OTHERS: [&str; 22] = [
    "-t nat -N DOCKER",
    "-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
    "-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
    "-P FORWARD DROP",
    "-N DOCKER-USER",
    "-A DOCKER-USER -j RETURN",
    "-N DOCKER-ISOLATION-STAGE-1",
    "-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j RETURN",
    "-I FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-I FORWARD -j DOCKER-ISOLATION-STAGE-1",
    "-I FORWARD -j DOCKER-USER",
    "-N NOMAD-ADMIN",
    "-A NOMAD-ADMIN -d 172.26.64.0/20 -o nomad -j ACCEPT",
    "-N CNI-FORWARD",
    "-I FORWARD -j CNI-FORWARD",
    "-A CNI-FORWARD -j NOMAD-ADMIN",
    "-A CNI-FORWARD -s 172.26.64.5/32 -j ACCEPT",
    "-A CNI-FORWARD -d 172.26.64.5/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-t nat -N CNI-HOSTPORT-DNAT",
    "-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
    "-t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 8081 -j DNAT --to-destination 172.26.64.5:80",
    "-t nat -A POSTROUTING -s 172.26.64.0/20 ! -d 172.26.64.0/20 -j MASQUERADE",
];

#[test]
fn dockerd_and_nomads_bridge_work_beside_ours() {
    for (announced, program) in [(true, "iptables-nft"), (false, "iptables-legacy")] {
        let Some(host) = Node::new() else { return };
        if Command::new(program).arg("-V").output().is_err() {
            return missing(program);
        }
        let watcher = host.firewall.watch().must("watch");
        let web = published(&host);
        let nomad = host.container_of_nomad();
        for rule in OTHERS {
            run(program, &rule.split(' ').collect::<Vec<_>>());
        }
        if announced {
            wait(|| run("nft", &["list", "ruleset"]).contains("jump OCI-RS-ADMIN"));
        } else {
            host.firewall.ensure().must("the rules");
        }
        let outside = TestNetwork::OUTSIDE;
        assert_eq!(host.network.outside(|| tcp(node(8080))), format!("web {outside}"), "{program}");
        assert_eq!(host.network.outside(|| tcp(node(8081))), format!("nomad {outside}"), "{program}");
        // Each reaches the other's published port by the node's address.
        assert_eq!(nomad.inside(|| tcp(node(8080))), "web 172.26.80.1", "{program}");
        assert_eq!(web.inside(|| tcp(node(8081))), "nomad 172.26.64.1", "{program}");
        drop(watcher);
    }
}

/// Waits until the watcher has restored rules. It announces that to no other process.
fn wait(condition: impl Fn() -> bool) {
    let end = Instant::now() + patient(seconds(10));
    while !condition() {
        assert!(Instant::now() < end, "{}", run("nft", &["list", "ruleset"]));
    }
}
