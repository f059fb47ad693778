//! The task block's options for privileges and restrictions.

use std::{collections::BTreeSet, fmt, path::PathBuf};

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
         profile on the node. `apparmor=` with `unconfined` or the name of a profile. `label=` with \
         `disable`, `user:…`, `role:…`, `type:…`, `level:…` or `filetype:…`. A value that weakens \
         or replaces a restriction must match an entry of the plugin's \
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

/// A change of the SELinux labels of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelOption {
    /// No labels.
    Disable,
    /// Another part of the labels.
    Part(LabelPart, String),
}

/// A part of SELinux labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelPart {
    /// The user, of processes and files.
    User,
    /// The role of processes.
    Role,
    /// The type of processes.
    Type,
    /// The level, of processes and files.
    Level,
    /// The type of files.
    FileType,
}

impl LabelPart {
    const NAMES: [(&str, Self); 5] = [
        ("user", Self::User),
        ("role", Self::Role),
        ("type", Self::Type),
        ("level", Self::Level),
        ("filetype", Self::FileType),
    ];
}

impl LabelOption {
    /// Reads a value such as `type:web_t`.
    fn parse(value: &str) -> Option<Self> {
        if value == "disable" {
            return Some(Self::Disable);
        }
        let (name, part) = value.split_once(':')?;
        let (_, of) = LabelPart::NAMES.into_iter().find(|(other, _)| *other == name)?;
        // Only a level has the character that separates the parts of a label.
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c) || name == "level" && ":,".contains(c);
        (!part.is_empty() && part.chars().all(allowed)).then(|| Self::Part(of, part.to_owned()))
    }
}

impl fmt::Display for LabelOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disable => f.write_str("disable"),
            Self::Part(part, value) => {
                let name = LabelPart::NAMES.iter().find(|(_, other)| other == part).map_or("", |(name, _)| name);
                write!(f, "{name}:{value}")
            }
        }
    }
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
    /// Changes of the SELinux labels. Whether they need permission depends on the node.
    pub labels: Vec<LabelOption>,
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
            ("label", value) => match LabelOption::parse(value) {
                Some(label) => options.labels.push(label),
                None => block.error(
                    "security_opt",
                    format!("{value:?} is no option of SELinux labels"),
                    "write `disable`, or `user:…`, `role:…`, `type:…`, `level:…` or `filetype:…`",
                ),
            },
            _ => block.error(
                "security_opt",
                format!("{option:?} is not supported"),
                "use `no-new-privileges=…`, `seccomp=…`, `apparmor=…` or `label=…`",
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
