//! The claim of a task on a network.

use network::Claim;
use runtime::plan::ContainerId;

use super::registry::Tasks;
use crate::node::Node;

/// The claim on the network of the container with this name. Blocks.
pub fn network_claim(node: &Node, tasks: &Tasks, container: &str) -> Claim {
    match container.parse::<ContainerId>() {
        Ok(_) if !node.config.driver.owns(container) => Claim::Foreign,
        Ok(id) if tasks.knows(&id) => Claim::Own,
        // If the containers cannot be listed, each network counts as claimed.
        Ok(id) if node.runtime.list().map_or(true, |containers| containers.contains(&id)) => Claim::Own,
        Ok(_) | Err(_) => Claim::Unclaimed,
    }
}
