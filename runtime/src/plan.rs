//! The plan of a container: values only, decided before anything is done.
//!
//! The caller (the driver) fills a [`ContainerPlan`]. The monitor turns it into an OCI runtime spec after it has
//! mounted the image's root file system, because user names are resolved there. This module does no I/O.
//!
//! The plan is written to the task's state directory as `plan.json`, so every field must survive a round trip through
//! JSON. A field that is added later needs a serde default: recovery reads plans of older builds. A monitor of an older
//! build never reads a newer plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use ::log_drivers::Delivery;
pub use ::seccomp::{InvalidProfile, SeccompProfile};

pub use crate::{
    capability::CAPABILITIES,
    selinux::{CategoryPair, Relabel, SelinuxLabels},
};

/// The name of a container, of its directories, and of the container in libcontainer.
///
/// One to 200 characters out of `A-Z a-z 0-9 _ . + -`, the first one neither `.` nor `-`. So it is safe as a file name,
/// and is never an option or a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

/// A string that is not a container id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid container id {0:?}: 1 to 200 characters of A-Z a-z 0-9 _ . + - are allowed")]
pub struct InvalidContainerId(String);

impl ContainerId {
    /// The id as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ContainerId {
    type Err = InvalidContainerId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
        let valid = (1..=200).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with(['.', '-']);
        if valid { Ok(Self(text.to_owned())) } else { Err(InvalidContainerId(text.to_owned())) }
    }
}

