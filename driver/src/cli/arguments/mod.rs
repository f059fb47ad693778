//! The command line. The doc comments are the text of `--help`.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::version;

mod image;
mod node;
mod task;

pub use self::{
    image::{
        HistoryArguments, ImageArguments, ImageCommand, ListArguments, ListOptions, PrefetchOptions, PullArguments,
        PullOptions, RemoveArguments,
    },
    node::NodeArguments,
    task::{
        DfArguments, DoctorArguments, EventsArguments, ExecArguments, InspectArguments, LogsArguments,
        NetworkArguments, NetworkCommand, PsArguments, StatsArguments, VolumeArguments, VolumeCommand,
    },
};

const IMAGE_EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 damage is left (fsck), 4 no such image, 5 the image is in use";

const PLAIN_EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage";

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 4 nothing has this name";

const DOCTOR_EXIT_CODES: &str = "Exit codes: 0 there may be warnings, 1 failed, 2 wrong usage, 3 there are errors";

const EXEC_EXIT_CODES: &str = "Exit codes: that of the command; 125 oci-rs failed before, 126 the command cannot be \
                               executed, 127 there is no such command, 128 + n signal n ended it";

const MIGRATE_EXIT_CODES: &str = "Exit codes: 0 every task runs unchanged, 1 failed, 2 wrong usage, 3 some tasks run \
                                  with differences, 4 the plugin block must allow more, 5 some jobs must be changed; \
                                  the highest number applies";

