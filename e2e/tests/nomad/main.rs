//! Jobs with `driver = "oci-rs"` on a real Nomad agent.
//!
//! Most cases share one agent. Cases that kill agents have their own agent. After each case, nothing of its jobs may be
//! left; at the end, nothing of the agent. A run has its own network namespace (`e2e::network`). Without root or the
//! tools, the cases are skipped with the reason. With `OCI_RS_E2E=1` that is an error.

mod batch;
mod checks;
mod devices;
mod examples;
mod exec;
mod invalid_jobs;
mod lifecycle;
mod mesh;
mod network;
mod own_network;
mod recovery;
mod rollout;
mod service;
mod survival;
mod terminal;
mod volumes;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use e2e::{
    Agent, Consul, Failure, Outcome, Registry, Tools,
    network::{self as networks, Namespace},
    tools,
};
use libtest_mimic::{Arguments, Failed, Trial};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

/// The environment of a case.
struct Env<'a> {
    agent: &'a Agent,
    registry: &'a Registry,
    /// The network namespace of an outside client. It has a route only to the node.
    outside: &'a Namespace,
    consul: Option<&'a Consul>,
}

impl Env<'_> {
    /// The Consul of an agent that has one.
    fn consul(&self) -> Outcome<&Consul> {
        self.consul.ok_or_else(|| Failure("the case needs an agent with Consul".to_owned()))
    }
}

/// A case: its name, whether it needs an agent of its own, and what it does.
type Case = (&'static str, Needs, fn(&Env) -> Outcome);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    SharedAgent,
    OwnAgent,
    /// A second shared agent, with Consul.
    WithConsul,
}

