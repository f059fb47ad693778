//! The task block's options for privileges and restrictions.

use std::{collections::BTreeSet, path::PathBuf};

use crate::config::{
    block::ConfigBlock,
    capabilities::{self, CapabilitySet},
    error::{ErrorCollector, Needs, Permission},
    option::{DefaultValue::Words, OptionSpec, OptionType},
    pattern::any_matches,
    plugin::{Policy, is_profile_name},
};

/// The options of the task block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "privileged",
        OptionType::Bool,
        Words("false"),
        "every capability and device, no restrictions. Needs the plugin's `allow_privileged`",
    ),
    OptionSpec::honoured(
        "cap_add",
        OptionType::Strings,
        Words("none"),
        "capabilities to add, if the plugin's `allow_caps` allows them. `all` adds every capability",
    ),
    OptionSpec::honoured(
        "cap_drop",
        OptionType::Strings,
        Words("none"),
        "capabilities to drop. `all` drops every capability",
    ),
    OptionSpec::partial(
        "security_opt",
        OptionType::Strings,
        Words("`no-new-privileges=true`"),
        "`no-new-privileges`, also with `=true` or `=false`. `seccomp=` with `builtin`, `unconfined` or the path of a \
         profile on the node. `apparmor=` with `unconfined` or the name of a profile. `label=disable` changes \
         nothing. A value that weakens or replaces a restriction must match an entry of the plugin's \
         `allow_security_opts`",
    ),
];

/// Docker's default profile: the node's default takes its place.
const DOCKERS_PROFILE: &str = "docker-default";

/// The capabilities of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapabilityRequest {
    /// All capabilities, by their kernel names.
    pub granted: BTreeSet<&'static str>,
    /// Capabilities that the task asks for by name. Without them it must not start.
    pub requested: BTreeSet<&'static str>,
    /// Capabilities that the task asks for by name or by `all`.
    pub added: BTreeSet<&'static str>,
}

/// The system call filter of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SeccompChoice {
    /// The built-in one.
    #[default]
    Builtin,
    /// No filter.
    Unconfined,
    /// The profile in a file of the host.
    File(PathBuf),
}

/// The AppArmor profile of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppArmorChoice {
    /// The node's default profile.
    Default,
    /// None. Whether it needs permission depends on the node.
    Unconfined,
    /// A profile that is loaded on the node.
    Profile(String),
}

/// The values of `security_opt`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecurityOptions {
    /// Programs cannot gain privileges by execve. `None` is the default.
    pub no_new_privileges: Option<bool>,
    /// The system call filter. `None` is the built-in filter, or no filter in a privileged task.
    pub seccomp: Option<SeccompChoice>,
    /// The AppArmor profile. `None` is the default profile, or none in a privileged task.
    pub apparmor: Option<AppArmorChoice>,
}

/// Reads `privileged`.
pub fn privileged(block: &ConfigBlock, policy: &Policy) -> bool {
    let privileged = block.bool("privileged");
    if privileged && !policy.allow_privileged {
        block.forbid(
            "privileged",
            "is not allowed on this node",
            "remove it and name what the task needs in `cap_add` and `devices`, or have the operator set \
             `allow_privileged = true` in the plugin block",
            Permission { option: "allow_privileged", needs: Needs::True },
        );
    }
    privileged
}

/// Reads `cap_add` and `cap_drop`.
pub fn capabilities(block: &ConfigBlock, policy: &Policy) -> CapabilityRequest {
    let read = |option| {
        let list = block.strings(option);
        let (set, unknown) = CapabilitySet::parse(&list);
        for name in unknown {
            block.error(option, format!("{name:?} is no capability"), "see capabilities(7) for the names");
        }
        set
    };
    let (add, drop) = (read("cap_add"), read("cap_drop"));
    let refused = policy.allow_caps.missing(&add);
    if !refused.is_empty() {
        let names = if add.all { "\"all\"".to_owned() } else { refused.join(", ") };
        let needed =
            if add.all { vec!["all".to_owned()] } else { refused.iter().map(|name| bare_name(name)).collect() };
        block.forbid(
            "cap_add",
            format!("this node does not allow {names}"),
            "remove it, or have the operator add it to `allow_caps` in the plugin block",
            Permission { option: "allow_caps", needs: Needs::Entries(needed) },
        );
    }
    let granted = capabilities::granted(&policy.allow_caps, &add, &drop);
    let added = if add.all { granted.clone() } else { add.names.clone() };
    CapabilityRequest { granted, requested: add.names, added }
}

/// A capability as operators write it.
fn bare_name(name: &str) -> String {
    name.trim_start_matches("CAP_").to_owned()
}

/// Reads `security_opt`: `name=value`, or `name:value` in older jobs. A value that weakens or replaces a restriction
/// must match an entry of the operator's list.
pub fn options(block: &ConfigBlock, policy: &Policy) -> SecurityOptions {
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
            ("apparmor", "unconfined") => options.apparmor = Some(AppArmorChoice::Unconfined),
            ("apparmor", DOCKERS_PROFILE) => options.apparmor = Some(AppArmorChoice::Default),
            ("apparmor", profile) if is_profile_name(profile) => {
                allowed();
                options.apparmor = Some(AppArmorChoice::Profile(profile.to_owned()));
            }
            // This restriction does not exist here anyway.
            ("label", "disable") => {}
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

fn check_allowed(block: &ConfigBlock, policy: &Policy, name: &str, value: &str) {
    check_permitted(block.errors, policy, format!("{name}={value}"));
}

/// Adds an error unless the operator permits this value of `security_opt`.
pub fn check_permitted(errors: &ErrorCollector, policy: &Policy, option: String) {
    // `allow_privileged` allows more than any of these options.
    if !policy.allow_privileged && !any_matches(&policy.allow_security_opts, &option) {
        errors.forbid(
            "security_opt",
            format!("{option:?} is not allowed on this node"),
            format!("remove it, or have the operator set `allow_security_opts = [{option:?}]` in the plugin block"),
            Permission { option: "allow_security_opts", needs: Needs::Entries(vec![option.clone()]) },
        );
    }
}
