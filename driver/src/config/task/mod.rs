//! The task block: docker's options as values that are fit to be used.
//!
//! What depends on the task block and the operator's policy alone is decided here; what also needs the image, the node
//! or Nomad's part of the task is decided in `plan`.

mod limits;
mod mounts;
mod namespaces;
mod network;
mod security;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use image_store::{Credentials, Reference, Secret};
use runtime::plan::Rlimit;

pub use self::{
    mounts::{DeviceRequest, MountRequest, MountSource},
    namespaces::{IpcMode, NamespaceRequest},
    network::{Addresses, DnsOptions, ExtraHost, NetworkMode},
    security::{CapabilityRequest, SeccompChoice, SecurityOptions},
};
use super::{
    error::{ConfigErrors, ErrorCollector},
    policy::Policy,
    task_options::TASK,
    value::{self, Reader},
};

/// How a job's author calls it.
const BLOCK: &str = "task config";

/// The task block's values. Unset options are `None` or empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskSpec {
    /// The image as it was written.
    pub image: String,
    /// Credentials for the registry.
    pub auth: Option<Credentials>,
    /// Pull without the credentials of a file or helper that fails.
    pub auth_soft_fail: bool,
    /// Ask the registry even if the image is present.
    pub force_pull: bool,
    /// Archive that holds the image, relative to the task's local directory.
    pub load: Option<String>,
    /// How long the pull may take; the plugin's value otherwise.
    pub image_pull_timeout: Option<Duration>,
    /// Replaces the image's CMD.
    pub command: Option<String>,
    /// Arguments of `command`, or in place of the image's CMD.
    pub args: Vec<String>,
    /// Replaces the image's entrypoint; an empty list removes it.
    pub entrypoint: Option<Vec<String>>,
    /// Working directory, absolute.
    pub work_dir: Option<String>,
    /// Host name.
    pub hostname: Option<String>,
    /// The root file system cannot be written to.
    pub readonly_rootfs: bool,
    /// No restrictions.
    pub privileged: bool,
    /// Capabilities, within what the operator allows.
    pub capabilities: CapabilityRequest,
    /// Filters and profiles, within what the operator allows.
    pub security: SecurityOptions,
    /// Namespaces, within what the operator allows.
    pub namespaces: NamespaceRequest,
    /// Further groups.
    pub group_add: Vec<String>,
    /// Give the command a terminal.
    pub tty: bool,
    /// Run an init as process 1.
    pub init: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Where the container's network comes from.
    pub network_mode: NetworkMode,
    /// Labels of the group's ports.
    pub ports: Vec<String>,
    /// Ports in the container by the labels of the task's own network block.
    pub port_map: BTreeMap<String, u16>,
    /// Addresses that the container is to have.
    pub addresses: Addresses,
    /// Further lines of /etc/hosts.
    pub extra_hosts: Vec<ExtraHost>,
    /// What /etc/resolv.conf says.
    pub dns: DnsOptions,
    /// Binds and other mounts, in the order of the options.
    pub mounts: Vec<MountRequest>,
    /// Device nodes.
    pub devices: Vec<DeviceRequest>,
    /// Kernel parameters, dotted names.
    pub sysctl: BTreeMap<String, String>,
    /// Resource limits.
    pub rlimits: BTreeMap<String, Rlimit>,
    /// Bytes of /dev/shm.
    pub shm_size: Option<u64>,
    /// Highest number of processes, the operator's ceiling applied.
    pub pids_limit: Option<i64>,
    /// Hard memory limit in MiB.
    pub memory_hard_limit: Option<u64>,
    /// Period in microseconds, when CPU time is limited to the task's share.
    pub cpu_hard_limit: Option<u64>,
    /// Badness offset.
    pub oom_score_adj: i32,
    /// Throw stdout and stderr away.
    pub discard_output: bool,
}

/// Reads a task block.
pub fn decode_task(msgpack: &[u8], policy: &Policy) -> Result<TaskSpec, ConfigErrors> {
    let errors = ErrorCollector::default();
    let root = value::decode(msgpack, &errors);
    let spec = read(&Reader::new(&root, TASK, &errors), policy);
    errors.result(BLOCK, spec)
}

