//! The rules in the tables of iptables-legacy, which only its program changes.
//!
//! The kernel announces no change of these tables. But it tells how large a table is, for two system calls. A table
//! whose size has changed is checked again.

use std::{fs, path::PathBuf, process::Command};

use super::rule::{CHAIN, FORWARD, Rule, TABLE, accepting, entering};
use crate::{
    error::Error,
    port::{Bridge, Family},
    sys,
};

/// The state of a table for each family, as far as the kernel tells it. A family without the table has none.
pub(crate) type Seen = [Option<sys::TableInfo>; 2];

/// The state of the filter tables that are loaded.
pub(crate) fn seen(bridge: &Bridge) -> Seen {
    let mut seen = Seen::default();
    for ((family, _), seen) in bridge.subnets().zip(&mut seen) {
        // A query loads a table that is not loaded, so the list comes first.
        let loaded = fs::read_to_string(list(family)).is_ok_and(|names| names.lines().any(|name| name == TABLE));
        *seen = if loaded { sys::table_info(family.number(), TABLE).ok() } else { None };
    }
    seen
}

/// The file with the names of the loaded tables.
fn list(family: Family) -> &'static str {
    match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    }
}

/// Creates the rules that are missing in the loaded tables.
pub(crate) fn ensure(bridge: &Bridge, seen: &Seen) -> Result<(), Error> {
    for ((family, subnet), _) in bridge.subnets().zip(seen).filter(|(_, seen)| seen.is_some()) {
        let Some(program) = program(family) else {
            tracing::warn!(
                "the filter table of iptables-legacy is loaded, but its program is not installed: packets of the \
                 bridge {} may be dropped",
                bridge.name
            );
            continue;
        };
        let wanted = accepting(bridge, subnet).map(|rule| (CHAIN, rule)).into_iter().chain([(FORWARD, entering())]);
        let rules = call(&program, &["-S".to_owned()])?;
        let missing = wanted.filter(|(chain, rule)| {
            let line = format!("-A {chain} {}", rule.arguments().join(" "));
            !rules.lines().any(|found| found == line)
        });
        for (chain, rule) in missing.collect::<Vec<_>>() {
            if chain == FORWARD {
                call(&program, &[&["-I".to_owned(), chain.to_owned()][..], &rule.arguments()].concat())?;
                continue;
            }
            // The chain may exist without the rule, so an error of -N matters only if -A fails too.
            let created = call(&program, &["-N".to_owned(), chain.to_owned()]);
            let added = call(&program, &[&["-A".to_owned(), chain.to_owned()][..], &rule.arguments()].concat());
            added.or_else(|error| created.and(Err(error)))?;
        }
    }
    Ok(())
}

/// Removes the rules of a bridge from the loaded tables. If no other rule is left in our chain, it is removed too.
pub(crate) fn remove(bridge: &Bridge, seen: &Seen) -> Result<(), Error> {
    for ((family, subnet), _) in bridge.subnets().zip(seen).filter(|(_, seen)| seen.is_some()) {
        let Some(program) = program(family) else { continue };
        let chain = format!("-N {CHAIN}");
        if !call(&program, &["-S".to_owned()])?.lines().any(|line| line == chain) {
            continue;
        }
        let delete = |chain: &str, rule: &Rule| {
            let line = format!("-A {chain} {}", rule.arguments().join(" "));
            let exists = call(&program, &["-S".to_owned()])?.lines().any(|found| found == line);
            let arguments = [&["-D".to_owned(), chain.to_owned()][..], &rule.arguments()].concat();
            if exists { call(&program, &arguments).map(drop) } else { Ok(()) }
        };
        accepting(bridge, subnet).iter().try_for_each(|rule| delete(CHAIN, rule))?;
        let entry = format!("-A {CHAIN} ");
        if !call(&program, &["-S".to_owned()])?.lines().any(|line| line.starts_with(&entry)) {
            delete(FORWARD, &entering())?;
            call(&program, &["-X".to_owned(), CHAIN.to_owned()])?;
        }
    }
    Ok(())
}

/// The program that changes legacy tables: the one of that name, or an `iptables` that is not the one for nf_tables.
fn program(family: Family) -> Option<PathBuf> {
    let name = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    find(&format!("{name}-legacy")).or_else(|| {
        let program = find(name)?;
        let version = Command::new(&program).arg("-V").output().ok()?;
        (!String::from_utf8_lossy(&version.stdout).contains("nf_tables")).then_some(program)
    })
}

/// A program of the system. The PATH of a service may lack the directories for administrators.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// Calls the program for the filter table. It waits ten seconds for other programs that change the table.
fn call(program: &PathBuf, arguments: &[String]) -> Result<String, Error> {
    let mut command = Command::new(program);
    command.args(["-w", "10", "-t", TABLE]).args(arguments);
    let output = command.stdin(std::process::Stdio::null()).output();
    let failed = |problem: String| Error::Program { program: format!("{command:?}"), problem };
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let problem = String::from_utf8_lossy(&output.stderr);
            Err(failed(format!("{}; {}", output.status, problem.trim())))
        }
        Err(error) => Err(failed(format!("it cannot be executed: {error}"))),
    }
}
