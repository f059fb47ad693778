//! Containers that nobody will ask for: the agent never had their handle, or let go of it by a DestroyTask that was lost with the
//! plugin that it had called.
//!
//! An agent tells a new plugin of all its tasks (RecoverTask) as soon as it has it. So a container that no task knows long after
//! the plugin's start is nobody's, if it belongs to this agent at all: agents of several nodes may share a state directory, and only
//! the tasks that come from an agent tell which node it is.

use std::sync::{Arc, OnceLock};

use crate::{
    config::Dangling,
    engine::Engine,
    task::{TaskError, Tasks, blocking},
};

/// The node whose tasks come to this plugin, once one has come.
#[derive(Debug, Default)]
pub struct Node(OnceLock<String>);

impl Node {
    /// A task of this node came.
    pub fn is(&self, id: &str) {
        if !id.is_empty() {
            // An agent's node stays the same.
            drop(self.0.set(id.to_owned()));
        }
    }
}

/// Removes such containers from time to time, for as long as the plugin lives.
pub async fn remove(engine: Arc<Engine>, tasks: Tasks, policy: Dangling) {
    tokio::time::sleep(policy.creation_grace).await;
    loop {
        tokio::time::sleep(policy.period).await;
        let (worker, known) = (engine.clone(), tasks.clone());
        if let Err(error) = blocking(move || remove_now(&worker, &known, policy)).await {
            tracing::warn!(%error, "containers that no task knows not looked for");
        }
    }
}

fn remove_now(engine: &Engine, tasks: &Tasks, policy: Dangling) -> Result<(), TaskError> {
    let Some(node) = engine.node.0.get() else { return Ok(()) };
    let owned = engine.runtime.owned_by(node, policy.creation_grace).map_err(TaskError::internal)?;
    for container in owned.iter().filter(|container| !tasks.knows(container)) {
        if policy.dry_run {
            tracing::info!(%container, "no task knows this container: it would be removed");
            continue;
        }
        // A start is known before it touches the container's directory.
        match engine.runtime.destroy_if(container, || !tasks.knows(container)) {
            Ok(true) => {
                tracing::warn!(%container, "removed a container that no task knows");
                tasks.unless_known(container.as_str(), || engine.let_go(container))?;
            }
            Ok(false) => {}
            // The others go all the same, and this one may the next time.
            Err(error) => tracing::warn!(%container, %error, "a container that no task knows could not be removed"),
        }
    }
    Ok(())
}