impl TryFrom<String> for ContainerId {
    type Error = InvalidContainerId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ContainerId> for String {
    fn from(id: ContainerId) -> Self {
        id.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How one container is created and run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerPlan {
    /// The container's name.
    pub id: ContainerId,
    /// The command: program and arguments, never empty. The program is looked up in the container's `PATH`.
    pub args: Vec<String>,
    /// `NAME=value` pairs in order; a name occurs once.
    pub env: Vec<(String, String)>,
    /// Absolute working directory in the container. If the image does not have it, it is created (by root, mode 0755).
    pub cwd: String,
    /// `user`, `user:group`, uid or `uid:gid`, resolved in the image; empty is root.
    pub user: String,
    /// Supplementary groups: names or gids, resolved in the image.
    pub groups: Vec<String>,
    /// Give the command a terminal. All its output then goes to `stdout`.
    pub terminal: bool,
    /// Give the command a standard input without data and without an end. Otherwise, and without a terminal, it is
    /// `/dev/null`.
    #[serde(default)]
    pub open_stdin: bool,
    /// Run an init as process 1 that reaps orphans and forwards signals to the command.
    pub init: bool,
    /// Host name in the container. It needs a private UTS namespace.
    pub hostname: Option<String>,
    /// The root file system.
    pub root: RootFs,
    /// Mounts beside the standard ones (/proc, /dev, /sys …), in the order of mounting.
    pub mounts: Vec<Mount>,
    /// Named volumes among the sources of the mounts.
    #[serde(default)]
    pub volumes: Vec<NamedVolume>,
    /// Bind sources that must stay in a directory, even if links in their paths are changed before they are mounted.
    #[serde(default)]
    pub confined: Option<BindConfinement>,
    /// Small files that are created for this container alone and mounted writable at their destination
    /// (`/etc/hosts`, `/etc/resolv.conf`, `/etc/hostname`): destination, content.
    pub files: Vec<(String, String)>,
    /// Device nodes beside the standard ones (null, zero, full, random, urandom, tty).
    pub devices: Vec<Device>,
    /// Device nodes with a description of their own. For one path in the container, they replace those of `devices`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub described_devices: Vec<DescribedDevice>,
    /// What files on a mount cannot do, by the destination of the mount.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mount_restrictions: BTreeMap<String, BTreeSet<MountRestriction>>,
    /// Programs of the node that run while the container is made, started and removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// The class of cache and memory bandwidth that the processes join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_class: Option<CacheClass>,
    /// Namespaces.
    pub namespaces: Namespaces,
    /// A user namespace of the container's own. Without it, the container is in the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_namespace: Option<UserNamespace>,
    /// Rights and restrictions.
    pub security: Security,
    /// SELinux labels. Without them, the processes have the label of the monitor, and no file is labelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux: Option<SelinuxLabels>,
    /// Kernel parameters of the container's namespaces, e.g. `net.core.somaxconn`.
    pub sysctl: BTreeMap<String, String>,
    /// Resource limits (setrlimit) by their name without `RLIMIT_`, lower case: `nofile`.
    pub rlimits: BTreeMap<String, Rlimit>,
    /// Size of /dev/shm in bytes; 0 leaves it out.
    pub shm_size: u64,
    /// `oom_score_adj` of the command.
    pub oom_score_adj: i32,
    /// Limits that the cgroup enforces.
    pub resources: Resources,
    /// The place of the container in the cgroup tree.
    pub cgroup: CgroupPlacement,
    /// The logs.
    pub output: Output,
    /// Annotations of the OCI spec, for users and tools (`com.hashicorp.nomad.alloc_id` …).
    pub annotations: BTreeMap<String, String>,
    /// The caller's name for itself. A caller only manages its own containers. Plans of older builds have none.
    #[serde(default)]
    pub owner: Option<String>,
    /// The caller's notes for its own commands. The runtime does not read them. Plans of older builds have none.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub notes: Map<String, Value>,
    /// Lines for /etc/hosts of the other containers of the group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_names: Vec<String>,
    /// The signal that asks the command to stop. Plans of older builds have none.
    #[serde(default)]
    pub stop_signal: Option<i32>,
    /// A runtime of the node that makes the container, in place of the built-in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<InstalledRuntime>,
    /// Where a log relay delivers the output besides `output`. Without it there is no relay, and the command writes to
    /// `output` directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
}

/// A runtime that is installed on the node and has the command line of OCI runtimes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledRuntime {
    /// Its name in jobs.
    pub name: String,
    /// Its executable.
    pub path: PathBuf,
    /// Arguments before every command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
}

/// The root file system: the image's layers and what is over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFs {
    /// The image's layers, top-most first; at least one. Each is a directory, or a file that holds an EROFS file
    /// system.
    pub layers: Vec<PathBuf>,
    /// How the layers become one root.
    #[serde(default)]
    pub storage: RootStorage,
    /// The container cannot write to its root.
    pub readonly: bool,
    /// Absolute paths in the container of volumes without a name (the image's and the task's). Each is filled from the
    /// image, is writable also if the root is read-only, and is removed with the container. A mount at the same path
    /// replaces it.
    pub volumes: Vec<String>,
    /// Those of `volumes` that begin empty.
    #[serde(default)]
    pub empty_volumes: Vec<String>,
    /// The most bytes that the container can write to its root, if that is an overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// How layers become a root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootStorage {
    /// Stacked by overlayfs, at most [`MAX_OVERLAY_LAYERS`].
    #[default]
    Overlay,
    /// Copied for this container. The start is slow, and any file system works.
    Copy,
}

/// The maximum number of layers that the kernel stacks (`OVL_MAX_STACK`).
pub const MAX_OVERLAY_LAYERS: usize = 500;

/// One mount in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path in the container.
    pub destination: String,
    /// What is mounted.
    pub kind: MountKind,
    /// The mount is read-only.
    pub readonly: bool,
    /// How mounts below this one propagate between host and container.
    pub propagation: Propagation,
}

impl Mount {
    /// The layers of a mounted image.
    pub(crate) fn layers(&self) -> Option<&[PathBuf]> {
        match &self.kind {
            MountKind::Image { layers, .. } => Some(layers),
            MountKind::Bind { .. } | MountKind::Tmpfs { .. } => None,
        }
    }

