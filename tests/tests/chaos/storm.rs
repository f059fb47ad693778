//! Random lives with random deaths. `CHAOS_LIVES` says how many, `CHAOS_SEED` repeats a run.

use std::{
    cell::RefCell,
    panic::AssertUnwindSafe,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use fixtures::{must::Must, wait::all};

use crate::{dice::Dice, life, scenario::Scenario, world::World};

/// Lives of one run, unless told otherwise.
const LIVES: usize = 320;
/// Lives on one node.
const LIVES_OF_A_NODE: usize = 20;
/// Nodes at once.
const NODES: usize = 2;
/// One of so many nodes gives tasks networks of their own, which takes time.
const NODES_PER_ISLAND: usize = 8;
/// For making a failing scenario shorter.
const RERUNS: usize = 60;
const TIME_FOR_RERUNS: Duration = Duration::from_secs(120);

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().must(&format!("{variable}={text}")))
}

#[test]
fn random_lives_with_random_deaths() {
    let lives = number("CHAOS_LIVES").map_or(LIVES, |lives| usize::try_from(lives).must("CHAOS_LIVES"));
    let seed = number("CHAOS_SEED").unwrap_or_else(|| {
        let id = fixtures::random::uuid().replace('-', "");
        u64::from_str_radix(&id[..12], 16).must("a random seed")
    });
    let mut dice = Dice::new(seed);
    let scenarios: Vec<Scenario> = (0..lives.div_ceil(LIVES_OF_A_NODE))
        .map(|node| Scenario {
            own_networks: node % NODES_PER_ISLAND == 1,
            ..Scenario::new(dice.any(), LIVES_OF_A_NODE)
        })
        .collect();
    let next = AtomicUsize::new(0);
    let failed = thread::scope(|scope| {
        let worker = || {
            loop {
                let scenario = scenarios.get(next.fetch_add(1, Ordering::Relaxed))?;
                if let Err(reason) = run(scenario) {
                    // The others begin nothing more.
                    next.store(scenarios.len(), Ordering::Relaxed);
                    return Some((scenario, reason));
                }
            }
        };
        let workers: Vec<_> = (0..NODES).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().find_map(|worker| worker.join().unwrap_or_default())
    });
    if let Some((scenario, reason)) = failed {
        let (shortest, last) = shorten(scenario.clone(), reason.clone());
        panic!(
            "{reason}\nCHAOS_SEED={seed} CHAOS_LIVES={lives} repeats the run. The shortest that failed, by {last}\n{shortest:#?}"
        );
    }
}

/// Lives a scenario on a node of its own; the reason why it failed.
fn run(scenario: &Scenario) -> Result<(), String> {
    let scenario = scenario.clone();
    let lived = thread::Builder::new().name("chaos".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().must("a runtime");
        std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(live(&scenario)))).map_err(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        })
    });
    lived.must("a thread").join().unwrap_or_else(|_| Err("the thread of a scenario died".to_owned()))
}

async fn live(scenario: &Scenario) {
    let world = World::new(scenario.own_networks).await;
    let waiting = RefCell::new(scenario.lives.iter());
    let worker = || async {
        loop {
            let next = waiting.borrow_mut().next();
            let Some(next) = next else { return };
            life::live(&world, next).await;
        }
    };
    all((0..scenario.width).map(|_| worker())).await;
    world.finish().await;
}

/// Leaves parts out for as long as it still fails. What fails by chance may not fail again: then it stays as it is.
fn shorten(mut scenario: Scenario, mut reason: String) -> (Scenario, String) {
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
