//! The container's labels.

use std::collections::BTreeMap;

use super::context::TaskContext;
use crate::config::any_matches;

/// The prefix of Nomad's labels.
pub const NOMAD: &str = "com.hashicorp.nomad.";

/// The prefix of labels that only describe an image. Other labels of an image are dropped: some steer programs
/// (`run.oci.*`, `org.systemd.property.*`), and the image's author must not decide for the node.
const DESCRIPTIVE: &str = "org.opencontainers.image.";

/// The image's descriptive labels, overridden by the task's, overridden by Nomad's.
pub fn labels(context: &TaskContext) -> BTreeMap<String, String> {
    let TaskContext { spec, task, image, policy, .. } = *context;
    let mut labels = image.config.labels.clone();
    labels.retain(|name, _| name.starts_with(DESCRIPTIVE));
    labels.extend(spec.labels.clone());
    labels.insert(format!("{NOMAD}alloc_id"), task.alloc_id.clone());
    // Nomad tells the parent job only in the task's environment.
    let parent = task.env.get("NOMAD_JOB_PARENT_ID").map_or("", String::as_str);
    let extra = [
        ("job_name", task.job_name.as_str()),
        ("job_id", &task.job_id),
        ("parent_job_id", parent),
        ("task_group_name", &task.task_group_name),
        ("task_name", &task.name),
        ("namespace", &task.namespace),
        ("node_name", &task.node_name),
        ("node_id", &task.node_id),
    ];
    for (name, value) in extra {
        if !value.is_empty() && any_matches(&policy.extra_labels, name) {
            labels.insert(format!("{NOMAD}{name}"), value.to_owned());
        }
    }
    labels
}