    /// The path on the host that stands for what is mounted: the source of a bind, or the top-most layer of an image.
    pub(crate) fn host_path(&self) -> Option<&Path> {
        match &self.kind {
            MountKind::Bind { source } => Some(source),
            MountKind::Image { layers, .. } => layers.first().map(PathBuf::as_path),
            MountKind::Tmpfs { .. } => None,
        }
    }
}

/// The kind of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountKind {
    /// A file or directory of the host, with everything mounted below it.
    Bind {
        /// Absolute path on the host.
        source: PathBuf,
    },
    /// An empty file system in memory.
    Tmpfs {
        /// Limit in bytes. `None`: the kernel's default, half of memory.
        size: Option<u64>,
        /// Permission bits of its root. `None`: docker's default, 0o1777.
        mode: Option<u32>,
        /// Owner of its root. `None`: root.
        #[serde(default)]
        uid: Option<u32>,
        /// Group of its root. `None`: root's group.
        #[serde(default)]
        gid: Option<u32>,
    },
    /// The files of another image. Such a mount is read-only and private.
    Image {
        /// The image's layers, as in [`RootFs`].
        layers: Vec<PathBuf>,
        /// How the layers become one directory.
        storage: RootStorage,
        /// The directory or file of the image that is mounted, as a path in the image. `None`: all of the image.
        sub_path: Option<PathBuf>,
    },
}

/// A directory of the node that outlives its containers and has a name in jobs. The first container that uses it
/// creates it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedVolume {
    /// The directory. No other program uses its parent.
    #[serde(rename = "folder")]
    pub directory: PathBuf,
    /// The place in the container where it is mounted.
    pub destination: String,
    /// When it is created, fill it with the image's content of `destination`, as docker does.
    pub copy: bool,
    /// The directory is a file system that the caller mounted. It is filled whenever it is empty.
    #[serde(default)]
    pub mounted: bool,
}

/// Bind sources in a directory to which tasks can write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindConfinement {
    /// The directory. The path to it is trusted.
    #[serde(rename = "folder")]
    pub directory: PathBuf,
    /// In binds of the directory and of everything in it, set-user-id programs and device nodes have no effect.
    #[serde(default)]
    pub restricted: bool,
    /// Sources below the directory. They must be in it after every link is followed.
    pub sources: Vec<PathBuf>,
    /// No link of a source may lead to this directory, to one that contains it, or to anything in it. A source whose
    /// path has no link may. Second mounts of these directories do not appear in the container, and no source may be
    /// in one.
    #[serde(default)]
    pub no_links_to: Option<PathBuf>,
    /// With `no_links_to`: the directories in which sources may have a propagation other than private. No other
    /// program makes second mounts in them.
    #[serde(default)]
    pub propagated: Vec<PathBuf>,
}

/// Mount propagation, see mount_namespaces(7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    /// No propagation.
    #[default]
    Private,
    /// Mounts made on the host below the source appear in the container.
    HostToContainer,
    /// In both directions.
    Bidirectional,
}

/// A device node that is created in the container and allowed by its cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The node on the host.
    pub host_path: PathBuf,
    /// Its path in the container.
    pub container_path: String,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

/// A device node with a description. The node of the host completes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribedDevice {
    /// The node on the host. It may be missing if type and number are described.
    pub host_path: PathBuf,
    /// Its path in the container.
    pub container_path: String,
    /// The type. `None`: that of the host's node.
    pub kind: Option<NodeKind>,
    /// Major and minor number. `None`: those of the host's node.
    pub number: Option<(u32, u32)>,
    /// Permission bits. `None`: those of the host's node.
    pub mode: Option<u32>,
    /// The owner. `None`: the command's user.
    pub uid: Option<u32>,
    /// The group. `None`: the command's group.
    pub gid: Option<u32>,
    /// Any of `r`, `w`, `m`. `None`: the cgroup does not allow its use.
    pub permissions: Option<String>,
}

/// The type of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A block device.
    Block,
    /// A character device.
    Character,
    /// A FIFO, which has no number.
    Fifo,
}

