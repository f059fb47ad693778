//! The delivery of the output by a log driver: what docker would say of the container.

use log_drivers::ContainerFacts;
use runtime::plan::{ContainerPlan, Delivery};

use super::context::TaskContext;
use crate::config::ErrorCollector;

/// The delivery of the container's output, if the task has a log driver that delivers it.
///
/// The name is the one that Nomad's docker driver gives its containers. The id has docker's form and is made from the
/// container's id here.
pub fn decide(context: &TaskContext, container: &ContainerPlan, errors: &ErrorCollector) -> Option<Delivery> {
    let TaskContext { spec, task, image, node, .. } = *context;
    let facts = ContainerFacts {
        id: log_drivers::container_id(container.id.as_str()),
        name: format!("{}-{}", task.name, task.alloc_id),
        image_id: image.digest.clone(),
        image_name: spec.image.clone(),
        command: container.args.clone(),
        env: container.env.clone(),
        labels: container.annotations.clone(),
        hostname: node.host_name.clone(),
    };
    match spec.delivery.as_ref()?.delivery(&facts) {
        Ok(delivery) => Some(delivery),
        Err(error) => {
            errors.add(format!("logging.config.{}", error.option), error.problem, error.remedy);
            None
        }
    }
}
