//! Random task lifecycles with random kills. `CHAOS_LIVES` is their number, `CHAOS_SEED` repeats a run.

use std::{
    cell::RefCell,
    panic::AssertUnwindSafe,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use fixtures::{must::Must, wait::all};

use crate::{environment::Environment, lifecycle, rng::Rng, scenario::Scenario};

/// The number of lifecycles in CI. `make chaos` runs more.
const LIFECYCLES: usize = 160;
/// The number of lifecycles on one node.
const LIFECYCLES_PER_NODE: usize = 20;
/// The number of concurrent nodes.
const NODES: usize = 2;
/// One of this number of nodes gives tasks their own networks, which is slower.
const NODES_PER_OWN_NETWORK: usize = 8;
/// The limit of runs to reduce a failing scenario.
const RERUNS: usize = 60;
const TIME_FOR_RERUNS: Duration = Duration::from_secs(120);

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().must(&format!("{variable}={text}")))
}

#[test]
fn random_lifecycles_with_random_kills() {
    let lives = number("CHAOS_LIVES").map_or(LIFECYCLES, |lives| usize::try_from(lives).must("CHAOS_LIVES"));
    let seed = number("CHAOS_SEED").unwrap_or_else(|| {
        let id = fixtures::random::uuid().replace('-', "");
        u64::from_str_radix(&id[..12], 16).must("a random seed")
    });
    let mut rng = Rng::new(seed);
    let scenarios: Vec<Scenario> = (0..lives.div_ceil(LIFECYCLES_PER_NODE))
        .map(|node| Scenario {
            own_networks: node % NODES_PER_OWN_NETWORK == 1,
            ..Scenario::new(rng.next(), LIFECYCLES_PER_NODE)
        })
        .collect();
    let next = AtomicUsize::new(0);
    let failed = thread::scope(|scope| {
        let worker = || {
            loop {
                let scenario = scenarios.get(next.fetch_add(1, Ordering::Relaxed))?;
                if let Err(reason) = run(scenario) {
                    // The other workers start no more scenarios.
                    next.store(scenarios.len(), Ordering::Relaxed);
                    return Some((scenario, reason));
                }
            }
        };
        let workers: Vec<_> = (0..NODES).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().find_map(|worker| worker.join().unwrap_or_default())
    });
    if let Some((scenario, reason)) = failed {
        let (shortest, last) = reduce(scenario.clone(), reason.clone());
        panic!(
            "{reason}\nCHAOS_SEED={seed} CHAOS_LIVES={lives} repeats the run. \
             The shortest scenario that failed, by {last}\n{shortest:#?}"
        );
    }
}

/// Runs a scenario on a new node. The error is the reason of the failure.
fn run(scenario: &Scenario) -> Result<(), String> {
    let scenario = scenario.clone();
    let finished = thread::Builder::new().name("chaos".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().must("a runtime");
        std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(run_lifecycles(&scenario)))).map_err(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        })
    });
    finished.must("a thread").join().unwrap_or_else(|_| Err("the thread of a scenario died".to_owned()))
}

async fn run_lifecycles(scenario: &Scenario) {
    let environment = Environment::new(scenario.own_networks).await;
    let waiting = RefCell::new(scenario.lifecycles.iter());
    let worker = || async {
        loop {
            let next = waiting.borrow_mut().next();
            let Some(next) = next else { return };
            lifecycle::run(&environment, next).await;
        }
    };
    all((0..scenario.concurrency).map(|_| worker())).await;
    environment.finish().await;
}

/// Leaves parts out while the scenario still fails. A failure that depends on timing may not repeat; the scenario then
/// stays unchanged.
fn reduce(mut scenario: Scenario, mut reason: String) -> (Scenario, String) {
    let begun = Instant::now();
    let mut reruns = 0;
    'shorter: loop {
        for candidate in scenario.shorter() {
            if reruns == RERUNS || begun.elapsed() > TIME_FOR_RERUNS {
                return (scenario, reason);
            }
            reruns += 1;
            if let Err(again) = run(&candidate) {
                (scenario, reason) = (candidate, again);
                continue 'shorter;
            }
        }
        return (scenario, reason);
    }
}
