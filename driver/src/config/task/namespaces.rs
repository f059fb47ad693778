//! Namespaces: the container's own, or the host's where the operator allows it.

use super::super::{pattern::any_matches, policy::Policy, value::Reader};

/// Which IPC namespace the container has.
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

/// Namespaces that the task takes from the host, or wants for itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NamespaceRequest {
    /// The process sees, and may signal, every process of the host.
    pub host_pid: bool,
    /// System V objects, message queues and shared memory.
    pub ipc: IpcMode,
    /// The host's name is the container's.
    pub host_uts: bool,
    /// The container's group is the root of the tree that it sees.
    pub private_cgroup: bool,
}

pub fn read(block: &Reader, policy: &Policy) -> NamespaceRequest {
    let modes = &policy.allowed_modes;
    check_user_namespace(block);
    NamespaceRequest {
        host_pid: is_host(block, policy, "pid_mode", "pid", &modes.pid),
        ipc: ipc(block, policy),
        host_uts: is_host(block, policy, "uts_mode", "uts", &modes.uts),
        private_cgroup: private_cgroup(block, policy),
    }
}

/// Whether the option says `host`, which must be allowed.
fn is_host(block: &Reader, policy: &Policy, option: &str, kind: &str, allowed: &[String]) -> bool {
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

fn ipc(block: &Reader, policy: &Policy) -> IpcMode {
    match block.string("ipc_mode").as_deref() {
        // No container can join another one's, so it makes no difference whether one may.
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

fn private_cgroup(block: &Reader, policy: &Policy) -> bool {
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

fn check_user_namespace(block: &Reader) {
    if let Some(mode) = block.string("userns_mode").filter(|mode| mode != "host") {
        block.error(
            "userns_mode",
            format!("{mode:?} is not supported: containers have no user namespace of their own"),
            "remove it",
        );
    }
}

fn allow_host(block: &Reader, policy: &Policy, option: &str, kind: &str, allowed: &[String]) {
    if !policy.allows_mode(allowed, "host") {
        block.error(
            option,
            "\"host\" is not allowed on this node",
            format!(
                "remove it, or have the operator set `allowed_modes {{ {kind} = [\"host\"] }}` in the plugin block"
            ),
        );
    }
}

fn refuse(block: &Reader, option: &str, mode: &str, remedy: &str) {
    let problem = match mode.strip_prefix("container:") {
        Some(_) => format!("{mode:?} is not supported: containers cannot join each other's namespaces"),
        None => format!("{mode:?} is not supported"),
    };
    block.error(option, problem, remedy);
}
