//! The role of an operator's command: `oci-rs image …` manages the images of this node, `oci-rs rollback` removes what
//! runs under docker's name, and `oci-rs migrate` checks jobs of the docker driver.
//!
//! The image commands open the image store beside plugins and running tasks. There is no daemon; locks and leases keep
//! all users of the store apart. The text output may change between versions. `--json` and the exit codes are stable.

mod arguments;
mod failure;
mod format;
mod image;
mod migrate;
mod output;
mod rollback;
mod settings;

use std::{io, process::ExitCode};

use clap::{CommandFactory, Parser};

use self::arguments::{Arguments, Command, with_two_dashes};

/// Runs a command. A start without a command is an error: it prints the help and ends with exit code 1.
pub fn main() -> ExitCode {
    let done = match Arguments::parse_from(with_two_dashes(std::env::args_os())).command {
        Some(Command::Image(arguments)) => image::run(&arguments).map(|()| ExitCode::SUCCESS),
        Some(Command::Rollback(arguments)) => rollback::run(&arguments).map(|()| ExitCode::SUCCESS),
        Some(Command::Migrate(arguments)) => migrate::run(&arguments),
        None => {
            // A closed stderr must not cause a panic.
            if Arguments::command().write_long_help(&mut io::stderr()).is_err() {
                return ExitCode::from(2);
            }
            return ExitCode::FAILURE;
        }
    };
    done.unwrap_or_else(|failure| failure.report())
}
