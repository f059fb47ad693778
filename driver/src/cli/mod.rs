//! The role of an operator's command: `oci-rs ps` and its like show what runs on this node, `oci-rs image …` manages
//! the images, `oci-rs rollback` removes what runs under docker's name, and `oci-rs migrate` checks jobs of the docker
//! driver.
//!
//! No command needs a running plugin. Those that only show read the records on disk, and lock nothing that a task waits
//! for. The image commands open the image store beside plugins and running tasks; locks and leases keep all users of
//! the store apart. The text output may change between versions. `--json` and the exit codes are stable.

mod agent_config;
mod arguments;
mod definitions;
mod df;
mod doctor;
mod events;
mod exec;
mod failure;
mod filter;
mod format;
pub mod image;
mod inspect;
mod job_files;
mod logs;
mod migrate;
mod network;
mod output;
mod plugins;
mod ps;
#[cfg(test)]
mod reference;
mod rollback;
mod settings;
mod stats;
mod tasks;
mod usage;
mod version;
mod volume;
mod warnings;

use std::{io, process::ExitCode};

use clap::{CommandFactory, Parser};

use self::{
    arguments::{Arguments, Command, with_two_dashes},
    failure::Failure,
};

/// Runs a command. A start without a command is an error: it prints the help and ends with exit code 1.
pub fn main() -> ExitCode {
    let Some(command) = Arguments::parse_from(with_two_dashes(std::env::args_os())).command else {
        // A closed stderr must not cause a panic.
        if Arguments::command().write_long_help(&mut io::stderr()).is_err() {
            return ExitCode::from(2);
        }
        return ExitCode::FAILURE;
    };
    warnings::show();
    run(command).unwrap_or_else(|failure| failure.report())
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Ps(arguments) => ps::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Logs(arguments) => logs::run(&arguments),
        Command::Exec(arguments) => return Ok(exec::run(arguments)),
        Command::Df(arguments) => df::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Images(arguments) => image::run_list(&arguments),
        Command::Pull(arguments) => image::run_pull(&arguments),
        Command::Rmi(arguments) => image::run_remove(&arguments),
        Command::Network(arguments) => network::run(&arguments),
        Command::Volume(arguments) => volume::run(&arguments),
        Command::Version { json } => version::run(json),
        Command::Completion { shell } => definitions::completion(shell),
        Command::Man { directory } => definitions::man(&directory),
        Command::Rollback(arguments) => rollback::run(&arguments),
        Command::Migrate(arguments) => return migrate::run(&arguments),
    }
    .map(|()| ExitCode::SUCCESS)
}
