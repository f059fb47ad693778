//! `oci-rs rollback`: stops and removes everything that runs under the name `docker`, so that Nomad's docker driver can
//! take the name back.
//!
//! Nomad's driver cannot read the handles of this driver: the restarted agent starts each task again, beside the
//! running container. So the containers must be gone before the agent starts without the plugin's file. Networks that
//! Nomad connected for groups are disconnected in Nomad's place: it connects the groups again under the same ids, for
//! which CNI plugins assign an address only once.
//!
//! Always holds: nothing is stopped while a plugin with docker's name runs. Only what belongs to that name is removed:
//! a group whose network a task of another driver uses keeps it. Repeating the command after a failure or a kill
//! continues the work.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use image_store::LeaseOwner;
use runtime::{Running, Status, plan::ContainerId};
use serde_json::json;

use super::{arguments::RollbackArguments, failure::Failure, format, output::Output, plugins, settings};
use crate::{
    cleanup, config::PluginConfig, error::TaskError, events::Events, name::DriverName, node::Node, plan::Compute,
    task::Tasks,
};

/// What was removed, and what was not.
#[derive(Debug, Default)]
struct Report {
    containers: Vec<String>,
    /// The allocations of the groups.
    groups: Vec<String>,
    failures: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &RollbackArguments) -> Result<(), Failure> {
    let config = configuration(arguments)?;
    refuse_running_plugins(&config)?;
    let (state_dir, data_dir) = (config.state_dir.clone(), config.data_dir.clone());
    let node = Node::open(config, Compute::default(), Events::default()).map_err(Failure::of)?;
    let containers: Vec<ContainerId> = node.runtime.list().map_err(Failure::of)?;
    let (own, others): (Vec<_>, Vec<_>) =
        containers.into_iter().partition(|container| DriverName::Docker.owns(container.as_str()));
    let mut report = Report::default();
    stop(&node, &own, arguments.timeout, &mut report);
    failpoint::at("rollback-before-removal");
    remove(&node, &own, &mut report);
    failpoint::at("rollback-before-groups");
    remove_groups(&node, &others, &mut report);
    // Starts and removals that a killed plugin did not finish.
    if let Err(error) = cleanup::remove_leftovers(&node, &Tasks::new(DriverName::Docker)) {
        report.failures.push(error.to_string());
    }
    // Tasks of the other name may be on the bridge.
    if let Err(error) = node.networks.remove_bridge() {
        report.failures.push(format!("the driver's bridge: {error}"));
    }
    write(&report, &state_dir, &data_dir, &Output { json: arguments.json })?;
    match report.failures.as_slice() {
        [] => Ok(()),
        failures => Err(Failure::Failed(format!(
            "not everything was removed: {}. Run the command again before the agent starts",
            failures.join("; ")
        ))),
    }
}

/// The plugin block of the name `docker`. A command with the wrong directories would find nothing to stop.
fn configuration(arguments: &RollbackArguments) -> Result<PluginConfig, Failure> {
    let mut config = settings::of_docker(arguments.config.as_deref())?;
    for (directory, value) in
        [(&mut config.state_dir, &arguments.state_dir), (&mut config.data_dir, &arguments.data_dir)]
    {
        if let Some(value) = value {
            *directory = std::path::absolute(value).map_err(|error| Failure::Failed(format!("{value:?}: {error}")))?;
        }
        if let Err(error) = std::fs::metadata(&*directory) {
            return Err(Failure::Failed(format!(
                "{}: {error}; is --config, --state-dir or --data-dir missing? After a reboot without a start of the \
                 plugin there is nothing to remove",
                directory.display()
            )));
        }
    }
    Ok(config)
}

