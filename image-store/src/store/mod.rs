//! The store on disk: what is there, who uses it, what may go.
//!
//! Several processes use one store at once. Everything appears by rename, leases are files, and one lock orders those who add
//! (shared) against those who take away (alone).

mod erofs;
mod fixup;
mod flight;
mod fsck;
mod layer;
mod layout;
mod record;
mod retention;
mod room;
mod staging;
mod sweep;
mod tree;
mod turn;
mod usage;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ::layer::{MemoryCounter, Unpacked};
use flight::Flights;
use tokio::sync::{Notify, Semaphore};

pub(crate) use self::layer::LayerMeta;
#[cfg(feature = "fuzzing")]
pub(crate) use erofs::mount as mount_image;
pub use fsck::{Finding, FindingKind, FsckOptions, FsckReport, Outcome, Severity, fsck};
pub(crate) use layout::Layout;
#[cfg(feature = "fuzzing")]
pub(crate) use layout::open_directory;
pub use record::{Access, ImageRecord, LayerRecord};
pub(crate) use record::{Lease, Source, now};
use retention::Wish;
pub use retention::{Pressure, Removed, Retention, RetentionReport};
pub(crate) use staging::{Outstanding, Staged, Staging, Work};
pub use sweep::{PruneReport, SweepReport};
pub use usage::ImageUsage;

use crate::{
    commit::{self, Durability},
    config::{CredentialSources, Credentials, Limits, StoreConfig},
    digest::Digest,
    error::StoreError,
    lease::LeaseOwner,
    manifest::{self, ConfigDocument},
    platform::Platform,
    pull::Resolved,
    reference::Reference,
    registry::{Endpoints, auth},
};

/// How long commits are gathered before one sync makes them last.
const SYNC_DELAY: Duration = Duration::from_secs(1);
/// How long a resolved name is remembered for those who asked while it was being resolved.
const RESOLVED_LIFE: Duration = Duration::from_secs(60);

/// A directory of images. Cheap to clone; all clones share pulls in flight.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

/// What an image's root is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stack {
    /// Topmost first: directories, and images of file systems.
    pub(crate) layers: Vec<PathBuf>,
    /// Some of them have marks that overlayfs does not read.
    pub(crate) copy_only: bool,
}

/// Who asked for what: two callers share a registry's answer only if they are the same to the registry.
pub(crate) type Asker = (Reference, Option<Digest>);

pub(crate) struct Inner {
    pub(crate) layout: Layout,
    pub(crate) limits: Limits,
    pub(crate) platform: Platform,
    pub(crate) endpoints: Endpoints,
    pub(crate) sources: CredentialSources,
    pub(crate) verify_access: bool,
    retention: Option<Retention>,
    pub(crate) downloads: Semaphore,
    /// Of layers that become images.
    pub(crate) memory: MemoryCounter,
    staging: OnceLock<Staging>,
    making_staging: Mutex<()>,
    known_fixups: fixup::Known,
    layers: Flights<Digest, turn::Waiting>,
    names: Flights<Asker>,
    resolved: Mutex<HashMap<Asker, (Instant, Arc<Resolved>)>>,
    /// Which registries agreed that who may have what, and until when that counts.
    consents: Mutex<HashMap<(Asker, Digest), Instant>>,
    sync_due: AtomicBool,
    /// Something may go now, or the disk is fuller than before.
    changed: Notify,
    /// To be told when layers were removed.
    on_removal: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("root", &self.inner.layout.root()).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens or makes a store. Removes nothing: several processes open the same one.
    pub fn open(config: StoreConfig) -> Result<Store, StoreError> {
        if rustls::crypto::ring::default_provider().install_default().is_err() {
            tracing::trace!("a TLS provider is installed already");
        }
        let layout = Layout::open(&config.root, config.layers)?;
        let inner = Inner {
            layout,
            platform: Platform::host(),
            endpoints: Endpoints::new(config.registries)?,
            sources: config.credentials,
            verify_access: config.verify_access,
            retention: config.retention,
            downloads: Semaphore::new(config.limits.parallel.max(1)),
            limits: config.limits,
            memory: MemoryCounter::default(),
            staging: OnceLock::new(),
            making_staging: Mutex::default(),
            known_fixups: fixup::Known::default(),
            layers: Flights::default(),
            names: Flights::default(),
            resolved: Mutex::default(),
            consents: Mutex::default(),
            sync_due: AtomicBool::new(false),
            changed: Notify::new(),
            on_removal: OnceLock::new(),
        };
        Ok(Store { inner: Arc::new(inner) })
    }

