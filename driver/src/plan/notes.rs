//! What the driver notes about a task in its container's plan, for the operator's commands. No decision depends on it.

use std::net::IpAddr;

use runtime::plan::ContainerPlan;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{context::TaskContext, labels::NOMAD, nomad_task::AllocatedPort};

/// A task in Nomad's terms. A value that is not known is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskNotes {
    /// The allocation's id.
    pub alloc: String,
    /// The job's namespace.
    pub namespace: String,
    /// The job's id.
    pub job: String,
    /// The group's name.
    pub group: String,
    /// The task's name.
    pub task: String,
    /// The image, as written in the job.
    pub image: String,
    /// The digest of the image's manifest.
    pub digest: String,
    /// The ports that Nomad allocated to the group. The record of the task's own network has its published ports.
    pub ports: Vec<NotedPort>,
}

/// A port of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedPort {
    /// The label in the job.
    pub label: String,
    /// The host's address; `None` is every address.
    pub host_ip: Option<IpAddr>,
    /// The port on the host.
    pub host_port: u16,
    /// The port in the container.
    pub container_port: u16,
}

/// The notes of a task.
pub fn notes(context: &TaskContext, has_own_network: bool) -> Map<String, Value> {
    let TaskContext { spec, task, image, .. } = *context;
    let ports = task.resources.ports.iter().chain(&task.resources.task_ports).filter(|_| !has_own_network);
    let notes = TaskNotes {
        alloc: task.alloc_id.clone(),
        namespace: task.namespace.clone(),
        job: task.job_id.clone(),
        group: task.task_group_name.clone(),
        task: task.name.clone(),
        image: spec.image.clone(),
        digest: image.digest.clone(),
        ports: ports.map(NotedPort::of).collect(),
    };
    match serde_json::to_value(notes) {
        Ok(Value::Object(notes)) => notes,
        // The commands then show less.
        _ => Map::new(),
    }
}

impl NotedPort {
    fn of(port: &AllocatedPort) -> Self {
        let AllocatedPort { label, host_ip, host_port, container_port } = port.clone();
        Self { label, host_ip, host_port, container_port }
    }
}

impl TaskNotes {
    /// The notes of a container. Without a plan, and with a plan of an earlier release, they are put together from what
    /// the container id, the labels and the environment tell.
    pub fn of_container(id: &str, plan: Option<&ContainerPlan>) -> Self {
        let noted = plan.filter(|plan| !plan.notes.is_empty());
        if let Some(notes) = noted.and_then(|plan| serde_json::from_value(Value::Object(plan.notes.clone())).ok()) {
            return notes;
        }
        let mut parts = id.split('.');
        let (alloc, task) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let label = |name: &str| plan.and_then(|plan| plan.annotations.get(&format!("{NOMAD}{name}")).cloned());
        let variable = |name: &str| {
            let pairs = plan.map(|plan| plan.env.as_slice()).unwrap_or_default();
            pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
        };
        let either = |name: &str, key: &str| label(name).or_else(|| variable(key)).unwrap_or_default();
        Self {
            alloc: label("alloc_id").unwrap_or_else(|| alloc.to_owned()),
            namespace: either("namespace", "NOMAD_NAMESPACE"),
            job: either("job_id", "NOMAD_JOB_ID"),
            group: either("task_group_name", "NOMAD_GROUP_NAME"),
            task: label("task_name").or_else(|| variable("NOMAD_TASK_NAME")).unwrap_or_else(|| task.to_owned()),
            ..Self::default()
        }
    }
}
