//! Requests of a job that the node cannot fulfil, but that do not prevent the start.

use runtime::plan::ContainerPlan;

use super::context::TaskContext;

/// One text per unfulfilled request, complete sentences for a task event.
pub fn warnings(context: &TaskContext, container: &ContainerPlan) -> Vec<String> {
    let mut texts = Vec::new();
    if context.node.swap_uncounted && container.resources.memory_limit.is_some() {
        texts.push(
            "This node's kernel does not count swap (it needs swapaccount=1): memory of the task that is swapped out \
             does not count against the memory limit"
                .to_owned(),
        );
    }
    let labelled = context.task.mounts.iter().filter(|mount| !mount.selinux_label.is_empty());
    let labelled: Vec<&str> = labelled.map(|mount| mount.task_path.as_str()).collect();
    if context.node.selinux && container.selinux.is_none() && !labelled.is_empty() {
        texts.push(format!(
            "SELinux labels of volumes are not changed, because the task has no label of its own: {}",
            labelled.join(", ")
        ));
    }
    texts
}