    /// Ends a lease. An unknown one is fine. Its image counts as used until now.
    pub fn release(&self, owner: impl Into<LeaseOwner>) -> Result<(), StoreError> {
        let owner = owner.into();
        let layout = &self.inner.layout;
        {
            let _adding = layout.lock(false)?;
            if let Some(lease) = Lease::read(layout, &owner)? {
                lease.touch_image(layout)?;
            }
            failpoint::at("release-before-removal");
            record::remove_file(&layout.lease(&owner))?;
        }
        self.inner.changed.notify_one();
        Ok(())
    }

    /// Has somebody told each time after this process removed layers, before their space is counted on: whoever holds files of them open,
    /// a mount for instance, keeps it. The first caller is.
    pub fn on_removal(&self, tell: impl Fn() + Send + Sync + 'static) {
        if self.inner.on_removal.set(Box::new(tell)).is_err() {
            tracing::debug!("somebody is told of removed layers already");
        }
    }

    /// Removes the images that the policy lets go, and layers without an image.
    pub fn retain(&self, policy: &Retention) -> Result<RetentionReport, StoreError> {
        self.inner.retain(policy, Wish::Policy)
    }

    /// Waits until [`Store::retain`] may find more than last time. For one waiter.
    pub async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    /// The owners of all leases.
    pub fn leases(&self) -> Result<Vec<LeaseOwner>, StoreError> {
        let leases: Vec<Lease> = record::all(&self.inner.layout, "leases")?;
        Ok(leases.into_iter().map(|lease| lease.owner).collect())
    }

    /// Removes what dead processes and other boots left behind, and makes this boot's layers last.
    pub fn sweep(&self) -> Result<SweepReport, StoreError> {
        sweep::sweep(&self.inner.layout)
    }

    /// The images that the store knows by name.
    pub fn list(&self) -> Result<Vec<ImageRecord>, StoreError> {
        record::all(&self.inner.layout, "images")
    }

    /// The images with their users, by name.
    pub fn usage(&self) -> Result<Vec<ImageUsage>, StoreError> {
        usage::usage(&self.inner.layout)
    }

    /// The bytes of an image's config, verified; `None` where the store has none.
    pub fn config(&self, image: &ImageRecord) -> Result<Option<Vec<u8>>, StoreError> {
        read_document(self.inner.layout.config(&image.config), &image.config)
    }

    /// Makes layers that were committed a moment ago last. A plugin does so by itself, soon; a process that ends has to ask.
    pub fn sync(&self) -> Result<(), StoreError> {
        layer::sync(&self.inner.layout).map(drop)
    }

    /// Forgets an image and removes what only it used. `Ok(false)`: there was none.
    pub fn remove(&self, reference: &Reference) -> Result<bool, StoreError> {
        let mut images = self.list()?;
        images.retain(|image| image.reference == *reference);
        let leases: Vec<Lease> = record::all(&self.inner.layout, "leases")?;
        if let Some(lease) = leases.into_iter().find(|lease| images.iter().any(|image| sweep::holds(lease, image))) {
            return Err(StoreError::InUse { reference: reference.to_string(), owner: lease.owner });
        }
        let report = sweep::prune(&self.inner.layout, |image| image.reference == *reference)?;
        Ok(report.images.contains(reference))
    }

    /// Forgets all images that no lease holds and removes what nobody uses.
    pub fn prune(&self) -> Result<PruneReport, StoreError> {
        sweep::prune(&self.inner.layout, |_| true)
    }
}

impl Inner {
    /// Removes images and layers that may go, and tells of it.
    pub(super) fn retain(&self, policy: &Retention, wish: Wish) -> Result<RetentionReport, StoreError> {
        let report = sweep::retain(&self.layout, policy, wish);
        if let Some(tell) = self.on_removal.get() {
            tell();
        }
        report
    }

    /// What is known about an image.
    pub(crate) fn image(&self, reference: &Reference) -> Result<Option<ImageRecord>, StoreError> {
        let record: Option<ImageRecord> = commit::read_json(&self.layout.image(reference))?;
        Ok(record.filter(|record| record.reference == *reference))
    }

