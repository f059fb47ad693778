//! Which containers can have a user namespace of their own.

use crate::{
    error::{StartError, StartErrorKind},
    plan::{ContainerPlan, IDS_PER_CONTAINER, MountKind, Propagation},
    spec::host_dev_mount,
};

/// An error if the plan wants a user namespace and something else that does not work in one. What depends on the node
/// and its file systems is found when the container is made.
pub(super) fn check_user_namespace(plan: &ContainerPlan) -> Result<(), StartError> {
    let obstacle = plan.user_namespace.and_then(|_| obstacle(plan));
    obstacle.map_or(Ok(()), |text| Err(StartError::new(StartErrorKind::UserNamespace, text)))
}

fn obstacle(plan: &ContainerPlan) -> Option<String> {
    let namespaces = &plan.namespaces;
    if plan.security.privileged {
        return Some("the task is privileged".to_owned());
    }
    if !namespaces.private_pid || !namespaces.private_ipc {
        let kind = if namespaces.private_pid { "IPC" } else { "PID" };
        return Some(format!("the task uses the node's {kind} namespace"));
    }
    if let Some(hook) = plan.hooks.first() {
        return Some(format!("the hook {} of a device's spec runs with the node's ids", hook.path.display()));
    }
    if host_dev_mount(plan).is_some() {
        return Some("the task mounts the node's /dev".to_owned());
    }
    plan.mounts.iter().find_map(|mount| {
        let destination = &mount.destination;
        if mount.propagation != Propagation::Private {
            return Some(format!("mounts propagate to or from {destination}, and they would not be id-mapped"));
        }
        let MountKind::Tmpfs { uid, gid, .. } = &mount.kind else { return None };
        let id = [uid, gid].into_iter().flatten().find(|id| **id >= IDS_PER_CONTAINER)?;
        Some(format!("the tmpfs at {destination} belongs to the id {id}, and a user namespace has the ids 0 to 65535"))
    })
}
