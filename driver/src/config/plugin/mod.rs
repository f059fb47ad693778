//! The plugin block: its options and their decoding.

mod confinement;
mod docker;
mod exec;
mod gc;
mod images;
mod layers;
mod lazy;
mod log;
mod metrics;
mod network;
mod policy;
mod prefetch;
mod registry;
mod runtimes;
#[cfg(test)]
mod tests;
mod traces;
mod userns;

use std::{path::PathBuf, time::Duration};

use image_store::{
    CredentialSources, InternalRedirects, LayerFormat, Limits, PartialConfig, RegistryConfig, Retention, StoreConfig,
};

pub use self::{
    confinement::{DefaultProfile, is_profile_name},
    exec::ExecPolicy,
    gc::Dangling,
    layers::LayerLimits,
    log::LogOptions,
    metrics::MetricsAddress,
    network::DefaultNetwork,
    policy::{Policy, RootChoice, Rules},
    prefetch::PrefetchOptions,
    runtimes::{NVIDIA_RUNTIME, RuntimeChoice, RuntimeRequest},
    traces::TraceOptions,
    userns::{IdSource, UserNamespaceMode},
};
use super::{
    block::ConfigBlock,
    error::{ConfigErrors, ErrorCollector},
    msgpack,
    option::{
        self,
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
};
use crate::name::DriverName;

/// The name of the block in error texts.
const BLOCK: &str = "plugin config";

const LISTS: &[&[OptionSpec]] = &[
    DIRECTORIES,
    log::OPTIONS,
    images::OPTIONS,
    registry::OPTIONS,
    policy::OPTIONS,
    runtimes::OPTIONS,
    DEVICES,
    confinement::OPTIONS,
    BLOCKS,
    docker::OPTIONS,
];

/// The options of `config` in `plugin "oci-rs"` and in `plugin "docker"`.
pub const OPTIONS: &[OptionSpec] = &option::concat::<{ option::total(LISTS) }>(LISTS);

const DIRECTORIES: &[OptionSpec] = &[
    OptionSpec::honoured(
        "state_dir",
        OptionType::String,
        Literal(r#""/run/oci-rs""#),
        "directory for the state of running tasks. Its content may be lost at a reboot",
    ),
    OptionSpec::honoured(
        "data_dir",
        OptionType::String,
        Literal(r#""/var/lib/oci-rs""#),
        "directory for images and writable layers. Its content must survive a reboot",
    ),
];

const DEVICES: &[OptionSpec] = &[OptionSpec::honoured(
    "cdi_spec_dirs",
    OptionType::Strings,
    Literal(r#"["/etc/cdi","/var/run/cdi"]"#),
    "directories of CDI specs, see [devices](devices.md). Later ones have the higher priority",
)];

const BLOCKS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "gc",
        OptionType::Block(gc::OPTIONS),
        Words("images are removed three minutes after their last use"),
        "garbage collection",
    ),
    OptionSpec::honoured(
        "lazy",
        OptionType::Block(lazy::OPTIONS),
        Words("as below"),
        "images that are used before they are complete, see [lazy images](lazy-images.md)",
    ),
    OptionSpec::honoured(
        "metrics",
        OptionType::Block(metrics::OPTIONS),
        Words("none"),
        "metrics for Prometheus, see [metrics](metrics.md)",
    ),
    OptionSpec::honoured(
        "traces",
        OptionType::Block(traces::OPTIONS),
        Words("none"),
        "OpenTelemetry traces of starts and pulls, see [traces](metrics.md#traces)",
    ),
    OptionSpec::honoured(
        "prefetch",
        OptionType::Block(prefetch::OPTIONS),
        Words("none"),
        "images that are pulled before their tasks are on this node, see [prefetching](prefetch.md)",
    ),
    OptionSpec::honoured(
        "exec",
        OptionType::Block(exec::OPTIONS),
        Words("nothing is allowed"),
        "extra options that `nomad alloc exec` may use before the command, see [exec](exec.md)",
    ),
];

/// The plugin block's values.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// The driver's name.
    pub driver: DriverName,
    /// State of running tasks.
    pub state_dir: PathBuf,
    /// Images and writable layers.
    pub data_dir: PathBuf,
    /// The driver's own log.
    pub log: LogOptions,
    /// How to reach registries.
    pub registries: Vec<RegistryConfig>,
    /// The internal addresses that registries may name whose blocks do not say it.
    pub internal_redirects: InternalRedirects,
    /// Sources of credentials for tasks without credentials of their own.
    pub credentials: CredentialSources,
    /// A task gets a private image only if the registry lets the task pull it.
    pub verify_access: bool,
    /// Layers are stored as file system images if the node can mount them.
    pub layer_images: bool,
    /// The kernel verifies the blocks of layers.
    pub fs_verity: bool,
    /// How native images are used before they are complete. `None`: they are pulled whole.
    pub lazy: Option<PartialConfig>,
    /// The rules for tasks.
    pub policy: Policy,
    /// Total timeout of a pull, unless the task sets one.
    pub image_pull_timeout: Duration,
    /// Idle timeout of a pull.
    pub pull_activity_timeout: Duration,
    /// How long unused images are kept. `None` is for ever.
    pub retention: Option<Retention>,
    /// Removal of dangling containers. `None` keeps them.
    pub dangling: Option<Dangling>,
    /// Limits of images.
    pub limits: Limits,
    /// Where metrics are served. `None`: nowhere.
    pub metrics: Option<MetricsAddress>,
    /// Where traces are sent. `None`: nowhere.
    pub traces: Option<TraceOptions>,
    /// Images that are pulled before their tasks are here. `None`: none.
    pub prefetch: Option<PrefetchOptions>,
    /// Directories of specs of the Container Device Interface.
    pub cdi_spec_dirs: Vec<PathBuf>,
    /// Extra options of `nomad alloc exec`.
    pub exec: ExecPolicy,
    /// The driver makes the networks of groups in Nomad's place.
    pub group_networks: bool,
    /// The socket of the docker daemon from which containers of Nomad's docker driver are removed.
    pub dockerd: Option<PathBuf>,
    /// The time between the stop signal of such a container and SIGKILL.
    pub docker_stop_timeout: Duration,
    /// A task's start copies the data of docker's volumes for named volumes that do not exist.
    pub migrate_volumes: bool,
    /// The docker version that a driver with docker's name reports.
    pub docker_version: String,
    /// Options of the docker driver that are set and have no effect.
    pub ignored: Vec<&'static str>,
}

impl PluginConfig {
    /// The image store's configuration, for a node that can mount file system images.
    pub fn store(&self) -> StoreConfig {
        StoreConfig {
            root: self.data_dir.join("images"),
            limits: self.limits.clone(),
            registries: self.registries.clone(),
            internal_redirects: self.internal_redirects,
            credentials: self.credentials.clone(),
            verify_access: self.verify_access,
            retention: self.retention,
            fs_verity: self.fs_verity,
            layers: if self.layer_images { LayerFormat::Erofs { zstd: true } } else { LayerFormat::Directory },
            partial: self.lazy.clone(),
        }
    }
}

impl PluginConfig {
    /// The configuration where the operator sets nothing, except for [`Policy`].
    fn of(rules: Rules) -> Self {
        let default = Self::default();
        match rules {
            Rules::OciRs => default,
            Rules::Docker => Self {
                verify_access: false,
                internal_redirects: InternalRedirects::ExceptLinkLocal,
                exec: ExecPolicy { max_commands: exec::DOCKER_MAX_COMMANDS, ..default.exec },
                ..default
            },
        }
    }
}

impl Default for PluginConfig {
    fn default() -> Self {
        Self {
            driver: DriverName::OciRs,
            state_dir: PathBuf::from("/run/oci-rs"),
            data_dir: PathBuf::from("/var/lib/oci-rs"),
            log: LogOptions::default(),
            registries: Vec::new(),
            internal_redirects: InternalRedirects::OfRegistry,
            credentials: CredentialSources::default(),
            verify_access: true,
            layer_images: true,
            fs_verity: false,
            lazy: Some(lazy::default()),
            policy: Policy::default(),
            image_pull_timeout: Duration::from_secs(5 * 60),
            pull_activity_timeout: Duration::from_secs(2 * 60),
            retention: Some(Retention { delay: Duration::from_secs(3 * 60), high: 85, low: 80 }),
            dangling: Some(Dangling {
                period: Duration::from_secs(5 * 60),
                creation_grace: Duration::from_secs(5 * 60),
                unanswered_grace: Duration::from_secs(20),
                dry_run: false,
            }),
            limits: Limits::default(),
            metrics: None,
            traces: None,
            prefetch: None,
            cdi_spec_dirs: cdi::DEFAULT_DIRECTORIES.map(PathBuf::from).to_vec(),
            exec: ExecPolicy::default(),
            group_networks: false,
            dockerd: None,
            docker_stop_timeout: Duration::from_secs(10),
            migrate_volumes: false,
            docker_version: docker::VERSION.to_owned(),
            ignored: Vec::new(),
        }
    }
}

/// Decodes the plugin block of the driver with this name. The error holds all errors of the block.
pub fn decode_plugin(bytes: &[u8], driver: DriverName) -> Result<PluginConfig, ConfigErrors> {
    let errors = ErrorCollector::default();
    let value = msgpack::decode(bytes, &errors);
    let config = read(&ConfigBlock::new(&value, OPTIONS, &errors), driver);
    errors.result(BLOCK, config)
}

/// The driver that the rules for tasks take their defaults from.
fn rules(block: &ConfigBlock, driver: DriverName) -> Rules {
    match driver {
        DriverName::Docker if !block.bool("strict") => Rules::Docker,
        _ => Rules::OciRs,
    }
}

fn read(block: &ConfigBlock, driver: DriverName) -> PluginConfig {
    let rules = rules(block, driver);
    let default = PluginConfig::of(rules);
    let internal = default.internal_redirects;
    let gc = block.block("gc");
    let config = PluginConfig {
        driver,
        state_dir: block.absolute_path("state_dir").unwrap_or(default.state_dir),
        data_dir: block.absolute_path("data_dir").unwrap_or(default.data_dir),
        log: log::read(block),
        registries: {
            let blocks = block.labelled("registry");
            blocks.iter().map(|(host, block)| registry::registry(host, block, internal)).collect()
        },
        internal_redirects: internal,
        credentials: registry::credentials(&block.block("auth")),
        verify_access: block.bool_or("verify_access", default.verify_access),
        layer_images: images::layer_images(block),
        fs_verity: block.bool_or("fs_verity", default.fs_verity),
        lazy: lazy::read(&block.block("lazy")),
        policy: policy::read(block, rules),
        image_pull_timeout: block.duration("image_pull_timeout").unwrap_or(default.image_pull_timeout),
        pull_activity_timeout: block.duration("pull_activity_timeout").unwrap_or(default.pull_activity_timeout),
        retention: gc::retention(&gc, default.retention),
        dangling: gc::dangling(&gc, default.dangling),
        limits: images::limits(&block.block("image_limits"), default.limits),
        metrics: metrics::address(&block.block("metrics")),
        traces: traces::read(&block.block("traces")),
        prefetch: prefetch::read(&block.block("prefetch")),
        cdi_spec_dirs: block.absolute_paths("cdi_spec_dirs").unwrap_or(default.cdi_spec_dirs),
        exec: exec::read(&block.block("exec"), default.exec.max_commands),
        group_networks: block.block("network").bool_or("group_networks", driver == DriverName::Docker),
        dockerd: docker::socket(block, driver),
        docker_stop_timeout: block.duration("docker_stop_timeout").unwrap_or(default.docker_stop_timeout),
        migrate_volumes: block.bool("migrate_volumes"),
        docker_version: block.string("docker_version").unwrap_or(default.docker_version),
        ignored: docker::ignored_options(block, driver),
    };
    if config.state_dir.starts_with(&config.data_dir) || config.data_dir.starts_with(&config.state_dir) {
        block.error("state_dir", "lies within data_dir, or the other way round", "give each a directory of its own");
    }
    config
}
