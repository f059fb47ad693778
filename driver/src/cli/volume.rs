//! `oci-rs volume ls`: the volumes with a name.

use runtime::NamedVolumeRecord;
use serde_json::{Value, json};

use super::{
    arguments::{NodeArguments, VolumeArguments, VolumeCommand},
    failure::Failure,
    output::{Output, note},
    tasks::{Place, Task},
};

/// A volume and its users.
pub struct Volume {
    /// The volume.
    pub record: NamedVolumeRecord,
    /// The tasks that use it.
    pub users: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &VolumeArguments) -> Result<(), Failure> {
    let VolumeArguments { command: VolumeCommand::Ls, node } = arguments;
    let volumes = volumes(node)?;
    let output = Output { json: node.json };
    if output.json {
        return Ok(output.value(&volumes.iter().map(volume_json).collect())?);
    }
    let mut rows = vec![["VOLUME", "TYPE", "DEVICE", "MOUNTED", "USED BY"].map(str::to_owned).to_vec()];
    rows.extend(volumes.iter().map(|Volume { record, users }| {
        let (kind, device) = match &record.options {
            Some(options) => (options.permission().to_owned(), options.device.clone()),
            None => ("directory".to_owned(), record.directory.display().to_string()),
        };
        let mounted = match (&record.options, record.mounted) {
            (None, _) => "-",
            (Some(_), true) => "yes",
            (Some(_), false) => "no",
        };
        let users = if users.is_empty() { "-".to_owned() } else { users.join(", ") };
        vec![record.name.clone(), kind, device, mounted.to_owned(), users]
    }));
    Ok(output.fitted(&rows, &[2, 4])?)
}

/// The volumes of this node, each once, with the tasks that use them.
pub fn volumes(node: &NodeArguments) -> Result<Vec<Volume>, Failure> {
    let tasks = Task::all(node)?;
    let mut all: Vec<Volume> = Vec::new();
    for place in Place::all(node)? {
        let (records, problems) = place.observer.named_volumes().map_err(Failure::of)?;
        problems.iter().for_each(note);
        for record in records {
            if all.iter().any(|known| known.record.directory == record.directory) {
                continue;
            }
            let users = tasks.iter().filter(|task| {
                let plan = task.view.plan.as_ref();
                plan.is_some_and(|plan| plan.volumes.iter().any(|volume| volume.directory == record.directory))
            });
            all.push(Volume { users: users.map(Task::name).collect(), record });
        }
    }
    Ok(all)
}

/// A volume as JSON. Passwords are not on disk, so there are none.
fn volume_json(Volume { record, users }: &Volume) -> Value {
    json!({
        "name": record.name,
        "directory": record.directory,
        "type": record.options.as_ref().map_or("directory", |options| options.permission()),
        "device": record.options.as_ref().map(|options| options.device.clone()),
        "mount_options": record.options.as_ref().map(|options| options.mount_options.clone()),
        "mounted": record.options.as_ref().map(|_| record.mounted),
        "used_by": users,
    })
}
