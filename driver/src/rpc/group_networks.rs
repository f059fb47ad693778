//! CreateNetwork and DestroyNetwork: the networks of groups that Nomad lets the driver make.

use proto::driver::{
    CreateNetworkRequest, CreateNetworkResponse, DestroyNetworkRequest, DestroyNetworkResponse, NetworkIsolationSpec,
    network_isolation_spec::NetworkIsolationMode,
};

use super::state::Plugin;
use crate::{blocking::blocking, dockerd::Sandbox, error::TaskError, groups};

/// CreateNetwork: makes the network namespace of a group unless it exists. Nomad then connects it if it is new, and
/// checks its connection if it is not.
pub async fn create(plugin: &Plugin, request: CreateNetworkRequest) -> Result<CreateNetworkResponse, TaskError> {
    offered(plugin)?;
    let node = plugin.node().await?;
    if let Some(dockerd) = &node.dockerd
        && let Some(sandbox) = dockerd.sandbox(&request.alloc_id).await?
    {
        // The group keeps the network of Nomad's docker driver, its address and its ports.
        return Ok(in_sandbox(sandbox, &request.hostname));
    }
    let network = blocking(move || node.groups.create(&request.alloc_id, &request.hostname)).await?;
    let spec = NetworkIsolationSpec {
        mode: NetworkIsolationMode::Group.into(),
        path: network.namespace.path.to_string_lossy().into_owned(),
        labels: network.labels.into_iter().collect(),
        hosts_config: None,
    };
    Ok(CreateNetworkResponse { isolation_spec: Some(spec), created: network.namespace.unconnected })
}

/// DestroyNetwork: removes the network namespace of a group. An agent also asks for groups that have none any more.
pub async fn destroy(plugin: &Plugin, request: DestroyNetworkRequest) -> Result<DestroyNetworkResponse, TaskError> {
    offered(plugin)?;
    let node = plugin.node().await?;
    let (worker, alloc) = (node.clone(), request.alloc_id.clone());
    blocking(move || worker.groups.destroy(&alloc)).await?;
    if let Some(dockerd) = &node.dockerd {
        dockerd.remove_sandbox(&request.alloc_id).await?;
    }
    Ok(DestroyNetworkResponse {})
}

fn in_sandbox(sandbox: Sandbox, hostname: &str) -> CreateNetworkResponse {
    let spec = NetworkIsolationSpec {
        mode: NetworkIsolationMode::Group.into(),
        path: sandbox.namespace.to_string_lossy().into_owned(),
        labels: groups::labels(&sandbox.id, hostname).into_iter().collect(),
        hosts_config: None,
    };
    CreateNetworkResponse { isolation_spec: Some(spec), created: false }
}

fn offered(plugin: &Plugin) -> Result<(), TaskError> {
    if plugin.configured()?.config.group_networks {
        return Ok(());
    }
    Err(TaskError::NotOffered("Nomad makes the networks of groups (`network { group_networks }` in the plugin block)"))
}
