//! From a task block to a running command.
//!
//! A start has six phases. Each phase is a type that holds everything that the phases before it acquired, and one
//! method that consumes it and returns the next phase. So the order cannot change by accident.
//!
//! | phase | acquired | undo after a failure of a later phase |
//! |---|---|---|
//! | [`Leased`] | the image | the lease is released |
//! | [`Planned`] | the container's plan | – |
//! | [`Prepared`] | checked host paths, no container of an earlier start | – |
//! | [`Mounted`] | the mounted volumes, if it has volumes with options | the volumes are released |
//! | [`Attached`] | the task's own network, if it has one; interfaces of the node | the network is removed |
//! | [`Started`] | the running container | – |
//!
//! The runtime itself undoes a container that it could not start.
//!
//! [`Leased`]: image::Leased
//! [`Planned`]: container::Planned
//! [`Prepared`]: container::Prepared
//! [`Mounted`]: container::Mounted
//! [`Attached`]: container::Attached
//! [`Started`]: container::Started

mod cdi_devices;
mod container;
mod docker_volumes;
mod image;
mod interfaces;
mod load_archive;
mod logs;
mod phases;
mod pull_progress;
mod request;
mod seccomp_profile;
mod spans;
mod waiting;

use std::sync::Arc;

use runtime::Status;
use tokio::sync::watch;

use self::{container::Planned, image::Leased, logs::LogDirectoryInMaking, request::StartRequest, waiting::announced};
use super::{DriverState, registry::Tasks, running::RunningContainer};
use crate::{
    blocking::blocking,
    error::TaskError,
    events::Content,
    metrics::{StartOutcome, StartPhase},
    node::Node,
    plan::NomadTask,
};

/// Starts a task's container. Ends with [`TaskError::Cancelled`] if `cancelled` turns true before the container is
/// created. After an error nothing of the task is left on the host.
pub async fn run(
    node: Arc<Node>,
    tasks: Tasks,
    task: NomadTask,
    cancelled: watch::Receiver<bool>,
) -> Result<(DriverState, RunningContainer), TaskError> {
    let request = StartRequest::new(node, tasks, task, cancelled);
    let started = attempt(&request).await;
    count(&request, &started);
    request.node.trace(|| spans::of_start(&request, started.as_ref().map(|(state, _)| state)));
    if started.is_err() {
        remove_interrupted(&request).await;
    }
    started
}

/// Counts the start, if metrics are configured.
fn count<T>(request: &StartRequest, started: &Result<T, TaskError>) {
    let Some(recorder) = request.node.recorder() else { return };
    let outcome = match started {
        Ok(_) => StartOutcome::Started,
        Err(TaskError::Cancelled) => StartOutcome::Cancelled,
        Err(error) if error.is_of_node() => StartOutcome::NodeFailed,
        Err(_) => StartOutcome::Failed,
    };
    let phases: Vec<_> = request.phases.ended().iter().map(|time| (time.phase, time.elapsed)).collect();
    recorder.start(outcome, request.elapsed(), &phases);
}

async fn attempt(request: &StartRequest) -> Result<(DriverState, RunningContainer), TaskError> {
    if let Some(dockerd) = &request.node.dockerd {
        let removal = dockerd.remove_predecessor(&request.task.alloc_id, &request.task.name);
        let waits = || Content::DockerdWaits { socket: dockerd.socket().display().to_string() };
        if announced(&request.events, waits, removal).await? {
            request.events.emit(Content::DockerContainerRemoved {});
        }
    }
    let mut logs = LogDirectoryInMaking::begin(&request.task.alloc_dir);
    let started = all_phases(request, &mut logs).await;
    logs.settle().await;
    started
}

async fn all_phases(
    request: &StartRequest,
    logs: &mut LogDirectoryInMaking,
) -> Result<(DriverState, RunningContainer), TaskError> {
    let phases = &request.phases;
    let leased = phases.time(StartPhase::Image, Leased::acquire(request)).await?;
    let planned = phases.time(StartPhase::Plan, Planned::plan(leased)).await?;
    let prepared = phases.time(StartPhase::Prepare, planned.prepare(logs)).await?;
    let mounted = phases.time(StartPhase::Volumes, prepared.mount()).await?;
    let attached = phases.time(StartPhase::Network, mounted.attach()).await?;
    let started = phases.time(StartPhase::Container, attached.start()).await?;
    Ok(started.report())
}

/// Removes the container of an interrupted start with the same id, if this start failed before it reached that
/// container. The agent will not ask for its removal.
async fn remove_interrupted(request: &StartRequest) {
    let (node, container) = (request.node.clone(), request.container.clone());
    let removed = blocking(move || match node.status(&container)? {
        Status::Unknown => Ok(()),
        _ => {
            tracing::warn!(%container, "removing what an interrupted start left");
            node.remove_container_now(&container)
        }
    });
    if let Err(error) = removed.await {
        tracing::warn!(%error, "what an interrupted start left was not removed");
    }
}
