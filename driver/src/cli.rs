//! What a person gets who starts the binary by hand.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// Nomad task driver plugin that runs OCI and Docker images without a daemon.
///
/// This binary is a plugin: Nomad starts it. Copy it into the agent's plugin_dir, name it in a `plugin "oci-rs"` block of
/// the agent's configuration, and write `driver = "oci-rs"` in a job's task.
#[derive(Parser)]
#[command(name = "oci-rs", version)]
struct Arguments {}

/// Answers `--help` and `--version`; a plain start is a mistake and says so with exit code 1.
pub fn main() -> ExitCode {
    Arguments::parse();
    // A closed terminal is no reason to panic; the exit code says what happened.
    if Arguments::command().write_long_help(&mut std::io::stderr()).is_err() {
        return ExitCode::from(2);
    }
    ExitCode::FAILURE
}
