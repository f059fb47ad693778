//! The table of a bridge: which chains, maps and rules it has, and whether the kernel has them.
//!
//! There is one table for each protocol family. Its rules do not depend on the number of published ports.

use ipnet::IpNet;

use crate::{
    entry::{OF_ADDRESS, maps},
    netlink::Message,
    nft::{
        Chain, Expression, Hook, INPUT_NAME, OUTPUT_NAME, Rule, Test, Verdict, create_chain, create_map, create_rule,
        create_table,
    },
    port::{Bridge, Family, octets},
};

/// The version of the rules. A plugin with another version replaces the table when it begins.
const VERSION: u32 = 1;

const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
const POSTROUTING: &str = "postrouting";
const GUARD: &str = "guard";
const TO_CONTAINER: &str = "to-container";

/// The name of a bridge's table.
pub(crate) fn name(bridge: &str) -> String {
    format!("oci-rs-{bridge}")
}

fn chains(family: Family) -> Vec<Chain> {
    // The priorities are those that nft calls dstnat, srcnat and raw.
    let hook = |kind, number, priority| Some(Hook { kind, number, priority });
    let mut chains = vec![
        Chain { name: PREROUTING, hook: hook("nat", 0, -100) },
        Chain { name: OUTPUT, hook: hook("nat", 3, -100) },
        Chain { name: TO_CONTAINER, hook: None },
        Chain { name: POSTROUTING, hook: hook("nat", 4, 100) },
    ];
    if family == Family::V4 {
        chains.push(Chain { name: GUARD, hook: hook("filter", 0, -300) });
    }
    chains
}

/// The rules of a table, in order.
pub(crate) fn rules(bridge: &Bridge, family: Family, subnet: IpNet) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut rule = |chain, expressions: Vec<Expression>, comment: String| {
        rules.push(Rule { chain, expressions, comment });
    };
    let name = bridge.name.as_str();
    if family == Family::V4 {
        let loopback = |offset| Expression::header(offset, &[0xff], Test::Equal, &[127]);
        for (offset, what) in [(family.destination(), "to"), (family.source(), "from")] {
            let expressions = [
                Expression::interface(INPUT_NAME, Test::Equal, name).to_vec(),
                loopback(offset),
                vec![Expression::verdict(Verdict::Drop)],
            ];
            rule(GUARD, expressions.concat(), format!("containers send nothing {what} the node's loopback"));
        }
    } else {
        let loopback =
            Expression::header(family.destination(), &[0xff; 16], Test::Equal, &std::net::Ipv6Addr::LOCALHOST.octets());
        let expressions = [loopback, vec![Expression::verdict(Verdict::Return)]];
        rule(OUTPUT, expressions.concat(), "packets to ::1 cannot leave the loopback interface".to_owned());
    }
    for chain in [PREROUTING, OUTPUT] {
        let mut expressions = Expression::destination_is_local().to_vec();
        expressions.push(Expression::verdict(Verdict::Jump(TO_CONTAINER)));
        rule(chain, expressions, format!("packets to the node (rules {VERSION})"));
    }
    for map in maps(family) {
        let with_address = map.name == OF_ADDRESS;
        let comment = if with_address { "ports of one address" } else { "ports of every address" };
        let mut expressions = Expression::published_port(family, with_address);
        expressions.extend([Expression::look_up(&map), Expression::replace_destination(family)]);
        rule(TO_CONTAINER, expressions, comment.to_owned());
    }
    let from_containers = within(family.source(), Test::Equal, subnet);
    let multicast: IpNet = match family {
        Family::V4 => IpNet::V4(ipnet::Ipv4Net::new_assert([224, 0, 0, 0].into(), 4)),
        Family::V6 => IpNet::V6(ipnet::Ipv6Net::new_assert([0xff00, 0, 0, 0, 0, 0, 0, 0].into(), 8)),
    };
    let leaving = [
        from_containers.clone(),
        within(family.destination(), Test::Different, subnet),
        within(family.destination(), Test::Different, multicast),
        Expression::interface(OUTPUT_NAME, Test::Different, name).to_vec(),
        Expression::interface(OUTPUT_NAME, Test::Different, "lo").to_vec(),
        vec![Expression::masquerade()],
    ];
    rule(POSTROUTING, leaving.concat(), format!("what leaves {subnet}"));
    let hairpin = [
        Expression::interface(OUTPUT_NAME, Test::Equal, name).to_vec(),
        Expression::destination_was_replaced().to_vec(),
        from_containers,
        vec![Expression::masquerade()],
    ];
    rule(POSTROUTING, hairpin.concat(), format!("from {subnet} to a published port of a container"));
    if family == Family::V4 {
        let from_loopback = [
            Expression::interface(OUTPUT_NAME, Test::Equal, name).to_vec(),
            Expression::header(family.source(), &[0xff], Test::Equal, &[127]),
            vec![Expression::masquerade()],
        ];
        rule(POSTROUTING, from_loopback.concat(), "from the node's loopback to a container".to_owned());
    }
    rules
}

