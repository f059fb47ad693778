//! Layers that tasks use before they are complete: what an earlier plugin served is served again, and what happens to
//! the layers becomes task events.

use std::sync::Arc;

use image_store::{LayerEvent, LayerEventKind, LeaseOwner};
use runtime::plan::ContainerId;

use crate::{
    config,
    events::{Content, TaskEvents},
    node::Node,
    plan::{self, NomadTask},
    task::{TaskRef, Tasks},
};

/// Begins to attend to incomplete layers. Returns at once. Needs an async runtime.
pub fn attend(node: &Arc<Node>, tasks: &Tasks) {
    let (observer, tasks) = (Arc::downgrade(node), tasks.clone());
    node.store.on_layer_event(move |event| {
        if let Some(node) = observer.upgrade() {
            handle(&node, &tasks, &event);
        }
    });
    let runtime = node.runtime.clone();
    let resumed = node.store.resume_layers(move |files| {
        let inodes: Vec<u64> = files.iter().map(|(_, inode)| *inode).collect();
        runtime.layer_group(&inodes).unwrap_or_else(|error| {
            tracing::error!(%error, "whether a monitor holds the group of incomplete layers is not known");
            None
        })
    });
    if let Err(error) = resumed {
        tracing::error!(%error, "incomplete layers are not served");
    }
}

/// Passes the credentials of a running task on to the service of its image's layers: they are in no file.
pub fn pass_credentials(node: &Node, task: &NomadTask) {
    if !node.store.resumes_layers() {
        return;
    }
    let Ok(spec) = config::decode_task(&task.driver_config, node.policy()) else { return };
    if let (Some(credentials), Ok(image)) = (&spec.auth, spec.image.parse()) {
        node.store.renew_credentials(&image, credentials);
    }
}

fn handle(node: &Arc<Node>, tasks: &Tasks, event: &LayerEvent) {
    for container in containers(&event.owners) {
        let task = tasks.list().into_iter().find(|task| is_of(task, &container, node));
        if let (Some(task), Some(content)) = (task, content(&event.kind, event.layer.to_string())) {
            let info = task.info();
            events_of(node, &info.task_id, &info.alloc_id, &info.name).emit(content);
        }
        if event.kind == LayerEventKind::Complete
            && let Ok(container) = container.parse::<ContainerId>()
        {
            let node = node.clone();
            tokio::task::spawn_blocking(move || node.end_guard(&container));
        }
    }
}

fn is_of(task: &TaskRef, container: &str, node: &Node) -> bool {
    plan::container_id(&task.info().task_id, node.config.driver).as_str() == container
}

fn events_of(node: &Node, task: &str, alloc: &str, name: &str) -> TaskEvents {
    node.events.of_task(task, alloc, name)
}

/// The containers of leases, each once. Pure.
fn containers(owners: &[LeaseOwner]) -> Vec<String> {
    let mut containers: Vec<String> = owners
        .iter()
        .filter_map(|owner| match owner.principal() {
            LeaseOwner::Task { container } => Some(container),
            _ => None,
        })
        .collect();
    containers.sort();
    containers.dedup();
    containers
}

/// The event that a task's users see. Pure.
fn content(kind: &LayerEventKind, layer: String) -> Option<Content> {
    Some(match kind {
        // A layer that comes as it should is no news. The log has it.
        LayerEventKind::Complete => return None,
        LayerEventKind::Refused { problem } => Content::LayerRefused { problem: problem.clone(), layer },
        LayerEventKind::WrongChunk { source } => Content::LayerBytesWrong { source: source.clone(), layer },
        LayerEventKind::Stalled { missing, problem } => {
            Content::LayerStalled { missing: missing.to_string(), problem: problem.clone(), layer }
        }
        LayerEventKind::ReadFailed { problem } => Content::LayerReadFailed { problem: problem.clone(), layer },
        LayerEventKind::Damaged { offset } => Content::LayerDamaged { offset: offset.to_string(), layer },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_with_several_leases_is_told_once() {
        let task = |container: &str| LeaseOwner::Task { container: container.to_owned() };
        let mounted = LeaseOwner::MountedImage { container: "a".to_owned(), number: 0 };
        let command = LeaseOwner::Operator { process: 1, started: 2 };
        assert_eq!(containers(&[task("b"), task("a"), mounted, command]), ["a", "b"]);
    }

    #[test]
    fn only_problems_are_told() {
        assert_eq!(content(&LayerEventKind::Complete, "sha256:1".to_owned()), None);
        let stalled = LayerEventKind::Stalled { missing: 7, problem: "registry.example: gone".to_owned() };
        let text = content(&stalled, "sha256:1".to_owned()).unwrap().to_string();
        assert!(text.contains("7 parts") && text.contains("registry.example"), "{text}");
    }
}
