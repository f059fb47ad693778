//! The spans of a start: the whole, its phases, and the pull in the first one.

use std::time::{Duration, SystemTime};

use image_store::Progress;

use super::{phases::PhaseTime, request::StartRequest};
use crate::{
    error::TaskError,
    metrics::{ObservedPull, StartPhase},
    task::DriverState,
    traces::{Attribute, Span},
};

/// The spans of a start that has ended now.
pub fn of_start(request: &StartRequest, started: Result<&DriverState, &TaskError>) -> Vec<Span> {
    let elapsed = request.elapsed();
    let now = SystemTime::now();
    let began = now.checked_sub(elapsed).unwrap_or(now);
    let error = started.err().map(ToString::to_string);
    let mut attributes = attributes(request);
    if let Ok(state) = started {
        attributes.push(("container.image.name", state.image.clone()));
        attributes.push(("container.image.digest", state.image_digest.clone()));
    }
    let whole = Span { name: "start task", parent: None, began, elapsed, attributes, error: error.clone() };
    let phases = request.phases.ended();
    let last = phases.len();
    let pulled = request.pull_attributes();
    let parts = phases.into_iter().enumerate().map(|(index, time)| {
        // The failure of the start is that of its last phase.
        let failed = error.clone().filter(|_| index + 1 == last);
        part(&time, began, failed, pulled)
    });
    std::iter::once(whole).chain(parts).collect()
}

fn part(time: &PhaseTime, began: SystemTime, error: Option<String>, pulled: &[Attribute]) -> Span {
    let PhaseTime { phase, after, elapsed } = *time;
    let attributes = if phase == StartPhase::Image { pulled.to_vec() } else { Vec::new() };
    Span { name: phase.name(), parent: Some(0), began: later(began, after), elapsed, attributes, error }
}

fn later(began: SystemTime, after: Duration) -> SystemTime {
    began.checked_add(after).unwrap_or(began)
}

/// What the span of the first phase says about a pull that has ended.
pub fn of_pull<P: Progress>(registry: &str, pull: &ObservedPull<P>) -> Vec<Attribute> {
    let mut attributes = vec![("registry", registry.to_owned()), ("cached", pull.is_cached().to_string())];
    attributes.extend(pull.fetched().map(|bytes| ("bytes", bytes.to_string())));
    attributes
}

/// The attributes by which a trace is found: those of Nomad, and the container.
fn attributes(request: &StartRequest) -> Vec<Attribute> {
    let task = &request.task;
    vec![
        ("nomad.namespace", task.namespace.clone()),
        ("nomad.job.id", task.job_id.clone()),
        ("nomad.job.name", task.job_name.clone()),
        ("nomad.group.name", task.task_group_name.clone()),
        ("nomad.task.name", task.name.clone()),
        ("nomad.alloc.id", task.alloc_id.clone()),
        ("nomad.node.id", task.node_id.clone()),
        ("container.id", request.container.to_string()),
    ]
}
