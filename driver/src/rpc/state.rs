//! The state that the plugin's services share.

use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OnceCell;
use tonic::Status;

use crate::{
    blocking::blocking,
    config::{self, PluginConfig},
    error::TaskError,
    events::Events,
    hclog::Log,
    incomplete_layers, kernel_log,
    name::DriverName,
    node::Node,
    plan::Compute,
    pointer::Pointer,
    task::Tasks,
};

/// The plugin as its services see it.
#[derive(Clone)]
pub struct Plugin(Arc<Shared>);

struct Shared {
    driver: DriverName,
    socket: PathBuf,
    log: Log,
    events: Events,
    tasks: Tasks,
    configured: Mutex<Option<Configured>>,
    node: OnceCell<Arc<Node>>,
}

/// The content of the last SetConfig.
#[derive(Clone)]
pub struct Configured {
    /// The plugin block.
    pub config: PluginConfig,
    /// The same as the agent sent it.
    pub block: Vec<u8>,
    /// The node's CPU capacity.
    pub compute: Compute,
    /// The configuration came with the agent's part: it is applied, not only validated.
    pub is_applied: bool,
}

impl Plugin {
    /// A plugin without a configuration, on this socket.
    pub fn new(driver: DriverName, socket: PathBuf, log: Log) -> Self {
        Self(Arc::new(Shared {
            driver,
            socket,
            log,
            events: Events::default(),
            tasks: Tasks::new(driver),
            configured: Mutex::new(None),
            node: OnceCell::new(),
        }))
    }

    /// The driver's name.
    pub fn driver(&self) -> DriverName {
        self.0.driver
    }

    /// The tasks of this process.
    pub fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    /// The task events of this process.
    pub fn events(&self) -> &Events {
        &self.0.events
    }

    /// Takes a configuration. The last one before the node's first use is in force.
    pub fn configure(&self, configured: Configured) {
        let mut slot = self.0.configured.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(configured);
    }

    /// The configuration; an error before SetConfig.
    pub fn configured(&self) -> Result<Configured, TaskError> {
        let slot = self.0.configured.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone()
            .ok_or_else(|| TaskError::Invalid("the plugin has not been configured: SetConfig comes first".to_owned()))
    }

    /// Whether an agent works with this process, so that the next agent may connect to it.
    pub fn is_in_use(&self) -> bool {
        self.configured().is_ok_and(|configured| configured.is_applied) || self.0.node.initialized()
    }

    /// The node, if it is open.
    pub fn opened(&self) -> Option<Arc<Node>> {
        self.0.node.get().cloned()
    }

    /// The node. The first call opens it; after a failure the next call tries again.
    pub async fn node(&self) -> Result<Arc<Node>, TaskError> {
        let open = || async {
            let Configured { config, block, compute, .. } = self.configured()?;
            let (log, events, socket) = (self.0.log.clone(), self.0.events.clone(), self.0.socket.clone());
            let ignored = config.ignored.clone();
            let tasks = self.0.tasks.clone();
            blocking(move || {
                let node = Arc::new(Node::open(config, compute, events)?);
                log.set_level(node.config.log.level);
                let file = node.log_file();
                if let Some(file) = &file
                    && let Err(error) = log.open(file.clone())
                {
                    tracing::warn!(path = %file.path.display(), %error, "no log file: the log goes to the agent alone");
                }
                incomplete_layers::attend(&node, &tasks);
                kernel_log::attend(&node);
                leave_pointer(&node.config, file.map(|file| file.path), &socket, &block);
                for option in ignored {
                    tracing::warn!("{option} in the plugin block has no effect here");
                }
                Ok(node)
            })
            .await
        };
        self.0.node.get_or_try_init(open).await.cloned()
    }
}

/// Leaves the pointer for the operator's commands. Without it they need options, and tasks need none.
fn leave_pointer(config: &PluginConfig, log_file: Option<PathBuf>, socket: &Path, block: &[u8]) {
    let block = config::to_json(block).unwrap_or_default();
    if let Err(error) = Pointer::of(config, log_file, socket, block).leave() {
        tracing::warn!(%error, "no pointer for commands: they need --config");
    }
}

/// Runs work to its end even if the caller goes away meanwhile.
pub async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, TaskError>> + Send + 'static,
) -> Result<T, Status> {
    let result = tokio::spawn(work)
        .await
        .unwrap_or_else(|error| Err(TaskError::Internal(format!("the operation ended early: {error}"))));
    result.map_err(Status::from)
}