/// An address of the packet is within a subnet, or not. As nft does it, a prefix of whole bytes is read without a mask.
fn within(offset: u32, test: Test, subnet: IpNet) -> Vec<Expression> {
    let (mut network, mut mask) = (octets(subnet.network()), octets(subnet.netmask()));
    let length = usize::from(subnet.prefix_len());
    if length > 0 && length.is_multiple_of(8) {
        network.truncate(length / 8);
        mask.truncate(length / 8);
    }
    Expression::header(offset, &mask, test, &network)
}

/// The requests that add rules to a table.
pub(crate) fn addition(bridge: &Bridge, family: Family, rules: &[Rule]) -> Vec<Message> {
    let table = name(&bridge.name);
    let add = |rule: &Rule| create_rule(family, &table, rule.chain, &rule.expressions, Some(&rule.comment), true);
    rules.iter().map(add).collect()
}

/// The requests that create a table which does not exist.
pub(crate) fn creation(bridge: &Bridge, family: Family, subnet: IpNet) -> Vec<Message> {
    let table = name(&bridge.name);
    let mut requests = vec![create_table(family, &table)];
    requests.extend(chains(family).iter().map(|chain| create_chain(family, &table, chain)));
    requests.extend(maps(family).iter().map(|map| create_map(family, &table, map)));
    requests.extend(
        rules(bridge, family, subnet)
            .iter()
            .map(|rule| create_rule(family, &table, rule.chain, &rule.expressions, Some(&rule.comment), true)),
    );
    requests
}

/// A table in the kernel, compared with the wanted rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It has the wanted rules.
    Complete,
    /// It has all rules but these, which depend on the subnet. It may have those of another subnet: containers keep
    /// their addresses when the configuration changes.
    Lacks(Vec<Rule>),
    /// It has only some of the wanted rules, or none.
    Incomplete,
    /// It has rules that are not wanted: those of another version.
    Different,
}

/// Compares the rules that the kernel has, each with its chain and comment, with the wanted ones.
pub(crate) fn condition<'a>(wanted: &[Rule], found: impl IntoIterator<Item = (&'a str, &'a str)>) -> Condition {
    let mut missing: Vec<&Rule> = wanted.iter().collect();
    for (chain, comment) in found {
        match missing.iter().position(|wanted| (wanted.chain, wanted.comment.as_str()) == (chain, comment)) {
            Some(position) => drop(missing.remove(position)),
            None if chain == POSTROUTING => {}
            None => return Condition::Different,
        }
    }
    match missing.iter().all(|rule| rule.chain == POSTROUTING) {
        _ if missing.is_empty() => Condition::Complete,
        true => Condition::Lacks(missing.into_iter().cloned().collect()),
        false => Condition::Incomplete,
    }
}

#[cfg(test)]
mod tests {
    use super::{Condition, Rule, condition, creation, name, rules};
    use crate::{
        entry::Entry,
        netlink::{Attributes, Message, fields},
        nft::insert_element,
        port::{Bridge, Family, Protocol, PublishedPort},
    };

    fn bridge(subnet: &str) -> Bridge {
        let subnet_ipv6 = "fd00:26::/64".parse().ok();
        Bridge { name: "oci-rs".to_owned(), subnet: subnet.parse().expect("a subnet"), subnet_ipv6 }
    }

