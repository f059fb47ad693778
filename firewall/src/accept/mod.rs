//! The rules that accept forwarded packets in the filter of iptables.
//!
//! A packet is forwarded if every table accepts it. dockerd, ufw and firewalld set the policy of iptables' chain
//! `FORWARD` to `DROP`, so the bridge's packets need a rule there. The rules are in a chain of their own, which
//! `FORWARD` enters first. An administrator may insert rules at its begin.

mod legacy;
mod nftables;
mod rule;

pub(crate) use legacy::{Seen, ensure as ensure_legacy, remove as remove_legacy, seen};
pub(crate) use nftables::{ensure, remove};
pub(crate) use rule::{CHAIN, FORWARD, TABLE};