/// The parts that outlive a case. The first case that needs a part starts it.
struct Run {
    tools: Tools,
    outside: Namespace,
    registry: Mutex<Option<Arc<Registry>>>,
    agent: Mutex<Option<Arc<Agent>>>,
    consul: Mutex<Option<Arc<Consul>>>,
    consul_agent: Mutex<Option<Arc<Agent>>>,
    /// The running case's own agent.
    own_agent: Mutex<Option<Arc<Agent>>>,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The cases check the whole machine for leftovers, so they run one after the other.
    arguments.test_threads = Some(1);
    let cases = [
        examples::CASES,
        batch::CASES,
        service::CASES,
        network::CASES,
        own_network::CASES,
        exec::CASES,
        terminal::CASES,
        invalid_jobs::CASES,
        devices::CASES,
        volumes::CASES,
        recovery::CASES,
        rollout::CASES,
        survival::CASES,
        checks::CASES,
        mesh::CASES,
    ]
    .concat();
    let run = match Tools::find().and_then(|tools| Ok((tools, networks::enter()?))) {
        Ok((tools, outside)) => Run::new(tools, outside),
        Err(Failure(reason)) => return skip(&arguments, &cases, &reason),
    };
    let run = Arc::new(run);
    let mut signals = match Signals::new([SIGINT, SIGTERM]) {
        Ok(signals) => signals,
        Err(error) => return fail(&error.to_string()),
    };
    let at_signal = Arc::clone(&run);
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            at_signal.take_down();
            std::process::exit(130);
        }
    });
    let without_consul = run.tools.missing_for_consul().filter(|_| !tools::required());
    if let Some(reason) = &without_consul {
        warn(&format!("skipped where Consul is needed: {reason}"));
    }
    let trials = cases.into_iter().map(|(name, needs, case)| {
        let run = Arc::clone(&run);
        let trial = Trial::test(name, move || run.run(needs, case).map_err(|Failure(text)| Failed::from(text)));
        trial.with_ignored_flag(needs == Needs::WithConsul && without_consul.is_some())
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    match run.close() {
        Ok(()) => conclusion.exit_code(),
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

fn skip(arguments: &Arguments, cases: &[Case], reason: &str) -> ExitCode {
    if tools::required() {
        return fail(reason);
    }
    warn(&format!("skipped: {reason}"));
    let trials = cases.iter().map(|(name, ..)| Trial::test(*name, || Ok(())).with_ignored_flag(true));
    libtest_mimic::run(arguments, trials.collect()).exit_code()
}

impl Run {
    fn new(tools: Tools, outside: Namespace) -> Self {
        Self {
            tools,
            outside,
            registry: Mutex::default(),
            agent: Mutex::default(),
            consul: Mutex::default(),
            consul_agent: Mutex::default(),
            own_agent: Mutex::default(),
        }
    }

    fn run(&self, needs: Needs, case: fn(&Env) -> Outcome) -> Outcome {
        let registry = get_or(&self.registry, || Registry::start(&self.tools))?;
        if needs == Needs::OwnAgent {
            let agent = get_or(&self.own_agent, || Agent::start(&self.tools))?;
            let outcome = self.run_on(&agent, &registry, None, case);
            drop(agent);
            let agent = lock(&self.own_agent).take();
            outcome?;
            return close(agent);
        }
        let consul = match needs {
            Needs::WithConsul => Some(get_or(&self.consul, || Consul::start(&self.tools))?),
            _ => None,
        };
        let slot = if consul.is_some() { &self.consul_agent } else { &self.agent };
        let agent = get_or(slot, || Agent::start_with(&self.tools, consul.as_deref()))?;
        agent.mark_log();
        let outcome = self.run_on(&agent, &registry, consul.as_deref(), case);
        if outcome.is_err() {
            // The next case gets a new agent.
            drop(agent);
            drop(lock(slot).take());
        }
        outcome
    }

    fn run_on(
        &self,
        agent: &Agent,
        registry: &Registry,
        consul: Option<&Consul>,
        case: fn(&Env) -> Outcome,
    ) -> Outcome {
        let outside = &self.outside;
        let outcome = catch_unwind(AssertUnwindSafe(|| case(&Env { agent, registry, outside, consul })));
        let outcome = outcome.unwrap_or_else(|panic| Err(Failure(panic_text(&*panic))));
        let after = agent.purge().and_then(|()| none_left(agent.leaks()));
        let troubles: Vec<String> = [outcome, after].into_iter().filter_map(|outcome| Some(outcome.err()?.0)).collect();
        if troubles.is_empty() {
            return Ok(());
        }
        Err(Failure(format!("{}\n{}", troubles.join("\n"), agent.diagnose())))
    }

    fn close(&self) -> Outcome {
        drop(lock(&self.registry).take());
        // Both agents are closed, also when the first one fails.
        let closed = [&self.agent, &self.consul_agent].map(|slot| close(lock(slot).take()));
        drop(lock(&self.consul).take());
        closed.into_iter().collect()
    }

    /// Ends agents, tasks and registry after Ctrl-C. They have their own process groups.
    fn take_down(&self) {
        for slot in [&self.own_agent, &self.agent, &self.consul_agent] {
            let agent = lock(slot).clone();
            if let Some(agent) = agent {
                agent.take_down();
            }
        }
        if let Some(consul) = &*lock(&self.consul) {
            consul.take_down();
        }
        let registry = lock(&self.registry).clone();
        if let Some(registry) = registry {
            registry.take_down();
        }
    }
}

fn close(agent: Option<Arc<Agent>>) -> Outcome {
    agent.and_then(Arc::into_inner).map_or(Ok(()), |agent| none_left(agent.close()?))
}

fn none_left(left: Vec<String>) -> Outcome {
    if left.is_empty() { Ok(()) } else { Err(Failure(format!("left behind:\n  {}", left.join("\n  ")))) }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "panicked".to_owned())
}

fn get_or<T>(slot: &Mutex<Option<Arc<T>>>, start: impl FnOnce() -> Outcome<T>) -> Outcome<Arc<T>> {
    let mut slot = lock(slot);
    match &*slot {
        Some(there) => Ok(Arc::clone(there)),
        None => {
            let new = Arc::new(start()?);
            *slot = Some(Arc::clone(&new));
            Ok(new)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
