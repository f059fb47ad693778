//! The rules in the tables of iptables-nft, which are ordinary tables of nf_tables.

use std::io;

use super::rule::{CHAIN, FORWARD, Rule, TABLE, accepting, entering};
use crate::{
    netlink::{Connection, Message},
    nft::{Chain, create_chain, create_rule, delete_chain, delete_rule, dump_rules, get_chain, handle_of, rule_of},
    port::{Bridge, Family},
};

/// Creates the rules that are missing. A host without the chain `FORWARD` needs none.
pub(crate) fn ensure(connection: &Connection, bridge: &Bridge) -> io::Result<()> {
    for (family, subnet) in bridge.subnets() {
        let exists = connection.request(&[get_chain(family, TABLE, FORWARD)], |_, _| {})?.is_empty();
        if !exists {
            continue;
        }
        let entered = rules(connection, family, FORWARD)?.contains(&Some(entering()));
        let present = rules(connection, family, CHAIN)?;
        let missing: Vec<_> =
            accepting(bridge, subnet).into_iter().filter(|rule| !present.contains(&Some(rule.clone()))).collect();
        let requests = additions(family, &missing, entered);
        if let Some(refusal) = connection.transact(&requests)?.first() {
            return Err(io::Error::from_raw_os_error(refusal.error));
        }
    }
    Ok(())
}

/// Removes the rules of a bridge. If no other rule is left in our chain, the chain is removed too.
pub(crate) fn remove(connection: &Connection, bridge: &Bridge) -> io::Result<()> {
    for (family, subnet) in bridge.subnets() {
        if !connection.request(&[get_chain(family, TABLE, CHAIN)], |_, _| {})?.is_empty() {
            continue;
        }
        let ours = accepting(bridge, subnet);
        let (gone, kept): (Vec<_>, Vec<_>) = rules_with_handles(connection, family, CHAIN)?
            .into_iter()
            .partition(|(_, rule)| rule.as_ref().is_some_and(|rule| ours.contains(rule)));
        let mut requests: Vec<_> = gone.iter().map(|(handle, _)| delete_rule(family, TABLE, CHAIN, *handle)).collect();
        if kept.is_empty() {
            let jumps = rules_with_handles(connection, family, FORWARD)?;
            let jumps = jumps.iter().filter(|(_, rule)| *rule == Some(entering()));
            requests.extend(jumps.map(|(handle, _)| delete_rule(family, TABLE, FORWARD, *handle)));
            requests.push(delete_chain(family, TABLE, CHAIN));
        }
        if let Some(refusal) = connection.transact(&requests)?.first() {
            return Err(io::Error::from_raw_os_error(refusal.error));
        }
    }
    Ok(())
}

/// The requests that add rules to our chain, and the chain to `FORWARD`.
fn additions(family: Family, missing: &[Rule], entered: bool) -> Vec<Message> {
    if missing.is_empty() && entered {
        return Vec::new();
    }
    let mut requests = vec![create_chain(family, TABLE, &Chain { name: CHAIN, hook: None })];
    let add = |chain, rule: &Rule, at_end| create_rule(family, TABLE, chain, &rule.expressions(family), None, at_end);
    requests.extend(missing.iter().map(|rule| add(CHAIN, rule, true)));
    if !entered {
        requests.push(add(FORWARD, &entering(), false));
    }
    requests
}

/// The rules of a chain, as far as they are of the kind of ours.
fn rules(connection: &Connection, family: Family, chain: &str) -> io::Result<Vec<Option<Rule>>> {
    Ok(rules_with_handles(connection, family, chain)?.into_iter().map(|(_, rule)| rule).collect())
}

/// The same with the numbers by which the kernel knows them.
fn rules_with_handles(connection: &Connection, family: Family, chain: &str) -> io::Result<Vec<(u64, Option<Rule>)>> {
    let found = connection.list(&dump_rules(family, TABLE, Some(chain)))?;
    let of_chain = found.iter().filter_map(|attributes| match rule_of(attributes)? {
        (TABLE, name, _, expressions) if name == chain => {
            Some((handle_of(attributes)?, Rule::read(family, expressions)))
        }
        _ => None,
    });
    Ok(of_chain.collect())
}
