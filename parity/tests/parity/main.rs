//! The differential suite: `OCI_RS_PARITY=all` runs all cases, `OCI_RS_PARITY=quick` the selection of CI. Without the
//! variable only `docs/docker-parity.md` is checked, because the suite starts a dockerd.

use std::{
    env,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use e2e::{Failure, Outcome, Tools, network};
use libtest_mimic::{Arguments, Failed, Trial};
use parity::{cases, dockerd, document, node::Node, runner};
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
    match start() {
        Ok(node) => run(&arguments, &selection, node),
        Err(Failure(text)) => fail(&text),
    }
}

fn start() -> Outcome<Node> {
    let tools = Tools::find()?;
    let docker = dockerd::find()?;
    Node::start(&tools, &docker, network::enter()?)
}

fn run(arguments: &Arguments, selection: &str, node: Node) -> ExitCode {
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
    let chosen = cases::all().filter(|case| selection == "all" || case.quick);
    let trials = chosen.map(|case| {
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
