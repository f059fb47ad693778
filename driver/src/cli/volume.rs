//! `oci-rs volume ls`: the volumes with a name, and those of the host volume plugin.

use runtime::{NamedVolumeRecord, plan::MountKind};
use serde_json::{Value, json};

use super::{
    arguments::{NodeArguments, VolumeArguments, VolumeCommand},
    failure::Failure,
    format,
    output::{Output, note},
    tasks::{Place, Task},
};
use crate::volume_plugin::{HostVolume, host_volumes};

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
    let host_volumes = host_volumes_with_users(&Task::all(node)?);
    let output = Output { json: node.json };
    if output.json {
        let named = volumes.iter().map(volume_json);
        return Ok(output.value(&named.chain(host_volumes.iter().map(host_volume_json)).collect())?);
    }
    let mut rows =
        vec![["VOLUME", "TYPE", "LIMIT", "DISK", "DEVICE", "MOUNTED", "USED BY"].map(str::to_owned).to_vec()];
    rows.extend(volumes.iter().map(named_row));
    rows.extend(host_volumes.iter().map(host_row));
    Ok(output.fitted(&rows, &[4, 6])?)
}

fn named_row(Volume { record, users }: &Volume) -> Vec<String> {
    let (kind, device) = match &record.options {
        Some(options) => (options.permission().to_owned(), options.device.clone()),
        None => ("directory".to_owned(), record.directory.display().to_string()),
    };
    let mounted = match (&record.options, record.mounted) {
        (None, _) => "-",
        (Some(_), is_mounted) => yes_or_no(is_mounted),
    };
    let unknown = || "-".to_owned();
    vec![record.name.clone(), kind, unknown(), unknown(), device, mounted.to_owned(), listed(users)]
}

fn host_row((volume, users): &(HostVolume, Vec<String>)) -> Vec<String> {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), format::size);
    let access = if volume.record.read_only { ", read-only" } else { "" };
    vec![
        volume.record.name.clone(),
        format!("host, {}{access}", volume.record.mechanism()),
        size(volume.limit),
        size(volume.disk),
        volume.path.display().to_string(),
        yes_or_no(volume.is_available).to_owned(),
        listed(users),
    ]
}

fn yes_or_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn listed(users: &[String]) -> String {
    if users.is_empty() { "-".to_owned() } else { users.join(", ") }
}

/// The host volumes of this node, with the tasks that use them.
pub fn host_volumes_with_users(tasks: &[Task]) -> Vec<(HostVolume, Vec<String>)> {
    let (volumes, problems) = host_volumes();
    problems.iter().for_each(note);
    volumes.into_iter().map(|volume| (users(&volume, tasks), volume)).map(|(users, of)| (of, users)).collect()
}

/// The tasks with a mount of a host volume.
fn users(volume: &HostVolume, tasks: &[Task]) -> Vec<String> {
    let uses = |task: &&Task| {
        task.view.plan.as_ref().is_some_and(|plan| {
            plan.mounts.iter().any(|mount| match &mount.kind {
                MountKind::Bind { source } => source.starts_with(&volume.path),
                _ => false,
            })
        })
    };
    tasks.iter().filter(uses).map(Task::name).collect()
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

/// A volume of the host volume plugin as JSON. The path of a key is not on disk, so there is none.
fn host_volume_json((volume, users): &(HostVolume, Vec<String>)) -> Value {
    json!({
        "name": volume.record.name,
        "directory": volume.path,
        "type": "host",
        "device": volume.content,
        "mount_options": Value::Null,
        "mounted": volume.is_available,
        "used_by": users,
        "id": volume.id,
        "namespace": volume.record.namespace,
        "mechanism": volume.record.mechanism(),
        "read_only": volume.record.read_only,
        "limit_bytes": volume.limit,
        "disk_bytes": volume.disk,
        "filled_from": volume.record.origin.as_ref().map(ToString::to_string),
    })
}
