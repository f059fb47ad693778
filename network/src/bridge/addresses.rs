//! Which address a container gets. Pure functions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::settings::Settings;

/// The addresses of one subnet that containers can have: not the subnet's own address, not the first one, which is the
/// bridge's, and not the IPv4 broadcast address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    first: u128,
    last: u128,
    family: Family,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Ipv4,
    Ipv6,
}

/// Why no addresses were chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// Another container has this address.
    InUse(IpAddr),
    /// Containers have all addresses of this range.
    Full(Range),
}

impl Range {
    /// The range of an IPv4 subnet.
    pub fn ipv4(subnet: Ipv4Net) -> Self {
        let (network, broadcast) = (u32::from(subnet.network()), u32::from(subnet.broadcast()));
        Self { first: u128::from(network) + 2, last: u128::from(broadcast) - 1, family: Family::Ipv4 }
    }

    /// The range of an IPv6 subnet.
    pub fn ipv6(subnet: Ipv6Net) -> Self {
        Self {
            first: u128::from(subnet.network()).saturating_add(2),
            last: u128::from(subnet.broadcast()),
            family: Family::Ipv6,
        }
    }

    /// The ranges of the bridge's subnets, IPv4 first.
    pub fn of(settings: &Settings) -> Vec<Self> {
        [Some(Self::ipv4(settings.subnet)), settings.subnet_ipv6.map(Self::ipv6)].into_iter().flatten().collect()
    }

    /// The number of addresses.
    pub fn size(self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// The position of an address; `None` if it is outside.
    fn position(self, address: IpAddr) -> Option<u128> {
        let number = match (self.family, address) {
            (Family::Ipv4, IpAddr::V4(address)) => u128::from(u32::from(address)),
            (Family::Ipv6, IpAddr::V6(address)) => u128::from(address),
            _ => return None,
        };
        (self.first..=self.last).contains(&number).then(|| number - self.first)
    }

    fn at(self, position: u128) -> IpAddr {
        let number = self.first + position;
        match self.family {
            Family::Ipv4 => Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)).into(),
            Family::Ipv6 => Ipv6Addr::from(number).into(),
        }
    }

    /// The first free address behind `last`, which was assigned last. The search goes on at the beginning of the range,
    /// so an address is used again as late as possible.
    fn next(self, last: Option<IpAddr>, in_use: &impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let begin = last.and_then(|last| self.position(last)).map_or(0, |position| position + 1);
        let mut positions = (begin..self.size()).chain(0..begin).map(|position| self.at(position));
        positions.find(|address| !in_use(*address))
    }
}

/// The addresses of a container: one of each range. `fixed` are those that it must have. `last` are the addresses that
/// were assigned last.
pub(crate) fn choose(
    ranges: &[Range],
    fixed: &[IpAddr],
    last: &[IpAddr],
    in_use: &impl Fn(IpAddr) -> bool,
) -> Result<Vec<IpAddr>, Unavailable> {
    if let Some(address) = fixed.iter().find(|address| in_use(**address)) {
        return Err(Unavailable::InUse(*address));
    }
    let one = |range: &Range| {
        let is_here = |address: &&IpAddr| range.position(**address).is_some();
        let fixed = fixed.iter().find(is_here).copied();
        fixed.or_else(|| range.next(last.iter().find(is_here).copied(), in_use)).ok_or(Unavailable::Full(*range))
    };
    ranges.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, net::IpAddr};

    use proptest::prelude::*;

    use super::{Range, Unavailable, choose};
    use crate::settings::Settings;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_range_leaves_out_the_addresses_of_network_bridge_and_broadcast() {
        for (subnet, first, last, size) in [
            ("172.26.80.0/20", "172.26.80.2", "172.26.95.254", 4093),
            ("10.0.0.0/30", "10.0.0.2", "10.0.0.2", 1),
            ("255.255.255.0/24", "255.255.255.2", "255.255.255.254", 253),
        ] {
            let range = Range::ipv4(subnet.parse().expect("a subnet"));
            assert_eq!((range.at(0), range.at(range.size() - 1)), (address(first), address(last)), "{subnet}");
            assert_eq!(range.size(), size, "{subnet}");
        }
        let range = Range::ipv6("fd00::/64".parse().expect("a subnet"));
        assert_eq!(
            (range.at(0), range.at(range.size() - 1)),
            (address("fd00::2"), address("fd00::ffff:ffff:ffff:ffff"))
        );
        let all = Range::ipv6("::/0".parse().expect("a subnet"));
        assert_eq!(all.next(None, &|_| false), Some(address("::2")));
    }

    #[test]
    fn four_thousand_containers_get_each_an_address_of_the_default_subnet() {
        let ranges = Range::of(&Settings::default());
        let (mut used, mut last) = (BTreeSet::new(), Vec::new());
        for _ in 0..4093 {
            last = choose(&ranges, &[], &last, &|address| used.contains(&address)).expect("an address");
            assert!(used.insert(last[0]), "{last:?} was in use");
        }
        let full = choose(&ranges, &[], &last, &|address| used.contains(&address));
        assert_eq!(full, Err(Unavailable::Full(ranges[0])));
    }

    #[test]
    fn fixed_addresses_are_used_and_others_are_chosen() {
        let settings = Settings { subnet_ipv6: "fd00::/64".parse().ok(), ..Settings::default() };
        let ranges = Range::of(&settings);
        let used = [address("172.26.80.9")];
        let choose = |fixed: &[IpAddr]| choose(&ranges, fixed, &[], &|address| used.contains(&address));
        assert_eq!(choose(&[]), Ok(vec![address("172.26.80.2"), address("fd00::2")]));
        assert_eq!(choose(&[address("fd00::99")]), Ok(vec![address("172.26.80.2"), address("fd00::99")]));
        assert_eq!(choose(&used), Err(Unavailable::InUse(used[0])));
    }

    proptest! {
        /// The chosen address is free, of the range, and every other free address is as near to the last one or farther
        /// away.
        #[test]
        fn the_free_address_that_was_not_used_for_longest_is_chosen(
            used in prop::collection::btree_set(2u8..15, 0..13),
            last in prop::option::of(0u8..40),
        ) {
            let range = Range::ipv4("10.0.0.0/28".parse().expect("a subnet"));
            let at = |number: u8| IpAddr::from([10, 0, 0, number]);
            let in_use = |address: IpAddr| used.iter().any(|number| at(*number) == address);
            let chosen = range.next(last.map(at), &in_use);
            let distance = |number: u8| {
                let begin = last.filter(|last| (2..15).contains(last)).map_or(2, |last| last + 1);
                (u16::from(number) + 13 - u16::from(begin)) % 13
            };
            let nearest = (2..15u8).filter(|number| !used.contains(number)).min_by_key(|number| distance(*number));
            prop_assert_eq!(chosen, nearest.map(at));
        }
    }
}
