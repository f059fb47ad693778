//! The operator's rules for tasks.

use std::time::Duration;

use log_drivers::NodeFile;
use network::Settings;
use runtime::plan::Relabel;

use super::{
    confinement::{self, DefaultProfile},
    docker,
    layers::{self, LayerLimits},
    network::{self as network_options, DefaultNetwork},
    runtimes::{self, Runtimes},
    userns::{self, UserNamespaceMode, UserNamespaces},
};
use crate::config::{
    block::ConfigBlock,
    capabilities::CapabilitySet,
    log_driver::LogDriver,
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

/// The value that docker allows to every task and that many images need.
const DEFAULT_ALLOW_SECURITY_OPTS: [&str; 1] = ["no-new-privileges=false"];

/// File systems of servers, in memory, and directories of the host: none of them gives a task a device.
const DEFAULT_VOLUME_TYPES: [&str; 6] = ["bind", "cifs", "nfs", "nfs4", "smb3", "tmpfs"];

/// The sockets of the node's own syslog and journal.
const DEFAULT_LOG_PATHS: [&str; 2] = ["/dev/log", "/run/systemd/journal/socket"];

/// The OCI runtimes that tasks may name.
const DEFAULT_ALLOW_RUNTIMES: [&str; 1] = ["runc"];

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
        "allow_devices",
        OptionType::Strings,
        Words("none, or all with docker's rules"),
        "devices of the node that tasks may name in `devices`, as paths, as CDI names, or patterns with `*` \
         (`/dev/fuse`, `/dev/dri/*`, `nvidia.com/gpu=*`). A directory stands for the devices in it. Devices of \
         Nomad's device plugins need no permission. With `allow_privileged`, tasks may name any device",
    ),
    OptionSpec::honoured(
        "min_oom_score_adj",
        OptionType::Number,
        Words("0, or -1000 with docker's rules"),
        "the lowest `oom_score_adj` that tasks may have, -1000 to 0. The kernel kills a task with a negative value \
         later than other processes of the node",
    ),
    OptionSpec::honoured(
        "allow_security_opts",
        OptionType::Strings,
        Words("`[\"no-new-privileges=false\"]`, or all values with docker's rules"),
        "values of `security_opt` that tasks may use although they weaken or replace a restriction, as names or \
         patterns with `*`: `no-new-privileges=false`, `seccomp=unconfined`, `seccomp=/etc/nomad.d/seccomp/*`, \
         `apparmor=web-*`",
    ),
    OptionSpec::honoured(
        "allowed_modes",
        OptionType::Block(ALLOWED_MODES),
        Words("only the container's own namespaces, and both values of `cgroupns`; all with docker's rules"),
        "namespaces of the host that tasks may use, as lists of modes or patterns with `*`. With `allow_privileged`, \
         tasks may use any namespace",
    ),
    OptionSpec::honoured(
        "userns",
        OptionType::Block(userns::OPTIONS),
        Words("the defaults of its options"),
        "tasks' own user namespaces, see [user namespaces](#user-namespaces)",
    ),
    OptionSpec::honoured(
        "no_new_privileges",
        OptionType::Bool,
        Words("true, or false with docker's rules"),
        "programs in tasks without `security_opt = [\"no-new-privileges=…\"]` cannot gain rights by set-user-id bits \
         or file capabilities",
    ),
    OptionSpec::honoured(
        "allow_runtimes",
        OptionType::Strings,
        Words("`[\"runc\"]`"),
        "values of `runtime` that tasks may use. `runc`, `crun`, `youki` and `io.containerd.runc.v2` mean the \
         built-in runtime unless a block `runtime` has that name; `runsc` and `kata` mean those of the node. Other \
         names need a block `runtime`",
    ),
    OptionSpec::honoured(
        "allow_log_drivers",
        OptionType::Strings,
        Literal(r#"["*"]"#),
        "log drivers that tasks may name in `logging`, of those that deliver the output to a server: `syslog`, \
         `journald`, `gelf`, `fluentd`, or patterns with `*`. They connect from the node's network",
    ),
    OptionSpec::honoured(
        "allow_log_paths",
        OptionType::Strings,
        Words(
            "`[\"/dev/log\", \"/run/systemd/journal/socket\"]`, or all paths in docker's options with docker's rules",
        ),
        "sockets and certificates of the node that tasks may name in the options of log drivers (`unix://` addresses, \
         `syslog-tls-ca-cert` …, `journald-socket`), as paths or patterns with `*`. Only root should be able to write \
         to their directories",
    ),
    OptionSpec::honoured(
        "disable_log_collection",
        OptionType::Bool,
        Words("false"),
        "Nomad does not collect the output of tasks, and it is discarded",
    ),
    OptionSpec::honoured(
        "alloc_nosuid",
        OptionType::Bool,
        Words("true, or false with docker's rules"),
        "binds of the allocation's directories have `nosuid` and `nodev`: set-user-id programs and device nodes in \
         them have no effect in tasks, except in privileged ones",
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
        Words("16384 for tasks that set none, and no maximum; no limit with docker's rules"),
        "default and maximum of the tasks' `pids_limit`. -1: no limit. A task that reaches its limit gets an event",
    ),
    OptionSpec::honoured(
        "writable_layer",
        OptionType::Block(layers::OPTIONS),
        Words("no limits"),
        "limits of the tasks' writable layers, see [volumes.md](volumes.md#a-limit-for-the-writable-layer)",
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
    OptionSpec::honoured(
        "userns",
        OptionType::Strings,
        Words("none; all with docker's rules, except with the `userns.mode` `require`"),
        "allowed values of `userns_mode`: `host`. It is always allowed if `userns.mode` is `off`",
    ),
];

const VOLUMES: &[OptionSpec] = &[
    OptionSpec::honoured(
        "enabled",
        OptionType::Bool,
        Words("false"),
        "tasks may bind host paths outside their allocation directory, and use named volumes",
    ),
    OptionSpec::honoured(
        "allow_shared",
        OptionType::Bool,
        Words("false, or true with docker's rules"),
        "tasks may have binds with the propagation `shared`, and volumes with `propagation_mode = \"bidirectional\"`: \
         mounts that such a task makes in them appear on the node and stay there. With `allow_privileged`, tasks may \
         have them too",
    ),
    OptionSpec::honoured(
        "allow_types",
        OptionType::Strings,
        Words("`[\"bind\", \"cifs\", \"nfs\", \"nfs4\", \"smb3\", \"tmpfs\"]`, or all types with docker's rules"),
        "types of file systems that tasks may mount with `driver_config { options }` of a volume, as names or patterns \
         with `*`. `bind` is a directory of the host. File systems on block devices, such as `ext4`, give a task the \
         whole device",
    ),
    OptionSpec::honoured(
        "mount_timeout",
        OptionType::String,
        Literal(r#""1m""#),
        "time in which the server or device of such a volume must answer",
    ),
    OptionSpec::honoured(
        "selinuxlabel",
        OptionType::String,
        Words("none"),
        "SELinux label that the sources of the tasks' `volumes` get unless the job says otherwise: `z` for all tasks, \
         `Z` for one",
    ),
];

/// What tasks may do, and their defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Tasks may set `privileged`.
    pub allow_privileged: bool,
    /// Tasks may use named volumes and host paths outside the allocation directory.
    pub volumes_enabled: bool,
    /// Patterns of the file systems that volumes may consist of.
    pub volume_types: Vec<String>,
    /// The time in which a volume's file system must be mounted.
    pub volume_timeout: Duration,
    /// Tasks may have mounts with bidirectional propagation.
    pub allow_shared: bool,
    /// Set-user-id programs and device nodes in the allocation's directories have no effect.
    pub alloc_nosuid: bool,
    /// Tasks with reserved cores get memory only from these cores' NUMA nodes.
    pub numa_memory: bool,
    /// Default and maximum of `pids_limit`.
    pub pids_limit: Option<i64>,
    /// `pids_limit` of tasks that set none, if there is no maximum.
    pub default_pids_limit: Option<i64>,
    /// Limits of writable layers.
    pub layers: LayerLimits,
    /// The lowest `oom_score_adj` of tasks.
    pub min_oom_score_adj: i32,
    /// Patterns of the devices that tasks may name.
    pub allow_devices: Vec<String>,
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
    /// The AppArmor profile of tasks that name none.
    pub apparmor: DefaultProfile,
    /// Tasks have SELinux labels, if the node's policy has some for them.
    pub selinux_enabled: bool,
    /// The SELinux label of the sources of binds, unless the job says otherwise.
    pub volume_label: Option<Relabel>,
    /// Namespaces of the host.
    pub allowed_modes: AllowedModes,
    /// Tasks' own user namespaces.
    pub userns: UserNamespaces,
    /// Programs cannot gain privileges by execve, unless the task says otherwise.
    pub no_new_privileges: bool,
    /// The values of `runtime` that tasks may use.
    pub allow_runtimes: Vec<String>,
    /// Patterns of the log drivers that tasks may name, of those that deliver the output.
    pub allow_log_drivers: Vec<String>,
    /// Patterns of the node's files that tasks may name in the options of log drivers. `None`: all in docker's options.
    pub allow_log_paths: Option<Vec<String>>,
    /// The operator's OCI runtimes.
    pub runtimes: Runtimes,
    /// The log driver of tasks that name none.
    pub log_driver: LogDriver,
    /// Nomad collects the output of tasks.
    pub collect_output: bool,
}

/// The driver that the rules for tasks take their defaults from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// The driver's own.
    OciRs,
    /// Docker's where they are wider: a job that ran with docker's driver also runs here.
    Docker,
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
    /// Values of `userns_mode`.
    pub userns: Vec<String>,
}

