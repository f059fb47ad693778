//! Nomad's calls, translated: wire types stop here.
//!
//! Every call that changes something runs detached from its request, because tonic drops a handler whose client went away
//! and a half-made change would be left behind. Streams that Nomad expects to stay open never end by themselves.

mod base;
mod convert;
mod driver;
mod exec;
mod schema;
mod status;
mod streams;
mod task_config;

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use proto::{base::base_plugin_server::BasePluginServer, driver::driver_server::DriverServer};
use tonic::Status;

use crate::{
    config::PluginConfig,
    engine::Engine,
    events::Events,
    plan::Compute,
    plugin::hclog::LogFile,
    task::{TaskError, Tasks, blocking},
};

/// Larger than any task configuration or handle; tonic's default of 4 MiB is not.
const LARGEST_MESSAGE: usize = 64 << 20;

/// What both services share.
#[derive(Clone)]
pub struct Plugin(Arc<Shared>);

struct Shared {
    log: LogFile,
    events: Events,
    tasks: Tasks,
    configured: Mutex<Option<Configured>>,
    engine: tokio::sync::OnceCell<Arc<Engine>>,
}

#[derive(Clone)]
struct Configured {
    config: PluginConfig,
    compute: Compute,
}

impl Plugin {
    /// A plugin that knows no configuration yet.
    pub fn new(log: LogFile) -> Self {
        Self(Arc::new(Shared {
            log,
            events: Events::new(),
            tasks: Tasks::default(),
            configured: Mutex::new(None),
            engine: tokio::sync::OnceCell::new(),
        }))
    }

    /// Takes a configuration. The engine is opened with the last one that came before its first use.
    fn configure(&self, config: PluginConfig, compute: Compute) {
        let mut slot = self.0.configured.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Configured { config, compute });
    }

    fn configured(&self) -> Result<Configured, TaskError> {
        let slot = self.0.configured.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone()
            .ok_or_else(|| TaskError::Invalid("the plugin has not been configured: SetConfig comes first".to_owned()))
    }

    /// The engine, opened by the first call that needs it. A failure is tried again by the next call.
    async fn engine(&self) -> Result<Arc<Engine>, TaskError> {
        let open = || async {
            let Configured { config, compute } = self.configured()?;
            let (log, events) = (self.0.log.clone(), self.0.events.clone());
            blocking(move || {
                let engine = Arc::new(Engine::open(config, compute, events)?);
                let path = engine.log_path();
                if let Err(error) = log.open(&path) {
                    tracing::warn!(path = %path.display(), %error, "no log file: the log goes to the agent alone");
                }
                Ok(engine)
            })
            .await
        };
        self.0.engine.get_or_try_init(open).await.cloned()
    }
}

/// The service that tells who the plugin is.
pub fn base_service(plugin: Plugin) -> BasePluginServer<Plugin> {
    BasePluginServer::new(plugin).max_decoding_message_size(LARGEST_MESSAGE)
}

/// The service that runs tasks.
pub fn driver_service(plugin: Plugin) -> DriverServer<Plugin> {
    DriverServer::new(plugin).max_decoding_message_size(LARGEST_MESSAGE)
}

/// Runs work to its end even when the caller goes away meanwhile.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, TaskError>> + Send + 'static,
) -> Result<T, Status> {
    let result = tokio::spawn(work)
        .await
        .unwrap_or_else(|error| Err(TaskError::Internal(format!("the operation ended early: {error}"))));
    result.map_err(|error| status::of(&error))
}
