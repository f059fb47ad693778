//! Ports that are published from the task's own network.

use super::{context::TaskContext, nomad_task::AllocatedPort};
use crate::config::{ErrorCollector, Needs, NetworkMode, Permission, TaskSpec};

/// The problem of an IPv6 request on a bridge without IPv6.
pub const NO_IPV6_PROBLEM: &str = "is not possible: this node's bridge has no IPv6";
/// The remedy for [`NO_IPV6_PROBLEM`].
pub const NO_IPV6_REMEDY: &str =
    "have the operator set `network { subnet_ipv6 = … }` in the plugin block, or remove it";
/// The part of the plugin block that gives the bridge IPv6.
pub const IPV6_ALLOWED: Permission = Permission { option: "network.subnet_ipv6", needs: Needs::AnyValue };

const UNMAPPED_PROBLEM: &str = "cannot be mapped: on this node tasks use the host's network unless they say otherwise";
const UNMAPPED_REMEDY: &str = "write `network_mode = \"bridge\"`, or `network_mode = \"host\"` if the task listens on \
                               the node's ports itself";

const PORT_MAP_REMEDY: &str =
    "write `port \"<label>\" { to = <port> }` in the group's network block and the label into `ports`";

/// The published ports: those of the group's network block that the task lists, otherwise all of the task's own network
/// block. A label of `port_map` without a port publishes nothing, as with docker.
pub fn published(context: &TaskContext, errors: &ErrorCollector) -> Vec<AllocatedPort> {
    let TaskContext { spec, task, .. } = *context;
    if spec.ports.is_empty() {
        check_port_map(context, errors);
        let task_ports = task.resources.task_ports.iter().map(|port| {
            let container_port = spec.port_map.get(&port.label).copied().unwrap_or(port.container_port);
            AllocatedPort { container_port, ..port.clone() }
        });
        return task_ports.collect();
    }
    let mut published = Vec::new();
    for label in &spec.ports {
        match task.resources.ports.iter().find(|port| port.label == *label) {
            Some(port) if !published.contains(port) => published.push(port.clone()),
            Some(_) => {}
            None => errors.add(
                "ports",
                format!("{label:?} is no port of the group's network block"),
                format!("write `network {{ port \"{label}\" {{}} }}` in the group, or remove it"),
            ),
        }
    }
    published
}

/// Refuses `port_map` if the task has no ports at all to which it could belong. So does docker's driver.
fn check_port_map(context: &TaskContext, errors: &ErrorCollector) {
    let TaskContext { spec, task, .. } = *context;
    if !spec.port_map.is_empty() && spec.ports.is_empty() && task.resources.task_ports.is_empty() {
        errors.add("port_map", "cannot map ports of the group's network", PORT_MAP_REMEDY);
    }
}

/// Refuses ports that a bridge without IPv6 cannot publish.
pub fn check_on_bridge(context: &TaskContext, published: &[AllocatedPort], errors: &ErrorCollector) {
    if context.policy.network.subnet_ipv6.is_some() {
        return;
    }
    let on_ipv6 =
        |port: &&AllocatedPort| port.host_ip.is_some_and(|address| address.is_ipv6() && !address.is_unspecified());
    for port in published.iter().filter(on_ipv6) {
        let problem = format!("{:?} on an IPv6 address of the host {NO_IPV6_PROBLEM}", port.label);
        errors.forbid("ports", problem, NO_IPV6_REMEDY, IPV6_ALLOWED);
    }
}

/// Refuses `ports` and `port_map` of a task that gets no network of its own.
///
/// `ports` are accepted in two cases: in a group's network Nomad maps them, and docker ignores them on a host network
/// that the job asks for.
pub fn refuse_without_own_network(context: &TaskContext, errors: &ErrorCollector) {
    let TaskContext { spec, task, .. } = *context;
    let host_by_default = spec.network_mode == NetworkMode::Unset && task.network_path.is_none();
    if host_by_default && !spec.ports.is_empty() {
        errors.add("ports", UNMAPPED_PROBLEM, UNMAPPED_REMEDY);
    }
    if host_by_default && spec.ports.is_empty() && !spec.port_map.is_empty() {
        errors.add("port_map", UNMAPPED_PROBLEM, UNMAPPED_REMEDY);
    } else if task.network_path.is_some() {
        check_port_map(context, errors);
    }
}

/// The variables `NOMAD_PORT_<label>` of all labels in `port_map`, in every network, as docker's driver sets them.
/// Nomad does not know these container ports.
pub fn env(spec: &TaskSpec) -> Vec<(String, String)> {
    spec.port_map.iter().map(|(label, port)| (variable(label), port.to_string())).collect()
}

/// The name of a label's variable. Nomad replaces each byte that is neither a letter, a digit, `_` nor `.`.
fn variable(label: &str) -> String {
    let kept = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    let name = label.bytes().map(|byte| if kept(byte) { char::from(byte) } else { '_' });
    format!("NOMAD_PORT_{}", name.collect::<String>())
}
