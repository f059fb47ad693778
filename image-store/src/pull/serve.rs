//! The service of partial layers: which layers it serves, what it takes over, and what becomes of them.

use std::{
    collections::HashMap,
    ops::Range,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use layer::Digest;
use lazy::{
    Description, FileId, Lazy, LazyError, LazyEvent, Observer, PartialLayer, Predecessor, ServiceLock, Settings,
    StartWaits,
};
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    partial::{
        Begun, Hosts, LayerEvent, LayerEventKind, PartialConfig, Served, Service, host_sources, image_of, lazy_sources,
        running,
    },
    puller::Puller,
};
use crate::{
    blocking::{blocking, blocking_pull},
    credentials::{self, CredentialSources, Credentials},
    error::{PullError, StoreError},
    limits::Limits,
    progress::{Progress, Silent},
    reference::Reference,
    registry::{Caller, Session},
    store::{LayerRecord, LocalStore, Partial},
    tracker::TaskToken,
};

/// A host that is silent for so long does not deliver: a read waits.
const IDLE: Duration = Duration::from_secs(15);

impl Hosts for Puller {
    fn sessions(&self, image: &Reference, credentials: Option<&Credentials>) -> Result<Vec<Session>, StoreError> {
        // The service repeats what failed.
        let limits = Limits { attempts: 1, ..self.limits.clone() };
        let silent: Arc<dyn Progress> = Arc::new(Silent);
        self.endpoints.sessions(Caller { reference: image, credentials, idle_timeout: IDLE }, &limits, &silent)
    }

    fn credential_sources(&self) -> &CredentialSources {
        &self.sources
    }
}

impl Puller {
    /// A start waits for its layers: until the value is dropped, the background leaves the link to it. `None`: this
    /// process does not serve.
    pub(super) async fn start_waits(self: &Arc<Self>) -> Result<Option<StartWaits>, PullError> {
        let puller = Arc::clone(self);
        blocking_pull(move || {
            puller.start_service()?;
            let state = puller.partial.state();
            let Service::Running(lazy, _) = &state.service else { return Ok(None) };
            Ok(Some(lazy.start_waits()))
        })
        .await
    }

    /// Serves a layer from now on, unless it is served already. The caller holds the layer's lock.
    pub(super) async fn serve_layer(
        self: &Arc<Self>,
        (image, credentials): (&Reference, Option<&Credentials>),
        layer: &LayerRecord,
        token: &TaskToken,
    ) -> Result<Begun, PullError> {
        let directory = self.local.partial_directory(layer);
        if let Some(begun) = self.served(layer, &directory)? {
            return Ok(begun);
        }
        let Some(native) = layer.native.clone() else { return Ok(Begun::PullWhole) };
        let hosts = host_sources(&self.hosts(), (image, (layer.blob.clone(), layer.size)), credentials)?;
        let description = Description {
            digest: layer.blob.clone(),
            size: layer.size,
            metadata: native.metadata,
            hash_root: native.hash_root,
            first: native.first,
        };
        let (puller, image, layer, token) = (Arc::clone(self), image.clone(), layer.clone(), token.clone());
        blocking_pull(move || {
            if !puller.start_service()? {
                return Ok(Begun::PullWhole);
            }
            let limits = puller.layer_limits();
            let found = puller.local.partial(&directory)?;
            let opened = found.map(|partial| Ok((PartialLayer::open(&directory, &limits)?, partial))).transpose();
            let opened = match opened.map_err(|error: LazyError| pull_error(&layer, error)) {
                Ok(Some((Some(opened), partial))) => Ok((opened, partial)),
                Ok(_) => {
                    let staged = puller.local.staging()?.tracked_directory(&token)?;
                    PartialLayer::create(staged.path(), description, &lazy_sources(&hosts), &limits)
                        .map_err(|error| pull_error(&layer, error))
                        .and_then(|(created, checked)| {
                            let meta = LocalStore::layer_meta(checked.into_layer(layer.blob.clone()))?;
                            let partial = puller.local.commit_partial(&staged, &directory, (&meta, &image))?;
                            Ok((created.moved_to(&directory), partial))
                        })
                }
                Err(error) => Err(error),
            };
            match opened {
                Ok((opened, partial)) => puller.partial.begin(opened, partial, hosts),
                Err(error) if error.refuses_content() => Err(error),
                // A pull of the whole layer tells the reason, or succeeds.
                Err(error) => {
                    tracing::info!(layer = %layer.blob, %error, "the layer is pulled whole");
                    Ok(Begun::PullWhole)
                }
            }
        })
        .await
    }

