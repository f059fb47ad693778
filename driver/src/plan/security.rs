//! Namespaces, capabilities, filters and kernel parameters.

use std::collections::BTreeMap;

use runtime::plan::{Namespaces, Network, Seccomp, Security};

use super::TaskContext;
use crate::config::{IpcMode, Mistakes, SeccompChoice, TaskSpec};

/// Everything is the container's own, except what the task takes from the host.
pub fn namespaces(spec: &TaskSpec, network: Network) -> Namespaces {
    let wanted = &spec.namespaces;
    Namespaces {
        network,
        private_pid: !wanted.host_pid,
        private_ipc: wanted.ipc != IpcMode::Host,
        // Also with the host's network: the container has a host name of its own and must not be able to set the node's.
        private_uts: !wanted.host_uts,
        // Nomad's own conformance suite wants to find the task's cgroup in /proc/self/cgroup (`:freezer:/nomad` on v1, a
        // path that ends in `.scope` on v2). In a cgroup namespace both read `/`, so the host's view is the default on
        // both, as it is docker's on v1; a job that wants docker's default on v2 says `cgroupns = "private"`.
        private_cgroup: wanted.private_cgroup,
    }
}

/// Rights of the command.
pub fn decide(context: &TaskContext, mistakes: &Mistakes) -> Security {
    let TaskContext { spec, node, .. } = *context;
    let apparmor = spec.security.apparmor.clone();
    if apparmor.is_some() && !node.apparmor {
        mistakes.add(
            "security_opt",
            "apparmor: this node's kernel does not use AppArmor",
            "remove it, or constrain the job to nodes with `${attr.driver.oci-rs.apparmor}`",
        );
    }
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
    let missing: Vec<&str> = spec.capabilities.wanted.iter().filter(|name| !held(name)).copied().collect();
    if !missing.is_empty() {
        mistakes.add(
            "cap_add",
            format!("the agent itself lacks {}", missing.join(", ")),
            "remove it, or run the agent with these capabilities",
        );
    }
    Security {
        privileged: false,
        capabilities: spec.capabilities.granted.iter().filter(held).map(|name| (*name).to_owned()).collect(),
        no_new_privileges: spec.security.no_new_privileges.unwrap_or(true),
        seccomp: seccomp(context, Seccomp::Default),
        apparmor,
    }
}

/// The filter that the task chose. A file has become a profile by now.
fn seccomp(context: &TaskContext, default: Seccomp) -> Seccomp {
    match (context.profile, &context.spec.security.seccomp) {
        (Some(profile), _) => Seccomp::Profile(profile.clone()),
        (None, Some(SeccompChoice::Unconfined)) => Seccomp::Unconfined,
        // A profile that nobody read leaves the built-in filter, which allows less than most.
        (None, Some(SeccompChoice::Builtin | SeccompChoice::File(_))) => Seccomp::Default,
        (None, None) => default,
    }
}

/// Kernel parameters; each only where the namespace that it belongs to is not the host's.
pub fn sysctl(spec: &TaskSpec, network: &Network, mistakes: &Mistakes) -> BTreeMap<String, String> {
    for name in spec.sysctl.keys() {
        let of_network = name.starts_with("net.");
        if of_network && *network == Network::Host {
            mistakes.add(
                "sysctl",
                format!("{name} cannot be set: the task uses the host's network, so it would change the node"),
                "write `network { mode = \"bridge\" }` in the group, or remove it",
            );
        }
        // What is not of the network is of System V IPC and message queues: nothing else is let through.
        if !of_network && spec.namespaces.ipc == IpcMode::Host {
            mistakes.add(
                "sysctl",
                format!("{name} cannot be set: the task uses the host's IPC namespace, so it would change the node"),
                "remove it, or remove `ipc_mode`",
            );
        }
    }
    spec.sysctl.clone()
}
