//! Expressions, the parts of a rule. Each reads from the packet into a register, compares a register, or decides.
//!
//! A register of 16 bytes has a number from 1 to 4. The same memory as registers of 4 bytes has numbers from 8 on.

use super::object::Map;
use crate::{netlink::Attributes, port::Family};

/// The first register of 16 bytes, and of 4 bytes at the same place.
const FIRST: u32 = 1;
const FIRST_WORD: u32 = 8;

/// The key of `meta` for the name of the interface on which a packet arrived.
pub(crate) const INPUT_NAME: u32 = 6;
/// The key of `meta` for the name of the interface on which a packet leaves.
pub(crate) const OUTPUT_NAME: u32 = 7;

/// The result of a comparison that lets a rule continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    Equal,
    Different,
}

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    Accept,
    Drop,
    Return,
    Jump(&'a str),
}

/// One expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expression {
    pub(crate) name: &'static str,
    pub(crate) data: Attributes,
}

impl Expression {
    fn new(name: &'static str, data: Attributes) -> Self {
        Self { name, data }
    }

    /// The type of the destination address in the routing table is `local`.
    pub(crate) fn destination_is_local() -> [Self; 2] {
        const DESTINATION: u32 = 1 << 1;
        const ADDRESS_TYPE: u32 = 3;
        const LOCAL: u32 = 2;
        let fib = Attributes::new().number(3, DESTINATION).number(2, ADDRESS_TYPE).number(1, FIRST);
        [Self::new("fib", fib), Self::compare(Test::Equal, &LOCAL.to_ne_bytes())]
    }

    /// The packet arrives on, or leaves by, an interface.
    pub(crate) fn interface(key: u32, test: Test, name: &str) -> [Self; 2] {
        let mut padded = [0; 16];
        padded.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        [Self::meta(key, FIRST), Self::compare(test, &padded)]
    }

    /// The same in the form of iptables, which compares only as far as the NUL.
    pub(crate) fn interface_of_iptables(key: u32, name: &str) -> [Self; 2] {
        [Self::meta(key, FIRST), Self::compare(Test::Equal, &[name.as_bytes(), &[0]].concat())]
    }

    /// Bytes of the IP header, as far as the mask goes, are these.
    pub(crate) fn header(offset: u32, mask: &[u8], test: Test, value: &[u8]) -> Vec<Self> {
        let length = value.len() as u32;
        let mut expressions = vec![Self::payload(1, offset, length, FIRST)];
        if mask.iter().any(|byte| *byte != 0xff) {
            expressions.push(Self::mask(mask));
        }
        expressions.push(Self::compare(test, value));
        expressions
    }

    /// The destination of the packet's connection was replaced.
    pub(crate) fn destination_was_replaced() -> [Self; 3] {
        const STATUS: u32 = 2;
        const DESTINATION_NAT: u32 = 1 << 5;
        let load = Attributes::new().number(2, STATUS).number(1, FIRST);
        let mask = DESTINATION_NAT.to_ne_bytes();
        [Self::new("ct", load), Self::mask(&mask), Self::compare(Test::Different, &[0; 4])]
    }

    /// Reads the key of a map of published ports: the destination address if the map has it, protocol, and port.
    pub(crate) fn published_port(family: Family, with_address: bool) -> Vec<Self> {
        let (mut expressions, mut register) = (Vec::new(), FIRST);
        if with_address {
            expressions.push(Self::payload(1, family.destination(), family.address_length(), FIRST));
            register = after_address(family);
        }
        expressions.push(Self::meta(16, register));
        expressions.push(Self::payload(2, 2, 2, word(register) + 1));
        expressions
    }

    /// Looks the key up. The rule ends if the map does not have it.
    pub(crate) fn look_up(map: &Map) -> Self {
        Self::new("lookup", Attributes::new().number(2, FIRST).number(3, FIRST).text(1, map.name).number(4, map.number))
    }

    /// Replaces the destination by the address and port that were looked up.
    pub(crate) fn replace_destination(family: Family) -> Self {
        const DESTINATION: u32 = 1;
        let data = Attributes::new().number(1, DESTINATION).number(2, family.number().into());
        Self::new("nat", data.number(3, FIRST).number(5, after_address(family)))
    }

    /// Replaces the source by the address of the interface by which the packet leaves.
    pub(crate) fn masquerade() -> Self {
        Self::new("masq", Attributes::new())
    }

    /// Counts packets. Rules of iptables have it.
    pub(crate) fn counter() -> Self {
        let zero = 0_u64.to_be_bytes();
        Self::new("counter", Attributes::new().bytes(1, &zero).bytes(2, &zero))
    }

    /// Decides.
    pub(crate) fn verdict(verdict: Verdict<'_>) -> Self {
        let (code, chain) = match verdict {
            Verdict::Drop => (0, None),
            Verdict::Accept => (1, None),
            Verdict::Jump(chain) => (-3, Some(chain)),
            Verdict::Return => (-5, None),
        };
        let code = Attributes::new().number(1, code as u32);
        let code = chain.into_iter().fold(code, |code, chain| code.text(2, chain));
        let data = Attributes::new().nested(2, &code);
        Self::new("immediate", Attributes::new().number(1, 0).nested(2, &data))
    }

    fn meta(key: u32, register: u32) -> Self {
        Self::new("meta", Attributes::new().number(2, key).number(1, register))
    }

    fn payload(base: u32, offset: u32, length: u32, register: u32) -> Self {
        let data = Attributes::new().number(1, register).number(2, base).number(3, offset).number(4, length);
        Self::new("payload", data)
    }

    fn mask(mask: &[u8]) -> Self {
        let value = |bytes: &[u8]| Attributes::new().bytes(1, bytes);
        let data = Attributes::new().number(1, FIRST).number(2, FIRST).number(3, mask.len() as u32);
        Self::new("bitwise", data.nested(4, &value(mask)).nested(5, &value(&vec![0; mask.len()])))
    }

    fn compare(test: Test, value: &[u8]) -> Self {
        let operation = match test {
            Test::Equal => 0,
            Test::Different => 1,
        };
        let value = Attributes::new().bytes(1, value);
        Self::new("cmp", Attributes::new().number(1, FIRST).number(2, operation).nested(3, &value))
    }
}

/// The register behind an address in the first one. nft uses the number of a large register where it can.
fn after_address(family: Family) -> u32 {
    match family {
        Family::V4 => FIRST_WORD + 1,
        Family::V6 => FIRST + 1,
    }
}

/// The number of the small register at the begin of this one.
fn word(register: u32) -> u32 {
    if register < FIRST_WORD { FIRST_WORD + (register - FIRST) * 4 } else { register }
}
