//! What a person gets who starts the binary by hand: commands for the images of this node.
//!
//! They use the store as every plugin does, beside plugins and running tasks: no daemon is asked, locks and leases keep
//! everybody apart. What they print for people may change; `--json` and the exit codes are for programs.

mod failure;
mod image;
mod report;
mod settings;
mod show;

use std::{io, path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory, Parser, Subcommand};

/// Nomad task driver plugin that runs OCI and Docker images without a daemon.
///
/// This binary is a plugin: Nomad starts it. Copy it into the agent's plugin_dir, name it in a `plugin "oci-rs"` block
/// of the agent's configuration, and write `driver = "oci-rs"` in a job's task. By hand it looks after the images of
/// this node.
#[derive(Parser)]
#[command(name = "oci-rs", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Images of this node
    #[command(after_help = EXIT_CODES)]
    Image(ImageArguments),
}

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 damage is left (fsck), 4 no such image, 5 the image is in use";

#[derive(Args)]
struct ImageArguments {
    /// The driver's data_dir; overrides the one in --config [default: /var/lib/oci-rs]
    #[arg(long, global = true, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
    /// The plugin block as JSON, or an agent's configuration file in JSON that holds it: directories, registries,
    /// credentials, limits
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Subcommand)]
enum ImageCommand {
    /// List the images
    Ls,
    /// Show what is known of an image
    Inspect {
        /// As in a job's option `image`
        reference: String,
    },
    /// Fetch an image, so that tasks find it here; unused it is kept as long as the plugin's gc says
    Pull {
        /// As in a job's option `image`
        reference: String,
    },
    /// Unpack an image of an archive, for tasks that name the same archive with `load`
    Load {
        /// What `docker save` writes, or an OCI layout; plain or compressed
        file: PathBuf,
        /// Which of its images
        reference: String,
    },
    /// Remove images that no task uses
    Rm {
        /// As in a job's option `image`
        #[arg(required = true)]
        references: Vec<String>,
    },
    /// Remove all images that no task uses
    Prune,
    /// Check what is on disk
    Fsck {
        /// Mend what can be mended; what a task uses is never touched
        #[arg(long)]
        repair: bool,
    },
}

/// Runs a command; a plain start is a mistake and says so with exit code 1.
pub fn main() -> ExitCode {
    let Some(Command::Image(arguments)) = Arguments::parse().command else {
        // A closed terminal is no reason to panic; the exit code says what happened.
        if Arguments::command().write_long_help(&mut io::stderr()).is_err() {
            return ExitCode::from(2);
        }
        return ExitCode::FAILURE;
    };
    match image::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}
