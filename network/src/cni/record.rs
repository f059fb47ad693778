//! The record of a network that CNI plugins make.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::conflist::Conflist;

/// The record of a container's network. It holds everything that removing the network needs, because the settings may
/// have changed by then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CniRecord {
    /// The container id that plugins get (`CNI_CONTAINERID`).
    #[serde(rename = "container")]
    pub container_id: String,
    /// The interface in the container.
    pub interface: String,
    /// The network configuration list.
    pub network: Conflist,
    /// The arguments for the capabilities of its plugins.
    #[serde(rename = "asked")]
    pub capability_arguments: Map<String, Value>,
    /// The directories in which plugins are searched.
    #[serde(rename = "folders")]
    pub plugin_directories: Vec<PathBuf>,
    /// How many plugins have been called, including a running one.
    #[serde(rename = "called")]
    pub plugins_called: usize,
    /// The result of the last plugin that has ended.
    pub result: Option<Value>,
}

impl CniRecord {
    pub fn new(
        container_id: String,
        network: Conflist,
        capability_arguments: Map<String, Value>,
        plugin_directories: Vec<PathBuf>,
    ) -> Self {
        let interface = "eth0".to_owned();
        Self {
            container_id,
            interface,
            network,
            capability_arguments,
            plugin_directories,
            plugins_called: 0,
            result: None,
        }
    }
}
