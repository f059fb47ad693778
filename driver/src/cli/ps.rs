//! `oci-rs ps`: the tasks of this node.

use std::{net::IpAddr, time::SystemTime};

use network::{Connection, Protocol};
use runtime::ContainerState;
use serde_json::{Value, json};

use super::{
    arguments::PsArguments,
    failure::Failure,
    format,
    output::Output,
    tasks::{Task, short_alloc, state_name, state_text},
    usage::{Usage, since_start},
};
use crate::plan::{NotedPort, TaskNotes};

/// Runs the command.
pub fn run(arguments: &PsArguments) -> Result<(), Failure> {
    let mut tasks = Task::all(&arguments.node)?;
    // A filter by state chooses among all states.
    let all = arguments.all || arguments.filter.iter().any(|filter| filter.is_of("state"));
    tasks.retain(|task| (all || is_current(&task.view.state)) && task.passes(&arguments.filter));
    let output = Output { json: arguments.node.json };
    if arguments.quiet {
        return Ok(tasks.iter().try_for_each(|task| output.line(task.name()))?);
    }
    let now = SystemTime::now();
    if output.json {
        return Ok(output.value(&tasks.iter().map(|task| task_json(task, now)).collect())?);
    }
    let titles = ["ALLOC", "JOB", "GROUP", "TASK", "IMAGE", "STATE", "PID", "AGE", "CPU", "MEMORY", "PORTS"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(tasks.iter().map(|task| row(task, now, arguments.no_trunc)));
    if arguments.no_trunc {
        output.table(&rows)?
    } else {
        output.fitted(&rows, &[1, 2, 4, 10])?
    }
    Ok(())
}

/// Whether a task runs or is about to. An unreadable one may run.
fn is_current(state: &ContainerState) -> bool {
    matches!(state, ContainerState::Starting | ContainerState::Running { .. } | ContainerState::Unreadable)
}

fn row(task: &Task, now: SystemTime, whole: bool) -> Vec<String> {
    let TaskNotes { alloc, job, group, task: name, image, .. } = task.notes.clone();
    let usage = since_start(task, now);
    let shown = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        if whole { alloc } else { short_alloc(&alloc).to_owned() },
        job,
        group,
        name,
        image,
        state_text(&task.view.state),
        shown(task.pid().map(|pid| pid.to_string())),
        shown(task.age(now).map(format::age)),
        shown(usage.as_ref().map(Usage::cpu)),
        shown(usage.as_ref().map(Usage::memory)),
        ports(task, task.connection().as_ref()).iter().map(port_text).collect::<Vec<_>>().join(", "),
    ]
}

/// A port of the host that leads to a task.
struct Published {
    port: NotedPort,
    protocol: Option<Protocol>,
}

/// The ports of a task's own network, or those that Nomad allocated to its group.
fn ports(task: &Task, connection: Option<&Connection>) -> Vec<Published> {
    match connection {
        Some(Connection { ports, .. }) => {
            let own = |port: &network::PortMapping| Published {
                port: NotedPort {
                    label: String::new(),
                    host_ip: port.host_ip,
                    host_port: port.host_port,
                    container_port: port.container_port,
                },
                protocol: Some(port.protocol),
            };
            ports.iter().map(own).collect()
        }
        None => task.notes.ports.iter().map(|port| Published { port: port.clone(), protocol: None }).collect(),
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

/// A port as docker writes it: `192.0.2.1:8080->80/tcp`.
fn port_text(Published { port, protocol }: &Published) -> String {
    let host = match port.host_ip {
        Some(IpAddr::V6(address)) => format!("[{address}]"),
        Some(IpAddr::V4(address)) => address.to_string(),
        None => "*".to_owned(),
    };
    let protocol = protocol.map(|protocol| format!("/{}", protocol_name(protocol))).unwrap_or_default();
    if port.host_port == port.container_port && protocol.is_empty() {
        return format!("{host}:{}", port.host_port);
    }
    format!("{host}:{}->{}{protocol}", port.host_port, port.container_port)
}

/// A task as JSON. The reference of commands lists the fields.
pub fn task_json(task: &Task, now: SystemTime) -> Value {
    let TaskNotes { alloc, namespace, job, group, task: name, image, digest, .. } = &task.notes;
    let (usage, connection) = (since_start(task, now), task.connection());
    let time = |time: Option<SystemTime>| time.map(format::rfc3339);
    let exit = match &task.view.state {
        ContainerState::Exited(exit) => Some(exit),
        _ => None,
    };
    let monitor = match &task.view.state {
        ContainerState::Running { monitor, .. } => *monitor,
        _ => None,
    };
    let port = |published: &Published| {
        let NotedPort { label, host_ip, host_port, container_port } = &published.port;
        json!({
            "label": label, "host_ip": host_ip, "host_port": host_port, "container_port": container_port,
            "protocol": published.protocol.map(protocol_name),
        })
    };
    json!({
        "plugin": task.plugin().as_str(),
        "allocation": alloc, "namespace": namespace, "job": job, "group": group, "task": name,
        "container": task.view.id.as_str(),
        "image": image, "digest": digest,
        "state": state_name(&task.view.state),
        "pid": task.pid(), "monitor_pid": monitor,
        "started_at": time(task.started_at()), "finished_at": time(exit.map(|exit| exit.finished_at)),
        "exit_code": exit.map(|exit| exit.exit_code), "signal": exit.map(|exit| exit.signal),
        "oom_killed": exit.map(|exit| exit.oom_killed),
        "cpu_percent": usage.map(|usage| usage.cpu_percent),
        "cpu_seconds": usage.map(|usage| usage.stats.cpu.total_ns as f64 / 1e9),
        "memory_bytes": usage.map(|usage| usage.stats.memory.usage),
        "memory_limit_bytes": task.view.plan.as_ref().and_then(|plan| plan.resources.memory_limit),
        "pids": usage.map(|usage| usage.stats.pids),
        "network": connection.as_ref().map(|connection| connection.network.clone()),
        "addresses": connection.as_ref().map(|connection| connection.addresses.clone()).unwrap_or_default(),
        "ports": ports(task, connection.as_ref()).iter().map(port).collect::<Vec<_>>(),
        "problems": task.view.problems,
    })
}

#[cfg(test)]
mod tests {
    use network::Protocol;

    use super::{Published, port_text};
    use crate::plan::NotedPort;

    #[test]
    fn ports_are_written_as_docker_writes_them() {
        for (host_ip, (host_port, container_port), protocol, expected) in [
            ("192.0.2.1", (8080, 80), Some(Protocol::Tcp), "192.0.2.1:8080->80/tcp"),
            ("", (53, 53), Some(Protocol::Udp), "*:53->53/udp"),
            ("::1", (8080, 80), None, "[::1]:8080->80"),
            ("192.0.2.1", (8080, 8080), None, "192.0.2.1:8080"),
        ] {
            let port = NotedPort { host_ip: host_ip.parse().ok(), host_port, container_port, ..NotedPort::default() };
            assert_eq!(port_text(&Published { port, protocol }), expected);
        }
    }
}
