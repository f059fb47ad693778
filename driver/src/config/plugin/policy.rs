//! The operator's rules for tasks.

use network::Settings;

use super::network::{self as network_options, DefaultNetwork};
use crate::config::{
    block::ConfigBlock,
    capabilities::CapabilitySet,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
    pattern::any_matches,
};

/// Docker's default capabilities without `NET_RAW`, in HCL, which is also JSON.
const DEFAULT_ALLOW_CAPS: &str = concat!(
    r#"["AUDIT_WRITE","CHOWN","DAC_OVERRIDE","FOWNER","FSETID","KILL","MKNOD","NET_BIND_SERVICE","#,
    r#""SETFCAP","SETGID","SETPCAP","SETUID","SYS_CHROOT"]"#
);

/// The values that docker allows to every task and that many images need, in HCL, which is also JSON.
const DEFAULT_ALLOW_SECURITY_OPTS: &str = r#"["no-new-privileges=false"]"#;

/// The options of the plugin block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "rootfs",
        OptionType::String,
        Literal(r#""auto""#),
        "how an image becomes a container's root file system. `overlay` mounts the image's layers. `copy` copies them \
         for each task, which is slow and needs their disk space again. `auto` copies only if overlayfs does not work \
         with `data_dir` (another overlay, NFS), and says so in a task event",
    ),
    OptionSpec::honoured("allow_privileged", OptionType::Bool, Literal("false"), "tasks may set `privileged`"),
    OptionSpec::honoured(
        "allow_caps",
        OptionType::Strings,
        Literal(DEFAULT_ALLOW_CAPS),
        "capabilities that tasks may have. `all` allows every capability",
    ),
    OptionSpec::honoured(
        "allow_security_opts",
        OptionType::Strings,
        Literal(DEFAULT_ALLOW_SECURITY_OPTS),
        "values of `security_opt` that tasks may use although they weaken or replace a restriction, as names or \
         patterns with `*`: `no-new-privileges=false`, `seccomp=unconfined`, `seccomp=/etc/nomad.d/seccomp/*`, \
         `apparmor=web-*`",
    ),
    OptionSpec::honoured(
        "allowed_modes",
        OptionType::Block(ALLOWED_MODES),
        Words("only the container's own namespaces, and both values of `cgroupns`"),
        "namespaces of the host that tasks may use, as lists of modes or patterns with `*`. With `allow_privileged`, \
         tasks may use any namespace",
    ),
    OptionSpec::honoured(
        "numa_memory",
        OptionType::Bool,
        Literal("false"),
        "tasks with `cores` get memory only from the NUMA nodes of these cores, even if those nodes have no free \
         memory",
    ),
    OptionSpec::honoured(
        "volumes",
        OptionType::Block(VOLUMES),
        Literal("{ enabled = false }"),
        "host paths and named volumes in tasks",
    ),
    OptionSpec::honoured(
        "network",
        OptionType::Block(network_options::OPTIONS),
        Words("see below"),
        "tasks' own networks, see [networking.md](networking.md)",
    ),
    OptionSpec::honoured(
        "pids_limit",
        OptionType::Number,
        Words("no limit"),
        "default and maximum of the tasks' `pids_limit`",
    ),
    OptionSpec::honoured(
        "extra_labels",
        OptionType::Strings,
        Words("none"),
        "further labels that every container gets, as names or patterns with `*`: `job_name`, `job_id`, \
         `parent_job_id`, `task_group_name`, `task_name`, `namespace`, `node_name`, `node_id`",
    ),
];

const ALLOWED_MODES: &[OptionSpec] = &[
    OptionSpec::honoured("pid", OptionType::Strings, Words("none"), "allowed values of `pid_mode`: `host`"),
    OptionSpec::honoured("ipc", OptionType::Strings, Words("none"), "allowed values of `ipc_mode`: `host`"),
    OptionSpec::honoured("uts", OptionType::Strings, Words("none"), "allowed values of `uts_mode`: `host`"),
    OptionSpec::honoured(
        "cgroupns",
        OptionType::Strings,
        Words("all"),
        "allowed values of `cgroupns`. If `host` is not allowed, containers get a private cgroup namespace",
    ),
    OptionSpec::ignored(
        "userns",
        OptionType::Strings,
        "none",
        "allowed values of `userns_mode`. Containers always use the host's user namespace",
    ),
];

const VOLUMES: &[OptionSpec] = &[
    OptionSpec::honoured(
        "enabled",
        OptionType::Bool,
        Words("false"),
        "tasks may bind host paths outside their allocation directory, and use named volumes",
    ),
    OptionSpec::ignored(
        "selinuxlabel",
        OptionType::String,
        "none",
        "SELinux label for volumes. Containers get no SELinux label of their own, so volumes need none",
    ),
];