/// A program of the node that runs while the container is made, started or removed. It runs as root of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// When it runs.
    pub stage: HookStage,
    /// The program: an absolute path.
    pub path: PathBuf,
    /// Its arguments; the first one is its name.
    pub args: Vec<String>,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// The number of seconds after which it is killed. `None`: the runtime's limit.
    pub timeout_s: Option<u32>,
}

/// When a hook runs (OCI runtime specification).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookStage {
    /// The older name of [`HookStage::CreateRuntime`].
    Prestart,
    /// The root is mounted, and not yet entered. In the node's namespaces.
    CreateRuntime,
    /// After that, in the container's namespaces.
    CreateContainer,
    /// In the container, just before the command.
    StartContainer,
    /// After the command began. In the node's namespaces.
    Poststart,
    /// After the container's end. In the node's namespaces.
    Poststop,
}

impl fmt::Display for HookStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prestart => "prestart",
            Self::CreateRuntime => "createRuntime",
            Self::CreateContainer => "createContainer",
            Self::StartContainer => "startContainer",
            Self::Poststart => "poststart",
            Self::Poststop => "poststop",
        })
    }
}

/// A class of cache and memory bandwidth (`intelRdt` of the OCI runtime specification).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheClass {
    /// Its name; `/` is the class of all other processes. `None`: a class of the container's own.
    pub name: Option<String>,
    /// Its limits: lines of the kernel's file `schemata`. If the class exists, it must have them.
    pub schemata: Vec<String>,
    /// The use of cache and bandwidth by the container is counted.
    pub monitored: bool,
}

/// What files on a mount cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountRestriction {
    /// Device nodes have no effect.
    Nodev,
    /// No file can be executed.
    Noexec,
    /// Set-user-id bits and file capabilities have no effect.
    Nosuid,
}

/// The namespaces of the container. A namespace that is not private is the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Network.
    pub network: Network,
    /// A pid namespace of its own.
    pub private_pid: bool,
    /// An IPC namespace of its own.
    pub private_ipc: bool,
    /// A UTS namespace of its own.
    pub private_uts: bool,
    /// A cgroup namespace of its own: the container sees its cgroup as the root of the tree.
    pub private_cgroup: bool,
}

/// The number of ids in a container's user namespace: its users and groups are 0 to 65535.
pub const IDS_PER_CONTAINER: u32 = 1 << 16;

/// A user namespace of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserNamespace {
    /// The ids of the node from which containers get their ranges.
    pub pool: IdPool,
    /// The container's own range. The runtime assigns it when it starts the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<IdRange>,
}

/// Ids of the node for user namespaces of containers. They count as user ids and as group ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdPool {
    /// The first id.
    pub first: u32,
    /// The number of ids.
    pub count: u32,
}

/// The ids of the node that are the [`IDS_PER_CONTAINER`] ids of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdRange {
    /// The id of the node that is the container's root.
    pub first: u32,
}

impl ContainerPlan {
    /// The ids of the container's own user namespace. `None` if it has none, or has no ids yet.
    pub fn id_range(&self) -> Option<IdRange> {
        self.user_namespace.and_then(|namespace| namespace.ids)
    }

    /// All layers that the container uses: those of its root, then those of each image that it mounts.
    pub(crate) fn all_layers(&self) -> Vec<PathBuf> {
        let mounted = self.mounts.iter().filter_map(Mount::layers).flatten();
        self.root.layers.iter().chain(mounted).cloned().collect()
    }

    /// Whether a hook runs before the root is entered.
    pub fn has_create_hooks(&self) -> bool {
        use HookStage::{CreateContainer, CreateRuntime, Prestart};
        self.hooks.iter().any(|hook| [Prestart, CreateRuntime, CreateContainer].contains(&hook.stage))
    }

