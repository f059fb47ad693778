//! Leftovers of a crash of the plugin or a reboot of the machine.
//!
//! Leftovers are containers after an interrupted start or removal, incomplete layers, writable layers without a
//! container, guards of complete layers, leases without a task, mounted volumes and networks without a container.

use std::path::Path;

use image_store::{LeaseOwner, Store};
use runtime::plan::ContainerId;

use crate::{
    config::PluginConfig,
    error::TaskError,
    node::Node,
    task::{Tasks, network_claim},
};

/// One step of the removal.
type Step = fn(&Node, &Tasks) -> Result<(), TaskError>;

/// Prepares the node for its first task, then removes leftovers. A step that fails does not keep the others. Blocks.
pub fn remove(node: &Node, tasks: &Tasks) -> Result<(), TaskError> {
    // The first task must not wait for the copy of our own binary.
    node.runtime.prepare().map_err(TaskError::internal)?;
    let steps: [(&str, Step); 7] = [
        ("tasks", remove_abandoned),
        // Reads may wait for it.
        ("guards", end_guards),
        ("leases", release_orphaned_leases),
        ("writable layers", remove_layers),
        ("images", sweep_images),
        // The last steps wait: for CNI plugins that a dead caller left running, and for starts that mount a volume.
        ("networks", remove_orphaned_networks),
        ("volumes", release_orphaned_volumes),
    ];
    for (kind, step) in steps {
        if let Err(error) = step(node, tasks) {
            tracing::warn!(kind, %error, "leftovers not removed");
        }
    }
    tracing::debug!("leftovers swept");
    Ok(())
}

fn remove_abandoned(node: &Node, tasks: &Tasks) -> Result<(), TaskError> {
    // A start of a driver of another name, which shares the directories, may be in progress.
    let held = |id: &ContainerId| tasks.knows(id) || !node.config.driver.owns(id.as_str());
    for container in node.runtime.sweep_abandoned(held).map_err(TaskError::internal)? {
        tracing::info!(%container, "removed the leftovers of a task: its start or removal was interrupted");
    }
    Ok(())
}

fn remove_layers(node: &Node, _: &Tasks) -> Result<(), TaskError> {
    let layers = node.runtime.sweep().map_err(TaskError::internal)?;
    tracing::debug!(?layers, "writable layers swept");
    Ok(())
}

/// Layers may have become complete right before an earlier plugin was killed.
fn end_guards(node: &Node, _: &Tasks) -> Result<(), TaskError> {
    let guarded = node.runtime.guarded().map_err(TaskError::internal)?;
    guarded.iter().for_each(|container| node.end_guard(container));
    Ok(())
}

fn sweep_images(node: &Node, _: &Tasks) -> Result<(), TaskError> {
    let images = node.store.sweep().map_err(TaskError::internal)?;
    tracing::debug!(?images, "images swept");
    Ok(())
}

/// Releases the leases of containers that no longer exist.
fn release_orphaned_leases(node: &Node, tasks: &Tasks) -> Result<(), TaskError> {
    for owner in orphaned_leases(&node.store, &node.config)? {
        // A start that is repeated under the same id takes the lease over. It cannot register that id meanwhile.
        tasks.unless_known(&owner.principal().to_string(), || {
            tracing::info!(lease = %owner, "releasing the image of a task that is gone");
            node.store.release(owner.clone()).map_err(TaskError::internal)
        })?;
    }
    Ok(())
}

/// The leases of the name's containers that no longer exist. Those of starts in progress are among them.
pub fn orphaned_leases(store: &Store, config: &PluginConfig) -> Result<Vec<LeaseOwner>, TaskError> {
    // Leases are listed before containers: a task registers before it leases its image, and it releases the image
    // after its state directory is removed.
    let mut leases = store.leases().map_err(TaskError::internal)?;
    let containers = runtime::containers(&config.state_dir).map_err(TaskError::internal)?;
    leases.retain(|owner| match owner {
        LeaseOwner::Task { container }
        | LeaseOwner::MountedImage { container, .. }
        | LeaseOwner::DebugImage { container, .. }
            if !config.driver.owns(container) =>
        {
            false
        }
        LeaseOwner::Task { container } | LeaseOwner::MountedImage { container, .. } => {
            !containers.iter().any(|known| known.as_str() == container)
        }
        // The commands of an earlier plugin process ended with that process.
        LeaseOwner::DebugImage { process, .. } => *process != std::process::id(),
        LeaseOwner::Operator { process, .. } => !is_running(*process),
    });
    Ok(leases)
}

/// Whether a process exists. While an operator's command exists, its leases are in use.
fn is_running(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

/// Unmounts volumes with options that only containers used that no longer exist.
fn release_orphaned_volumes(node: &Node, tasks: &Tasks) -> Result<(), TaskError> {
    let in_use = |name: &str| match name.parse::<ContainerId>() {
        Ok(id) if node.config.driver.owns(name) && !tasks.knows(&id) => {
            // If the containers cannot be listed, each volume counts as used.
            node.runtime.list().map_or(true, |containers| containers.contains(&id))
        }
        // A start of this process or of a driver of another name may be in progress.
        Ok(_) => true,
        Err(_) => false,
    };
    for volume in node.runtime.sweep_volumes(in_use).map_err(TaskError::internal)? {
        tracing::info!(volume, "unmounted the volume of tasks that are gone");
    }
    Ok(())
}

fn remove_orphaned_networks(node: &Node, tasks: &Tasks) -> Result<(), TaskError> {
    for container in node.networks.sweep(|name| network_claim(node, tasks, name))? {
        tracing::info!(container, "removed the network of a task that is gone");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_running;

    #[test]
    fn a_command_holds_its_lease_while_it_runs() {
        assert!(is_running(std::process::id()));
        // No process has such a number: the kernel's limit is 2^22.
        assert!(!is_running(4_194_305));
    }
}
