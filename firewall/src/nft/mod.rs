//! The objects of nf_tables that the rules consist of, as requests to the kernel.

mod change;
mod expression;
mod object;
mod rule;

pub(crate) use change::Change;
pub(crate) use expression::{Expression, INPUT_NAME, OUTPUT_NAME, Test, Verdict};
pub(crate) use object::{
    Chain, Hook, Map, create_chain, create_map, create_table, delete_chain, delete_element, delete_table,
    dump_elements, dump_rules, elements_of, get_chain, get_element, insert_element,
};
pub(crate) use rule::{Rule, create_rule, delete_rule, handle_of, rule_of};
