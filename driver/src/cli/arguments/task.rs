//! The arguments of commands about tasks, networks, volumes and disk usage.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::NodeArguments;
use crate::cli::filter::Filter;

/// The arguments of `oci-rs ps`.
#[derive(Args)]
pub struct PsArguments {
    /// Show ended tasks too
    #[arg(short, long)]
    pub all: bool,
    /// Print only the names of the tasks, as other commands accept them
    #[arg(short, long)]
    pub quiet: bool,
    /// Only tasks with this property, as in job=web. In a value, * is any text. The names are plugin,
    /// namespace, job, group, task, alloc, image and state. Of several filters with one name, one must hold
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = Filter::parse)]
    pub filter: Vec<Filter>,
    /// Do not shorten names to the width of the terminal
    #[arg(long)]
    pub no_trunc: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The arguments of `oci-rs inspect`.
#[derive(Args)]
pub struct InspectArguments {
    /// Tasks (allocation id or its first digits, allocation/task, task, job, container id) or images (name, digest,
    /// image id)
    #[arg(required = true)]
    pub names: Vec<String>,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The arguments of `oci-rs stats`.
#[derive(Args)]
pub struct StatsArguments {
    /// Only these tasks, as `oci-rs ps` names them
    pub names: Vec<String>,
    /// Print one table and end
    #[arg(long)]
    pub no_stream: bool,
    /// The time between two tables
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
    /// Do not shorten names to the width of the terminal
    #[arg(long)]
    pub no_trunc: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// A time that is long enough to measure CPU usage.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < Duration::from_millis(100) { Err("is less than 100ms".to_owned()) } else { Ok(interval) }
}

/// The arguments of `oci-rs events`.
#[derive(Args)]
pub struct EventsArguments {
    /// Only tasks with this property, as for `oci-rs ps`
    #[arg(long, value_name = "NAME=VALUE", value_parser = Filter::parse)]
    pub filter: Vec<Filter>,
    /// After the known events, wait for new ones
    #[arg(short, long)]
    pub follow: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The arguments of `oci-rs logs`.
#[derive(Args)]
pub struct LogsArguments {
    /// A task, as `oci-rs ps` names it
    pub task: String,
    /// Wait for more output until the task has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Only this number of lines from the end of each stream
    #[arg(short = 'n', long, value_name = "LINES")]
    pub tail: Option<usize>,
    /// Only standard output
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Only standard error
    #[arg(long)]
    pub stderr: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The arguments of `oci-rs exec`.
#[derive(Args)]
pub struct ExecArguments {
    /// Pass on standard input
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// Run as this user: user, user:group, or ids
    #[arg(short, long)]
    pub user: Option<String>,
    /// Run in this directory
    #[arg(short, long, value_name = "DIRECTORY")]
    pub workdir: Option<String>,
    /// A task, as `oci-rs ps` names it
    pub task: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The arguments of `oci-rs doctor`.
#[derive(Args)]
pub struct DoctorArguments {
    /// Remove what killed processes of the driver left behind, unless a plugin runs, which does it itself
    #[arg(long)]
    pub fix: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The arguments of `oci-rs df`.
#[derive(Args)]
pub struct DfArguments {
    /// Show each image, task and volume
    #[arg(short, long)]
    pub verbose: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The arguments of `oci-rs network`.
#[derive(Args)]
pub struct NetworkArguments {
    /// The command.
    #[command(subcommand)]
    pub command: NetworkCommand,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The commands of `oci-rs network`.
#[derive(Subcommand)]
pub enum NetworkCommand {
    /// List the networks of tasks
    #[command(visible_alias = "list")]
    Ls,
}

/// The arguments of `oci-rs volume`.
#[derive(Args)]
pub struct VolumeArguments {
    /// The command.
    #[command(subcommand)]
    pub command: VolumeCommand,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The commands of `oci-rs volume`.
#[derive(Subcommand)]
pub enum VolumeCommand {
    /// List the volumes with a name, and those of the host volume plugin
    #[command(visible_alias = "list")]
    Ls,
}
