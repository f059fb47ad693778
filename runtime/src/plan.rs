//! What a container is to be: values only, decided before anything is done.
//!
//! The caller (the driver) fills a [`ContainerPlan`]; the monitor turns it into an OCI runtime spec once the image's root
//! file system is mounted, because only then can user names be resolved inside it. Nothing here does I/O. The plan is written
//! to the task's state directory as `plan.json`, so every field must survive a round trip through JSON, and a field that is
//! added later needs a serde default: a monitor of an older build never reads a newer plan, but recovery does read older ones.

use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

pub use ::seccomp::{InvalidProfile, SeccompProfile};

pub use crate::capability::CAPABILITIES;

/// The name of a container: of its directories, and of the container in libcontainer.
///
/// One to 200 characters out of `A-Z a-z 0-9 _ . + -`, neither `.` nor `..`: safe as a file name, never an option or a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

/// A string that cannot name a container.
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

/// Everything that decides how one container is made and run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerPlan {
    /// The container's name.
    pub id: ContainerId,
    /// The command: program and arguments, never empty. The program is looked up in the container's `PATH`.
    pub args: Vec<String>,
    /// `NAME=value` pairs in order; a name occurs once.
    pub env: Vec<(String, String)>,
    /// Working directory in the container, absolute; made (as root, 0755) when the image lacks it.
    pub cwd: String,
    /// `user`, `user:group`, uid or `uid:gid`, resolved in the image; empty is root.
    pub user: String,
    /// Further groups, names or gids, resolved in the image.
    pub groups: Vec<String>,
    /// Give the command a terminal; all its output then arrives on `stdout`.
    pub terminal: bool,
    /// Run an init as process 1 that reaps orphans and forwards signals to the command.
    pub init: bool,
    /// Host name in the container; needs a UTS namespace of its own.
    pub hostname: Option<String>,
    /// The root file system.
    pub root: RootFs,
    /// Mounts beside the standard ones (/proc, /dev, /sys …), in the order in which they are made.
    pub mounts: Vec<Mount>,
    /// Named volumes among the sources of the mounts.
    #[serde(default)]
    pub volumes: Vec<NamedVolume>,
    /// What binds must not lead out of, whatever links their sources contain when they are mounted.
    #[serde(default)]
    pub confined: Option<Confined>,
    /// Small files that are made for this container alone and mounted writable at their destination
    /// (`/etc/hosts`, `/etc/resolv.conf`, `/etc/hostname`): destination, content.
    pub files: Vec<(String, String)>,
    /// Device nodes beside the standard ones (null, zero, full, random, urandom, tty).
    pub devices: Vec<Device>,
    /// Namespaces.
    pub namespaces: Namespaces,
    /// Rights and restrictions.
    pub security: Security,
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
    /// Where in the cgroup tree the container lives.
    pub cgroup: CgroupPlacement,
    /// Where output goes.
    pub output: Output,
    /// For people and tools (`com.hashicorp.nomad.alloc_id` …), kept in the OCI spec.
    pub annotations: BTreeMap<String, String>,
    /// Who asked for it, in the caller's words: nobody else's containers are looked after. Unknown of containers of older builds.
    #[serde(default)]
    pub owner: Option<String>,
}

/// The image's layers and what lies over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootFs {
    /// The image's layers, top-most first; at least one. Each is a directory, or a file that holds an EROFS file system.
    pub layers: Vec<PathBuf>,
    /// How they become one root.
    #[serde(default)]
    pub storage: RootStorage,
    /// The container cannot write to its root.
    pub readonly: bool,
    /// Absolute paths in the container that stay writable when the root is read-only (the image's volumes).
    pub volumes: Vec<String>,
}

/// How layers become a root.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootStorage {
    /// Mounted over one another by overlayfs, at most [`MAX_OVERLAY_LAYERS`].
    #[default]
    Overlay,
    /// Copied for this container: slow to start, works on any file system that holds an image.
    Copy,
}

/// The most layers that the kernel mounts over one another (`OVL_MAX_STACK`).
pub const MAX_OVERLAY_LAYERS: usize = 500;

