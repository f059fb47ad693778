//! The rules in the tables of iptables-nft, which are ordinary tables of nf_tables.

use std::io;

use super::rule::{CHAIN, FORWARD, Rule, TABLE, accepting, entering};
use crate::{
    netlink::{Connection, Message},
    nft::{Chain, create_chain, create_rule, dump_rules, get_chain, rule_of},
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
    let found = connection.list(&dump_rules(family, TABLE, Some(chain)))?;
    let of_chain = found.iter().filter_map(|attributes| match rule_of(attributes)? {
        (TABLE, name, _, expressions) if name == chain => Some(Rule::read(family, expressions)),
        _ => None,
    });
    Ok(of_chain.collect())
}
