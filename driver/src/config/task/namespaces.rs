//! The task block's options for namespaces: the container's own, or the host's if the operator allows it.

use crate::config::{
    block::ConfigBlock,
    error::{Needs, Permission},
    option::{DefaultValue::Words, OptionSpec, OptionType},
    pattern::any_matches,
    plugin::{Policy, UserNamespaceMode},
};

/// The options of the task block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "cgroupns",
        OptionType::String,
        Words("`host`, or `private` if the plugin's `allowed_modes` does not allow `host`"),
        "cgroup namespace: `host` or `private`",
    ),
    OptionSpec::partial(
        "ipc_mode",
        OptionType::String,
        Words("`private`"),
        "IPC namespace: `private` or `shareable`, which are the same here, `none` for no /dev/shm, or `host` if the \
         plugin's `allowed_modes` allows it",
    ),
    OptionSpec::partial(
        "pid_mode",
        OptionType::String,
        Words("the container's own"),
        "`host`: the container sees the host's processes, if the plugin's `allowed_modes` allows it",
    ),
    OptionSpec::partial(
        "uts_mode",
        OptionType::String,
        Words("the container's own"),
        "`host`: the container has the host's name, if the plugin's `allowed_modes` allows it",
    ),
    OptionSpec::partial(
        "userns_mode",
        OptionType::String,
        Words("the container's own, or the host's if the plugin's `userns.mode` is `off`"),
        "`host`: the container is in the host's user namespace, if the plugin's `allowed_modes` allows it",
    ),
];

/// The IPC namespace of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IpcMode {
    /// Its own, with a /dev/shm.
    #[default]
    Private,
    /// Its own, without a /dev/shm.
    None,
    /// The host's, its /dev/shm included.
    Host,
}

/// Namespaces that the task shares with the host, and those of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NamespaceRequest {
    /// The container shares the host's PID namespace: it sees and may signal every process.
    pub host_pid: bool,
    /// The IPC namespace: System V objects, message queues and shared memory.
    pub ipc: IpcMode,
    /// The container shares the host's UTS namespace: it has the host's name.
    pub host_uts: bool,
    /// The container is in the host's user namespace: its root is the node's root.
    pub host_user: bool,
    /// The container has its own cgroup namespace: its cgroup is the root of the tree that it sees.
    pub private_cgroup: bool,
}

/// Reads all namespace modes.
pub fn read(block: &ConfigBlock, policy: &Policy) -> NamespaceRequest {
    let modes = &policy.allowed_modes;
    NamespaceRequest {
        host_pid: is_host(block, policy, "pid_mode", "pid", &modes.pid),
        ipc: ipc(block, policy),
        host_uts: is_host(block, policy, "uts_mode", "uts", &modes.uts),
        host_user: host_user(block, policy),
        private_cgroup: private_cgroup(block, policy),
    }
}

/// Whether the option is `host`. Refuses it unless the operator allows it.
fn is_host(block: &ConfigBlock, policy: &Policy, option: &str, kind: &str, allowed: &[String]) -> bool {
    match block.string(option).as_deref() {
        None | Some("private") => false,
        Some("host") => {
            allow_host(block, policy, option, kind, allowed);
            true
        }
        Some(mode) => {
            refuse(block, option, mode, "use \"host\", or remove it: containers have one of their own");
            false
        }
    }
}

fn ipc(block: &ConfigBlock, policy: &Policy) -> IpcMode {
    match block.string("ipc_mode").as_deref() {
        // No container can join the namespace of another, so `shareable` is the same as `private`.
        None | Some("private" | "shareable") => IpcMode::Private,
        Some("none") => IpcMode::None,
        Some("host") => {
            allow_host(block, policy, "ipc_mode", "ipc", &policy.allowed_modes.ipc);
            IpcMode::Host
        }
        Some(mode) => {
            refuse(block, "ipc_mode", mode, "remove it; tasks of a group can share files in /alloc");
            IpcMode::Private
        }
    }
}

fn private_cgroup(block: &ConfigBlock, policy: &Policy) -> bool {
    let allowed = &policy.allowed_modes.cgroupns;
    match block.string("cgroupns").as_deref() {
        None => !any_matches(allowed, "host"),
        Some("private") => true,
        Some("host") => {
            allow_host(block, policy, "cgroupns", "cgroupns", allowed);
            false
        }
        Some(mode) => {
            block.error("cgroupns", format!("{mode:?} is not a cgroup namespace"), "use \"host\" or \"private\"");
            false
        }
    }
}

fn host_user(block: &ConfigBlock, policy: &Policy) -> bool {
    match block.string("userns_mode").as_deref() {
        None => false,
        // Without user namespaces, `host` is what every task gets.
        Some("host") if policy.userns.mode == UserNamespaceMode::Off => true,
        Some("host") => {
            allow_host(block, policy, "userns_mode", "userns", &policy.allowed_modes.userns);
            true
        }
        Some(mode) => {
            refuse(block, "userns_mode", mode, "use \"host\", or remove it");
            false
        }
    }
}

fn allow_host(block: &ConfigBlock, policy: &Policy, option: &str, kind: &str, allowed: &[String]) {
    if !policy.allows_mode(allowed, "host") {
        block.forbid(
            option,
            "\"host\" is not allowed on this node",
            format!(
                "remove it, or have the operator set `allowed_modes {{ {kind} = [\"host\"] }}` in the plugin block"
            ),
            Permission { option: permitting(kind), needs: Needs::Entries(vec!["host".to_owned()]) },
        );
    }
}

/// The option of the plugin block that allows the host's namespace of this kind.
fn permitting(kind: &str) -> &'static str {
    match kind {
        "pid" => "allowed_modes.pid",
        "ipc" => "allowed_modes.ipc",
        "uts" => "allowed_modes.uts",
        "cgroupns" => "allowed_modes.cgroupns",
        _ => "allowed_modes.userns",
    }
}

fn refuse(block: &ConfigBlock, option: &str, mode: &str, remedy: &str) {
    let problem = match mode.strip_prefix("container:") {
        Some(_) => format!("{mode:?} is not supported: containers cannot join each other's namespaces"),
        None => format!("{mode:?} is not supported"),
    };
    block.error(option, problem, remedy);
}
