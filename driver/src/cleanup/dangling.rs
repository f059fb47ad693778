//! Dangling containers: containers of this node that the agent does not know.
//!
//! Two causes: the agent never received the container's handle, or the agent dropped the handle in a DestroyTask that
//! was lost together with the plugin.
//!
//! An agent sends RecoverTask for each of its tasks as soon as it has a new plugin. A container without a task long
//! after the plugin's start is therefore dangling, if it belongs to this node at all: agents of several nodes may
//! share one state directory. The plugin learns its node id from the tasks that it receives.

use std::sync::Arc;

use crate::{blocking::blocking, config::Dangling, error::TaskError, node::Node, task::Tasks};

/// Removes dangling containers in each period, for as long as the plugin lives.
pub async fn remove_periodically(node: Arc<Node>, tasks: Tasks, policy: Dangling) {
    tokio::time::sleep(policy.creation_grace).await;
    loop {
        tokio::time::sleep(policy.period).await;
        let (worker, known) = (node.clone(), tasks.clone());
        if let Err(error) = blocking(move || remove(&worker, &known, policy)).await {
            tracing::warn!(%error, "containers that no task knows not looked for");
        }
    }
}

fn remove(node: &Node, tasks: &Tasks, policy: Dangling) -> Result<(), TaskError> {
    let Some(node_id) = node.id.get() else { return Ok(()) };
    let owned = node.runtime.owned_by(node_id, policy.creation_grace).map_err(TaskError::internal)?;
    for container in owned.iter().filter(|container| !tasks.knows(container)) {
        if policy.dry_run {
            tracing::info!(%container, "no task knows this container: it would be removed");
            continue;
        }
        // A start registers its task before it touches the container's directory.
        match node.runtime.destroy_if(container, || !tasks.knows(container)) {
            Ok(true) => {
                tracing::warn!(%container, "removed a container that no task knows");
                tasks.unless_known(container.as_str(), || node.release_resources(container))?;
            }
            Ok(false) => {}
            // The next period tries again. The other containers are removed now.
            Err(error) => tracing::warn!(%container, %error, "a container that no task knows could not be removed"),
        }
    }
    Ok(())
}