/// The pattern that every value matches.
const ANY: &str = "*";

/// The kernel's lowest `oom_score_adj`: the process is never killed.
const LOWEST_OOM_SCORE: i32 = -1000;

impl AllowedModes {
    fn any() -> Self {
        let any = || vec![ANY.to_owned()];
        Self { pid: any(), ipc: any(), uts: any(), cgroupns: any(), userns: any() }
    }
}

impl Default for AllowedModes {
    fn default() -> Self {
        let none = Vec::new;
        Self { pid: none(), ipc: none(), uts: none(), cgroupns: vec![ANY.to_owned()], userns: none() }
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
    /// The rules where the operator sets nothing.
    pub fn of(rules: Rules) -> Self {
        let default = Self::default();
        match rules {
            Rules::OciRs => default,
            Rules::Docker => Self {
                allow_security_opts: vec![ANY.to_owned()],
                allowed_modes: AllowedModes::any(),
                no_new_privileges: false,
                volume_types: vec![ANY.to_owned()],
                allow_shared: true,
                alloc_nosuid: false,
                allow_devices: vec![ANY.to_owned()],
                min_oom_score_adj: LOWEST_OOM_SCORE,
                default_pids_limit: None,
                allow_log_paths: None,
                userns: UserNamespaces { mode: UserNamespaceMode::Off, ..default.userns },
                selinux_enabled: false,
                ..default
            },
        }
    }

    /// Whether a task may name a file of the node in an option of a log driver.
    pub fn allows_log_path(&self, file: &NodeFile) -> bool {
        match &self.allow_log_paths {
            None => file.is_dockers,
            Some(allowed) => !file.has_parent_component() && any_matches(allowed, &file.path.to_string_lossy()),
        }
    }

    /// Whether a task may name a device, by its path or its CDI name. Where tasks may be privileged, every device is
    /// allowed.
    pub fn allows_device(&self, device: &str) -> bool {
        self.allow_privileged || any_matches(&self.allow_devices, device)
    }

    /// Whether a list allows a namespace mode. Where tasks may be privileged, every mode is allowed.
    pub fn allows_mode(&self, list: &[String], mode: &str) -> bool {
        self.allow_privileged || any_matches(list, mode)
    }
}

impl Default for Policy {
    fn default() -> Self {
        let caps = serde_json::from_str::<Vec<String>>(DEFAULT_ALLOW_CAPS).unwrap_or_default();
        Self {
            allow_privileged: false,
            volumes_enabled: false,
            volume_types: DEFAULT_VOLUME_TYPES.map(str::to_owned).to_vec(),
            volume_timeout: Duration::from_secs(60),
            allow_shared: false,
            alloc_nosuid: true,
            numa_memory: false,
            pids_limit: None,
            default_pids_limit: Some(16_384),
            layers: LayerLimits::default(),
            min_oom_score_adj: 0,
            allow_devices: Vec::new(),
            rootfs: RootChoice::Auto,
            default_network: DefaultNetwork::Bridge,
            network: Settings::default(),
            extra_labels: Vec::new(),
            allow_caps: CapabilitySet::parse(&caps).0,
            allow_security_opts: DEFAULT_ALLOW_SECURITY_OPTS.map(str::to_owned).to_vec(),
            apparmor: DefaultProfile::default(),
            selinux_enabled: true,
            volume_label: None,
            allowed_modes: AllowedModes::default(),
            userns: UserNamespaces::default(),
            no_new_privileges: true,
            allow_runtimes: DEFAULT_ALLOW_RUNTIMES.map(str::to_owned).to_vec(),
            allow_log_drivers: vec![ANY.to_owned()],
            allow_log_paths: Some(DEFAULT_LOG_PATHS.map(str::to_owned).to_vec()),
            runtimes: Runtimes::default(),
            log_driver: LogDriver::default(),
            collect_output: true,
        }
    }
}

/// Reads the rules from the plugin block.
pub fn read(block: &ConfigBlock, rules: Rules) -> Policy {
    let default = Policy::of(rules);
    let network = block.block("network");
    let volumes = block.block("volumes");
    let userns = userns::read(&block.block("userns"), default.userns.mode);
    Policy {
        allow_privileged: block.bool("allow_privileged"),
        volumes_enabled: volumes.bool("enabled"),
        volume_types: volumes.strings_if_set("allow_types").unwrap_or(default.volume_types),
        volume_timeout: volumes.duration("mount_timeout").unwrap_or(default.volume_timeout),
        allow_shared: volumes.bool_or("allow_shared", default.allow_shared),
        alloc_nosuid: block.bool_or("alloc_nosuid", default.alloc_nosuid),
        numa_memory: block.bool("numa_memory"),
        layers: layers::read(&block.block("writable_layer")),
        pids_limit: pids_limit(block).flatten(),
        default_pids_limit: if pids_limit(block).is_some() { None } else { default.default_pids_limit },
        min_oom_score_adj: min_oom_score_adj(block).unwrap_or(default.min_oom_score_adj),
        allow_devices: block.strings_if_set("allow_devices").unwrap_or(default.allow_devices),
        rootfs: root_choice(block),
        default_network: network_options::default_network(&network),
        network: network_options::settings(&network, default.network),
        extra_labels: block.strings("extra_labels"),
        allow_caps: allow_caps(block).unwrap_or(default.allow_caps),
        allow_security_opts: block.strings_if_set("allow_security_opts").unwrap_or(default.allow_security_opts),
        apparmor: confinement::default_profile(block),
        selinux_enabled: block.bool_or("selinux_enabled", default.selinux_enabled),
        volume_label: confinement::volume_label(&volumes),
        allowed_modes: allowed_modes(&block.block("allowed_modes"), default.allowed_modes, userns.mode),
        userns,
        no_new_privileges: block.bool_or("no_new_privileges", default.no_new_privileges),
        allow_runtimes: block.strings_if_set("allow_runtimes").unwrap_or(default.allow_runtimes),
        allow_log_drivers: block.strings_if_set("allow_log_drivers").unwrap_or(default.allow_log_drivers),
        allow_log_paths: block.strings_if_set("allow_log_paths").or(default.allow_log_paths),
        runtimes: runtimes::read(block),
        log_driver: docker::log_driver(block),
        collect_output: !block.bool("disable_log_collection"),
    }
}

/// The limit on processes. `Some(None)`: the operator wants none.
fn pids_limit(block: &ConfigBlock) -> Option<Option<i64>> {
    let limit = block.integer("pids_limit").filter(|limit| *limit != 0)?;
    if limit < -1 {
        block.error("pids_limit", format!("is {limit}"), "write a number of processes, or -1 for no limit");
    }
    Some(Some(limit).filter(|limit| *limit > 0))
}

fn min_oom_score_adj(block: &ConfigBlock) -> Option<i32> {
    let lowest = block.integer("min_oom_score_adj")?;
    let valid = i32::try_from(lowest).ok().filter(|lowest| (LOWEST_OOM_SCORE..=0).contains(lowest));
    if valid.is_none() {
        block.error("min_oom_score_adj", format!("{lowest} is out of bounds"), "use -1000 to 0");
    }
    valid
}

fn allow_caps(block: &ConfigBlock) -> Option<CapabilitySet> {
    let list = block.strings_if_set("allow_caps")?;
    let (allowed, unknown) = CapabilitySet::parse(&list);
    for name in unknown {
        block.error("allow_caps", format!("{name:?} is no capability"), "see capabilities(7) for the names");
    }
    Some(allowed)
}

/// A user namespace that the operator requires is only left with a permission that the operator writes, also with
/// docker's rules.
fn allowed_modes(block: &ConfigBlock, default: AllowedModes, userns: UserNamespaceMode) -> AllowedModes {
    let userns_default = if userns == UserNamespaceMode::Require { Vec::new() } else { default.userns };
    AllowedModes {
        pid: block.strings_if_set("pid").unwrap_or(default.pid),
        ipc: block.strings_if_set("ipc").unwrap_or(default.ipc),
        uts: block.strings_if_set("uts").unwrap_or(default.uts),
        cgroupns: block.strings_if_set("cgroupns").unwrap_or(default.cgroupns),
        userns: block.strings_if_set("userns").unwrap_or(userns_default),
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
