//! Requests of a job that the node cannot fulfil, but that do not prevent the start.

use runtime::plan::ContainerPlan;

use super::context::TaskContext;
use crate::events::Content;

/// One task event per unfulfilled request.
pub fn warnings(context: &TaskContext, container: &ContainerPlan) -> Vec<Content> {
    let mut warnings = Vec::new();
    if context.node.swap_uncounted && container.resources.memory_limit.is_some() {
        warnings.push(Content::SwapUncounted {});
    }
    let labelled = context.task.mounts.iter().filter(|mount| !mount.selinux_label.is_empty());
    let labelled: Vec<&str> = labelled.map(|mount| mount.task_path.as_str()).collect();
    if context.node.selinux && container.selinux.is_none() && !labelled.is_empty() {
        warnings.push(Content::SelinuxUnchanged { paths: labelled.join(", ") });
    }
    warnings
}
