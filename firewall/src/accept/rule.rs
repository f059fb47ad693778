//! One rule of iptables: its meaning, its form in nf_tables, and its arguments for the program.

use ipnet::IpNet;

use crate::{
    netlink::{fields, find, find_number, find_text},
    nft::{Expression, INPUT_NAME, OUTPUT_NAME, Test, Verdict},
    port::{Bridge, Family, octets},
};

/// The table of iptables' filter.
pub(crate) const TABLE: &str = "filter";
/// The chain of forwarded packets.
pub(crate) const FORWARD: &str = "FORWARD";
/// Our chain. Earlier releases filled it by CNI's firewall plugin.
pub(crate) const CHAIN: &str = "OCI-RS-ADMIN";

/// What a rule does, as far as a rule of ours can do it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rule {
    input: Option<String>,
    output: Option<String>,
    /// The bytes of an address, and their mask.
    source: Option<(Vec<u8>, Vec<u8>)>,
    destination: Option<(Vec<u8>, Vec<u8>)>,
    /// The chain to enter. Without one, the packet is accepted.
    jump: Option<String>,
}

/// The rules in our chain: packets from the bridge's containers and to them.
pub(super) fn accepting(bridge: &Bridge, subnet: IpNet) -> [Rule; 2] {
    let net = Some((octets(subnet.network()), octets(subnet.netmask())));
    let name = Some(bridge.name.clone());
    let to = Rule { output: name.clone(), destination: net.clone(), ..Rule::default() };
    [Rule { input: name, source: net, ..Rule::default() }, to]
}

/// The rule in `FORWARD`.
pub(super) fn entering() -> Rule {
    Rule { jump: Some(CHAIN.to_owned()), ..Rule::default() }
}

impl Rule {
    /// The rule in the form that iptables gives it.
    pub(super) fn expressions(&self, family: Family) -> Vec<Expression> {
        let interface = |key, name: &Option<String>| {
            name.iter().flat_map(|name| Expression::interface_of_iptables(key, name)).collect::<Vec<_>>()
        };
        let address = |offset, net: &Option<(Vec<u8>, Vec<u8>)>| {
            net.iter().flat_map(|(value, mask)| Expression::header(offset, mask, Test::Equal, value)).collect()
        };
        let verdict = self.jump.as_deref().map_or(Verdict::Accept, Verdict::Jump);
        let parts: [Vec<_>; 5] = [
            interface(INPUT_NAME, &self.input),
            interface(OUTPUT_NAME, &self.output),
            address(family.source(), &self.source),
            address(family.destination(), &self.destination),
            vec![Expression::counter(), Expression::verdict(verdict)],
        ];
        parts.concat()
    }

    /// The meaning of encoded expressions. `None` is any rule that is not of this kind.
    pub(super) fn read(family: Family, expressions: &[u8]) -> Option<Self> {
        let mut reader = Reader { family, loaded: None, mask: None, rule: Self::default(), decided: false };
        for (_, expression) in fields(expressions) {
            reader.read(find_text(expression, 1)?, find(expression, 2)?)?;
        }
        reader.decided.then_some(reader.rule)
    }

    /// The rule as arguments of iptables behind the name of the chain, in the order in which `iptables -S` shows them.
    pub(super) fn arguments(&self) -> Vec<String> {
        let interface = |option: &str, name: &Option<String>| {
            name.iter().flat_map(|name| [option.to_owned(), name.clone()]).collect::<Vec<_>>()
        };
        let net = |option: &str, net: &Option<(Vec<u8>, Vec<u8>)>| {
            let text = |(value, mask): &(Vec<u8>, Vec<u8>)| {
                let length: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
                crate::port::address_of(value).map(|address| format!("{address}/{length}"))
            };
            net.iter().filter_map(text).flat_map(|net| [option.to_owned(), net]).collect()
        };
        let target = self.jump.clone().unwrap_or_else(|| "ACCEPT".to_owned());
        let parts: [Vec<_>; 5] = [
            net("-s", &self.source),
            net("-d", &self.destination),
            interface("-i", &self.input),
            interface("-o", &self.output),
            vec!["-j".to_owned(), target],
        ];
        parts.concat()
    }
}

/// What the register holds while a rule is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Meta(u32),
    /// So many bytes of the IP header.
    Header {
        offset: u32,
        length: u32,
    },
}

struct Reader {
    family: Family,
    loaded: Option<Loaded>,
    mask: Option<Vec<u8>>,
    rule: Rule,
    decided: bool,
}

impl Reader {
    /// Reads one expression. `None` is an expression that no rule of ours has.
    fn read(&mut self, name: &str, data: &[u8]) -> Option<()> {
        match name {
            "counter" => {}
            "meta" => self.loaded = Some(Loaded::Meta(find_number(data, 2)?)),
            "payload" => {
                let header = Loaded::Header { offset: find_number(data, 3)?, length: find_number(data, 4)? };
                self.loaded = (find_number(data, 2)? == 1).then_some(header);
            }
            "bitwise" => {
                let value = |kind| find(find(data, kind)?, 1);
                if value(5)?.iter().any(|byte| *byte != 0) {
                    return None;
                }
                self.mask = Some(value(4)?.to_vec());
            }
            "cmp" => {
                if find_number(data, 2)? != 0 {
                    return None;
                }
                self.compare(find(find(data, 3)?, 1)?)?;
            }
            "immediate" if !self.decided => {
                let verdict = find(find(data, 2)?, 2)?;
                match find_number(verdict, 1)? as i32 {
                    1 => {}
                    -3 => self.rule.jump = Some(find_text(verdict, 2)?.to_owned()),
                    _ => return None,
                }
                self.decided = true;
            }
            _ => return None,
        }
        Some(())
    }

