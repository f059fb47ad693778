//! The options by which a command finds the plugin's directories and configuration.

use std::path::PathBuf;

use clap::Args;

use crate::name::DriverName;

/// Where the plugin keeps its state, images and configuration. Without options, commands use what the plugin has left
/// for them when it started.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Node")]
pub struct NodeArguments {
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Only the plugin with this name
    #[arg(long, global = true, value_name = "NAME", value_parser = DriverName::parse)]
    pub plugin: Option<DriverName>,
    /// The agent's configuration with the plugin block: a file in HCL or JSON, or a directory of them. Or the block
    /// alone [default: that of the node's plugins]
    #[arg(long, global = true, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// The driver's data_dir; overrides the one in --config [default: that of the node's plugins, or /var/lib/oci-rs]
    #[arg(long, global = true, value_name = "DIRECTORY")]
    pub data_dir: Option<PathBuf>,
    /// The driver's state_dir; overrides the one in --config [default: that of the node's plugins, or /run/oci-rs]
    #[arg(long, global = true, value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
}
