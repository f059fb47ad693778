//! Benchmarks: the cost of a start, an exec, a cold pull and an idle task, compared with other programs.
//!
//! An absolute time depends on the machine. Each measurement therefore runs all programs in turns, and reports medians
//! and their ratio to ours. A program that is not installed or does not run here is named and left out. Needs root. All
//! files are in one directory and on loop devices. Both are removed at the end, also after a failure.

mod containerd;
mod daemon;
mod docker;
mod exec;
mod image_volume;
mod images;
mod machine;
mod memory;
mod metrics;
mod network;
mod nomad;
mod ours;
mod podman;
mod process;
mod pull;
mod quiet;
mod readiness;
mod report;
mod runtimes;
mod scale;
mod start;
mod timer;
mod workdir;

use std::path::PathBuf;

use fixtures::must::Must;
use tokio::signal::unix::{SignalKind, signal};

use crate::{ours::Contenders, quiet::Quiet, report::say, workdir::WorkDirectory};

/// The link in front of the registry must not use the processors that it measures: musl's allocator returns the memory
/// of each piece to the kernel.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// The command line: the cases, and the number of rounds.
#[derive(Debug)]
struct Arguments {
    cases: Vec<String>,
    rounds: usize,
    pull_rounds: Option<usize>,
    layers: Option<PathBuf>,
    readiness: readiness::Options,
    contenders: Contenders,
}

/// Rounds of the cases of pulls, unless others are asked for.
const PULL_ROUNDS: usize = 5;
/// Rounds of `readiness`, unless others are asked for. Its pulls take minutes.
const READINESS_ROUNDS: usize = 1;

const CASES: [&str; 12] = [
    "start",
    "network",
    "image-volume",
    "exec",
    "memory",
    "tasks",
    "scale",
    "metrics",
    "pull",
    "pull-link",
    "pull-layer",
    "readiness",
];
const USAGE: &str = "usage: bench [--rounds N] [--pull-rounds N] [--layers DIRECTORY] [--against OTHER-OCI-RS] \
                     [--no-peers] [--without-userns] \
                     [start] [network] [image-volume] [exec] [memory] [tasks] [scale] [metrics] \
                     [pull] [pull-link] [pull-layer] \
                     [readiness] [--readiness MIB,MIB…] [--links MBIT,MBIT+MS…] [--services static,django,jvm] \
                     [--roots DIRECTORY]";

/// Parses values that are separated by commas.
fn list<T: std::str::FromStr>(text: &str) -> Result<Vec<T>, String> {
    readiness::list(text).map_err(|error| format!("{error}; {USAGE}"))
}

impl Arguments {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let contenders = Contenders { against: None, without_userns: false, peers: true };
        let readiness = readiness::Options::default();
        let mut arguments =
            Self { cases: Vec::new(), rounds: 21, pull_rounds: None, layers: None, readiness, contenders };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value; {USAGE}"));
            let count = |text: String| text.parse().map_err(|_| format!("{text} is no number; {USAGE}"));
            match arg.as_str() {
                "--rounds" => arguments.rounds = count(value()?)?,
                "--pull-rounds" => arguments.pull_rounds = Some(count(value()?)?),
                "--layers" => arguments.layers = Some(value()?.into()),
                "--readiness" => arguments.readiness.sizes = list(&value()?)?,
                "--links" => arguments.readiness.lines = list(&value()?)?,
                "--services" => arguments.readiness.services = list(&value()?)?,
                "--roots" => arguments.readiness.roots = Some(value()?.into()),
                "--against" => arguments.contenders.against = Some(value()?.into()),
                "--no-peers" => arguments.contenders.peers = false,
                "--without-userns" => arguments.contenders.without_userns = true,
                // The case's name in earlier versions.
                "crowd" => arguments.cases.push("scale".to_owned()),
                case if CASES.contains(&case) => arguments.cases.push(case.to_owned()),
                other => return Err(format!("{other} is unknown; {USAGE}")),
            }
        }
        if arguments.cases.is_empty() {
            arguments.cases = CASES.map(str::to_owned).into();
        }
        Ok(arguments)
    }
}

async fn run(arguments: Arguments) {
    let workdir = WorkDirectory::new();
    let mut quiet = Quiet::default();
    machine::print();
    let (contenders, layers) = (&arguments.contenders, arguments.layers.as_deref());
    let pull_rounds = arguments.pull_rounds.unwrap_or(PULL_ROUNDS);
    for case in &arguments.cases {
        match case.as_str() {
            "start" => start::measure(&workdir, contenders, &mut quiet, arguments.rounds).await,
            "network" => network::measure(&workdir, &mut quiet, arguments.rounds).await,
            "image-volume" => image_volume::measure(&workdir, &mut quiet, arguments.rounds).await,
            "exec" => exec::measure(&workdir, contenders, &mut quiet, arguments.rounds).await,
            "memory" => memory::measure(&workdir, contenders).await,
            "tasks" => nomad::measure(&workdir, contenders, arguments.rounds),
            "scale" => scale::measure(&workdir, contenders).await,
            "metrics" => metrics::measure(&workdir).await,
            "pull" => pull::ordinary(&workdir, contenders, &mut quiet, pull_rounds, layers).await,
            "pull-link" => pull::through_link(&workdir, contenders, &mut quiet, pull_rounds, layers).await,
            "readiness" => {
                let rounds = arguments.pull_rounds.unwrap_or(READINESS_ROUNDS);
                readiness::measure(&workdir, contenders, &mut quiet, (rounds, &arguments.readiness)).await;
            }
            _ => pull::one_layer(&workdir, contenders, &mut quiet, pull_rounds, layers).await,
        }
    }
    say(&quiet.to_string());
}

#[tokio::main]
async fn main() {
    assert!(rustix::process::geteuid().is_root(), "benchmarks make containers: run them as root");
    let arguments = Arguments::parse(std::env::args().skip(1)).must("the command line");
    let watch = |kind| signal(kind).must("watch for a signal");
    let [mut interrupted, mut terminated] = [SignalKind::interrupt(), SignalKind::terminate()].map(watch);
    tokio::select! {
        () = run(arguments) => {}
        // Dropping the run removes everything that it made. It waits for the program that is being measured.
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn no_case_means_all_cases() {
        assert_eq!(parse("").must("arguments").cases, CASES);
    }

    #[test]
    fn cases_and_rounds_are_parsed() {
        let arguments = parse("exec --rounds 3 --layers /x").must("arguments");
        assert_eq!((arguments.cases, arguments.rounds, arguments.layers), (vec!["exec".into()], 3, Some("/x".into())));
    }

    #[test]
    fn the_old_name_of_scale_is_accepted() {
        assert_eq!(parse("crowd").must("arguments").cases, ["scale"]);
    }

    #[test]
    fn the_options_of_readiness_are_parsed() {
        let line = "readiness --readiness 150,1024 --links 1000,100+20 --services jvm --roots /x --pull-rounds 2";
        let Arguments { readiness, pull_rounds, .. } = parse(line).must("arguments");
        assert_eq!((readiness.sizes, readiness.lines.len()), (vec![150, 1024], 2));
        assert_eq!((readiness.services.len(), readiness.roots, pull_rounds), (1, Some("/x".into()), Some(2)));
    }

    #[test]
    fn errors_contain_the_usage() {
        for line in ["--rounds", "--rounds many", "stop", "--links 0", "--services perl", "--readiness x"] {
            assert!(parse(line).err().must("an error").contains(USAGE), "{line}");
        }
    }
}
