//! Network interfaces of the node that move to a task's network.

use network::{Claim, LendRequest, NetworkError};
use runtime::plan::ContainerId;

use crate::{
    error::TaskError,
    node::Node,
    task::{claim::network_claim, registry::Tasks},
};

/// Moves interfaces to the network of a container. One that a killed process left in the network of a container that
/// does not exist comes back first. After an error the caller releases the network. Blocks.
pub fn lend(node: &Node, tasks: &Tasks, container: &ContainerId, request: &LendRequest) -> Result<(), TaskError> {
    // Each round removes the network of another container.
    loop {
        match node.networks.lend(container.as_str(), request) {
            Err(NetworkError::InterfaceLent { holder, .. })
                if network_claim(node, tasks, &holder) == Claim::Unclaimed =>
            {
                tracing::warn!(holder, "bringing back an interface that an interrupted start left");
                node.networks.release(&holder)?;
            }
            lent => return Ok(lent?),
        }
    }
}
