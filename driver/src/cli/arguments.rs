//! The command line. The doc comments are the text of `--help`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 damage is left (fsck), 4 no such image, 5 the image is in use";

/// Nomad task driver plugin that runs OCI and Docker images without a daemon.
///
/// This binary is a plugin: Nomad starts it. Copy it into the agent's plugin_dir, name it in a `plugin "oci-rs"` block
/// of the agent's configuration, and write `driver = "oci-rs"` in a job's task. Started by hand, it manages the images
/// of this node.
#[derive(Parser)]
#[command(name = "oci-rs", version)]
pub struct Arguments {
    /// The command. Without one the help is printed.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Images of this node
    #[command(after_help = EXIT_CODES)]
    Image(ImageArguments),
    /// Stop and remove all tasks of the name docker, before Nomad's docker driver takes the name back
    ///
    /// Run it after the agent has stopped and before it starts without the plugin's file: Nomad's docker driver would
    /// start the tasks again beside the running ones.
    Rollback(RollbackArguments),
}

/// The arguments of `oci-rs rollback`.
#[derive(Args)]
pub struct RollbackArguments {
    /// The plugin block of the name docker as JSON, or an agent's configuration file in JSON that holds it
    #[arg(long, value_name = "FILE")]
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

/// The arguments of `oci-rs image`.
#[derive(Args)]
pub struct ImageArguments {
    /// The driver's data_dir; overrides the one in --config [default: /var/lib/oci-rs]
    #[arg(long, global = true, value_name = "DIRECTORY")]
    pub data_dir: Option<PathBuf>,
    /// The plugin block as JSON, or an agent's configuration file in JSON that holds it: directories, registries,
    /// credentials, limits
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// The command.
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// The commands of `oci-rs image`.
#[derive(Subcommand)]
pub enum ImageCommand {
    /// List the images
    Ls,
    /// Show the details of an image
    Inspect {
        /// As in a job's option `image`
        reference: String,
    },
    /// Download an image and pin it: every job on this node can use it without its registry
    Pull {
        /// As in a job's option `image`
        reference: String,
        /// Do not pin: the plugin's gc may remove the image, and a private image stays private
        #[arg(long)]
        unpinned: bool,
    },
    /// Unpack an image of an archive and pin it: every job on this node can use it without its registry
    Load {
        /// An archive of `docker save` or an OCI layout, compressed or not
        file: PathBuf,
        /// The image in the archive, and its name in a job's option `image`
        reference: String,
        /// Do not pin: only tasks that name the same archive with `load` find its layers
        #[arg(long)]
        unpinned: bool,
    },
    /// Remove images that no task uses
    Rm {
        /// As in a job's option `image`
        #[arg(required = true)]
        references: Vec<String>,
    },
    /// Remove all images that no task uses
    Prune,
    /// Check the images on disk
    Fsck {
        /// Repair damage that can be repaired; images in use are never changed
        #[arg(long)]
        repair: bool,
    },
}
