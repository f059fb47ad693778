//! What of an image decides a container.

use std::{collections::BTreeMap, path::PathBuf};

/// An image as the plan sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFacts {
    /// Unpacked layers, top-most first.
    pub layers: Vec<PathBuf>,
    /// Environment.
    pub env: Vec<(String, String)>,
    /// What runs before the command.
    pub entrypoint: Option<Vec<String>>,
    /// The default command.
    pub cmd: Option<Vec<String>>,
    /// User, empty for root.
    pub user: String,
    /// Working folder, empty for `/`.
    pub working_dir: String,
    /// What asks the command to end.
    pub stop_signal: Option<String>,
    /// Paths that are volumes.
    pub volumes: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

impl From<&image_store::Image> for ImageFacts {
    fn from(image: &image_store::Image) -> Self {
        let config = image.config.clone();
        Self {
            layers: image.layers.clone(),
            env: config.env,
            entrypoint: config.entrypoint,
            cmd: config.cmd,
            user: config.user,
            working_dir: config.working_dir,
            stop_signal: config.stop_signal,
            volumes: config.volumes,
            labels: config.labels,
        }
    }
}
