//! The driver and Nomad's docker driver, both driven as a Nomad client does: each task has its own logmon, and its
//! output ends in Nomad's log files. A Go program (`e2e/conformance/contest`) drives both, because the docker driver is
//! a part of Nomad. Both run in a test network, so that dockerd may have its bridge there.

use std::{
    io::{BufRead, BufReader},
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use fixtures::{must::Must, netns::TestNetwork};
use serde::Deserialize;

use crate::{
    docker::Docker,
    images,
    ours::Contenders,
    report::{Row, Samples, note, or_say, range, say},
    workdir::{WorkDirectory, text},
};

/// One line of the program's output.
#[derive(Debug, Deserialize)]
struct Measurement {
    case: String,
    name: String,
    value: f64,
}

/// Measures the tables.
pub fn measure(workdir: &WorkDirectory, contenders: &Contenders, rounds: usize) {
    note("tasks, as a Nomad client runs them");
    // Only a dedicated thread can enter a test network.
    let measured = thread::scope(|scope| scope.spawn(|| in_test_network(workdir, contenders, rounds)).join());
    measured.unwrap_or_else(|panic| resume_unwind(panic));
}

fn in_test_network(workdir: &WorkDirectory, contenders: &Contenders, rounds: usize) {
    let _netns = TestNetwork::enter();
    let data = workdir.fresh("nomad");
    let Some((_registry, image)) = images::small() else { return };
    let Some(program) = or_say(build(workdir)) else { return };
    let docker = if contenders.peers {
        or_say(Docker::start_with_bridge(workdir, data.path()).and_then(|docker| docker.pull(&image).map(|_| docker)))
    } else {
        None
    };
    let mut command = Command::new(program);
    command.args(["-plugin", &text(&kit::plugin::binary()), "-image", &image, "-directory", &text(data.path())]);
    command.args(["-state", &text(data.memory()), "-rounds", &rounds.to_string()]);
    command.args(["-address", &TestNetwork::NODE.to_string()]);
    if let Some(docker) = &docker {
        command.args(["-docker", &docker.endpoint(), "-exec-root", &text(docker.exec_root())]);
    }
    or_say(run(&mut command).map(|cases| cases.iter().for_each(|(title, samples)| table(title, samples))));
    say("- left out: the containerd driver: Go's module proxy does not have its module");
}

fn build(workdir: &WorkDirectory) -> Result<PathBuf, String> {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/conformance");
    let program = workdir.directory("nomad-contest").join("contest");
    // Built like the conformance tests, so that both share one cache.
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-buildvcs=false", "-o", &text(&program), "./contest"]).current_dir(module);
    let output = go.output().map_err(|error| format!("go: {error}"))?;
    if output.status.success() { Ok(program) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Runs the program to its end. Returns the measurements by case, in the program's order.
fn run(command: &mut Command) -> Result<Vec<(String, Samples<f64>)>, String> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let mut cases: Vec<(String, Samples<f64>)> = Vec::new();
    for line in BufReader::new(child.stdout.take().must("its output")).lines() {
        let line = line.map_err(|error| error.to_string())?;
        let Measurement { case, name, value } =
            serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
        match cases.iter_mut().find(|(title, _)| *title == case) {
            Some((_, samples)) => samples.add(&name, value),
            None => {
                let mut samples = Samples::default();
                samples.add(&name, value);
                cases.push((case, samples));
            }
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(cases),
        Ok(status) => Err(format!("the drivers' contest ended with {status}; what it says stands above")),
        Err(error) => Err(error.to_string()),
    }
}

/// One row of a table. Times are in milliseconds; the title says other units.
fn table(title: &str, samples: &Samples<f64>) {
    let head = "| | median | lowest | highest | runs | ratio to ours |\n|---|---:|---:|---:|---:|---:|";
    let unit = if title.contains("KiB") { "" } else { ", ms" };
    samples.print(&format!("Nomad: {title}{unit}"), head, row);
}

fn row(samples: &Samples<f64>, Row { name, first, values }: Row<f64>) -> Option<String> {
    let (low, high) = range(values.iter().copied());
    let middle = samples.middle(name, |value| *value)?;
    let ratio = middle / samples.middle(first, |value| *value)?;
    Some(format!("| {name} | {middle:.1} | {low:.1} | {high:.1} | {} | {ratio:.2} |", values.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_sorted_by_case() {
        let lines = r#"echo '{"case":"a","name":"x","value":1.5}'; echo '{"case":"b","name":"x","value":2}';
            echo '{"case":"a","name":"y","value":3}'"#;
        let cases = run(Command::new("/bin/sh").args(["-c", lines])).must("cases");
        assert_eq!(cases.iter().map(|(title, _)| title.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(cases[0].1.rows(row), ["| x | 1.5 | 1.5 | 1.5 | 1 | 1.00 |", "| y | 3.0 | 3.0 | 3.0 | 1 | 2.00 |"]);
        assert!(run(&mut Command::new("false")).is_err());
    }
}
