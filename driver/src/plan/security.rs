//! Namespaces, capabilities, filters and kernel parameters.

use std::collections::BTreeMap;

use runtime::plan::{Namespaces, Network, Seccomp, Security};

use super::TaskContext;
use crate::config::{CgroupNamespace, Mistakes, TaskSpec};

/// Everything is the container's own, except what its network mode and `cgroupns` say.
pub fn namespaces(spec: &TaskSpec, network: Network) -> Namespaces {
    Namespaces {
        network,
        private_pid: true,
        private_ipc: true,
        // Also with the host's network: the container has a host name of its own and must not be able to set the node's.
        private_uts: true,
        // Nomad's own conformance suite wants to find the task's cgroup in /proc/self/cgroup (`:freezer:/nomad` on v1, a
        // path that ends in `.scope` on v2). In a cgroup namespace both read `/`, so the host's view is the default on
        // both, as it is docker's on v1; a job that wants docker's default on v2 says `cgroupns = "private"`.
        private_cgroup: spec.cgroup_namespace == Some(CgroupNamespace::Private),
    }
}

/// Rights of the command.
pub fn decide(context: &TaskContext, mistakes: &Mistakes) -> Security {
    let TaskContext { spec, node, .. } = *context;
    if spec.privileged {
        return Security {
            privileged: true,
            capabilities: node.held_capabilities.iter().cloned().collect(),
            no_new_privileges: spec.no_new_privileges.unwrap_or(false),
            seccomp: Seccomp::Unconfined,
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
        no_new_privileges: spec.no_new_privileges.unwrap_or(true),
        seccomp: Seccomp::Default,
    }
}

/// Kernel parameters; those of the network only where the container has a network namespace.
pub fn sysctl(spec: &TaskSpec, network: &Network, mistakes: &Mistakes) -> BTreeMap<String, String> {
    if *network == Network::Host {
        for name in spec.sysctl.keys().filter(|name| name.starts_with("net.")) {
            mistakes.add(
                "sysctl",
                format!("{name} cannot be set: the task uses the host's network, so it would change the node"),
                "write `network { mode = \"bridge\" }` in the group, or remove it",
            );
        }
    }
    spec.sysctl.clone()
}