    /// Whether the command inherits its SELinux label and AppArmor profile from the process that creates the container.
    /// What that process executes itself must not get them: an installed runtime, which applies them, and the hooks
    /// that run before the root is entered.
    pub fn inherits_labels(&self) -> bool {
        self.runtime.is_none() && !self.has_create_hooks()
    }

    /// Whether the container has volumes that are file systems of their own, for example of a server.
    pub fn has_mounted_volumes(&self) -> bool {
        self.volumes.iter().any(|volume| volume.mounted)
    }
}

impl IdPool {
    /// The ranges of the pool, the lowest one first.
    pub fn ranges(self) -> impl Iterator<Item = IdRange> {
        (0..self.count / IDS_PER_CONTAINER)
            .map_while(move |index| self.first.checked_add(index * IDS_PER_CONTAINER))
            .map(|first| IdRange { first })
            .filter(|range| range.first.checked_add(IDS_PER_CONTAINER - 1).is_some_and(|last| last < u32::MAX))
    }
}

impl IdRange {
    /// The id of the node for an id of the container; `None` if the container does not have the id.
    pub fn on_node(self, id: u32) -> Option<u32> {
        (id < IDS_PER_CONTAINER).then(|| self.first + id)
    }

    /// The id of the container for an id of the node; `None` if the id is not the container's.
    pub fn in_container(self, id: u32) -> Option<u32> {
        id.checked_sub(self.first).filter(|id| *id < IDS_PER_CONTAINER)
    }
}

/// The container's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// The host's.
    Host,
    /// An existing network namespace, by path.
    Path(PathBuf),
    /// A new one that has only a loopback device.
    Private,
}

/// Rights and restrictions of the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// Everything is allowed: all capabilities of this process, all devices, no masked path, no default seccomp filter.
    pub privileged: bool,
    /// The names of the capabilities in the bounding set, in upper case as in `CAP_NET_RAW`.
    pub capabilities: Vec<String>,
    /// Programs can gain no rights by execve (set-user-id, file capabilities).
    pub no_new_privileges: bool,
    /// System call filter.
    pub seccomp: Seccomp,
    /// AppArmor profile of the command, which is loaded on the host. `None`: the profile of this process.
    #[serde(default)]
    pub apparmor: Option<String>,
}

/// System call filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    /// The default profile, in its form for the container's capabilities.
    #[default]
    Default,
    /// No filter.
    Unconfined,
    /// A custom profile.
    Profile(SeccompProfile),
}

/// One resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// The soft limit; `u64::MAX` is unlimited.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// Limits that the cgroup enforces. `None`: the kernel's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Hard memory limit in bytes, without additional swap. `None`: unlimited.
    pub memory_limit: Option<u64>,
    /// Memory in bytes that is protected from reclaim (version 1: soft limit, version 2: `memory.low`).
    pub memory_reservation: Option<u64>,
    /// CPU weight in cgroup v1 shares, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// CPU time in microseconds per period.
    pub cpu_quota: Option<i64>,
    /// Period in microseconds.
    pub cpu_period: Option<u64>,
    /// Cores reserved for this container, as in `0-2,7`.
    pub cpuset_cpus: Option<String>,
    /// NUMA nodes that memory may come from, as in `0-1`.
    #[serde(default)]
    pub cpuset_mems: Option<String>,
    /// Highest number of processes and threads.
    pub pids_limit: Option<i64>,
}

/// The place of the container's processes in the cgroup tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPlacement {
    /// The path below the root of each v1 hierarchy, or of the v2 tree: `/nomad/<alloc>.<task>`. Existing cgroups are
    /// used and stay after the container has ended. Missing ones are created and removed.
    pub path: String,
    /// On version 1: the absolute path of the cpuset cgroup that the processes join instead of `path`, if the caller
    /// manages cpusets.
    pub cpuset_v1: Option<PathBuf>,
}

/// The command's logs: FIFOs with a reader, or `/dev/null`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Standard output, and everything of a terminal.
    pub stdout: PathBuf,
    /// Standard error.
    pub stderr: PathBuf,
}