/// Nomad task driver plugin that runs OCI and Docker images without a daemon.
///
/// This binary is a plugin: Nomad starts it. Copy it into the agent's plugin_dir, name it in a `plugin "oci-rs"` block
/// of the agent's configuration, and write `driver = "oci-rs"` in a job's task. Started by hand, it shows the tasks of
/// this node, manages its images, and checks jobs of the docker driver. Commands find the plugin's directories by
/// themselves.
#[derive(Parser)]
#[command(name = "oci-rs", version = version::text())]
pub struct Arguments {
    /// The command. Without one the help is printed.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// List the tasks of this node
    #[command(after_help = EXIT_CODES)]
    Ps(PsArguments),
    /// Show everything that is known of tasks and images, as JSON
    #[command(after_help = EXIT_CODES)]
    Inspect(InspectArguments),
    /// Show the resource usage of tasks, again and again
    #[command(visible_alias = "top", after_help = EXIT_CODES)]
    Stats(StatsArguments),
    /// Show starts and ends of tasks
    #[command(after_help = EXIT_CODES)]
    Events(EventsArguments),
    /// Show the output of a task, from Nomad's files on this node
    #[command(after_help = EXIT_CODES)]
    Logs(LogsArguments),
    /// Run a command in a running task
    #[command(after_help = EXEC_EXIT_CODES)]
    Exec(ExecArguments),
    /// Show the disk usage of images, tasks and volumes
    #[command(after_help = EXIT_CODES)]
    Df(DfArguments),
    /// Say why this node is not as it should be, and what to do
    #[command(after_help = DOCTOR_EXIT_CODES)]
    Doctor(DoctorArguments),
    /// Images of this node
    #[command(after_help = IMAGE_EXIT_CODES)]
    Image(ImageArguments),
    /// List the images: the same as `image ls`
    #[command(after_help = IMAGE_EXIT_CODES)]
    Images(ListArguments),
    /// Download an image: the same as `image pull`
    #[command(after_help = IMAGE_EXIT_CODES)]
    Pull(PullArguments),
    /// Remove images: the same as `image rm`
    #[command(after_help = IMAGE_EXIT_CODES)]
    Rmi(RemoveArguments),
    /// Networks of tasks
    #[command(after_help = EXIT_CODES)]
    Network(NetworkArguments),
    /// Volumes of this node
    #[command(after_help = EXIT_CODES)]
    Volume(VolumeArguments),
    /// Show the version of this build and the features of this kernel
    #[command(after_help = PLAIN_EXIT_CODES)]
    Version {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the script by which a shell completes commands and options
    ///
    /// For bash, write it to /usr/share/bash-completion/completions/oci-rs; for zsh, to _oci-rs in a directory of
    /// `$fpath`; for fish, to /usr/share/fish/vendor_completions.d/oci-rs.fish.
    #[command(after_help = PLAIN_EXIT_CODES)]
    Completion {
        /// The shell
        shell: ShellName,
    },
    /// Write the man pages of all commands into a directory, such as /usr/local/share/man/man1
    #[command(after_help = PLAIN_EXIT_CODES)]
    Man {
        /// The directory. It is made if it is missing
        directory: PathBuf,
    },
    /// Stop and remove all tasks of the name docker, before Nomad's docker driver takes the name back
    ///
    /// Run it after the agent has stopped and before it starts without the plugin's file: Nomad's docker driver would
    /// start the tasks again beside the running ones.
    #[command(after_help = PLAIN_EXIT_CODES)]
    Rollback(RollbackArguments),
    /// Say how jobs with `driver = "docker"` will run with oci-rs. Changes nothing
    #[command(after_help = MIGRATE_EXIT_CODES)]
    Migrate(Box<MigrateArguments>),
}

/// A shell.
#[derive(Clone, Copy, ValueEnum)]
pub enum ShellName {
    /// GNU Bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// The friendly interactive shell.
    Fish,
}

/// The arguments of `oci-rs rollback`.
#[derive(Args)]
pub struct RollbackArguments {
    /// The agent's configuration with the plugin block of the name docker: a file in HCL or JSON, or a directory of
    /// them. Or the block alone
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// The driver's state_dir; overrides the one in --config [default: /run/oci-rs]
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
    /// The driver's data_dir; overrides the one in --config [default: /var/lib/oci-rs]
    #[arg(long, value_name = "DIRECTORY")]
    pub data_dir: Option<PathBuf>,
    /// The time between each task's stop signal and SIGKILL. The jobs' kill_timeout is not known here
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `oci-rs migrate`.
#[derive(Args)]
pub struct MigrateArguments {
    /// Job files: HCL, which needs an installed `nomad`, or JSON as `nomad job run -output` or the API writes it; `-`
    /// is standard input. Without files the jobs of a cluster are read
    pub files: Vec<PathBuf>,
    /// An agent's configuration with the plugin block of the nodes: a file in HCL or JSON, or a directory of them. Or
    /// the block alone [default: an empty block of the docker driver]
    #[arg(long, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// A variable of HCL files, as for `nomad job run`
    #[arg(long, value_name = "NAME=VALUE")]
    pub var: Vec<String>,
    /// A file with variables of HCL files, as for `nomad job run`
    #[arg(long, value_name = "FILE")]
    pub var_file: Vec<PathBuf>,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The options of the `nomad` command that name a cluster. Each has the same environment variable as there.
#[derive(Args, Default)]
#[command(next_help_heading = "Cluster (without files)")]
pub struct ClusterArguments {
    /// Address of an agent: http://…, https://… or unix://… (NOMAD_ADDR) [default: http://127.0.0.1:4646]
    #[arg(long)]
    pub address: Option<String>,
    /// Region (NOMAD_REGION)
    #[arg(long)]
    pub region: Option<String>,
    /// Namespace (NOMAD_NAMESPACE) [default: *, which is every namespace that the token may read]
    #[arg(long)]
    pub namespace: Option<String>,
    /// ACL token with `list-jobs` and `read-job`; it is visible in the list of processes (NOMAD_TOKEN)
    #[arg(long)]
    pub token: Option<String>,
    /// PEM file with the authority's certificate (NOMAD_CACERT)
    #[arg(long, value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
    /// Directory with such files (NOMAD_CAPATH)
    #[arg(long, value_name = "DIRECTORY")]
    pub ca_path: Option<PathBuf>,
    /// PEM file with the client's certificate (NOMAD_CLIENT_CERT)
    #[arg(long, value_name = "FILE")]
    pub client_cert: Option<PathBuf>,
    /// PEM file with its key (NOMAD_CLIENT_KEY)
    #[arg(long, value_name = "FILE")]
    pub client_key: Option<PathBuf>,
    /// Name in the agent's certificate, if it is not the address (NOMAD_TLS_SERVER_NAME)
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// Accept any certificate (NOMAD_SKIP_VERIFY)
    #[arg(long)]
    pub tls_skip_verify: bool,
}

/// The command line in the form that the parser reads. `migrate` has options of the `nomad` command, which may also
/// have a single dash.
pub fn with_two_dashes(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.get(1).is_none_or(|command| command != "migrate") {
        return arguments;
    }
    for argument in arguments.iter_mut().skip(2) {
        let text = argument.as_encoded_bytes();
        if text == b"--" {
            break;
        }
        if text.len() > 2 && text[0] == b'-' && text[1].is_ascii_alphabetic() {
            let mut long = OsString::from("-");
            long.push(&*argument);
            *argument = long;
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::{Arguments, with_two_dashes};

    #[test]
    fn the_options_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn migrate_takes_options_with_one_dash_as_nomad_does() {
        let line = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (given, expected) in [
            ("oci-rs migrate -json -var=a=b --config x - -h", "oci-rs migrate --json --var=a=b --config x - -h"),
            ("oci-rs migrate -json -- -job.hcl", "oci-rs migrate --json -- -job.hcl"),
            ("oci-rs image -json", "oci-rs image -json"),
            ("oci-rs", "oci-rs"),
        ] {
            assert_eq!(with_two_dashes(line(given)), line(expected));
        }
    }
}
