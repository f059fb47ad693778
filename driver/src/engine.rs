//! What the plugin that stays has and the two throw-away launches never make: the runtime, the image store, the tasks.
//!
//! Opened at the first call that needs it, because SetConfig must touch nothing: while it runs, another process of ours may
//! be alive that Nomad is about to attach to again.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use image_store::{LeaseOwner, Removed, Retention, Store};
use network::Networks;
use runtime::{Runtime, StatsReader, Status, plan::ContainerId};

use crate::{
    cli,
    config::{PluginConfig, Policy, RootChoice},
    dangling,
    events::Events,
    fingerprint, layers,
    logs::Logs,
    plan::{Compute, NodeInfo},
    task::{Facts, TaskError, Tasks, blocking},
};

/// See the module's head.
pub struct Engine {
    /// The plugin block.
    pub config: PluginConfig,
    /// Containers.
    pub runtime: Runtime,
    /// Images.
    pub store: Store,
    /// Networks that are a task's own.
    pub networks: Networks,
    /// Where task events go.
    pub events: Events,
    /// What becomes of output that nobody reads.
    pub logs: Logs,
    /// What the node can compute.
    pub compute: Compute,
    /// Whose tasks these are.
    pub node: dangling::Node,
    /// What is not used any more is being removed; once is enough.
    tidying: AtomicBool,
}

impl Engine {
    /// Opens the directories. Makes them when they are missing; starts nothing.
    pub fn open(config: PluginConfig, compute: Compute, events: Events) -> Result<Self, TaskError> {
        let runtime = Runtime::open(&config.state_dir, &config.data_dir)
            .map_err(|error| TaskError::Internal(format!("runtime: {error}")))?;
        let store =
            layers::open_store(&config).map_err(|error| TaskError::Internal(format!("image store: {error}")))?;
        let mounting = runtime.clone();
        store.on_removal(move || mounting.forget_removed_images());
        let logs = Logs::new(runtime.clone());
        let networks = Networks::new(config.policy.network.clone(), &config.state_dir);
        Ok(Self {
            config,
            runtime,
            store,
            networks,
            events,
            logs,
            compute,
            node: dangling::Node::default(),
            tidying: AtomicBool::new(false),
        })
    }

    /// Where the log goes beside the agent's.
    pub fn log_path(&self) -> PathBuf {
        self.config.log_file.clone().unwrap_or_else(|| self.config.data_dir.join("oci-rs.log"))
    }

    /// What the operator allows.
    pub fn policy(&self) -> &Policy {
        &self.config.policy
    }

    /// What plans need to know of this node, read afresh because a resolv.conf changes under a running agent. Blocks.
    pub fn node_info(&self) -> NodeInfo {
        NodeInfo {
            overlay_problem: self.overlay_problem(),
            state_dir: self.config.state_dir.clone(),
            volumes_dir: self.config.data_dir.join("volumes"),
            ..fingerprint::node_info(self.compute)
        }
    }

    /// Why images cannot be mounted here, if they cannot. Tries it out the first time, unless nobody wants to know.
    pub fn overlay_problem(&self) -> Option<String> {
        if self.config.policy.rootfs == RootChoice::Copy {
            return None;
        }
        self.runtime.overlay_problem().unwrap_or_else(|error| {
            // What kept us from finding out will be the start's trouble as well, with a better text.
            tracing::warn!(%error, "cannot tell whether overlayfs works");
            None
        })
    }

    /// What the state directory says of a container.
    pub fn status(&self, container: &ContainerId) -> Result<Status, TaskError> {
        self.runtime.status(container).map_err(TaskError::internal)
    }

    /// Opens a container's counters.
    pub async fn stats_reader(self: &Arc<Self>, container: &ContainerId) -> Result<StatsReader, TaskError> {
        let (engine, container) = (self.clone(), container.clone());
        blocking(move || engine.runtime.stats_reader(&container).map_err(TaskError::internal)).await
    }

    /// Kills every process of a task's container.
    pub async fn kill_all(self: &Arc<Self>, facts: Arc<Facts>) -> Result<(), TaskError> {
        let engine = self.clone();
        blocking(move || match facts.state() {
            Some(state) => engine.runtime.kill_all(&state.container).map_err(TaskError::internal),
            None => Ok(()),
        })
        .await
    }

    /// Removes a task's container from the host and lets its image go.
    pub async fn remove(self: &Arc<Self>, facts: Arc<Facts>) -> Result<(), TaskError> {
        match facts.state() {
            Some(state) => self.remove_container(state.container.clone()).await,
            None => Ok(()),
        }
    }

    /// Removes whatever there is of a container; nothing is fine.
    pub async fn remove_container(self: &Arc<Self>, container: ContainerId) -> Result<(), TaskError> {
        let engine = self.clone();
        blocking(move || engine.remove_now(&container)).await
    }

