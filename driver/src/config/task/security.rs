//! Rights and restrictions.

use std::{collections::BTreeSet, path::PathBuf};

use super::super::{
    capabilities::{self, Written},
    pattern::any_matches,
    policy::Policy,
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

/// Which system call filter the container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SeccompChoice {
    /// The built-in one.
    #[default]
    Builtin,
    /// None.
    Unconfined,
    /// The profile in a file of the host.
    File(PathBuf),
}

/// What `security_opt` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecurityOptions {
    /// Programs can gain no rights by execve; decided by us when unset.
    pub no_new_privileges: Option<bool>,
    /// The system call filter; the built-in one, or none for privileged tasks, when unset.
    pub seccomp: Option<SeccompChoice>,
    /// An AppArmor profile that is loaded on the host.
    pub apparmor: Option<String>,
}

pub fn privileged(block: &Reader, policy: &Policy) -> bool {
    let privileged = block.bool("privileged");
    if privileged && !policy.allow_privileged {
        block.error(
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
            block.error(option, format!("{name:?} is no capability"), "see capabilities(7) for the names");
        }
        written
    };
    let (add, drop) = (read("cap_add"), read("cap_drop"));
    let refused = policy.allow_caps.missing(&add);
    if !refused.is_empty() {
        let names = if add.all { "\"all\"".to_owned() } else { refused.join(", ") };
        block.error(
            "cap_add",
            format!("this node does not allow {names}"),
            "remove it, or have the operator add it to `allow_caps` in the plugin block",
        );
    }
    CapabilityRequest { granted: capabilities::granted(&policy.allow_caps, &add, &drop), wanted: add.names }
}

/// `security_opt`: docker writes `name=value`, and `name:value` in older jobs. What weakens a restriction, or replaces
/// it by something else, must be in the operator's list.
pub fn options(block: &Reader, policy: &Policy) -> SecurityOptions {
    let mut options = SecurityOptions::default();
    for option in block.strings("security_opt") {
        let (name, value) = option.split_once(['=', ':']).unwrap_or((option.as_str(), ""));
        let allowed = || check_allowed(block, policy, name, value);
        match (name, value) {
            ("no-new-privileges", "" | "true") => options.no_new_privileges = Some(true),
            ("no-new-privileges", "false") => {
                allowed();
                options.no_new_privileges = Some(false);
            }
            ("seccomp", "builtin") => options.seccomp = Some(SeccompChoice::Builtin),
            ("seccomp", "unconfined") => {
                allowed();
                options.seccomp = Some(SeccompChoice::Unconfined);
            }
            ("seccomp", path) if path.starts_with('/') && path.split('/').all(|part| part != "..") => {
                allowed();
                options.seccomp = Some(SeccompChoice::File(PathBuf::from(path)));
            }
            ("seccomp", path) => block.error(
                "security_opt",
                format!("{path:?} is no path of a seccomp profile"),
                "write the absolute path of a file on the node, without `..`, or `unconfined`",
            ),
            // What they ask for is the case anyway.
            ("apparmor", "unconfined") | ("label", "disable") => {}
            ("apparmor", profile) if is_profile_name(profile) => {
                allowed();
                options.apparmor = Some(profile.to_owned());
            }
            ("label", _) => block.error(
                "security_opt",
                format!("{option:?} is not supported: containers get no SELinux label"),
                "remove it",
            ),
            _ => block.error(
                "security_opt",
                format!("{option:?} is not supported"),
                "use `no-new-privileges=…`, `seccomp=…` or `apparmor=…`",
            ),
        }
    }
    options
}

fn check_allowed(block: &Reader, policy: &Policy, name: &str, value: &str) {
    // A privileged task has less to lose: whoever allows that has allowed this.
    let option = format!("{name}={value}");
    if !policy.allow_privileged && !any_matches(&policy.allow_security_opts, &option) {
        block.error(
            "security_opt",
            format!("{option:?} is not allowed on this node"),
            format!("remove it, or have the operator set `allow_security_opts = [{option:?}]` in the plugin block"),
        );
    }
}

/// The kernel takes the name up to the end of what is written to it: nothing in it may end it early, or be invisible.
fn is_profile_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic())
}
