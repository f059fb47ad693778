//! What the operator lets tasks do.

use super::{
    capabilities::Written,
    networks::{self, DefaultNetwork},
    pattern::any_matches,
    plugin_options::{DEFAULT_ALLOW_CAPS, DEFAULT_ALLOW_SECURITY_OPTS},
    value::Reader,
};

/// What tasks may do, and what they get without asking.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// `privileged` is allowed.
    pub allow_privileged: bool,
    /// Host paths outside the allocation's directory are allowed.
    pub volumes_enabled: bool,
    /// Reserved cores come with the memory beside them.
    pub numa_memory: bool,
    /// Default and ceiling of `pids_limit`.
    pub pids_limit: Option<i64>,
    /// How images become roots.
    pub rootfs: RootChoice,
    /// What tasks get that name no network and whose group has none.
    pub default_network: DefaultNetwork,
    /// The driver's own bridge, and where CNI plugins and networks are.
    pub network: network::Settings,
    /// Patterns of labels that containers get beside `alloc_id`.
    pub extra_labels: Vec<String>,
    /// Ceiling of capabilities.
    pub(super) allow_caps: Written,
    /// Patterns of `security_opt` values that are not allowed to everybody.
    pub(super) allow_security_opts: Vec<String>,
    /// Namespaces of the host.
    pub(super) allowed_modes: AllowedModes,
}

/// Patterns of namespace modes that tasks may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AllowedModes {
    pub pid: Vec<String>,
    pub ipc: Vec<String>,
    pub uts: Vec<String>,
    pub cgroupns: Vec<String>,
}

impl Default for AllowedModes {
    fn default() -> Self {
        Self { pid: Vec::new(), ipc: Vec::new(), uts: Vec::new(), cgroupns: vec!["*".to_owned()] }
    }
}

impl Policy {
    /// Whether a mode of a namespace is allowed by its list. Whoever may be privileged may take any namespace anyway.
    pub(super) fn allows_mode(&self, list: &[String], mode: &str) -> bool {
        self.allow_privileged || any_matches(list, mode)
    }
}

/// How an image's layers become a container's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootChoice {
    /// Mounted where that works, otherwise copied.
    Auto,
    /// Mounted, or the task fails.
    Overlay,
    /// Copied.
    Copy,
}

impl Default for Policy {
    fn default() -> Self {
        let listed = |literal: &str| -> Vec<String> {
            literal.split('"').filter(|part| part.starts_with(char::is_alphabetic)).map(str::to_owned).collect()
        };
        Self {
            allow_privileged: false,
            volumes_enabled: false,
            numa_memory: false,
            pids_limit: None,
            rootfs: RootChoice::Auto,
            default_network: DefaultNetwork::Bridge,
            network: network::Settings::default(),
            extra_labels: Vec::new(),
            allow_caps: Written::read(&listed(DEFAULT_ALLOW_CAPS)).0,
            allow_security_opts: listed(DEFAULT_ALLOW_SECURITY_OPTS),
            allowed_modes: AllowedModes::default(),
        }
    }
}

/// Reads what the plugin block says of it.
pub(super) fn read(block: &Reader) -> Policy {
    let default = Policy::default();
    let allow_caps = match block.strings_if_set("allow_caps") {
        None => default.allow_caps,
        Some(list) => {
            let (allowed, unknown) = Written::read(&list);
            for name in unknown {
                block.error("allow_caps", format!("{name:?} is no capability"), "see capabilities(7) for the names");
            }
            allowed
        }
    };
    Policy {
        allow_privileged: block.bool("allow_privileged"),
        volumes_enabled: block.block("volumes").bool("enabled"),
        numa_memory: block.bool("numa_memory"),
        pids_limit: block.positive("pids_limit").map(|limit| i64::try_from(limit).unwrap_or(i64::MAX)),
        rootfs: root_choice(block),
        default_network: networks::default_network(&block.block("network")),
        network: networks::settings(&block.block("network"), default.network),
        extra_labels: block.strings("extra_labels"),
        allow_caps,
        allow_security_opts: block.strings_if_set("allow_security_opts").unwrap_or(default.allow_security_opts),
        allowed_modes: allowed_modes(&block.block("allowed_modes"), default.allowed_modes),
    }
}

fn allowed_modes(block: &Reader, default: AllowedModes) -> AllowedModes {
    // It has no effect, but what it holds must still be of its type.
    block.strings("userns");
    AllowedModes {
        pid: block.strings("pid"),
        ipc: block.strings("ipc"),
        uts: block.strings("uts"),
        cgroupns: block.strings_if_set("cgroupns").unwrap_or(default.cgroupns),
    }
}

fn root_choice(block: &Reader) -> RootChoice {
    match block.string("rootfs").as_deref() {
        None | Some("auto") => RootChoice::Auto,
        Some("overlay") => RootChoice::Overlay,
        Some("copy") => RootChoice::Copy,
        Some(other) => {
            block.error("rootfs", format!("{other:?} is no way to make a root"), "write auto, overlay or copy");
            RootChoice::Auto
        }
    }
}