    /// The same, on a thread that may block.
    pub fn remove_now(&self, container: &ContainerId) -> Result<(), TaskError> {
        self.runtime.destroy(container).map_err(TaskError::internal)?;
        self.let_go(container)
    }

    /// Lets go of what a container that is gone had besides: addresses, and its hold on the image.
    pub fn let_go(&self, container: &ContainerId) -> Result<(), TaskError> {
        failpoint::at("destroy-before-network");
        let released = self.networks.release(container.as_str());
        failpoint::at("destroy-before-release");
        self.store.release(container.as_str()).map_err(TaskError::internal)?;
        Ok(released?)
    }

    /// Prepares for the first task, and removes what a crash or a restart of the machine left: containers whose start or removal
    /// was cut short, half-made layers, writable layers without a container, leases without a task. `tasks` are those that this process knows, a starting one included.
    /// Then removes images that are no longer used and containers that nobody asks for, for as long as the plugin lives. Runs beside
    /// everything else.
    pub async fn keep_clean(self: Arc<Self>, tasks: Tasks) {
        let (engine, known) = (self.clone(), tasks.clone());
        if let Err(error) = blocking(move || engine.sweep_now(&known)).await {
            tracing::warn!(%error, "leftovers not swept");
        }
        if self.tidying.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(policy) = self.config.dangling {
            tokio::spawn(dangling::remove(self.clone(), tasks, policy));
        }
        if let Some(policy) = self.config.retention {
            self.retain_images(policy).await;
        }
    }

    /// Removes images when their time has come. What decides that is on disk, so it does not matter how long this ran.
    async fn retain_images(self: Arc<Self>, policy: Retention) {
        loop {
            let engine = self.clone();
            let removed = blocking(move || {
                engine.store.retain(&policy).map_err(|error| TaskError::Internal(format!("image store: {error}")))
            });
            let next = match removed.await {
                Ok(report) => {
                    report.removed.iter().for_each(log_removed);
                    report.next
                }
                Err(error) => {
                    tracing::warn!(%error, "unused images not removed, trying again");
                    Some(SystemTime::now() + RETRY_REMOVAL)
                }
            };
            tokio::select! {
                () = self.store.changed() => {}
                () = until(next) => {}
            }
        }
    }

    fn sweep_now(&self, tasks: &Tasks) -> Result<(), TaskError> {
        // The first task should not wait for the copy of our own binary.
        self.runtime.prepare().map_err(TaskError::internal)?;
        for container in self.runtime.sweep_abandoned(|id| tasks.knows(id)).map_err(TaskError::internal)? {
            tracing::info!(%container, "removed what was left of a task whose start or removal was cut short");
        }
        // Leases are listed first: a task is known before it leases its image, and keeps its state directory until after.
        let leases = self.store.leases().map_err(TaskError::internal)?;
        let containers = self.runtime.list().map_err(TaskError::internal)?;
        let is_orphan = |owner: &&LeaseOwner| match owner {
            LeaseOwner::Task { container } => !containers.iter().any(|known| known.as_str() == container),
            // The commands of an earlier plugin process ended with it.
            LeaseOwner::DebugImage { process, .. } => *process != std::process::id(),
            LeaseOwner::Operator { process, .. } => !cli::is_running(*process),
        };
        for owner in leases.iter().filter(is_orphan) {
            // A start that is retried under the same id takes the lease over: it cannot claim the id meanwhile.
            tasks.unless_known(&owner.to_string(), || {
                tracing::info!(lease = %owner, "releasing the image of a task that is gone");
                self.store.release(owner).map_err(TaskError::internal)
            })?;
        }
        let layers = self.runtime.sweep().map_err(TaskError::internal)?;
        let images = self.store.sweep().map_err(TaskError::internal)?;
        tracing::debug!(?layers, ?images, "leftovers swept");
        // Last, because a CNI plugin that its caller left behind is waited for.
        let wanted = |name: &str| match name.parse::<ContainerId>() {
            // Who cannot be looked at may be there.
            Ok(id) => tasks.knows(&id) || self.runtime.list().map_or(true, |containers| containers.contains(&id)),
            Err(_) => false,
        };
        for container in self.networks.sweep(wanted)? {
            tracing::info!(container, "removed the network of a task that is gone");
        }
        Ok(())
    }
}

/// How long a failed removal of images waits.
const RETRY_REMOVAL: Duration = Duration::from_secs(60);

fn log_removed(image: &Removed) {
    let (reference, unused) = (&image.reference, image.unused.as_secs());
    let why = match image.pressure {
        Some(pressure) => pressure.to_string(),
        None => "nobody uses it".to_owned(),
    };
    tracing::info!(image = %reference, unused_seconds = unused, bytes = image.bytes, why, "image removed");
}

/// Sleeps until a moment of the wall clock; for ever without one.
async fn until(moment: Option<SystemTime>) {
    match moment {
        Some(moment) => tokio::time::sleep(moment.duration_since(SystemTime::now()).unwrap_or_default()).await,
        None => std::future::pending().await,
    }
}