/// One mount in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path in the container.
    pub destination: String,
    /// What is mounted.
    pub kind: MountKind,
    /// Nothing can be written through this mount.
    pub readonly: bool,
    /// How mounts travel between host and container below this one.
    pub propagation: Propagation,
}

/// What a mount shows.
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
        /// Limit in bytes; the kernel's default (half of memory) without one.
        size: Option<u64>,
        /// Permission bits of its root; docker's default is 0o1777.
        mode: Option<u32>,
        /// Owner of its root; root without one.
        #[serde(default)]
        uid: Option<u32>,
        /// Group of its root; root's without one.
        #[serde(default)]
        gid: Option<u32>,
    },
}

/// A directory of the node that outlives its containers and has a name in jobs. Made by the first container that wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedVolume {
    /// Where it is. Its parent is ours alone.
    pub directory: PathBuf,
    /// Where it is mounted, and what of the image it is filled with when it is made.
    pub destination: String,
    /// Start with what the image has there, as docker does.
    pub copy: bool,
}

/// Sources of binds in a directory that others write to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confined {
    /// The directory. The way to it is trusted.
    pub directory: PathBuf,
    /// Sources, all of them below the directory, that must lie in it when every link is followed.
    pub sources: Vec<PathBuf>,
}

/// Mount propagation, see mount_namespaces(7).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    /// Nothing travels.
    #[default]
    Private,
    /// Mounts made on the host below the source appear in the container.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// A device node, made in the container and allowed by its cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The node on the host.
    pub host_path: PathBuf,
    /// Where it appears.
    pub container_path: String,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

/// Which namespaces the container has for itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Network.
    pub network: Network,
    /// Process ids are its own.
    pub private_pid: bool,
    /// IPC objects are its own.
    pub private_ipc: bool,
    /// Host name is its own.
    pub private_uts: bool,
    /// It sees its cgroup as the root of the tree.
    pub private_cgroup: bool,
}

/// The container's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// The host's.
    Host,
    /// An existing network namespace, by path.
    Path(PathBuf),
    /// A new one with nothing but loopback.
    Private,
}

/// Rights and restrictions of the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// Everything is allowed: all capabilities that we hold, all devices, nothing masked, no default seccomp filter.
    pub privileged: bool,
    /// Capability names as in `CAP_NET_RAW`, upper case; what the bounding set holds.
    pub capabilities: Vec<String>,
    /// Programs can gain no rights by execve (set-user-id, file capabilities).
    pub no_new_privileges: bool,
    /// System call filter.
    pub seccomp: Seccomp,
    /// AppArmor profile of the command, loaded on the host; `None` leaves our own.
    #[serde(default)]
    pub apparmor: Option<String>,
}

/// System call filter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    /// Our default profile, in its form for the container's capabilities.
    #[default]
    Default,
    /// No filter.
    Unconfined,
    /// A profile of somebody else's.
    Profile(SeccompProfile),
}

/// One resource limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    /// What the command starts with; `u64::MAX` is unlimited.
    pub soft: u64,
    /// What it can raise it to.
    pub hard: u64,
}

/// Limits that the cgroup enforces; `None` leaves the kernel's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Hard memory limit in bytes, no swap beyond it; `None` is unlimited.
    pub memory_limit: Option<u64>,
    /// Memory in bytes that reclaim spares (v1 soft limit, v2 `memory.low`).
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

/// Where the container's processes live in the cgroup tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPlacement {
    /// Below the root of each v1 hierarchy, or of the v2 tree: `/nomad/<alloc>.<task>`. Cgroups that exist are used and stay
    /// when the container goes; missing ones are made and removed again.
    pub path: String,
    /// v1: the cpuset group (absolute) that the processes join instead of `path`, when the caller manages cpusets.
    pub cpuset_v1: Option<PathBuf>,
}

/// Where the command's output goes: FIFOs that somebody reads, or `/dev/null`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Standard output, and everything of a terminal.
    pub stdout: PathBuf,
    /// Standard error.
    pub stderr: PathBuf,
}