    /// Waits until the parts of served layers are here that a container reads first. Without them the layers are used
    /// all the same: their reads wait.
    pub(super) async fn await_first(
        self: &Arc<Self>,
        partials: impl Iterator<Item = &Partial>,
    ) -> Result<(), StoreError> {
        let images: Vec<_> =
            partials.map(|partial| (partial.meta.diff_id.clone(), image_of(&partial.directory))).collect();
        let (lazy, limit) = match (&self.partial.state().service, &self.partial.config) {
            (Service::Running(lazy, _), Some(config)) => (Arc::clone(lazy), config.read_timeout),
            _ => return Ok(()),
        };
        blocking(move || {
            let begun = Instant::now();
            for (layer, image) in images {
                if !lazy.await_first(&image, limit.saturating_sub(begun.elapsed())) {
                    tracing::info!(%layer, "a task starts without all that its image's profile names");
                }
            }
            Ok(())
        })
        .await
    }

    /// A layer that this process serves.
    fn served(&self, layer: &LayerRecord, directory: &Path) -> Result<Option<Begun>, PullError> {
        let state = self.partial.state();
        let Service::Running(_, group) = &state.service else { return Ok(None) };
        let Some(served) = state.served.get(&image_of(directory)) else { return Ok(None) };
        // It may have been removed, or completed, since.
        if !LocalStore::is_incomplete(directory) {
            return Ok(None);
        }
        match &served.refused {
            Some(problem) => Err(PullError::Layer { layer: layer.blob.clone(), problem: problem.clone() }),
            None => Ok(Some(Begun::Served(Box::new(served.partial.clone()), group.clone()))),
        }
    }