    fn compare(&mut self, value: &[u8]) -> Option<()> {
        match (self.loaded.take()?, self.mask.take()) {
            (Loaded::Meta(key), None) => {
                // Without a NUL, only the begin of the name is compared.
                let (name, rest) = value.split_at_checked(value.iter().position(|byte| *byte == 0)?)?;
                let name = std::str::from_utf8(name).ok().filter(|_| rest.iter().all(|byte| *byte == 0))?;
                let place = match key {
                    INPUT_NAME => &mut self.rule.input,
                    OUTPUT_NAME => &mut self.rule.output,
                    _ => return None,
                };
                place.replace(name.to_owned()).is_none().then_some(())
            }
            (Loaded::Header { offset, length }, mask) => {
                let whole = self.family.address_length() as usize;
                let mut mask = mask.unwrap_or_else(|| vec![0xff; length as usize]);
                let mut value = value.to_vec();
                if value.len() != mask.len() || value.len() > whole {
                    return None;
                }
                // A prefix of whole bytes is read without a mask.
                mask.resize(whole, 0);
                value.resize(whole, 0);
                let place = match offset {
                    offset if offset == self.family.source() => &mut self.rule.source,
                    offset if offset == self.family.destination() => &mut self.rule.destination,
                    _ => return None,
                };
                place.replace((value, mask)).is_none().then_some(())
            }
            (Loaded::Meta(_), Some(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;
    use proptest::prelude::*;

    use super::{Rule, accepting, entering};
    use crate::{
        netlink::{Attributes, find},
        nft::{Expression, INPUT_NAME, Test, Verdict, create_rule},
        port::{Bridge, Family},
    };

    fn bridge() -> Bridge {
        let subnet_ipv6 = "fd00:26::/64".parse().ok();
        Bridge { name: "oci-rs".to_owned(), subnet: "172.26.80.0/20".parse().expect("a subnet"), subnet_ipv6 }
    }

    fn encoded(family: Family, expressions: &[Expression]) -> Vec<u8> {
        let message = create_rule(family, "filter", "FORWARD", expressions, None, true);
        find(message.attributes.as_bytes(), 4).expect("expressions").to_vec()
    }

    #[test]
    fn a_rule_that_was_written_is_recognized() {
        for (family, subnet) in bridge().subnets() {
            for rule in accepting(&bridge(), subnet).into_iter().chain([entering()]) {
                assert_eq!(Rule::read(family, &encoded(family, &rule.expressions(family))), Some(rule));
            }
        }
    }

    #[test]
    fn a_prefix_of_whole_bytes_is_recognized_without_a_mask() {
        // iptables 1.8.9 writes it so.
        let subnet: IpNet = "172.26.0.0/16".parse().expect("a subnet");
        let [rule, _] = accepting(&bridge(), subnet);
        let mut expressions = Expression::interface_of_iptables(INPUT_NAME, "oci-rs").to_vec();
        expressions.extend(Expression::header(12, &[0xff, 0xff], Test::Equal, &[172, 26]));
        expressions.extend([Expression::counter(), Expression::verdict(Verdict::Accept)]);
        assert_eq!(Rule::read(Family::V4, &encoded(Family::V4, &expressions)), Some(rule));
    }

    #[test]
    fn other_rules_are_not_taken_for_ours() {
        let [rule, _] = accepting(&bridge(), "172.26.80.0/20".parse().expect("a subnet"));
        let whole = rule.expressions(Family::V4);
        let drop = [&whole[..whole.len() - 1], &[Expression::verdict(Verdict::Drop)]].concat();
        let more = [&Expression::destination_was_replaced()[..], &whole].concat();
        let twice = [&whole[..2], &whole].concat();
        let undecided = &whole[..whole.len() - 1];
        let prefix_of_name = {
            let mut expressions = Expression::interface_of_iptables(INPUT_NAME, "oci-rs").to_vec();
            expressions[1].data = Attributes::new().number(1, 1).number(2, 0);
            expressions[1].data = expressions[1].data.clone().nested(3, &Attributes::new().bytes(1, b"oci"));
            [expressions, vec![Expression::verdict(Verdict::Accept)]].concat()
        };
        for expressions in [&drop[..], &more, &twice, undecided, &prefix_of_name] {
            assert_eq!(Rule::read(Family::V4, &encoded(Family::V4, expressions)), None, "{expressions:?}");
        }
        let narrower = accepting(&bridge(), "172.26.80.0/21".parse().expect("a subnet"))[0].expressions(Family::V4);
        assert_ne!(Rule::read(Family::V4, &encoded(Family::V4, &narrower)), Some(rule));
    }

    #[test]
    fn rules_have_the_arguments_of_iptables() {
        let [from, to] = accepting(&bridge(), "172.26.80.0/20".parse().expect("a subnet"));
        assert_eq!(from.arguments().join(" "), "-s 172.26.80.0/20 -i oci-rs -j ACCEPT");
        assert_eq!(to.arguments().join(" "), "-d 172.26.80.0/20 -o oci-rs -j ACCEPT");
        let [_, to] = accepting(&bridge(), "fd00:26::/64".parse().expect("a subnet"));
        assert_eq!(to.arguments().join(" "), "-d fd00:26::/64 -o oci-rs -j ACCEPT");
        assert_eq!(entering().arguments().join(" "), "-j OCI-RS-ADMIN");
    }

    proptest! {
        #[test]
        fn no_expressions_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Rule::read(Family::V4, &bytes);
        }
    }
}
