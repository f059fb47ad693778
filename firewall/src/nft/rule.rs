//! Rules: expressions in a chain, with a comment that nft shows.

use super::{
    expression::Expression,
    object::{SUBSYSTEM, message},
};
use crate::{
    netlink::{APPEND, Attributes, CREATE, Message, find, find_text},
    port::Family,
};

const NEW_RULE: u16 = SUBSYSTEM | 6;
const DELETE_RULE: u16 = SUBSYSTEM | 8;
/// The type of a comment in the data that the kernel keeps for programs.
const COMMENT: u8 = 0;

/// A rule of a table of ours. It is recognized by its comment, which contains all that the rule depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) chain: &'static str,
    pub(crate) expressions: Vec<Expression>,
    pub(crate) comment: String,
}

/// Adds a rule at the end of a chain, or at its begin.
pub(crate) fn create_rule(
    family: Family,
    table: &str,
    chain: &str,
    expressions: &[Expression],
    comment: Option<&str>,
    at_end: bool,
) -> Message {
    let list = expressions.iter().fold(Attributes::new(), |list, expression| {
        list.nested(1, &Attributes::new().text(1, expression.name).nested(2, &expression.data))
    });
    let mut attributes = Attributes::new().text(1, table).text(2, chain).nested(4, &list);
    if let Some(comment) = comment {
        attributes = attributes.bytes(7, &user_data(comment));
    }
    message(family, NEW_RULE, CREATE | if at_end { APPEND } else { 0 }, attributes)
}

/// Deletes the rule that the kernel knows by this number.
pub(crate) fn delete_rule(family: Family, table: &str, chain: &str, handle: u64) -> Message {
    let attributes = Attributes::new().text(1, table).text(2, chain).bytes(3, &handle.to_be_bytes());
    message(family, DELETE_RULE, 0, attributes)
}

/// The number of a rule in an answer.
pub(crate) fn handle_of(attributes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*find(attributes, 3)?.first_chunk()?))
}

/// A comment in nft's form: type, length, text with NUL.
fn user_data(comment: &str) -> Vec<u8> {
    debug_assert!(comment.len() < 128, "a comment has at most 127 characters");
    [&[COMMENT, comment.len() as u8 + 1], comment.as_bytes(), &[0]].concat()
}

/// The table, chain, comment and expressions of a rule in an answer. A rule without a comment has an empty one.
pub(crate) fn rule_of(attributes: &[u8]) -> Option<(&str, &str, &str, &[u8])> {
    let comment = find(attributes, 7).and_then(|data| {
        let (&[kind, length], rest) = data.split_first_chunk()?;
        let text = rest.get(..usize::from(length).checked_sub(1)?)?;
        (kind == COMMENT).then(|| std::str::from_utf8(text).ok()).flatten()
    });
    let expressions = find(attributes, 4).unwrap_or_default();
    Some((find_text(attributes, 1)?, find_text(attributes, 2)?, comment.unwrap_or_default(), expressions))
}