    /// Makes sure that this process serves. `Ok(false)`: it cannot.
    fn start_service(self: &Arc<Self>) -> Result<bool, PullError> {
        let mut state = self.partial.state();
        match state.service {
            Service::Running(..) => return Ok(true),
            Service::Resuming | Service::Unavailable => return Ok(false),
            Service::Idle => {}
        }
        let started = ServiceLock::acquire(&self.local.layer_events())
            .and_then(|lock| Lazy::start(lock, self.lazy_settings(), self.observer()));
        let running = started.and_then(running);
        match running {
            Ok(running) => state.service = running,
            Err(LazyError::Served { .. }) => {
                tracing::info!("another process serves the incomplete layers of this store; layers are pulled whole");
                return Ok(false);
            }
            Err(error) => {
                tracing::warn!(%error, "layers are pulled whole");
                state.service = Service::Unavailable;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn hosts(self: &Arc<Self>) -> Arc<dyn Hosts> {
        Arc::clone(self) as Arc<dyn Hosts>
    }

    fn lazy_settings(&self) -> Settings {
        let default = Settings { limits: self.layer_limits(), ..Settings::default() };
        match &self.partial.config {
            Some(PartialConfig { read_timeout, bandwidth, profile, .. }) => {
                Settings { read_timeout: *read_timeout, bandwidth: *bandwidth, profile: *profile, ..default }
            }
            None => default,
        }
    }

    /// Passes the events of the service to an async task, because its threads must not wait.
    fn observer(self: &Arc<Self>) -> Arc<dyn Observer> {
        let (sender, mut events) = mpsc::unbounded_channel();
        let puller = Arc::downgrade(self);
        Handle::current().spawn(async move {
            while let Some(event) = events.recv().await {
                let Some(puller) = puller.upgrade() else { return };
                puller.layer_event(event).await;
            }
        });
        Arc::new(Forward(sender))
    }

    /// Uses the credentials of a running task for the layers of its image.
    pub(crate) fn renew_credentials(&self, image: &Reference, credentials: &Credentials) {
        let mut state = self.partial.state();
        state.use_credentials(self, image, credentials);
        state.inherited.push((image.clone(), credentials.clone()));
    }

    /// What a predecessor served is served by this process, as soon as no other one does. `find_group` returns the
    /// group that announces reads of one of these files, if a process holds it. Returns at once.
    pub(crate) fn resume_partial(
        self: &Arc<Self>,
        find_group: impl FnOnce(&[FileId]) -> Option<OwnedFd> + Send + 'static,
    ) -> Result<(), StoreError> {
        if self.local.partials()?.is_empty() {
            return Ok(());
        }
        self.partial.state().service = Service::Resuming;
        let (puller, runtime) = (Arc::clone(self), Handle::current());
        let events = self.local.layer_events();
        let thread = std::thread::Builder::new().name("lazy-resume".into());
        let spawned = thread.spawn(move || {
            let _context = runtime.enter();
            let resumed = ServiceLock::wait(&puller.local.layer_events())
                .map_err(|error| error.to_string())
                .and_then(|lock| puller.take_over(lock, find_group).map_err(|error| error.to_string()));
            if let Err(error) = resumed {
                tracing::error!(error, "readers of incomplete layers wait for the next plugin");
                puller.partial.state().service = Service::Unavailable;
            }
        });
        spawned.map(drop).map_err(StoreError::io("starting a thread for", events))
    }

    fn take_over(
        self: &Arc<Self>,
        lock: ServiceLock,
        find_group: impl FnOnce(&[FileId]) -> Option<OwnedFd>,
    ) -> Result<(), PullError> {
        let limits = self.layer_limits();
        let (mut layers, mut served) = (Vec::new(), HashMap::new());
        for partial in self.local.partials()? {
            let layer = match PartialLayer::open(&partial.directory, &limits) {
                Ok(Some(layer)) => layer,
                Ok(None) => {
                    self.local.discard_partial(&partial.directory)?;
                    continue;
                }
                // Reads of it fail. The other layers must not suffer from it.
                Err(error) => {
                    tracing::error!(layer = %partial.meta.diff_id, %error, "an incomplete layer is not served");
                    continue;
                }
            };
            let blob = (layer.description().digest.clone(), layer.description().size);
            let found = Handle::current().block_on(credentials::find(&self.sources, &partial.image, true));
            let hosts = host_sources(&self.hosts(), (&partial.image, blob), found.ok().flatten().as_ref())?;
            layers.push((layer, lazy_sources(&hosts)));
            served.insert(image_of(&partial.directory), Served { partial, hosts, failures: 0, refused: None });
        }
        let files: Vec<_> = served.keys().filter_map(|image| identity(image)).collect();
        let (settings, observer) = (self.lazy_settings(), self.observer());
        let failed = |error: LazyError| StoreError::io("serving", self.local.layer_events())(error);
        let lazy = match find_group(&files) {
            Some(group) => {
                let completed = self.local.completed()?;
                let complete = completed.iter().filter_map(|directory| identity(&image_of(directory))).collect();
                let predecessor = Predecessor { group, layers, complete };
                Lazy::take_over(lock, predecessor, settings, observer).map_err(failed)?
            }
            // Its layers may be complete, and not yet ordinary ones. Reads that were announced to its group go on when
            // the containers' guards end.
            None => {
                let lazy = Lazy::start(lock, settings, observer).map_err(failed)?;
                layers.into_iter().try_for_each(|(layer, sources)| lazy.serve(layer, sources)).map_err(failed)?;
                lazy
            }
        };
        let mut state = self.partial.state();
        state.service = running(lazy).map_err(failed)?;
        state.served = served;
        state.inherited.iter().for_each(|(image, credentials)| state.use_credentials(&**self, image, credentials));
        tracing::info!(layers = state.served.len(), "incomplete layers are served again");
        Ok(())
    }
}

impl Puller {
    /// Acts on an event of the service, and passes it on.
    async fn layer_event(self: &Arc<Self>, event: LazyEvent) {
        let happened = self.act(event).await;
        self.partial.changed.notify_waiters();
        let Some((layer, kind)) = happened else { return };
        let puller = Arc::clone(self);
        let told = blocking(move || {
            puller.tell(layer, kind);
            Ok(())
        });
        if let Err(error) = told.await {
            tracing::warn!(%error, "an event of a layer is not passed on");
        }
    }

    /// The kernel found a block on disk that changed. Blocks.
    pub(crate) fn block_changed(&self, inode: u64, offset: u64) -> Result<(), StoreError> {
        let Some(layer) = self.local.damaged_layer(inode, offset)? else { return Ok(()) };
        tracing::error!(%layer, offset, "a layer changed on disk; reads of the changed block fail");
        self.tell(layer, LayerEventKind::Damaged { offset });
        Ok(())
    }

    /// Tells the users of a layer what happened to it. Blocks shortly.
    fn tell(&self, layer: Digest, kind: LayerEventKind) {
        let Some(listener) = self.partial.listener.get() else { return };
        let owners = self.local.owners_of(&layer).unwrap_or_else(|error| {
            tracing::warn!(%error, "the users of a layer are not known");
            Vec::new()
        });
        listener(LayerEvent { layer, kind, owners });
    }

    /// Acts on an event of the service. Returns what users of the layer may want to know.
    async fn act(self: &Arc<Self>, event: LazyEvent) -> Option<(Digest, LayerEventKind)> {
        Some(match event {
            LazyEvent::Complete { digest, image, reads } => {
                self.finish(&digest, &image, reads).await;
                (digest, LayerEventKind::Complete)
            }
            LazyEvent::Refused { digest, image, problem } => {
                tracing::error!(layer = %digest, problem, "the layer is not the one of its manifest");
                if let Some(served) = self.partial.state().served.get_mut(&image) {
                    served.refused = Some(problem.clone());
                }
                (digest, LayerEventKind::Refused { problem })
            }
            LazyEvent::Removed { digest, image } => {
                tracing::debug!(layer = %digest, "a layer was removed before it was complete");
                // Another pull may have begun to serve it again.
                if !image.exists() {
                    self.partial.state().served.remove(&image);
                }
                return None;
            }
            LazyEvent::WrongChunk { digest, offset, source } => {
                tracing::warn!(layer = %digest, offset, source, "a source delivered wrong bytes");
                (digest, LayerEventKind::WrongChunk { source })
            }
            LazyEvent::Stalled { digest, missing, problem } => {
                tracing::warn!(layer = %digest, missing, problem, "an incomplete layer waits for its sources");
                self.partial.state().failed(&digest);
                (digest, LayerEventKind::Stalled { missing, problem })
            }
            LazyEvent::ReadFailed { digest, offset, problem } => {
                tracing::warn!(layer = %digest, offset, problem, "a read of an incomplete layer failed");
                (digest, LayerEventKind::ReadFailed { problem })
            }
        })
    }

    /// Makes a complete layer an ordinary one.
    async fn finish(self: &Arc<Self>, digest: &Digest, image: &Path, reads: Option<Vec<Range<u64>>>) {
        let directory = image.parent().unwrap_or(image).to_owned();
        let local = Arc::clone(&self.local);
        let finished = blocking(move || local.finish_partial(&directory, reads.as_deref())).await;
        match finished {
            Ok(()) => tracing::info!(layer = %digest, "a layer is complete"),
            // The next plugin finishes it.
            Err(error) => tracing::error!(layer = %digest, %error, "a complete layer is not an ordinary one yet"),
        }
        self.partial.state().served.remove(image);
        self.local.sync_soon();
        self.local.notify_changed();
    }
}

struct Forward(mpsc::UnboundedSender<LazyEvent>);

impl Observer for Forward {
    fn report(&self, event: LazyEvent) {
        if self.0.send(event).is_err() {
            tracing::debug!("an event of a layer came after the end of the store");
        }
    }
}

/// Device and inode of a file.
fn identity(path: &Path) -> Option<FileId> {
    path.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

fn pull_error(layer: &LayerRecord, error: LazyError) -> PullError {
    let blob = layer.blob.clone();
    match error {
        LazyError::Refused { problem, .. } => PullError::Layer { layer: blob, problem },
        LazyError::Io { action, path, source } => StoreError::io(action, path)(source).into(),
        LazyError::Source { .. } | LazyError::Unsupported { .. } | LazyError::Served { .. } => PullError::Network {
            host: "its sources".to_owned(),
            what: layer.blob.to_string(),
            problem: error.to_string(),
        },
    }
}
