//! Requests for tables, chains, maps and their elements.

use crate::{
    netlink::{Attributes, CREATE, Message, fields, find},
    port::Family,
};

/// The subsystem of nf_tables in the type of a message.
pub(super) const SUBSYSTEM: u16 = 10 << 8;

const NEW_TABLE: u16 = SUBSYSTEM;
const DELETE_TABLE: u16 = SUBSYSTEM | 2;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const DELETE_CHAIN: u16 = SUBSYSTEM | 5;
const GET_RULE: u16 = SUBSYSTEM | 7;
const NEW_MAP: u16 = SUBSYSTEM | 9;
const NEW_ELEMENT: u16 = SUBSYSTEM | 12;
const GET_ELEMENT: u16 = SUBSYSTEM | 13;
const DELETE_ELEMENT: u16 = SUBSYSTEM | 14;

/// The place in the kernel at which a chain begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hook {
    /// `nat` or `filter`.
    pub(crate) kind: &'static str,
    /// The number of the place.
    pub(crate) number: u32,
    /// The order among the chains at this place.
    pub(crate) priority: i32,
}

/// A chain. Without a hook, only other chains lead to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) name: &'static str,
    pub(crate) hook: Option<Hook>,
}

/// A map. Its key and data are lists of values, each padded to four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) name: &'static str,
    /// Its number in the transaction that creates it.
    pub(crate) number: u32,
    /// The types of the values, which nft shows.
    pub(crate) key_type: u32,
    pub(crate) key_length: u32,
    pub(crate) data_type: u32,
    pub(crate) data_length: u32,
}

/// A request about nf_tables.
pub(super) fn message(family: Family, kind: u16, flags: u16, attributes: Attributes) -> Message {
    Message { kind, flags, family: family.number(), version: 0, resource: 0, attributes }
}

/// Creates a table unless it exists.
pub(crate) fn create_table(family: Family, table: &str) -> Message {
    message(family, NEW_TABLE, CREATE, Attributes::new().text(1, table).number(2, 0))
}

/// Deletes a table with all that it has.
pub(crate) fn delete_table(family: Family, table: &str) -> Message {
    message(family, DELETE_TABLE, 0, Attributes::new().text(1, table))
}

/// Creates a chain unless it exists.
pub(crate) fn create_chain(family: Family, table: &str, chain: &Chain) -> Message {
    const ACCEPT: u32 = 1;
    let mut attributes = Attributes::new().text(1, table).text(3, chain.name);
    if let Some(Hook { kind, number, priority }) = chain.hook {
        let hook = Attributes::new().number(1, number).number(2, priority as u32);
        attributes = attributes.text(7, kind).number(5, ACCEPT).nested(4, &hook);
    }
    message(family, NEW_CHAIN, CREATE, attributes)
}

/// Deletes a chain that has no rule.
pub(crate) fn delete_chain(family: Family, table: &str, chain: &str) -> Message {
    message(family, DELETE_CHAIN, 0, Attributes::new().text(1, table).text(3, chain))
}

/// Creates a map unless it exists.
pub(crate) fn create_map(family: Family, table: &str, map: &Map) -> Message {
    const IS_MAP: u32 = 8;
    let attributes = Attributes::new().text(1, table).text(2, map.name).number(3, IS_MAP);
    let attributes = attributes.number(4, map.key_type).number(5, map.key_length);
    let attributes = attributes.number(6, map.data_type).number(7, map.data_length);
    message(family, NEW_MAP, CREATE, attributes.number(10, map.number))
}

/// Inserts an element. If the map has the key with the same data, nothing changes; with other data it is an error
/// (EBUSY).
pub(crate) fn insert_element(family: Family, table: &str, map: &str, key: &[u8], data: &[u8]) -> Message {
    let value = |bytes: &[u8]| Attributes::new().bytes(1, bytes);
    let element = Attributes::new().nested(1, &value(key)).nested(2, &value(data));
    message(family, NEW_ELEMENT, CREATE, about_element(table, map, &element))
}

/// Deletes an element. It is an error if the map does not have the key (ENOENT).
pub(crate) fn delete_element(family: Family, table: &str, map: &str, key: &[u8]) -> Message {
    let element = Attributes::new().nested(1, &Attributes::new().bytes(1, key));
    message(family, DELETE_ELEMENT, 0, about_element(table, map, &element))
}

/// Requests an element.
pub(crate) fn get_element(family: Family, table: &str, map: &str, key: &[u8]) -> Message {
    let element = Attributes::new().nested(1, &Attributes::new().bytes(1, key));
    message(family, GET_ELEMENT, 0, about_element(table, map, &element))
}

/// Requests all elements of a map.
pub(crate) fn dump_elements(family: Family, table: &str, map: &str) -> Message {
    message(family, GET_ELEMENT, 0, Attributes::new().text(1, table).text(2, map))
}

/// Requests the rules of a table, or of one chain.
pub(crate) fn dump_rules(family: Family, table: &str, chain: Option<&str>) -> Message {
    let attributes = Attributes::new().text(1, table);
    message(family, GET_RULE, 0, chain.into_iter().fold(attributes, |attributes, chain| attributes.text(2, chain)))
}

/// Requests a chain.
pub(crate) fn get_chain(family: Family, table: &str, chain: &str) -> Message {
    message(family, GET_CHAIN, 0, Attributes::new().text(1, table).text(3, chain))
}

fn about_element(table: &str, map: &str, element: &Attributes) -> Attributes {
    let list = Attributes::new().nested(1, element);
    Attributes::new().text(1, table).text(2, map).nested(3, &list)
}

/// The keys and data of the elements in an answer.
pub(crate) fn elements_of(attributes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let list = find(attributes, 3).unwrap_or_default();
    fields(list).filter_map(|(_, element)| {
        let value = |kind| find(find(element, kind)?, 1);
        Some((value(1)?, value(2)?))
    })
}
