//! Jobs with `driver = "oci-rs"`, and some with `driver = "docker"`, on a real Nomad agent.
//!
//! Most cases share an agent. Cases that kill agents have their own agent. After each case, nothing of its jobs may be
//! left; at the end, nothing of the agents. Cases run side by side in lanes with network namespaces of their own.
//! Without root or the tools, the cases are skipped with the reason. With `OCI_RS_E2E=1` that is an error.

mod batch;
mod checks;
mod commands;
mod cores;
mod corpus;
mod csi;
mod devices;
mod disk;
mod dispatch;
mod docker;
mod examples;
mod exec;
mod gpu;
mod identity;
mod images;
mod invalid_jobs;
mod lane;
mod lifecycle;
mod mesh;
mod migrate;
mod mixed;
mod network;
mod own_network;
mod prefetch;
mod recovery;
mod rollout;
mod selection;
mod service;
mod stopped;
mod survival;
mod templates;
mod terminal;
mod versions;
mod volume_forms;
mod volumes;

use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use e2e::{Failure, Tools, Version, tools};
use lane::{Case, Env, Lanes, Needs};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

/// The number of lanes. The cases wait most of the time, so more lanes than processors are worth it.
const LANES: usize = 3;
/// The number of cases that a run lists with their durations.
const SLOWEST: usize = 8;

/// The durations of the cases that have ended.
type Durations = Arc<Mutex<Vec<(Duration, &'static str)>>>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(LANES);
    let cases = [
        examples::CASES,
        batch::CASES,
        service::CASES,
        network::CASES,
        own_network::CASES,
        exec::CASES,
        commands::CASES,
        images::CASES,
        stopped::CASES,
        terminal::CASES,
        invalid_jobs::CASES,
        devices::CASES,
        gpu::CASES,
        volumes::CASES,
        volume_forms::CASES,
        recovery::CASES,
        rollout::CASES,
        survival::CASES,
        checks::CASES,
        mesh::CASES,
        docker::CASES,
        migrate::CASES,
        prefetch::CASES,
        corpus::CASES,
        templates::CASES,
        dispatch::CASES,
        identity::CASES,
        mixed::CASES,
        cores::CASES,
        csi::CASES,
        disk::CASES,
        versions::CASES,
    ]
    .concat();
    let cases = match selection::of(cases) {
        Ok(cases) => spread(cases),
        Err(Failure(reason)) => return fail(&reason),
    };
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(Failure(reason)) => return skip(&arguments, &cases, &reason),
    };
    let version = tools.version;
    let without_consul = tools.missing_for_consul().filter(|_| !tools::required());
    if let Some(reason) = &without_consul {
        warn(&format!("skipped where Consul is needed: {reason}"));
    }
    let lanes = Arc::new(Lanes::new(tools));
    if let Err(error) = take_down_at_signal(Arc::clone(&lanes)) {
        return fail(&error.to_string());
    }
    let durations = Durations::default();
    let trials = cases.into_iter().map(|case| {
        let ignored = case.1 == Needs::WithConsul && without_consul.is_some();
        trial(case, version, Arc::clone(&lanes), Arc::clone(&durations)).with_ignored_flag(ignored)
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if conclusion.num_passed > 1 {
        warn(&format!("Nomad {version}; the slowest cases: {}", slowest(&durations)));
    }
    match lanes.close() {
        Ok(()) => conclusion.exit_code(),
        Err(Failure(text)) => fail(&text),
    }
}

/// Distributes the cases that share one Consul over the run, so that they do not wait for each other.
fn spread(cases: Vec<Case>) -> Vec<Case> {
    let (consul, mut others): (Vec<Case>, Vec<Case>) =
        cases.into_iter().partition(|(_, needs, _)| *needs == Needs::WithConsul);
    let step = others.len() / consul.len().max(1) + 1;
    for (index, case) in consul.into_iter().enumerate() {
        others.insert((index * step).min(others.len()), case);
    }
    others
}

/// The trial of a case. With a Nomad that lacks a feature which the case needs, the case must fail.
fn trial((name, needs, case): Case, version: Version, lanes: Arc<Lanes>, durations: Durations) -> Trial {
    Trial::ignorable_test(name, move || {
        let begun = Instant::now();
        let outcome = lanes.run(needs, case);
        durations.lock().unwrap_or_else(PoisonError::into_inner).push((begun.elapsed(), name));
        match (outcome, version.lacks_for(name)) {
            (Ok(()), None) => Ok(Completion::Completed),
            (Err(Failure(text)), None) => Err(Failed::from(text)),
            (Err(_), Some(feature)) => {
                let reason = format!("Nomad {version} lacks: {}", feature.name);
                Ok(Completion::Ignored { reason: Some(reason) })
            }
            (Ok(()), Some(feature)) => Err(Failed::from(format!(
                "it passes with Nomad {version}, but e2e/src/versions.rs says that it needs: {}",
                feature.name
            ))),
        }
    })
}

/// Ends all agents and tasks at Ctrl-C and SIGTERM.
fn take_down_at_signal(lanes: Arc<Lanes>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            if let Err(Failure(text)) = lanes.take_down() {
                warn(&text);
            }
            std::process::exit(130);
        }
    });
    Ok(())
}

fn slowest(durations: &Durations) -> String {
    let mut durations = durations.lock().unwrap_or_else(PoisonError::into_inner);
    durations.sort_unstable_by(|one, other| other.cmp(one));
    let texts = durations.iter().take(SLOWEST).map(|(duration, name)| format!("{name} {} s", duration.as_secs()));
    texts.collect::<Vec<_>>().join(", ")
}

#[allow(clippy::print_stderr)]
fn warn(text: &str) {
    eprintln!("{text}");
}

fn fail(text: &str) -> ExitCode {
    warn(text);
    ExitCode::FAILURE
}

fn skip(arguments: &Arguments, cases: &[Case], reason: &str) -> ExitCode {
    if tools::required() {
        return fail(reason);
    }
    warn(&format!("skipped: {reason}"));
    let trials = cases.iter().map(|(name, ..)| Trial::test(*name, || Ok(())).with_ignored_flag(true));
    libtest_mimic::run(arguments, trials.collect()).exit_code()
}
