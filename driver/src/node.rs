//! This Nomad client node as the driver uses it: container runtime, image store, tasks' own networks, configuration.
//!
//! The first call that needs it opens it. SetConfig opens nothing: while SetConfig runs, an older plugin process may
//! still be alive, and the agent may be about to reattach to it.

use std::{
    collections::BTreeMap,
    fs::File,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use image_store::{LeaseOwner, Store};
use network::{GroupNamespaces, Networks};
use runtime::{
    Runtime, StatsReader, Status, VolumeOptions,
    plan::{ContainerId, IdPool},
};
use tokio::sync::{Notify, watch};

use crate::{
    apparmor::AppArmor,
    blocking::blocking,
    config::{IdSource, LogOptions, MountSource, PluginConfig, Policy, RootChoice, TaskSpec, UserNamespaceMode},
    dockerd::Dockerd,
    error::TaskError,
    events::Events,
    groups::Groups,
    hclog::FileOptions,
    health::NodeFindings,
    layers,
    log_directory::LogLinks,
    logs::Logs,
    metrics::Recorder,
    node_info,
    plan::{Compute, MountedVolume, NodeInfo},
    runtimes, selinux, subordinate_ids,
    traces::{Span, Trace, Tracer},
};

/// The services of this node that tasks use.
pub struct Node {
    /// The plugin block.
    pub config: PluginConfig,
    /// Containers.
    pub runtime: Runtime,
    /// Images.
    pub store: Store,
    /// Networks that belong to one task each.
    pub networks: Networks,
    /// Containers of Nomad's docker driver, in whose place this driver is.
    pub dockerd: Option<Dockerd>,
    /// Networks of groups, if Nomad lets the driver make them.
    pub groups: Groups,
    /// The AppArmor profile of tasks that name none.
    pub apparmor: AppArmor,
    /// The SELinux labels of containers.
    pub selinux: selinux::Finding,
    /// The task events of this process.
    pub events: Events,
    /// The watch over the tasks' log FIFOs.
    pub logs: Logs,
    /// The links of the tasks' log directories to Nomad's log files.
    pub log_links: LogLinks,
    /// The node's CPU capacity.
    pub compute: Compute,
    /// Nomad's id of this node.
    pub id: NodeId,
    /// The agent's RecoverTask calls.
    pub recoveries: Recoveries,
    /// Why no task can have a user namespace of its own, once it is known.
    userns_problem: OnceLock<Option<String>>,
    /// Counts the events of this process, if metrics are configured.
    recorder: Option<Recorder>,
    /// Takes the traces of starts and pulls, if they are configured.
    tracer: Option<Tracer>,
    /// Whether the last fingerprint was healthy.
    healthy: AtomicBool,
    /// Set when metrics are served and traces sent.
    export_started: AtomicBool,
    /// Set when the periodic cleanup has been started.
    cleanup_started: AtomicBool,
    /// The open directories, by which `oci-rs rollback` recognises a plugin that uses them.
    _directories: [File; 2],
}

/// Nomad's id of this node: unknown until the first task arrives, because only tasks name it.
#[derive(Debug, Default)]
pub struct NodeId {
    id: OnceLock<String>,
    learned: Notify,
}

impl NodeId {
    /// Learns the id from a task of this node. An empty id is ignored.
    pub fn learn(&self, id: &str) {
        // The agent's node id never changes, so a second value equals the first.
        if !id.is_empty() && self.id.set(id.to_owned()).is_ok() {
            self.learned.notify_one();
        }
    }

    /// Waits until the id is known. For one waiter.
    pub async fn learned(&self) {
        if self.get().is_none() {
            self.learned.notified().await;
        }
    }

    /// The id, if a task has arrived.
    pub fn get(&self) -> Option<&str> {
        self.id.get().map(String::as_str)
    }
}

/// The agent's RecoverTask calls to this process.
#[derive(Debug, Default)]
pub struct Recoveries(watch::Sender<()>);

impl Recoveries {
    /// Notes a call.
    pub fn note(&self) {
        self.0.send_replace(());
    }

    /// Waits until there was no call for this time.
    pub async fn quiet(&self, time: Duration) {
        let mut calls = self.0.subscribe();
        while let Ok(Ok(())) = tokio::time::timeout(time, calls.changed()).await {}
    }
}

impl Node {
    /// Opens the directories and creates the missing ones, and loads the AppArmor profile. Starts nothing.
    pub fn open(config: PluginConfig, compute: Compute, events: Events) -> Result<Self, TaskError> {
        let runtime = Runtime::open(&config.state_dir, &config.data_dir)
            .map_err(|error| TaskError::Internal(format!("runtime: {error}")))?;
        let store =
            layers::open_store(&config).map_err(|error| TaskError::Internal(format!("image store: {error}")))?;
        let open = |directory: &Path| {
            let failed = |error| TaskError::Internal(format!("opening {}: {error}", directory.display()));
            File::open(directory).map_err(failed)
        };
        let directories = [open(&config.state_dir)?, open(&config.data_dir)?];
        let mut selinux = selinux::find(config.policy.selinux_enabled);
        if let Some(labels) = &selinux.labels {
            let directories =
                ["images", "containers", "volumes", "mount-points"].map(|name| config.data_dir.join(name));
            if let Err(error) = runtime.label_directories(&directories, &labels.file) {
                selinux = selinux.without_labels(error.to_string());
            }
        }
        let mounting = runtime.clone();
        store.on_removal(move || mounting.forget_removed_images());
        let logs = Logs::new(runtime.clone());
        let networks = Networks::new(config.policy.network.clone(), &config.state_dir);
        let dockerd = config.dockerd.clone().map(|socket| Dockerd::new(socket, config.docker_stop_timeout));
        let groups = Groups::new(GroupNamespaces::new(&config.state_dir));
        Ok(Self {
            apparmor: AppArmor::open(&config.policy.apparmor),
            recorder: config.metrics.as_ref().map(|_| Recorder::default()),
            tracer: config.traces.clone().map(Tracer::new),
            healthy: AtomicBool::new(false),
            export_started: AtomicBool::new(false),
            selinux,
            config,
            runtime,
            store,
            networks,
            dockerd,
            groups,
            events,
            logs,
            log_links: LogLinks::default(),
            compute,
            id: NodeId::default(),
            recoveries: Recoveries::default(),
            userns_problem: OnceLock::new(),
            cleanup_started: AtomicBool::new(false),
            _directories: directories,
        })
    }

    /// The driver's own log file, unless the configuration switches it off. The agent receives the same lines.
    pub fn log_file(&self) -> Option<FileOptions> {
        let PluginConfig { log, data_dir, driver, .. } = &self.config;
        let path = || log.file.clone().unwrap_or_else(|| data_dir.join(format!("{driver}.log")));
        let LogOptions { rotate_bytes, rotate_files, .. } = *log;
        log.to_file.then(|| FileOptions { path: path(), rotate_bytes, rotate_files })
    }

    /// The operator's restrictions.
    pub fn policy(&self) -> &Policy {
        &self.config.policy
    }

    /// Counts the events of this process; `None` without metrics.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Takes the traces of starts and pulls; `None` if they are not configured.
    pub fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }

    /// Sends a trace, if traces are configured. Never waits.
    pub fn trace(&self, spans: impl FnOnce() -> Vec<Span>) {
        if let Some(tracer) = &self.tracer
            && let Some(trace) = Trace::new(spans())
        {
            tracer.send(trace, self.recorder());
        }
    }

    /// Notes whether a fingerprint was healthy.
    pub fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Whether the last fingerprint was healthy.
    pub fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Marks metrics as served and traces as sent; true for the first caller only.
    pub fn start_export_once(&self) -> bool {
        !self.export_started.swap(true, Ordering::AcqRel)
    }

    /// Marks the periodic cleanup as started; true for the first caller only.
    pub fn start_cleanup_once(&self) -> bool {
        !self.cleanup_started.swap(true, Ordering::AcqRel)
    }

    /// The description of the node that a plan needs. It is read each time, because resolv.conf changes under a
    /// running agent. Blocks.
    pub fn info(&self, with_hosts: bool, spec: &TaskSpec) -> Result<NodeInfo, TaskError> {
        Ok(NodeInfo {
            driver: self.config.driver,
            hosts: if with_hosts { node_info::hosts() } else { String::new() },
            overlay_problem: self.overlay_problem(),
            state_dir: self.config.state_dir.clone(),
            volumes_dir: self.config.data_dir.join("volumes"),
            default_apparmor: self.apparmor.default_profile(),
            selinux: self.selinux.used,
            container_labels: self.selinux.labels.clone(),
            id_pool: self.id_pool(),
            userns_problem: self.userns_problem(),
            runtime: spec.runtime.as_ref().and_then(|request| runtimes::find(&request.program)),
            volume_options: self.volume_options(spec)?,
            ..node_info::read(self.compute)
        })
    }

    /// The file systems of those named volumes of a task that have options.
    fn volume_options(&self, spec: &TaskSpec) -> Result<BTreeMap<String, VolumeOptions>, TaskError> {
        let mut found = BTreeMap::new();
        for mount in &spec.mounts {
            if let MountSource::Volume { name, options: None, .. } = &mount.source
                && let Some(options) = self.runtime.stored_volume_options(name).map_err(TaskError::internal)?
            {
                found.insert(name.clone(), options);
            }
        }
        Ok(found)
    }

    /// Mounts a volume with options for a container, unless it is mounted. Blocks, but for little longer than the
    /// operator's time limit.
    pub fn mount_volume(&self, volume: &MountedVolume, container: &ContainerId) -> Result<(), TaskError> {
        let limit = self.policy().volume_timeout;
        Ok(self.runtime.mount_volume(&volume.key, &volume.options, container, limit)?)
    }

    /// The ids for tasks' own user namespaces. Blocks.
    fn id_pool(&self) -> Option<IdPool> {
        let userns = &self.config.policy.userns;
        match &userns.ids {
            _ if userns.mode == UserNamespaceMode::Off => None,
            IdSource::Pool(pool) => Some(*pool),
            IdSource::User(user) => subordinate_ids::read(user),
        }
    }

    /// The reason why no task can have a user namespace of its own, if the operator wants them and none can. The first
    /// call tries it out and logs the reason. Blocks.
    pub fn userns_problem(&self) -> Option<String> {
        if self.config.policy.userns.mode == UserNamespaceMode::Off {
            return None;
        }
        let find = || {
            let problem = self.runtime.user_namespace_problem().unwrap_or_else(|error| {
                // Each task's start finds out itself.
                tracing::warn!(%error, "cannot tell whether tasks can have user namespaces of their own");
                None
            });
            if let Some(problem) = &problem {
                tracing::warn!(problem, "tasks cannot have user namespaces of their own on this node");
            }
            problem
        };
        self.userns_problem.get_or_init(find).clone()
    }

    /// The reason why images cannot be mounted here, if there is one. The first call tries a mount, unless the
    /// configuration asks for copies. Blocks.
    pub fn overlay_problem(&self) -> Option<String> {
        if self.config.policy.rootfs == RootChoice::Copy {
            return None;
        }
        self.runtime.overlay_problem().unwrap_or_else(|error| {
            // The task's start will meet the same error and describe it better.
            tracing::warn!(%error, "cannot tell whether overlayfs works");
            None
        })
    }

    /// What a fingerprint tells about the opened node. Blocks.
    pub fn findings(&self) -> NodeFindings {
        let space_problem = self.store.space_problem().unwrap_or_else(|error| Some(error.to_string()));
        NodeFindings {
            overlay_problem: self.overlay_problem(),
            userns_problem: self.userns_problem(),
            space_problem,
            apparmor: self.apparmor.check(),
            selinux: self.selinux.clone(),
        }
    }

    /// A container's status according to the state directory. Blocks.
    pub fn status(&self, container: &ContainerId) -> Result<Status, TaskError> {
        self.runtime.status(container).map_err(TaskError::internal)
    }

    /// The agent has shown that it received the answer to the container's start.
    pub async fn answered(self: &Arc<Self>, container: ContainerId) {
        let (node, id) = (self.clone(), container.clone());
        if let Err(error) = blocking(move || node.runtime.answered(&id).map_err(TaskError::internal)).await {
            tracing::warn!(%container, %error, "the start counts as unanswered");
        }
    }

    /// Opens the counters of a container.
    pub async fn stats_reader(self: &Arc<Self>, container: &ContainerId) -> Result<StatsReader, TaskError> {
        let (node, container) = (self.clone(), container.clone());
        blocking(move || node.runtime.stats_reader(&container).map_err(TaskError::internal)).await
    }

    /// Ends the guard of a container if all layers that it uses are complete. Tells a failure in the log: the container
    /// goes on, with its guard. Blocks.
    pub fn end_guard(&self, container: &ContainerId) {
        if let Err(error) = self.end_unneeded_guard(container) {
            tracing::warn!(%container, %error, "a container keeps the guard of its layers");
        }
    }

    fn end_unneeded_guard(&self, container: &ContainerId) -> Result<(), TaskError> {
        if self.store.uses_incomplete_layers(container.as_str()).map_err(TaskError::internal)? {
            return Ok(());
        }
        self.runtime.end_guard(container).map_err(TaskError::internal)
    }

    /// Kills every process of a container.
    pub async fn kill_all(self: &Arc<Self>, container: ContainerId) -> Result<(), TaskError> {
        let node = self.clone();
        blocking(move || node.runtime.kill_all(&container).map_err(TaskError::internal)).await
    }

    /// Removes a container from the host, releases its network and its image. Idempotent.
    pub async fn remove_container(self: &Arc<Self>, container: ContainerId) -> Result<(), TaskError> {
        let node = self.clone();
        blocking(move || node.remove_container_now(&container)).await
    }

    /// The same as [`Self::remove_container`], on a thread that may block.
    pub fn remove_container_now(&self, container: &ContainerId) -> Result<(), TaskError> {
        self.runtime.destroy(container).map_err(TaskError::internal)?;
        self.release_resources(container)
    }

    /// Releases the addresses and the image of a container that is removed already. Blocks.
    pub fn release_resources(&self, container: &ContainerId) -> Result<(), TaskError> {
        let volumes_released = self.release_volumes(container);
        failpoint::at("destroy-before-network");
        let network_released = self.networks.release(container.as_str());
        failpoint::at("destroy-before-release");
        self.store.release(lease_owner(container)).map_err(TaskError::internal)?;
        network_released?;
        volumes_released
    }

    /// Releases the volumes with options of a container that is removed already, or was never made. Blocks.
    pub fn release_volumes(&self, container: &ContainerId) -> Result<(), TaskError> {
        self.runtime.release_volumes(container).map_err(TaskError::internal)
    }
}

/// The owner of the lease that a task's container has of its image.
pub fn lease_owner(container: &ContainerId) -> LeaseOwner {
    LeaseOwner::Task { container: container.to_string() }
}