    /// The image's documents from disk, if they are there and unharmed.
    pub(crate) fn cached(&self, reference: &Reference) -> Result<Option<Resolved>, StoreError> {
        let Some(record) = self.image(reference)? else { return Ok(None) };
        let manifest = read_document(self.layout.manifest(&record.manifest), &record.manifest)?;
        let config = read_document(self.layout.config(&record.config), &record.config)?;
        let (Some(manifest), Some(config)) = (manifest, config) else { return Ok(None) };
        let Ok(ConfigDocument { config: run, .. }) = manifest::parse_config("config", &config) else { return Ok(None) };
        Ok(Some(Resolved { record, manifest: manifest.into(), config: config.into(), run }))
    }

    /// Records an image whose layers are all there. Alone, because what others recorded meanwhile must not be lost.
    pub(crate) fn save(&self, resolved: &Resolved, source: Source) -> Result<(), StoreError> {
        let path = resolved.record.path(&self.layout);
        let _alone = self.layout.lock(true)?;
        let on_disk = self.image(&resolved.record.reference)?;
        let Some(record) = resolved.record.over(on_disk, source, now()) else { return Ok(()) };
        commit::write(&self.layout.manifest(&record.manifest), &resolved.manifest, Durability::Later)?;
        failpoint::at("save-before-config");
        commit::write(&self.layout.config(&record.config), &resolved.config, Durability::Later)?;
        failpoint::at("save-before-record");
        commit::write_json(&path, &record, Durability::Later)
    }

    /// Records an image from an archive. Its documents stay in the archive: whoever wants it again brings that again.
    pub(crate) fn save_loaded(&self, record: &ImageRecord) -> Result<(), StoreError> {
        let _adding = self.layout.lock(false)?;
        commit::write_json(&record.path(&self.layout), record, Durability::Later)
    }

    /// Whether a layer is here at all.
    pub(crate) fn has_layer(&self, diff_id: &Digest) -> Result<bool, StoreError> {
        Ok(layer::usable(&self.layout, diff_id)?.is_some())
    }

    /// Writes a lease that pins layers before they are looked at, and returns what it replaced. Until the pull has succeeded it
    /// holds what that one held, too: a crash, or a disk too full to put it back, takes nothing from who has it.
    pub(crate) fn pin(&self, lease: &Lease) -> Result<Option<Lease>, StoreError> {
        let _adding = self.layout.lock(false)?;
        let before = Lease::read(&self.layout, &lease.owner)?;
        let mut both = lease.clone();
        if let Some(before) = &before {
            both.layers.extend(before.layers.iter().filter(|layer| !lease.layers.contains(layer)).cloned());
            both.fixups.extend(before.fixups.iter().filter(|fixup| !lease.fixups.contains(fixup)).cloned());
        }
        both.write(&self.layout)?;
        Ok(before)
    }

    /// Puts back what a failed pull's lease replaced.
    pub(crate) fn unpin(&self, owner: &LeaseOwner, before: Option<&Lease>) -> Result<(), StoreError> {
        {
            let _adding = self.layout.lock(false)?;
            match before {
                Some(lease) => lease.write(&self.layout)?,
                None => record::remove_file(&self.layout.lease(owner))?,
            }
        }
        self.changed.notify_one();
        Ok(())
    }

    /// The layer's record if it may be used for this blob.
    pub(crate) fn ready(&self, layer: &LayerRecord) -> Result<bool, StoreError> {
        let meta = layer::usable(&self.layout, &layer.diff_id)?;
        Ok(meta.is_some_and(|meta| meta.blobs.contains(&layer.blob)))
    }

