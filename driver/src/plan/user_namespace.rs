//! Whether the container gets a user namespace of its own.

use runtime::plan::{Network, UserNamespace};

use super::context::TaskContext;
use crate::config::{ErrorCollector, UserNamespaceMode};

/// Capabilities that a container has on its own files, processes and ports, also in a user namespace of its own.
/// Others that a task adds are rights on the node, or on a network that belongs to the node: they have no effect there.
const EFFECTIVE: [&str; 13] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
];

/// Capabilities without an effect there that tasks have by default: a task that names them has no special need of them.
const BY_DEFAULT: [&str; 2] = ["CAP_AUDIT_WRITE", "CAP_MKNOD"];

/// Capabilities that are effective in a network namespace that the container makes.
const EFFECTIVE_IN_OWN_NETWORK: [&str; 2] = ["CAP_NET_ADMIN", "CAP_NET_RAW"];

/// The user namespace of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserNamespaceDecision {
    /// The container's own, if it gets one.
    pub namespace: Option<UserNamespace>,
    /// Why it does not get one although the operator wants that.
    pub obstacle: Option<String>,
}

/// Decides as far as the task and the operator's settings tell. The runtime finds what else prevents a user namespace.
pub fn decide(context: &TaskContext, network: &Network, errors: &ErrorCollector) -> UserNamespaceDecision {
    let mode = context.policy.userns.mode;
    if mode == UserNamespaceMode::Off || context.spec.namespaces.host_user {
        return UserNamespaceDecision::default();
    }
    if let Some(problem) = &context.node.userns_problem {
        // The node's attribute and the log tell it, not each task.
        if mode == UserNamespaceMode::Require {
            errors.add("userns_mode", problem, NODE_REMEDY);
        }
        return UserNamespaceDecision::default();
    }
    let ineffective = || {
        let names = ineffective(context, network)?;
        Some(format!("{names} of `cap_add` would have no effect in a user namespace of its own"))
    };
    let of_runtime = context.spec.runtime.as_ref();
    let of_runtime = of_runtime.map(|runtime| format!("its runtime {:?} is not the built-in one", runtime.name));
    let of_task = of_runtime.or_else(ineffective).or_else(|| low_port(context, network));
    let obstacle = match (of_task, context.node.id_pool) {
        (None, Some(pool)) => {
            let namespace = Some(UserNamespace { pool, ids: None });
            return UserNamespaceDecision { namespace, obstacle: None };
        }
        (Some(obstacle), _) => obstacle,
        (None, None) => {
            "the user `subid_user` of the plugin's `userns` block has no range of at least 65536 ids, from 65536 \
             on, that is in /etc/subuid and in /etc/subgid"
                .to_owned()
        }
    };
    if mode == UserNamespaceMode::Require {
        errors.add("userns_mode", obstacle, REMEDY);
        return UserNamespaceDecision::default();
    }
    UserNamespaceDecision { namespace: None, obstacle: Some(obstacle) }
}

/// What to do about a task that cannot have a user namespace of its own where that is required.
pub const REMEDY: &str = "this node requires one (`userns { mode = \"require\" }` in the plugin block): change the \
                          task, or set `userns_mode = \"host\"` if the operator allows it";

/// What to do about a node on which no task can have one where that is required.
pub const NODE_REMEDY: &str = "this node requires one and cannot give any: mend the node, or set `userns { mode = \
                               \"auto\" }` in the plugin block";

/// The added capabilities without an effect.
fn ineffective(context: &TaskContext, network: &Network) -> Option<String> {
    let own_network = *network == Network::Private;
    let acceptable = |name: &&str| {
        EFFECTIVE.contains(name)
            || BY_DEFAULT.contains(name)
            || (own_network && EFFECTIVE_IN_OWN_NETWORK.contains(name))
    };
    let names: Vec<&str> = context.spec.capabilities.added.iter().filter(|name| !acceptable(name)).copied().collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// A port of the node's network on which only a task in the node's user namespace may listen, if it has the right.
fn low_port(context: &TaskContext, network: &Network) -> Option<String> {
    let has_right = context.spec.capabilities.granted.contains("CAP_NET_BIND_SERVICE");
    if *network != Network::Host || !has_right {
        return None;
    }
    let resources = &context.task.resources;
    let ports = resources.ports.iter().chain(&resources.task_ports).map(|port| port.host_port);
    let low = ports.min().filter(|port| *port < context.node.first_unprivileged_port)?;
    Some(format!("in a user namespace of its own it could not listen on port {low} of the node's network"))
}
