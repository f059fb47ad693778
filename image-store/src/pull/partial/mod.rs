//! Native layers that are mounted before their data is here: the state that all pulls share. `serve` acts on it.
//!
//! - One process at a time serves the partial layers of a store. Another one pulls whole layers.
//! - The service begins with the first partial layer. A store without any has no service, no thread and no group.
//! - A layer that cannot be served is pulled whole. A layer whose front is refused is an error, as it is in a pull.

mod event;
mod source;

use std::{
    collections::HashMap,
    fmt,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use layer::Digest;
use lazy::{Lazy, LazyError, PartialLayer, Source, Sources};
use tokio::sync::Notify;

pub use self::event::{LayerEvent, LayerEventKind};
use self::source::HostSource;
pub(super) use self::source::{Hosts, sources as host_sources};
use crate::{
    credentials::Credentials,
    error::PullError,
    reference::Reference,
    store::{LayerRecord, Partial},
};

/// How layers are served before they are complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialConfig {
    /// Smaller layers are pulled whole, in bytes.
    pub min_size: u64,
    /// How long a read waits for its data before it fails with `EIO`.
    pub read_timeout: Duration,
    /// Bytes per second of data that no read waits for.
    pub bandwidth: Option<u64>,
    /// Note for this time what containers read first, for `image profile`.
    pub profile: Option<Duration>,
}

/// The descriptor that keeps readers of incomplete layers waiting while no process serves. A process that outlives this
/// one must hold a copy as long as a container uses such a layer.
#[derive(Debug, Clone)]
pub struct LayerGroup(Arc<OwnedFd>);

impl AsFd for LayerGroup {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PartialEq for LayerGroup {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LayerGroup {}

/// Called with each event of a layer. Must not block.
pub(super) type Listener = Box<dyn Fn(LayerEvent) + Send + Sync>;

/// The partial layers that this process serves.
pub(crate) struct PartialLayers {
    /// `None`: layers are always pulled whole.
    pub(super) config: Option<PartialConfig>,
    pub(super) listener: OnceLock<Listener>,
    /// Notified after each event of the service.
    pub(super) changed: Notify,
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) service: Service,
    /// The partial layers, by their image files.
    pub(super) served: HashMap<PathBuf, Served>,
    /// Credentials of running tasks, which a predecessor used.
    pub(super) inherited: Vec<(Reference, Credentials)>,
}

#[derive(Default)]
pub(super) enum Service {
    /// Nothing was served so far.
    #[default]
    Idle,
    /// A predecessor's layers are being taken over.
    Resuming,
    Running(Arc<Lazy>, LayerGroup),
    /// It cannot be used.
    Unavailable,
}

pub(super) struct Served {
    pub(super) partial: Partial,
    pub(super) hosts: Vec<Arc<HostSource>>,
    /// How often no source delivered.
    pub(super) failures: usize,
    /// Its content is not the layer.
    pub(super) refused: Option<String>,
}

/// A layer that this process fetches while tasks use it.
pub(super) struct Streaming {
    pub(super) lazy: Arc<Lazy>,
    /// How often no source delivered so far.
    pub(super) failures: usize,
}

/// What became of the attempt to serve a layer.
pub(super) enum Begun {
    /// It can be mounted.
    Served(Box<Partial>, LayerGroup),
    /// It must be pulled whole.
    PullWhole,
}

impl PartialLayers {
    pub(crate) fn new(config: Option<PartialConfig>) -> Self {
        Self { config, listener: OnceLock::new(), changed: Notify::new(), state: Mutex::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the function that is called with each event. Only the first call has an effect.
    pub(crate) fn listen(&self, listener: impl Fn(LayerEvent) + Send + Sync + 'static) {
        if self.listener.set(Box::new(listener)).is_err() {
            tracing::debug!("a function for the events of layers is set already");
        }
    }

    /// Whether a layer may be mounted before it is complete. Pure.
    pub(super) fn may_serve(&self, layer: &LayerRecord) -> bool {
        self.config.as_ref().is_some_and(|config| layer.native.is_some() && layer.size >= config.min_size)
    }

    /// The layer of an image file, if this process fetches its data. It may have been completed or removed meanwhile.
    pub(super) fn streaming(&self, image: &Path) -> Option<Streaming> {
        let state = self.state();
        let Service::Running(lazy, _) = &state.service else { return None };
        let served = state.served.get(image).filter(|served| served.refused.is_none())?;
        Some(Streaming { lazy: Arc::clone(lazy), failures: served.failures })
    }

    /// Whether layers are served, or will be.
    pub(crate) fn resumes(&self) -> bool {
        matches!(self.state().service, Service::Resuming | Service::Running(..))
    }

    /// Drops the service. Readers wait for the next process that serves.
    pub(crate) fn stop(&self) {
        let service = std::mem::replace(&mut self.state().service, Service::Unavailable);
        drop(service);
    }
}

impl Drop for PartialLayers {
    /// Leaves the service to the end of the process: its threads may be waiting for a source.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(&mut state.service));
    }
}

impl PartialLayers {
    /// Serves a layer that is ready for it.
    pub(super) fn begin(
        &self,
        layer: PartialLayer,
        partial: Partial,
        hosts: Vec<Arc<HostSource>>,
    ) -> Result<Begun, PullError> {
        let mut state = self.state();
        let Service::Running(lazy, group) = &state.service else { return Ok(Begun::PullWhole) };
        let group = group.clone();
        match lazy.serve(layer, lazy_sources(&hosts)) {
            Ok(()) | Err(LazyError::Served { .. }) => {}
            Err(error) => {
                tracing::warn!(%error, "layers are pulled whole");
                state.service = Service::Unavailable;
                return Ok(Begun::PullWhole);
            }
        }
        let served = Served { partial: partial.clone(), hosts, failures: 0, refused: None };
        state.served.insert(image_of(&partial.directory), served);
        Ok(Begun::Served(Box::new(partial), group))
    }
}

impl State {
    /// No source delivered a layer.
    pub(super) fn failed(&mut self, layer: &Digest) {
        self.served.values_mut().filter(|served| served.partial.meta.diff_id == *layer).for_each(|served| {
            served.failures += 1;
        });
    }

    /// Uses credentials for all layers of a repository.
    pub(super) fn use_credentials(&self, hosts: &dyn Hosts, image: &Reference, credentials: &Credentials) {
        let is_of = |other: &Reference| other.domain() == image.domain() && other.repository() == image.repository();
        for host in self.served.values().filter(|served| is_of(&served.partial.image)).flat_map(|served| &served.hosts)
        {
            host.use_credentials(hosts, credentials);
        }
    }
}

/// The hosts as the service sees them.
pub(super) fn lazy_sources(hosts: &[Arc<HostSource>]) -> Sources {
    hosts.iter().map(|host| Arc::clone(host) as Arc<dyn Source>).collect()
}

/// A service that runs.
pub(super) fn running(lazy: Lazy) -> Result<Service, LazyError> {
    let group = lazy.group().try_clone_to_owned().map_err(|source| LazyError::Io {
        action: "duplicating the group of",
        path: "fanotify".into(),
        source,
    })?;
    Ok(Service::Running(Arc::new(lazy), LayerGroup(Arc::new(group))))
}

/// The image file of a partial layer.
pub(super) fn image_of(directory: &Path) -> PathBuf {
    directory.join(lazy::IMAGE)
}

impl fmt::Debug for PartialLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartialLayers").field("config", &self.config).finish_non_exhaustive()
    }
}
