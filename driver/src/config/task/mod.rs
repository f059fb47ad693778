//! The task block: docker's options as checked values.
//!
//! This module decides what depends only on the task block and on the operator's rules. Decisions that also need the
//! image, the node or Nomad's description of the task belong to `plan`.

mod devices;
mod dns;
mod image;
mod limits;
mod mounts;
mod namespaces;
mod network;
mod process;
mod security;
#[cfg(test)]
mod tests;
mod volume_options;

use std::{collections::BTreeMap, time::Duration};

use cdi::QualifiedName;
use image_store::Credentials;
use log_drivers::LogOptions;
use runtime::plan::Rlimit;

pub use self::{
    devices::DeviceRequest,
    dns::{DnsOptions, ExtraHost},
    mounts::{MountRequest, MountSource},
    namespaces::{IpcMode, NamespaceRequest},
    network::{Addresses, NetworkMode},
    security::{
        AppArmorChoice, CapabilityRequest, LabelOption, LabelPart, SeccompChoice, SecurityOptions, check_permitted,
    },
    volume_options::{VOLUMES_ALLOWED, check_type as check_volume_type},
};
use super::{
    NVIDIA_RUNTIME,
    block::ConfigBlock,
    error::{ConfigErrors, ErrorCollector},
    log_driver::LogDriver,
    msgpack,
    option::{self, OptionSpec},
    plugin::{Policy, RuntimeRequest},
};

/// The name of the block in error texts.
const BLOCK: &str = "task config";

const LISTS: &[&[OptionSpec]] = &[
    image::OPTIONS,
    process::OPTIONS,
    network::OPTIONS,
    dns::OPTIONS,
    mounts::OPTIONS,
    devices::OPTIONS,
    limits::OPTIONS,
    namespaces::OPTIONS,
    security::OPTIONS,
];

/// The options of a task's `config` block: all options of the docker driver, with its names and types.
pub const OPTIONS: &[OptionSpec] = &option::concat::<{ option::total(LISTS) }>(LISTS);

/// The task block's values. An unset option is `None` or empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TaskSpec {
    /// The image, as written in the job.
    pub image: String,
    /// Credentials for the registry.
    pub auth: Option<Credentials>,
    /// Pull without credentials if the plugin's credential file or helper fails.
    pub auth_soft_fail: bool,
    /// Ask the registry even if the image is present.
    pub force_pull: bool,
    /// The task must not start before its image is complete.
    pub whole_image: bool,
    /// Path of an archive with the image, relative to the task's local directory.
    pub load: Option<String>,
    /// Total timeout of the pull. `None` is the plugin's.
    pub image_pull_timeout: Option<Duration>,
    /// Replaces the image's CMD.
    pub command: Option<String>,
    /// Arguments of `command`, or a replacement of the image's CMD.
    pub args: Vec<String>,
    /// Replaces the image's entrypoint. An empty list removes it.
    pub entrypoint: Option<Vec<String>>,
    /// Working directory, absolute.
    pub work_dir: Option<String>,
    /// Host name.
    pub hostname: Option<String>,
    /// The root file system is read-only.
    pub readonly_rootfs: bool,
    /// The most bytes that the container can write to its root file system. `None` is the plugin's default.
    pub layer_size: Option<u64>,
    /// The task runs without restrictions.
    pub privileged: bool,
    /// Capabilities, checked against the operator's rules.
    pub capabilities: CapabilityRequest,
    /// `security_opt`, checked against the operator's rules.
    pub security: SecurityOptions,
    /// Namespaces, checked against the operator's rules.
    pub namespaces: NamespaceRequest,
    /// Supplementary groups.
    pub group_add: Vec<String>,
    /// The command runs in a terminal.
    pub tty: bool,
    /// The command's standard input is open, without data.
    pub interactive: bool,
    /// An init runs as process 1.
    pub init: bool,
    /// The runtime of the node that makes the container. `None` is the built-in one.
    pub runtime: Option<RuntimeRequest>,
    /// Labels of the container.
    pub labels: BTreeMap<String, String>,
    /// The source of the container's network.
    pub network_mode: NetworkMode,
    /// Further names of the task in its group.
    pub network_aliases: Vec<String>,
    /// Labels of the group's ports that are published.
    pub ports: Vec<String>,
    /// Container ports by the labels of the task's own network block.
    pub port_map: BTreeMap<String, u16>,
    /// Requested addresses.
    pub addresses: Addresses,
    /// Additional lines of /etc/hosts.
    pub extra_hosts: Vec<ExtraHost>,
    /// Values for /etc/resolv.conf.
    pub dns: DnsOptions,
    /// Mounts, in the order of the options.
    pub mounts: Vec<MountRequest>,
    /// Devices of the host.
    pub devices: Vec<DeviceRequest>,
    /// Devices of the Container Device Interface.
    pub cdi_devices: Vec<QualifiedName>,
    /// The task gets the NVIDIA devices that its environment names: `runtime = "nvidia"`, with the built-in runtime.
    pub nvidia_runtime: bool,
    /// Kernel parameters by dotted name.
    pub sysctl: BTreeMap<String, String>,
    /// Resource limits by lower-case name.
    pub rlimits: BTreeMap<String, Rlimit>,
    /// Size of /dev/shm in bytes.
    pub shm_size: Option<u64>,
    /// Maximum number of processes and threads.
    pub pids_limit: Option<i64>,
    /// Hard memory limit in MiB.
    pub memory_hard_limit: Option<u64>,
    /// CFS period in microseconds, if the task's CPU share is a hard limit.
    pub cpu_hard_limit: Option<u64>,
    /// OOM score adjustment, -1000 to 1000.
    pub oom_score_adj: i32,
    /// Nomad gets no output: the task's log driver discards it, or the operator has switched Nomad's collection off.
    pub discard_output: bool,
    /// The output is also delivered to a log server.
    pub delivery: Option<Box<LogOptions>>,
}