    /// The messages of `nft -f expected.nft`, read by strace: kind, family and attributes.
    fn messages_of_nft() -> Vec<(u16, u8, Attributes)> {
        let lines = include_str!("../tests/rules/expected.hex").lines();
        let bytes = lines.map(|line| -> Vec<u8> {
            (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).expect("hex")).collect()
        });
        let message = |bytes: Vec<u8>| {
            let kind = u16::from_le_bytes([bytes[4], bytes[5]]);
            // nft stores with a map how it shows it.
            let shown = |of: u16| kind == 0x0a09 && of == 13;
            let attributes = fields(&bytes[20..]).filter(|(of, _)| !shown(*of)).fold(Attributes::new(), |list, one| {
                let nested =
                    (kind, one.0) == (0x0a03, 4) || (kind, one.0) == (0x0a06, 4) || (kind, one.0) == (0x0a0c, 3);
                if nested { list.nested_bytes(one.0, one.1) } else { list.bytes(one.0, one.1) }
            });
            (kind, bytes[16], attributes)
        };
        // The begin and the end of the transaction have no subsystem.
        bytes.map(message).filter(|(kind, ..)| *kind >= 0x0a00).collect()
    }

    #[test]
    fn requests_are_those_of_nft() {
        let bridge = bridge("172.26.80.0/20");
        let mut ours: Vec<Message> =
            bridge.subnets().flat_map(|(family, subnet)| creation(&bridge, family, subnet)).collect();
        for (host_ip, host_port, protocol, container) in [
            (Some("192.0.2.1"), 8080, Protocol::Tcp, "172.26.80.5:80"),
            (None, 8081, Protocol::Sctp, "172.26.80.5:80"),
            (Some("2001:db8::1"), 8080, Protocol::Udp, "[fd00:26::5]:80"),
        ] {
            let host_ip = host_ip.map(|address| address.parse().expect("an address"));
            let container = container.parse().expect("an address");
            let port = PublishedPort { host_ip, host_port, protocol, container };
            let Entry { key, data } = Entry::of(&port).expect("an entry");
            let table = name(&bridge.name);
            // nft names the map of an element by its number too.
            let mut message = insert_element(key.family, &table, key.map, &key.bytes, &data);
            let number = crate::entry::maps(key.family).iter().find(|map| map.name == key.map).expect("a map").number;
            message.attributes = fields(message.attributes.as_bytes()).fold(Attributes::new(), |list, one| {
                if one.0 == 3 { list.number(4, number).nested_bytes(3, one.1) } else { list.bytes(one.0, one.1) }
            });
            ours.push(message);
        }
        let mut ours: Vec<_> =
            ours.into_iter().map(|message| (message.kind, message.family, message.attributes)).collect();
        let mut expected = messages_of_nft();
        assert_eq!((ours.len(), expected.len()), (34, 34));
        let order = |one: &(u16, u8, Attributes)| (one.0, one.1, one.2.as_bytes().to_vec());
        ours.sort_by_key(order);
        expected.sort_by_key(order);
        for (ours, expected) in ours.iter().zip(&expected) {
            assert_eq!(ours, expected);
        }
    }

    #[test]
    fn a_table_is_compared_by_the_comments_of_its_rules() {
        let bridge = bridge("172.26.80.0/20");
        for (family, subnet) in bridge.subnets() {
            let wanted = rules(&bridge, family, subnet);
            let found: Vec<_> = wanted.iter().map(|rule| (rule.chain, rule.comment.as_str())).collect();
            assert_eq!(condition(&wanted, found.clone()), Condition::Complete, "{family:?}");
            assert_eq!(condition(&wanted, found[1..].to_vec()), Condition::Incomplete, "{family:?}");
            assert_eq!(condition(&wanted, []), Condition::Incomplete, "{family:?}");
            let doubled = [found.clone(), found[..1].to_vec()].concat();
            assert_eq!(condition(&wanted, doubled), Condition::Different, "{family:?}");
        }
    }

    #[test]
    fn the_rules_of_another_subnet_are_added() {
        let [old, new] = ["172.26.80.0/20", "172.26.64.0/20"].map(bridge);
        let rules = |bridge: &Bridge| super::rules(bridge, Family::V4, bridge.subnet.into());
        let mut found = rules(&old);
        let compare =
            |found: &[Rule]| condition(&rules(&new), found.iter().map(|rule| (rule.chain, rule.comment.as_str())));
        let Condition::Lacks(rules) = compare(&found) else { panic!("{:?}", compare(&found)) };
        assert!(rules.len() == 2 && rules.iter().all(|rule| rule.comment.contains("172.26.64.0/20")), "{rules:?}");
        found.extend(rules);
        assert_eq!(compare(&found), Condition::Complete);
    }

    #[test]
    fn comments_fit_into_what_the_kernel_keeps() {
        let bridge = Bridge {
            name: "fifteen-letters".to_owned(),
            subnet: "172.126.208.128/25".parse().expect("a subnet"),
            subnet_ipv6: "fd00:1111:2222:3333:4444:5555:6666:0/112".parse().ok(),
        };
        for (family, subnet) in bridge.subnets() {
            let long = rules(&bridge, family, subnet).into_iter().find(|rule| rule.comment.len() > 127);
            assert_eq!(long, None);
        }
    }
}
