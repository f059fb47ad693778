//! Dangling containers: containers of this node that the agent does not know.
//!
//! Two causes: the agent never received the container's handle, or the agent dropped the handle in a DestroyTask that
//! was lost together with the plugin.
//!
//! An agent sends RecoverTask for each of its tasks as soon as it has a new plugin. A container without a task long
//! after the plugin's start is therefore dangling, if it belongs to this node at all: agents of several nodes may
//! share one state directory. The plugin learns its node id from the tasks that it receives.
//!
//! Most dangling containers are those of the first cause. Their directory has the mark of an unanswered start until the
//! agent makes a call that needs the handle. They are removed sooner: when the agent has sent no RecoverTask for a
//! while. Only earlier plugins leave such containers, so one successful look is enough.

use std::sync::Arc;

use runtime::{RuntimeError, plan::ContainerId};

use crate::{blocking::blocking, config::Dangling, error::TaskError, node::Node, task::Tasks};

/// Removes dangling containers in each period, for as long as the plugin lives.
pub async fn remove_periodically(node: Arc<Node>, tasks: Tasks, policy: Dangling) {
    tokio::join!(remove_unanswered(node.clone(), tasks.clone(), policy), async {
        tokio::time::sleep(policy.creation_grace).await;
        loop {
            tokio::time::sleep(policy.period).await;
            // The next period tries again.
            look(&node, &tasks, policy, move |node, owner| node.runtime.owned_by(owner, policy.creation_grace)).await;
        }
    });
}

/// Removes the containers of unanswered starts, once.
async fn remove_unanswered(node: Arc<Node>, tasks: Tasks, policy: Dangling) {
    node.id.learned().await;
    loop {
        node.recoveries.quiet(policy.unanswered_grace).await;
        let found = move |node: &Node, owner: &str| node.runtime.unanswered(owner, policy.unanswered_grace);
        if look(&node, &tasks, policy, found).await {
            return;
        }
        tokio::time::sleep(policy.period).await;
    }
}

/// Removes those of the found containers that no task knows; whether all of them are gone.
async fn look(
    node: &Arc<Node>,
    tasks: &Tasks,
    policy: Dangling,
    find: impl FnOnce(&Node, &str) -> Result<Vec<ContainerId>, RuntimeError> + Send + 'static,
) -> bool {
    let (worker, known) = (node.clone(), tasks.clone());
    let removed = blocking(move || {
        let Some(node_id) = worker.id.get() else { return Ok(true) };
        let found = find(&worker, node_id).map_err(TaskError::internal)?;
        remove(&worker, &known, policy, &found)
    });
    removed.await.unwrap_or_else(|error| {
        tracing::warn!(%error, "containers that no task knows not looked for");
        false
    })
}

fn remove(node: &Node, tasks: &Tasks, policy: Dangling, found: &[ContainerId]) -> Result<bool, TaskError> {
    let mut complete = true;
    // A driver of another name, which shares the directories, has its own tasks.
    let own = found.iter().filter(|container| node.config.driver.owns(container.as_str()));
    for container in own.filter(|container| !tasks.knows(container)) {
        if policy.dry_run {
            tracing::info!(%container, "no task knows this container: it would be removed");
            continue;
        }
        // A start registers its task before it touches the container's directory.
        match node.runtime.destroy_if(container, || !tasks.knows(container)) {
            Ok(true) => {
                tracing::warn!(%container, "removed a container that no task knows");
                if let Some(recorder) = node.recorder() {
                    recorder.dangling_removed();
                }
                tasks.unless_known(container.as_str(), || node.release_resources(container))?;
            }
            Ok(false) => {}
            // A later look tries again. The other containers are removed now.
            Err(error) => {
                complete = false;
                tracing::warn!(%container, %error, "a container that no task knows could not be removed");
            }
        }
    }
    Ok(complete)
}