/// What tasks may do, and their defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Tasks may set `privileged`.
    pub allow_privileged: bool,
    /// Tasks may use named volumes and host paths outside the allocation directory.
    pub volumes_enabled: bool,
    /// Tasks with reserved cores get memory only from these cores' NUMA nodes.
    pub numa_memory: bool,
    /// Default and maximum of `pids_limit`.
    pub pids_limit: Option<i64>,
    /// How images become root file systems.
    pub rootfs: RootChoice,
    /// The network of tasks that set no `network_mode` and whose group has none.
    pub default_network: DefaultNetwork,
    /// Settings of the driver's bridge and of CNI.
    pub network: Settings,
    /// Patterns of labels that containers get besides `alloc_id`.
    pub extra_labels: Vec<String>,
    /// The capabilities that tasks may have.
    pub allow_caps: CapabilitySet,
    /// Patterns of `security_opt` values that need permission.
    pub allow_security_opts: Vec<String>,
    /// Namespaces of the host.
    pub allowed_modes: AllowedModes,
}

/// Patterns of the namespace modes that tasks may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedModes {
    /// Values of `pid_mode`.
    pub pid: Vec<String>,
    /// Values of `ipc_mode`.
    pub ipc: Vec<String>,
    /// Values of `uts_mode`.
    pub uts: Vec<String>,
    /// Values of `cgroupns`.
    pub cgroupns: Vec<String>,
}

impl Default for AllowedModes {
    fn default() -> Self {
        Self { pid: Vec::new(), ipc: Vec::new(), uts: Vec::new(), cgroupns: vec!["*".to_owned()] }
    }
}

/// How an image's layers become a container's root file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootChoice {
    /// Mounted if possible, otherwise copied.
    Auto,
    /// Mounted. If that is impossible, the task fails.
    Overlay,
    /// Copied.
    Copy,
}

impl Policy {
    /// Whether a list allows a namespace mode. Where tasks may be privileged, every mode is allowed.
    pub fn allows_mode(&self, list: &[String], mode: &str) -> bool {
        self.allow_privileged || any_matches(list, mode)
    }
}

impl Default for Policy {
    fn default() -> Self {
        let list = |literal| serde_json::from_str::<Vec<String>>(literal).unwrap_or_default();
        Self {
            allow_privileged: false,
            volumes_enabled: false,
            numa_memory: false,
            pids_limit: None,
            rootfs: RootChoice::Auto,
            default_network: DefaultNetwork::Bridge,
            network: Settings::default(),
            extra_labels: Vec::new(),
            allow_caps: CapabilitySet::parse(&list(DEFAULT_ALLOW_CAPS)).0,
            allow_security_opts: list(DEFAULT_ALLOW_SECURITY_OPTS),
            allowed_modes: AllowedModes::default(),
        }
    }
}

/// Reads the rules from the plugin block.
pub fn read(block: &ConfigBlock) -> Policy {
    let default = Policy::default();
    let network = block.block("network");
    Policy {
        allow_privileged: block.bool("allow_privileged"),
        volumes_enabled: block.block("volumes").bool("enabled"),
        numa_memory: block.bool("numa_memory"),
        pids_limit: block.positive("pids_limit").map(|limit| i64::try_from(limit).unwrap_or(i64::MAX)),
        rootfs: root_choice(block),
        default_network: network_options::default_network(&network),
        network: network_options::settings(&network, default.network),
        extra_labels: block.strings("extra_labels"),
        allow_caps: allow_caps(block).unwrap_or(default.allow_caps),
        allow_security_opts: block.strings_if_set("allow_security_opts").unwrap_or(default.allow_security_opts),
        allowed_modes: allowed_modes(&block.block("allowed_modes"), default.allowed_modes),
    }
}

fn allow_caps(block: &ConfigBlock) -> Option<CapabilitySet> {
    let list = block.strings_if_set("allow_caps")?;
    let (allowed, unknown) = CapabilitySet::parse(&list);
    for name in unknown {
        block.error("allow_caps", format!("{name:?} is no capability"), "see capabilities(7) for the names");
    }
    Some(allowed)
}

fn allowed_modes(block: &ConfigBlock, default: AllowedModes) -> AllowedModes {
    // The option is ignored, but a value of the wrong type is an error.
    block.strings("userns");
    AllowedModes {
        pid: block.strings("pid"),
        ipc: block.strings("ipc"),
        uts: block.strings("uts"),
        cgroupns: block.strings_if_set("cgroupns").unwrap_or(default.cgroupns),
    }
}

fn root_choice(block: &ConfigBlock) -> RootChoice {
    match block.string("rootfs").as_deref() {
        None | Some("auto") => RootChoice::Auto,
        Some("overlay") => RootChoice::Overlay,
        Some("copy") => RootChoice::Copy,
        Some(other) => {
            let problem = format!("{other:?} is not a way to make a root file system");
            block.error("rootfs", problem, "write auto, overlay or copy");
            RootChoice::Auto
        }
    }
}
