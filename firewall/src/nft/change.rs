//! Announced changes of nf_tables.

use super::object::SUBSYSTEM;
use crate::netlink::find_text;

/// A change, as far as rules may depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// A table, chain, rule or map was deleted.
    Deleted,
    /// A chain was created or changed.
    NewChain,
}

impl Change {
    /// The change that a message announces, and the chain that it is about.
    pub(crate) fn of(kind: u16, attributes: &[u8]) -> Option<(Self, Option<&str>)> {
        let operation = kind.checked_sub(SUBSYSTEM)?;
        match operation {
            2 | 11 => Some((Self::Deleted, None)),
            3 => Some((Self::NewChain, find_text(attributes, 3))),
            5 => Some((Self::Deleted, find_text(attributes, 3))),
            8 => Some((Self::Deleted, find_text(attributes, 2))),
            _ => None,
        }
    }
}
