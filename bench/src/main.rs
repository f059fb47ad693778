//! Benchmarks against peers: what a start, a command in a container, a cold pull and an idle task cost here and elsewhere.
//!
//! An absolute time says more about the machine than about a program, so every measurement runs the peers beside us, in turns,
//! and reports medians and their ratio to ours. A peer that is not installed or does not run here is named and left out.
//! Needs root. Everything that is made lies in one directory and on loop devices that go with it, also after a failure.

mod arena;
mod crowd;
mod docker;
mod exec;
mod images;
mod memory;
mod network;
mod nomad;
mod ours;
mod podman;
mod process;
mod pull;
mod quiet;
mod report;
mod runtimes;
mod start;

use std::path::PathBuf;

use fixtures::must::Must;
use tokio::signal::unix::{SignalKind, signal};

use crate::{arena::Arena, ours::Lineup, quiet::Quiet, report::say};

/// What is to be measured, and how often.
#[derive(Debug)]
struct Order {
    cases: Vec<String>,
    rounds: usize,
    pull_rounds: usize,
    layers: Option<PathBuf>,
    lineup: Lineup,
}

const CASES: [&str; 9] = ["start", "network", "exec", "memory", "tasks", "crowd", "pull", "pull-link", "pull-layer"];
const USAGE: &str = "usage: bench [--rounds N] [--pull-rounds N] [--layers DIRECTORY] [--against OTHER-OCI-RS] [--no-peers] \
                     [start] [network] [exec] [memory] [tasks] [crowd] [pull] [pull-link] [pull-layer]";

impl Order {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let lineup = Lineup { against: None, peers: true };
        let mut order = Self { cases: Vec::new(), rounds: 21, pull_rounds: 5, layers: None, lineup };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value; {USAGE}"));
            let count = |text: String| text.parse().map_err(|_| format!("{text} is no number; {USAGE}"));
            match arg.as_str() {
                "--rounds" => order.rounds = count(value()?)?,
                "--pull-rounds" => order.pull_rounds = count(value()?)?,
                "--layers" => order.layers = Some(value()?.into()),
                "--against" => order.lineup.against = Some(value()?.into()),
                "--no-peers" => order.lineup.peers = false,
                case if CASES.contains(&case) => order.cases.push(case.to_owned()),
                other => return Err(format!("{other} is unknown; {USAGE}")),
            }
        }
        if order.cases.is_empty() {
            order.cases = CASES.map(str::to_owned).into();
        }
        Ok(order)
    }
}

async fn run(order: Order) {
    let arena = Arena::new();
    let mut quiet = Quiet::default();
    report::head();
    let (lineup, layers) = (&order.lineup, order.layers.as_deref());
    for case in &order.cases {
        match case.as_str() {
            "start" => start::measure(&arena, lineup, &mut quiet, order.rounds).await,
            "network" => network::measure(&arena, &mut quiet, order.rounds).await,
            "exec" => exec::measure(&arena, lineup, &mut quiet, order.rounds).await,
            "memory" => memory::measure(&arena, lineup).await,
            "tasks" => nomad::measure(&arena, lineup, order.rounds),
            "crowd" => crowd::measure(&arena, lineup).await,
            "pull" => pull::ordinary(&arena, lineup, &mut quiet, order.pull_rounds, layers).await,
            "pull-link" => pull::through_link(&arena, lineup, &mut quiet, order.pull_rounds, layers).await,
            _ => pull::one_layer(&arena, lineup, &mut quiet, order.pull_rounds, layers).await,
        }
    }
    say(&quiet.to_string());
}

#[tokio::main]
async fn main() {
    assert!(rustix::process::geteuid().is_root(), "benchmarks make containers: run them as root");
    let order = Order::parse(std::env::args().skip(1)).must("the command line");
    let mut terminated = signal(SignalKind::terminate()).must("watch for SIGTERM");
    tokio::select! {
        () = run(order) => {}
        // Dropping the run takes down whatever it made. A peer that is being measured is waited for.
        interrupted = tokio::signal::ctrl_c() => interrupted.must("wait for an interrupt"),
        _ = terminated.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Order, String> {
        Order::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn nothing_said_means_everything() {
        assert_eq!(parse("").must("an order").cases, CASES);
    }

    #[test]
    fn cases_and_rounds_are_taken() {
        let order = parse("exec --rounds 3 --layers /x").must("an order");
        assert_eq!((order.cases, order.rounds, order.layers), (vec!["exec".into()], 3, Some("/x".into())));
    }

    #[test]
    fn mistakes_are_named() {
        for line in ["--rounds", "--rounds many", "stop"] {
            assert!(parse(line).err().must("an error").contains(USAGE), "{line}");
        }
    }
}
