//! Networks of groups for which the call of the removal was lost together with a plugin.

use std::sync::Arc;

use crate::{blocking::blocking, config::Dangling, error::TaskError, node::Node};

/// Removes networks of groups that Nomad no longer uses, for as long as the plugin lives. Until the grace has passed,
/// Nomad may still connect a new one.
pub async fn remove_unused(node: Arc<Node>, policy: Dangling) {
    tokio::time::sleep(policy.creation_grace).await;
    loop {
        let worker = node.clone();
        let removed = blocking(move || {
            let containers = worker.runtime.list().map_err(TaskError::internal)?;
            let in_use = |alloc: &str| containers.iter().any(|id| id.as_str().starts_with(&format!("{alloc}.")));
            worker.groups.sweep(policy.creation_grace, in_use)
        });
        match removed.await {
            Ok(allocs) => {
                allocs.iter().for_each(|alloc| tracing::info!(alloc, "removed the network of a group that is gone"));
            }
            Err(error) => tracing::warn!(%error, "unused networks of groups not looked for"),
        }
        tokio::time::sleep(policy.period).await;
    }
}
