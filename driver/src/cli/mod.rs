//! The role of an operator's command: `oci-rs image …` manages the images of this node, `oci-rs rollback` removes what
//! runs under docker's name.
//!
//! The commands open the image store beside plugins and running tasks. There is no daemon; locks and leases keep all
//! users of the store apart. The text output may change between versions. `--json` and the exit codes are stable.

mod arguments;
mod failure;
mod format;
mod image;
mod output;
mod rollback;
mod settings;

use std::{io, process::ExitCode};

use clap::{CommandFactory, Parser};

use self::arguments::{Arguments, Command};

/// Runs a command. A start without a command is an error: it prints the help and ends with exit code 1.
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Some(Command::Image(arguments)) => image::run(&arguments),
        Some(Command::Rollback(arguments)) => rollback::run(&arguments),
        None => {
            // A closed stderr must not cause a panic.
            if Arguments::command().write_long_help(&mut io::stderr()).is_err() {
                return ExitCode::from(2);
            }
            return ExitCode::FAILURE;
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
