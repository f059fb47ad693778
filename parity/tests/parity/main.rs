//! The differential suite: `OCI_RS_PARITY=all` runs all cases, `OCI_RS_PARITY=quick` the selection of CI. Without the
//! variable only `docs/docker-parity.md` is checked, because the suite starts a dockerd.

use std::{
    env,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use e2e::{Failure, Outcome, Tools, network};
use libtest_mimic::{Arguments, Failed, Trial};
use parity::{
    case::Case,
    cases, dockerd, document,
    node::{Addresses, Node},
    runner,
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

/// Cases side by side. Most of a case's time is spent waiting for Nomad.
const PARALLEL: usize = 8;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(PARALLEL));
    if let Err(Failure(text)) = document::check(env::var_os("OCI_RS_WRITE_DOCS").is_some()) {
        return fail(&text);
    }
    let selection = env::var("OCI_RS_PARITY").unwrap_or_default();
    if !["all", "quick"].contains(&selection.as_str()) {
        warn("skipped: OCI_RS_PARITY=all or quick selects the cases (make parity)");
        return ExitCode::SUCCESS;
    }
    let mut code = ExitCode::SUCCESS;
    for addresses in [Addresses::Four, Addresses::Both] {
        let cases = chosen(&arguments, &selection, addresses);
        if cases.is_empty() {
            continue;
        }
        if addresses == Addresses::Both && !network::has_ipv6() {
            warn(&format!("skipped: {} cases: this kernel cannot translate IPv6 addresses", cases.len()));
            continue;
        }
        let ended = match start(addresses) {
            Ok(node) => run(&arguments, &cases, node),
            Err(Failure(text)) => fail(&text),
        };
        if ended != ExitCode::SUCCESS {
            code = ended;
        }
    }
    code
}

/// The cases of one kind of node. A kind without cases starts no node.
fn chosen(arguments: &Arguments, selection: &str, addresses: Addresses) -> Vec<&'static Case> {
    let named = |case: &&Case| {
        let matches = |filter: &str| if arguments.exact { case.name == filter } else { case.name.contains(filter) };
        arguments.filter.as_deref().is_none_or(matches) && !arguments.skip.iter().any(|skip| matches(skip))
    };
    let all = cases::all().filter(|case| case.ipv6 == (addresses == Addresses::Both));
    all.filter(|case| selection == "all" || case.quick).filter(named).collect()
}

fn start(addresses: Addresses) -> Outcome<Node> {
    let tools = Tools::find()?;
    let docker = dockerd::find()?;
    Node::start(&tools, &docker, network::enter()?, addresses)
}

fn run(arguments: &Arguments, cases: &[&'static Case], node: Node) -> ExitCode {
    let node = Arc::new(node);
    let mut signals = match Signals::new([SIGINT, SIGTERM]) {
        Ok(signals) => signals,
        Err(error) => return fail(&error.to_string()),
    };
    let at_signal = Arc::downgrade(&node);
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            if let Some(node) = at_signal.upgrade() {
                node.take_down();
            }
            std::process::exit(130);
        }
    });
    let values = Arc::new(Mutex::new(0));
    let trials = cases.iter().map(|case| {
        let case = *case;
        let (node, values) = (Arc::clone(&node), Arc::clone(&values));
        let trial = Trial::test(case.name, move || {
            let observed = runner::run(case, &node).map_err(|Failure(text)| Failed::from(text))?;
            *values.lock().unwrap_or_else(PoisonError::into_inner) += observed;
            Ok(())
        });
        trial.with_ignored_flag(!case.possible())
    });
    let conclusion = libtest_mimic::run(arguments, trials.collect());
    let number = *values.lock().unwrap_or_else(PoisonError::into_inner);
    warn(&format!("{number} observed values were compared"));
    let left = Arc::into_inner(node).map_or_else(|| Ok(Vec::new()), Node::close);
    match left {
        Ok(left) if left.is_empty() => conclusion.exit_code(),
        Ok(left) => fail(&format!("left behind:\n  {}", left.join("\n  "))),
        Err(Failure(text)) => fail(&text),
    }
}

#[allow(clippy::print_stderr)]
fn warn(text: &str) {
    eprintln!("{text}");
}

fn fail(text: &str) -> ExitCode {
    warn(text);
    ExitCode::FAILURE
}
