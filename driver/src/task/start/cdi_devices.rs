//! The edits of the devices of a task, from the specs of the node. They are read for each start, because vendors change
//! them while the node runs.

use std::path::PathBuf;

use cdi::{ContainerEdits, QualifiedName};

use crate::{error::TaskError, plan};

/// The edits of these devices. Blocks on the file system.
pub fn edits(directories: &[PathBuf], names: &[QualifiedName]) -> Result<ContainerEdits, TaskError> {
    let registry = cdi::load(directories);
    registry.edits(names).map_err(|error| {
        let searched: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
        let remedy =
            if names.iter().any(plan::is_nvidia_gpu) { format!("; {}", plan::MAKE_NVIDIA_SPEC) } else { String::new() };
        TaskError::Invalid(format!("option devices: {error} (specs are searched in {}){remedy}", searched.join(", ")))
    })
}
