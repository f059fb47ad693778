//! `oci-rs inspect`: everything that is known of tasks and images.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::{
    arguments::InspectArguments,
    failure::Failure,
    image,
    output::Output,
    ps,
    tasks::{Task, choose},
};

/// Runs the command. The output is JSON in any case, as docker's is.
pub fn run(arguments: &InspectArguments) -> Result<(), Failure> {
    let tasks = Task::all(&arguments.node)?;
    let candidates: Vec<_> = tasks.iter().map(Task::candidate).collect();
    let mut found = Vec::new();
    for name in &arguments.names {
        match choose(&candidates, name) {
            Ok(index) => found.push(task_json(&tasks[index])?),
            Err(Failure::NotFound(_)) => found.extend(images(arguments, name)?),
            Err(failure) => return Err(failure),
        }
    }
    Ok(Output { json: true }.value(&found.into())?)
}

/// A task with its whole plan.
fn task_json(task: &Task) -> Result<Value, Failure> {
    let mut value = ps::task_json(task, SystemTime::now());
    let observer = &task.place.observer;
    value["type"] = json!("task");
    value["state_dir"] = json!(task.place.settings.config.state_dir);
    value["writable_layer"] = json!(observer.writable_layer(&task.view.id));
    value["writable_layer_limit"] = json!(observer.layer_limit(&task.view.id).map(runtime::LayerLimit::name));
    value["oci_spec"] = json!(observer.spec(&task.view.id));
    value["plan"] = serde_json::to_value(&task.view.plan).map_err(Failure::of)?;
    Ok(value)
}

/// The images with a name. Both plugins may have one.
fn images(arguments: &InspectArguments, name: &str) -> Result<Vec<Value>, Failure> {
    let nothing = || Failure::NotFound(format!("no task and no image of this node has the name {name:?}"));
    let found = image::described(&arguments.node, name);
    let mut found =
        found.map_err(|failure| if matches!(failure, Failure::NotFound(_)) { nothing() } else { failure })?;
    found.iter_mut().for_each(|value| value["type"] = json!("image"));
    if found.is_empty() { Err(nothing()) } else { Ok(found) }
}