fn read(block: &Reader, policy: &Policy) -> TaskSpec {
    check_leftovers(block);
    let spec = TaskSpec {
        image: image(block),
        auth: auth(&block.block("auth")),
        auth_soft_fail: block.bool("auth_soft_fail"),
        force_pull: block.bool("force_pull"),
        load: load(block),
        image_pull_timeout: block.duration("image_pull_timeout"),
        command: command(block),
        args: block.strings("args"),
        entrypoint: block.strings_if_set("entrypoint"),
        work_dir: work_dir(block),
        hostname: network::hostname(block),
        readonly_rootfs: block.bool("readonly_rootfs"),
        privileged: security::privileged(block, policy),
        capabilities: security::capabilities(block, policy),
        security: security::options(block, policy),
        namespaces: namespaces::read(block, policy),
        group_add: block.strings("group_add"),
        tty: block.bool("tty"),
        init: block.bool("init"),
        labels: block.string_map("labels"),
        network_mode: network::mode(block),
        ports: block.strings("ports"),
        port_map: block.port_map("port_map"),
        addresses: network::addresses(block),
        extra_hosts: network::extra_hosts(block),
        dns: network::dns(block),
        mounts: mounts::all(block, policy),
        devices: mounts::devices(block),
        sysctl: limits::sysctl(block),
        rlimits: limits::rlimits(block),
        shm_size: block.positive("shm_size"),
        pids_limit: limits::pids(block, policy),
        memory_hard_limit: block.positive("memory_hard_limit"),
        cpu_hard_limit: limits::cpu_hard_limit(block),
        oom_score_adj: limits::oom_score_adj(block),
        discard_output: discard_output(block),
    };
    if spec.namespaces.host_uts && spec.hostname.is_some() {
        block.error("hostname", "cannot be set together with `uts_mode = \"host\"`", "remove one of them");
    }
    spec
}

/// Options of which only some values are honoured and that leave no trace in the spec.
fn check_leftovers(block: &Reader) {
    if block.bool("interactive") && !block.bool("tty") {
        block.error("interactive", "is not supported without a terminal", "set `tty = true` as well, or remove it");
    }
    if let Some(runtime) = block.string("runtime").filter(|name| name != "runc") {
        block.error(
            "runtime",
            format!("{runtime:?} is not supported: containers run with the built-in runtime"),
            "remove it",
        );
    }
    // These have no effect, but what they hold must still be of their type.
    block.block("healthchecks").bool("disable");
    block.integer("container_exists_attempts");
    block.string("cpuset_cpus");
}

fn image(block: &Reader) -> String {
    let image = block.string("image").unwrap_or_default();
    if !block.has("image") {
        block.error("image", "is missing", "name an image, as in \"nginx:1.27\"");
    } else if !image.is_empty()
        && let Err(error) = image.parse::<Reference>()
    {
        block.error("image", error.to_string(), "write it as in \"nginx:1.27\" or \"registry.example/team/app:1\"");
    }
    image
}

fn load(block: &Reader) -> Option<String> {
    let path = block.string("load").filter(|path| !path.is_empty())?;
    if path.starts_with('/') || path.split('/').any(|part| part == "..") {
        block.error(
            "load",
            format!("{path:?} is not a path below the task's local directory"),
            "write it relative to that directory, as in \"image.tar\"",
        );
    }
    Some(path)
}

fn auth(block: &Reader) -> Option<Credentials> {
    match (block.string("username"), block.string("password")) {
        (Some(username), Some(password)) => Some(Credentials { username, password: Secret::new(password) }),
        (None, None) => None,
        (username, _) => {
            let (missing, given) = if username.is_some() { ("password", "username") } else { ("username", "password") };
            if !block.has(missing) {
                block.error(missing, format!("is missing beside {given}"), "set both, or remove the block");
            }
            None
        }
    }
}

fn command(block: &Reader) -> Option<String> {
    let command = block.string("command")?;
    if command.trim() != command {
        block.error(
            "command",
            format!("{command:?} begins or ends with white space"),
            "it is the name of one program; arguments belong into `args`",
        );
    }
    Some(command)
}

fn work_dir(block: &Reader) -> Option<String> {
    let directory = block.string("work_dir")?;
    if !directory.starts_with('/') {
        block.error("work_dir", format!("{directory:?} is not an absolute path"), "begin it with /");
    }
    Some(directory)
}

fn discard_output(block: &Reader) -> bool {
    let logging = block.block("logging");
    let (option, kind) = match (logging.string("type"), logging.string("driver")) {
        (Some(kind), _) => ("type", kind),
        (None, Some(kind)) => ("driver", kind),
        (None, None) => return false,
    };
    match kind.as_str() {
        "none" => true,
        "json-file" | "local" => false,
        _ => {
            logging.error(
                option,
                format!("{kind:?} is not supported: Nomad collects the output of tasks"),
                "remove the block, and let a log shipper read the allocation's log files",
            );
            false
        }
    }
}
