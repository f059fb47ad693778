//! `oci-rs migrate`: says how jobs with `driver = "docker"` will run with this driver. It only reads.
//!
//! The verdicts come from the code that a start runs: the decoding of the task block and the plan of the container.

mod change;
mod check;
mod cluster;
mod difference;
mod interpolation;
mod job;
mod node;
mod report;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use serde_json::Value as Json;

use self::{
    check::Verdict,
    job::DockerTask,
    node::Nodes,
    report::{Checked, Report},
};
use super::{
    arguments::MigrateArguments,
    failure::Failure,
    job_files::{self, Variables},
    output::Output,
};

/// Runs the command. The exit code tells the worst verdict.
pub fn run(arguments: &MigrateArguments) -> Result<ExitCode, Failure> {
    let nodes = Nodes::read(arguments.config.as_deref())?;
    let tasks = if arguments.files.is_empty() { cluster::tasks(&arguments.cluster)? } else { of_files(arguments)? };
    let checked = tasks.into_iter().map(|task| Checked { assessment: check::assess(&task, &nodes), task });
    let report = Report::new(checked.collect(), &nodes);
    let output = Output { json: arguments.json };
    if output.json {
        output.value(&report.json())?;
    } else {
        report.text(report::width()).iter().try_for_each(|line| output.line(line))?;
    }
    Ok(ExitCode::from(exit_code(&report)))
}

/// The docker tasks of the jobs in files.
fn of_files(arguments: &MigrateArguments) -> Result<Vec<DockerTask>, Failure> {
    let variables = Variables { values: &arguments.var, files: &arguments.var_file };
    let jobs = job_files::read_all(&arguments.files, &variables)?;
    let tasks = |(file, job): &(String, Json)| {
        let named = |task| DockerTask { file: Some(file.clone()), ..task };
        job::docker_tasks(job).into_iter().map(named).collect::<Vec<_>>()
    };
    Ok(jobs.iter().flat_map(tasks).collect())
}

/// The exit code, as the help describes it.
fn exit_code(report: &Report) -> u8 {
    match report.worst() {
        Verdict::Change => 5,
        _ if !report.additions().is_empty() => 4,
        Verdict::Differs => 3,
        Verdict::Unchanged => 0,
    }
}
