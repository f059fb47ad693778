//! Namespaces, capabilities, the system call filter and kernel parameters.

use std::collections::BTreeMap;

use runtime::plan::{Namespaces, Network, Seccomp, Security};

use super::context::TaskContext;
use crate::config::{AppArmorChoice, ErrorCollector, IpcMode, SeccompChoice, TaskSpec, check_permitted};

/// Every namespace is the container's own, except those that the task takes from the host.
pub fn namespaces(spec: &TaskSpec, network: Network) -> Namespaces {
    let requested = &spec.namespaces;
    Namespaces {
        network,
        private_pid: !requested.host_pid,
        private_ipc: requested.ipc != IpcMode::Host,
        // Also on the host's network: the container has its own host name and must not be able to set the node's.
        private_uts: !requested.host_uts,
        // The default is the host's cgroup namespace, as with docker on v1. Nomad's conformance suite expects the
        // task's cgroup in /proc/self/cgroup (`:freezer:/nomad` on v1, a path that ends in `.scope` on v2). A private
        // cgroup namespace shows `/` there. Docker's default on v2 is `cgroupns = "private"`.
        private_cgroup: requested.private_cgroup,
    }
}

/// The command's privileges.
pub fn decide(context: &TaskContext, errors: &ErrorCollector) -> Security {
    let TaskContext { spec, node, policy, .. } = *context;
    let apparmor = apparmor(context, errors);
    if spec.privileged {
        return Security {
            privileged: true,
            capabilities: node.held_capabilities.iter().cloned().collect(),
            no_new_privileges: spec.security.no_new_privileges.unwrap_or(false),
            seccomp: seccomp(context, Seccomp::Unconfined),
            apparmor,
        };
    }
    let held = |name: &&&str| node.held_capabilities.contains(**name);
    let missing: Vec<&str> = spec.capabilities.requested.iter().filter(|name| !held(name)).copied().collect();
    if !missing.is_empty() {
        errors.add(
            "cap_add",
            format!("the agent itself lacks {}", missing.join(", ")),
            "remove it, or run the agent with these capabilities",
        );
    }
    Security {
        privileged: false,
        capabilities: spec.capabilities.granted.iter().filter(held).map(|name| (*name).to_owned()).collect(),
        no_new_privileges: spec.security.no_new_privileges.unwrap_or(policy.no_new_privileges),
        seccomp: seccomp(context, Seccomp::Default),
        apparmor,
    }
}

/// The AppArmor profile of the command: docker's rules.
fn apparmor(context: &TaskContext, errors: &ErrorCollector) -> Option<String> {
    let TaskContext { spec, node, policy, .. } = *context;
    match &spec.security.apparmor {
        Some(AppArmorChoice::Profile(name)) => {
            if !node.apparmor {
                errors.add(
                    "security_opt",
                    "apparmor: this node's kernel does not use AppArmor",
                    format!(
                        "remove it, or constrain the job to nodes with `${{attr.driver.{}.apparmor}}`",
                        node.driver
                    ),
                );
            }
            Some(name.clone())
        }
        Some(AppArmorChoice::Unconfined) => {
            // Without a default profile, the option changes nothing.
            if node.default_apparmor.is_some() {
                check_permitted(errors, policy, "apparmor=unconfined".to_owned());
            }
            None
        }
        None if spec.privileged => None,
        Some(AppArmorChoice::Default) | None => node.default_apparmor.clone(),
    }
}

/// The system call filter that the task chose. A profile file was read before.
fn seccomp(context: &TaskContext, default: Seccomp) -> Seccomp {
    match (context.profile, &context.spec.security.seccomp) {
        (Some(profile), _) => Seccomp::Profile(profile.clone()),
        (None, Some(SeccompChoice::Unconfined)) => Seccomp::Unconfined,
        // Without the file's content the built-in filter applies, which is strict.
        (None, Some(SeccompChoice::Builtin | SeccompChoice::File(_))) => Seccomp::Default,
        (None, None) => default,
    }
}

/// Kernel parameters. A parameter of a namespace that the task shares with the host is refused.
pub fn sysctl(spec: &TaskSpec, network: &Network, errors: &ErrorCollector) -> BTreeMap<String, String> {
    for name in spec.sysctl.keys() {
        let is_network = name.starts_with("net.");
        if is_network && *network == Network::Host {
            errors.add(
                "sysctl",
                format!("{name} cannot be set: the task uses the host's network, so it would change the node"),
                "write `network { mode = \"bridge\" }` in the group, or remove it",
            );
        }
        // The decoder lets only parameters of the network, of System V IPC and of message queues pass.
        if !is_network && spec.namespaces.ipc == IpcMode::Host {
            errors.add(
                "sysctl",
                format!("{name} cannot be set: the task uses the host's IPC namespace, so it would change the node"),
                "remove it, or remove `ipc_mode`",
            );
        }
    }
    spec.sysctl.clone()
}