impl TaskSpec {
    /// The images that the task mounts beside its own, as written in the job. Each occurs once.
    pub fn mounted_images(&self) -> Vec<&str> {
        let mut images: Vec<&str> = Vec::new();
        for mount in &self.mounts {
            if let MountSource::Image { image, .. } = &mount.source
                && !images.contains(&image.as_str())
            {
                images.push(image);
            }
        }
        images
    }
}

/// Decodes a task block. The error holds all errors of the block.
pub fn decode_task(bytes: &[u8], policy: &Policy) -> Result<TaskSpec, ConfigErrors> {
    let errors = ErrorCollector::default();
    let value = msgpack::decode(bytes, &errors);
    let spec = read(&ConfigBlock::new(&value, OPTIONS, &errors), policy);
    errors.result(BLOCK, spec)
}

fn read(block: &ConfigBlock, policy: &Policy) -> TaskSpec {
    process::check_ignored(block);
    limits::check_ignored(block);
    let log_driver = process::log_driver(block, policy);
    let (devices, cdi_devices) = devices::read(block);
    let runtime = process::runtime(block, policy);
    let spec = TaskSpec {
        image: image::reference(block),
        auth: image::auth(&block.block("auth")),
        auth_soft_fail: block.bool("auth_soft_fail"),
        force_pull: block.bool("force_pull"),
        whole_image: !block.bool_or("lazy", true),
        load: image::load(block),
        image_pull_timeout: block.duration("image_pull_timeout"),
        command: process::command(block),
        args: block.strings("args"),
        entrypoint: block.strings_if_set("entrypoint"),
        work_dir: process::work_dir(block),
        hostname: dns::hostname(block),
        readonly_rootfs: block.bool("readonly_rootfs"),
        layer_size: limits::layer_size(block, policy),
        privileged: security::privileged(block, policy),
        capabilities: security::capabilities(block, policy),
        security: security::options(block, policy),
        namespaces: namespaces::read(block, policy),
        group_add: block.strings("group_add"),
        tty: block.bool("tty"),
        interactive: block.bool("interactive"),
        init: block.bool("init"),
        nvidia_runtime: runtime.is_none() && block.string("runtime").as_deref() == Some(NVIDIA_RUNTIME),
        runtime,
        labels: block.string_map("labels"),
        network_mode: network::mode(block),
        network_aliases: network::aliases(block),
        ports: block.strings("ports"),
        port_map: block.port_map("port_map"),
        addresses: network::addresses(block),
        extra_hosts: dns::extra_hosts(block),
        dns: dns::options(block),
        mounts: mounts::all(block, policy),
        devices,
        cdi_devices,
        sysctl: limits::sysctl(block),
        rlimits: limits::rlimits(block),
        shm_size: block.positive("shm_size"),
        pids_limit: limits::pids(block, policy),
        memory_hard_limit: limits::memory_hard_limit(block),
        cpu_hard_limit: limits::cpu_hard_limit(block),
        oom_score_adj: limits::oom_score_adj(block, policy),
        discard_output: !policy.collect_output || log_driver == LogDriver::Discard,
        delivery: match log_driver {
            LogDriver::Deliver(options) => Some(options),
            LogDriver::Nomad | LogDriver::Discard => None,
        },
    };
    if spec.namespaces.host_uts && spec.hostname.is_some() {
        block.error("hostname", "cannot be set together with `uts_mode = \"host\"`", "remove one of them");
    }
    spec
}
