//! Rights and restrictions.

use std::collections::BTreeSet;

use super::super::{
    capabilities::{self, Written},
    plugin::Policy,
    value::Reader,
};

/// What capabilities a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapabilityRequest {
    /// All of them, in the kernel's names.
    pub granted: BTreeSet<&'static str>,
    /// Those that the task asked for by name: without them it must not start.
    pub wanted: BTreeSet<&'static str>,
}

/// Which cgroups the container sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupNamespace {
    /// The host's tree.
    Host,
    /// Its own cgroup as the root.
    Private,
}

pub fn privileged(block: &Reader, policy: &Policy) -> bool {
    let privileged = block.bool("privileged");
    if privileged && !policy.allow_privileged {
        block.mistake(
            "privileged",
            "is not allowed on this node",
            "remove it and name what the task needs in `cap_add` and `devices`, or have the operator set `allow_privileged = true` in the plugin block",
        );
    }
    privileged
}

pub fn capabilities(block: &Reader, policy: &Policy) -> CapabilityRequest {
    let read = |option| {
        let list = block.strings(option);
        let (written, unknown) = Written::read(&list);
        for name in unknown {
            block.mistake(option, format!("{name:?} is no capability"), "see capabilities(7) for the names");
        }
        written
    };
    let (add, drop) = (read("cap_add"), read("cap_drop"));
    let refused = policy.allow_caps.missing(&add);
    if !refused.is_empty() {
        let names = if add.all { "\"all\"".to_owned() } else { refused.join(", ") };
        block.mistake(
            "cap_add",
            format!("this node does not allow {names}"),
            "remove it, or have the operator add it to `allow_caps` in the plugin block",
        );
    }
    CapabilityRequest { granted: capabilities::granted(&policy.allow_caps, &add, &drop), wanted: add.names }
}

/// `security_opt`: docker writes `name=value`, and `name:value` in older jobs.
pub fn no_new_privileges(block: &Reader) -> Option<bool> {
    let mut no_new_privileges = None;
    for option in block.strings("security_opt") {
        let (name, value) = option.split_once(['=', ':']).unwrap_or((option.as_str(), ""));
        match (name, value) {
            ("no-new-privileges", "" | "true") => no_new_privileges = Some(true),
            ("no-new-privileges", "false") => no_new_privileges = Some(false),
            // What they ask for is the case anyway.
            ("seccomp", "builtin") | ("apparmor", "unconfined") | ("label", "disable") => {}
            ("seccomp", _) => block.mistake(
                "security_opt",
                format!("{option:?} is not supported: the built-in system call filter always applies"),
                "remove it; with `cap_add` the filter allows the system calls that a capability is for",
            ),
            ("apparmor" | "label", _) => block.mistake(
                "security_opt",
                format!("{option:?} is not supported: containers get no AppArmor profile and no SELinux label"),
                "remove it",
            ),
            _ => block.mistake(
                "security_opt",
                format!("{option:?} is not supported"),
                "use `no-new-privileges`, `no-new-privileges=true` or `no-new-privileges=false`",
            ),
        }
    }
    no_new_privileges
}

pub fn cgroup_namespace(block: &Reader) -> Option<CgroupNamespace> {
    let mode = block.string("cgroupns")?;
    match mode.as_str() {
        "host" => Some(CgroupNamespace::Host),
        "private" => Some(CgroupNamespace::Private),
        _ => {
            block.mistake("cgroupns", format!("{mode:?} is not a cgroup namespace"), "use \"host\" or \"private\"");
            None
        }
    }
}

/// Namespaces whose only supported value is what containers have anyway.
pub fn check_namespaces(block: &Reader) {
    let private = ["private", "shareable"];
    if let Some(mode) = block.string("ipc_mode").filter(|mode| !private.contains(&mode.as_str())) {
        block.mistake(
            "ipc_mode",
            format!("{mode:?} is not supported: containers have an IPC namespace of their own"),
            "remove it; tasks of a group can share files in /alloc",
        );
    }
    if let Some(mode) = block.string("userns_mode").filter(|mode| mode != "host") {
        block.mistake(
            "userns_mode",
            format!("{mode:?} is not supported: containers have no user namespace of their own"),
            "remove it",
        );
    }
}