    /// Whether all layers of an image may be used.
    pub(crate) fn complete(&self, record: &ImageRecord) -> Result<bool, StoreError> {
        for layer in &record.layers {
            if !self.ready(layer)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn staging(&self) -> Result<&Staging, StoreError> {
        if let Some(staging) = self.staging.get() {
            return Ok(staging);
        }
        // Layers begin side by side, and a second directory would be made for nothing.
        let _turn = self.making_staging.lock().unwrap_or_else(PoisonError::into_inner);
        match self.staging.get() {
            Some(staging) => Ok(staging),
            None => {
                let staging = Staging::create(&self.layout)?;
                Ok(self.staging.get_or_init(|| staging))
            }
        }
    }

    /// Gives a verified layer its place.
    pub(crate) fn commit_layer(&self, staged: &Staged, unpacked: &Unpacked) -> Result<(), StoreError> {
        staged.settle(unpacked)?;
        layer::commit(&self.layout, staged.path(), &LayerMeta::new(unpacked)?)
    }

    /// Completes a lease: the layers to mount, topmost first, and whether they can only be copied.
    pub(crate) fn mountable(&self, lease: &mut Lease) -> Result<Stack, StoreError> {
        let mut chain = Vec::new();
        for diff_id in &lease.layers {
            let meta = layer::usable(&self.layout, diff_id)?.ok_or_else(|| {
                let path = self.layout.layer(diff_id);
                StoreError::io("opening", path)(std::io::Error::from(std::io::ErrorKind::NotFound))
            })?;
            chain.push(meta);
        }
        let _adding = self.layout.lock(false)?;
        let mut layers = Vec::new();
        lease.fixups.clear();
        for (at, meta) in chain.iter().enumerate() {
            if meta.opaque_root {
                // The kernel ignores the mark on a layer's root, so what lies below is left out.
                layers.clear();
            }
            layers.push(layer::files(&self.layout.layer(&meta.diff_id)));
            if meta.implicit_dirs.is_empty() {
                continue;
            }
            failpoint::at("mountable-before-fixup");
            if let Some(key) = fixup::make(&self.layout, self.staging()?, &chain[..=at], &self.known_fixups)? {
                layers.push(self.layout.fixup(&key).join(layer::DIRECTORY));
                lease.fixups.push(key);
            }
        }
        if layers.is_empty() {
            layers.push(self.empty_layer()?);
        }
        lease.ready = true;
        failpoint::at("mountable-before-lease");
        lease.write(&self.layout)?;
        failpoint::at("mountable-before-touch");
        lease.touch_image(&self.layout)?;
        layers.reverse();
        Ok(Stack { layers, copy_only: chain.iter().any(|meta| meta.copy_only) })
    }

    /// What an image without layers is made of.
    fn empty_layer(&self) -> Result<PathBuf, StoreError> {
        let path = self.layout.directory("empty");
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(StoreError::io("creating", path)(error))
            }
            _ => Ok(path),
        }
    }

    /// The lock of resolving one name.
    pub(crate) fn name_flight(&self, asker: &Asker) -> Arc<tokio::sync::Mutex<()>> {
        self.names.get(asker.clone())
    }

    /// What somebody else learned about the same name after `since`.
    pub(crate) fn learned(&self, asker: &Asker, since: Instant) -> Option<Arc<Resolved>> {
        let resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        resolved.get(asker).filter(|(at, _)| *at >= since).map(|(_, resolved)| Arc::clone(resolved))
    }

    pub(crate) fn learn(&self, asker: Asker, resolved: &Arc<Resolved>) {
        let mut known = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (at, _)| at.elapsed() < RESOLVED_LIFE);
        known.insert(asker, (Instant::now(), Arc::clone(resolved)));
    }

    /// Whether the registry agreed not long ago that this caller may have this content.
    pub(crate) fn consents(&self, asker: &Asker, resolved: &Digest) -> bool {
        let consents = self.consents.lock().unwrap_or_else(PoisonError::into_inner);
        consents.get(&(asker.clone(), resolved.clone())).is_some_and(|until| *until > Instant::now())
    }

    pub(crate) fn consent(&self, asker: Asker, resolved: Digest, until: Instant) {
        let mut consents = self.consents.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        consents.retain(|_, until| *until > now);
        consents.insert((asker, resolved), until);
    }

    /// Makes what was committed last, soon and off the critical path.
    pub(crate) fn sync_soon(self: &Arc<Self>) {
        if self.sync_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(SYNC_DELAY).await;
            inner.sync_due.store(false, Ordering::Release);
            inner.changed.notify_one();
            let layout = inner.layout.clone();
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || layer::sync(&layout)).await {
                tracing::warn!(%error, "layers are not marked as synced; a power cut would have them pulled again");
            }
        });
    }
}

/// A document from disk, if it is there and unharmed.
fn read_document(path: PathBuf, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes).filter(|bytes| digest.matches(bytes))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("reading", path)(error)),
    }
}

/// Names an asker.
pub(crate) fn asker(reference: &Reference, credentials: Option<&Credentials>) -> Asker {
    (reference.clone(), credentials.map(auth::fingerprint))
}