fn refuse_running_plugins(config: &PluginConfig) -> Result<(), Failure> {
    let mut places: Vec<&Path> = vec![&config.state_dir, &config.data_dir];
    places.extend(config.log.file.as_deref());
    let canonical: Vec<PathBuf> = places.iter().filter_map(|place| std::fs::canonicalize(place).ok()).collect();
    let canonical: Vec<&Path> = canonical.iter().map(PathBuf::as_path).collect();
    match plugins::running(Path::new("/proc"), Some(DriverName::Docker), &canonical).map_err(Failure::of)?.as_slice() {
        [] => Ok(()),
        [pid, ..] => Err(Failure::Failed(format!(
            "a plugin with the name docker runs (process {pid}): stop the agent first. If the agent was killed, end \
             the plugin with `kill {pid}`: the next agent would connect to it again"
        ))),
    }
}

/// Asks all containers to stop, and waits for their ends.
fn stop(node: &Node, containers: &[ContainerId], timeout: Duration, report: &mut Report) {
    let mut stopping: Vec<Running> = Vec::new();
    for container in containers {
        let stopped = node.status(container).and_then(|status| {
            let Status::Running(running) = status else { return Ok(()) };
            let signal = node.runtime.stop_signal(container).map_err(TaskError::internal)?;
            let sent = if running.installed {
                node.runtime.signal_installed(container, signal).map_err(TaskError::internal)
            } else {
                running.signal(signal).map_err(TaskError::internal)
            };
            sent?;
            stopping.push(running);
            Ok(())
        });
        if let Err(error) = stopped {
            report.failures.push(format!("{}: {error}", name_of(container)));
        }
    }
    let deadline = Instant::now() + timeout;
    for running in stopping {
        // The removal kills a container that is not gone by then, and one whose end cannot be awaited.
        drop(running.init.wait_for(Some(deadline.saturating_duration_since(Instant::now()))));
    }
}

fn remove(node: &Node, containers: &[ContainerId], report: &mut Report) {
    for container in containers {
        match node.remove_container_now(container) {
            Ok(()) => report.containers.push(container.to_string()),
            Err(error) => report.failures.push(format!("{}: {error}", name_of(container))),
        }
    }
}

/// Removes the networks of groups that the driver made, except those with tasks of the other name or of other drivers.
fn remove_groups(node: &Node, others: &[ContainerId], report: &mut Report) {
    let used: BTreeSet<&str> = others.iter().filter_map(|id| id.as_str().split('.').next()).collect();
    let groups = match node.groups.recorded() {
        Ok(groups) => groups,
        Err(error) => return report.failures.push(error.to_string()),
    };
    let plugins = &node.config.policy.network.cni_path;
    for alloc in groups.into_iter().filter(|alloc| !used.contains(alloc.as_str())) {
        let removed = match node.groups.user(&alloc) {
            Ok(Some(pid)) => {
                report.failures.push(format!(
                    "the network of allocation {alloc}: process {pid}, of another driver's task, is in it; end the \
                     process, or stop the allocation before the rollback"
                ));
                continue;
            }
            Ok(None) => node.groups.disconnect(&alloc, plugins),
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => report.groups.push(alloc),
            Err(error) => report.failures.push(format!("the network of allocation {alloc}: {error}")),
        }
    }
}

fn name_of(container: &ContainerId) -> String {
    format::owner(&LeaseOwner::Task { container: container.to_string() })
}

fn write(report: &Report, state_dir: &Path, data_dir: &Path, output: &Output) -> Result<(), Failure> {
    if output.json {
        let Report { containers, groups, failures } = report;
        return Ok(output.value(&json!({"containers": containers, "groups": groups, "failures": failures}))?);
    }
    for container in &report.containers {
        let owner = format::owner(&LeaseOwner::Task { container: container.clone() });
        output.line(format_args!("removed {owner}"))?;
    }
    for alloc in &report.groups {
        output.line(format_args!("removed the network of allocation {alloc}"))?;
    }
    output.line(format_args!(
        "{} tasks and {} networks of groups removed. Images, named volumes and logs stay in {}, and records in {}",
        report.containers.len(),
        report.groups.len(),
        data_dir.display(),
        state_dir.display()
    ))?;
    Ok(())
}
