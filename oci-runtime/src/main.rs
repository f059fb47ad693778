//! The command line of OCI runtimes for the `runtime` crate: `create`, `start`, `state`, `kill` and `delete`. It is for
//! conformance tests only and is not shipped.

use std::{
    error::Error,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use runtime::bundle::{CreateRequest, StoredContainer, create};

#[derive(Parser)]
#[command(about = "The OCI command line of oci-rs's runtime crate, for conformance tests")]
struct Cli {
    /// Directory of all containers' states
    #[arg(long, global = true, default_value = "/run/oci-rs-conformance")]
    root: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a container, whose command waits for `start`
    Create {
        /// Directory with config.json
        #[arg(long, short, default_value = ".")]
        bundle: PathBuf,
        /// File that gets the pid of the container's first process
        #[arg(long)]
        pid_file: Option<PathBuf>,
        /// Socket to which the terminal is sent
        #[arg(long)]
        console_socket: Option<PathBuf>,
        /// Name of the new container
        id: String,
    },
    /// Execute the command of a created container
    Start { id: String },
    /// Print the state of a container
    State { id: String },
    /// Send a signal to a container's first process
    Kill {
        id: String,
        #[arg(default_value = "TERM")]
        signal: String,
    },
    /// Remove a container
    Delete {
        /// Kill the container first if it runs
        #[arg(long, short)]
        force: bool,
        id: String,
    },
}

fn main() -> ExitCode {
    let Cli { root, command } = Cli::parse();
    match run(&root, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The exit status tells the failure if standard error cannot.
            drop(writeln!(io::stderr(), "oci-runtime: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(root: &Path, command: Command) -> Result<(), Box<dyn Error>> {
    let load = |id: &str| StoredContainer::load(root, id);
    match command {
        Command::Create { bundle, pid_file, console_socket, id } => {
            create(&CreateRequest { root: root.to_owned(), id, bundle, pid_file, console_socket })?;
        }
        Command::Start { id } => load(&id)?.start()?,
        Command::State { id } => writeln!(io::stdout(), "{:#}", load(&id)?.state())?,
        Command::Kill { id, signal } => load(&id)?.kill(&signal)?,
        Command::Delete { force, id } => load(&id)?.delete(force)?,
    }
    Ok(())
}
