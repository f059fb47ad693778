//! The local store: its state in this process, and the operations on the store as a whole.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use layer::Digest;
use tokio::sync::Notify;

use super::{
    disk_space::DiskUse,
    gc::{self, PruneReport},
    image_record::{self, ImageRecord},
    implied,
    layer_lock::LayerLocks,
    layers,
    layout::{LayerFormat, Layout},
    lease_record::{self, Lease},
    protection,
    removals::{RemovalCause, RemovalCounters, Removals},
    retention::{ReclaimTarget, Retention, RetentionReport},
    staging::{LazyStaging, Staging},
    staging_lock,
    sweep::{self, SweepReport},
    usage::{self, ImageUsage, LayerUsage, StoreSize},
};
use crate::{error::StoreError, files, lease::LeaseOwner, reference::Reference};

/// How long commits are gathered before one sync makes all of them durable.
const SYNC_DELAY: Duration = Duration::from_secs(1);

/// The images on this machine.
pub(crate) struct LocalStore {
    pub(super) layout: Layout,
    staging: LazyStaging,
    pub(super) implied: implied::Cache,
    pub(super) layer_locks: LayerLocks,
    /// The kernel shall verify each block of a layer that it reads from disk.
    fs_verity: bool,
    /// A background sync is waiting for its delay.
    sync_due: AtomicBool,
    /// Notified when a removal may find more than the last one.
    changed: Notify,
    /// Called after layers were removed.
    on_removal: OnceLock<Box<dyn Fn() + Send + Sync>>,
    removals: RemovalCounters,
}

impl fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalStore").field("root", &self.layout.root()).finish_non_exhaustive()
    }
}

impl LocalStore {
    /// Opens or makes a store. Removes nothing: several processes open the same store.
    pub(crate) fn open(root: &Path, format: LayerFormat, fs_verity: bool) -> Result<Self, StoreError> {
        let layout = Layout::open(root, format)?;
        if fs_verity {
            protection::check(&layout)?;
        }
        Ok(Self {
            layout,
            staging: LazyStaging::default(),
            implied: implied::Cache::default(),
            layer_locks: LayerLocks::default(),
            fs_verity,
            sync_due: AtomicBool::new(false),
            changed: Notify::new(),
            on_removal: OnceLock::new(),
            removals: RemovalCounters::default(),
        })
    }

    pub(crate) fn root(&self) -> &Path {
        self.layout.root()
    }

    /// The form of new layers.
    pub(crate) fn format(&self) -> LayerFormat {
        self.layout.format
    }

    pub(crate) fn disk_use(&self) -> Result<DiskUse, StoreError> {
        DiskUse::of(&self.layout)
    }

    pub(crate) fn staging(&self) -> Result<&Staging, StoreError> {
        self.staging.get(&self.layout)
    }

    /// Releases a lease and sets the last use of its image to now. An unknown lease is fine. With the lease of a task,
    /// those of the images that it mounts are released before.
    pub(crate) fn release(&self, owner: &LeaseOwner) -> Result<(), StoreError> {
        {
            let _adding = self.layout.lock_shared()?;
            if let LeaseOwner::Task { container } = owner {
                let of = |number| LeaseOwner::MountedImage { container: container.clone(), number };
                let is_held = |number: &u32| self.layout.lease(&of(*number)).exists();
                let count = (0..).take_while(is_held).count() as u32;
                // The last one first: after a kill the next release finds the others, which have no gap.
                (0..count).rev().try_for_each(|number| self.release_one(&of(number)))?;
            }
            self.release_one(owner)?;
        }
        self.notify_changed();
        Ok(())
    }

    /// Releases one lease. Needs the store lock.
    fn release_one(&self, owner: &LeaseOwner) -> Result<(), StoreError> {
        if let Some(lease) = Lease::read(&self.layout, owner)? {
            lease.touch_image(&self.layout)?;
        }
        failpoint::at("release-before-removal");
        files::remove_file(&self.layout.lease(owner))
    }

    /// Sets the last use of a pulled image to now. An unknown image is fine.
    pub(crate) fn touch(&self, reference: &Reference) -> Result<(), StoreError> {
        let _adding = self.layout.lock_shared()?;
        files::touch(&self.layout.image(reference))
    }

    /// The owners of all leases.
    pub(crate) fn leases(&self) -> Result<Vec<LeaseOwner>, StoreError> {
        Ok(lease_record::leases(&self.layout)?.into_iter().map(|lease| lease.owner).collect())
    }

    /// The staging directories in which ended processes left parts of layers.
    pub(crate) fn interrupted_pulls(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut interrupted = Vec::new();
        for path in staging_lock::abandoned(&self.layout)? {
            if !files::entries(&path)?.is_empty() {
                interrupted.push(path);
            }
        }
        Ok(interrupted)
    }

    /// Sets the function that is called after each removal of layers. Only the first call has an effect.
    pub(crate) fn on_removal(&self, callback: impl Fn() + Send + Sync + 'static) {
        if self.on_removal.set(Box::new(callback)).is_err() {
            tracing::debug!("a function to call after removals is set already");
        }
    }

    /// Waits until [`Self::retain`] may find more than the last time. For one waiter.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn notify_changed(&self) {
        self.changed.notify_one();
    }

    /// Removes the images that the policy no longer keeps, and more if a pull needs disk space.
    pub(crate) fn retain(&self, policy: &Retention, reclaim: ReclaimTarget) -> Result<RetentionReport, StoreError> {
        let report = gc::retain(&self.layout, policy, reclaim);
        if let Some(callback) = self.on_removal.get() {
            callback();
        }
        report.inspect(|report| self.removals.add(report))
    }

    /// The images that [`Self::retain`] has removed so far, by the cause.
    pub(crate) fn removals(&self) -> [(RemovalCause, Removals); 4] {
        self.removals.so_far()
    }

    /// The size of all images together.
    pub(crate) fn size(&self) -> Result<StoreSize, StoreError> {
        usage::size(&self.layout)
    }

    /// Removes what ended processes and other boots left behind, and syncs the layers of this boot.
    pub(crate) fn sweep(&self) -> Result<SweepReport, StoreError> {
        let report = sweep::sweep(&self.layout)?;
        self.try_protect();
        Ok(report)
    }

    /// The records of all images.
    pub(crate) fn images(&self) -> Result<Vec<ImageRecord>, StoreError> {
        image_record::images(&self.layout)
    }

    /// All images with their use, sorted by name.
    pub(crate) fn usage(&self) -> Result<Vec<ImageUsage>, StoreError> {
        usage::usage(&self.layout)
    }

    /// Removes an image and everything that only it refers to. `Ok(false)`: there was none.
    pub(crate) fn remove(&self, reference: &Reference) -> Result<bool, StoreError> {
        let mut images = self.images()?;
        images.retain(|image| image.reference == *reference);
        let leases = lease_record::leases(&self.layout)?;
        if let Some(lease) = leases.into_iter().find(|lease| images.iter().any(|image| lease.keeps(image))) {
            return Err(StoreError::InUse { reference: reference.to_string(), owner: lease.owner });
        }
        let report = gc::prune(&self.layout, |image| image.reference == *reference)?;
        Ok(report.images.contains(reference))
    }

    /// All layers on disk with their use.
    pub(crate) fn layer_usage(&self) -> Result<Vec<LayerUsage>, StoreError> {
        usage::layer_usage(&self.layout)
    }

    /// What [`Self::prune`] would remove.
    pub(crate) fn prunable(&self) -> Result<PruneReport, StoreError> {
        gc::prunable(&self.layout)
    }

    /// Removes all images that no lease holds, and everything unreferenced.
    pub(crate) fn prune(&self) -> Result<PruneReport, StoreError> {
        gc::prune(&self.layout, |_| true)
    }

    /// Removes those of these layers that no image and no lease refers to.
    pub(crate) fn remove_unreferenced(&self, layers: &[Digest]) -> Result<(), StoreError> {
        gc::remove_unreferenced(&self.layout, layers)
    }

    /// Makes the committed layers durable now.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        layers::sync(&self.layout)?;
        self.protect().map(drop)
    }

    /// Protects what is committed, if this store does so. `Ok(false)`: a layer is not protected yet.
    fn protect(&self) -> Result<bool, StoreError> {
        if self.fs_verity { protection::protect(&self.layout) } else { Ok(true) }
    }

    /// As [`Self::protect`], in the background. A failure leaves layers as they are.
    fn try_protect(&self) -> bool {
        self.protect().unwrap_or_else(|error| {
            tracing::warn!(%error, "layers are not protected by fs-verity");
            true
        })
    }

    /// The layer in which the kernel found a changed block, by the inode and the offset in its log. `None`: it is no
    /// layer, or it is known.
    pub(crate) fn damaged_layer(&self, inode: u64, offset: u64) -> Result<Option<Digest>, StoreError> {
        protection::damaged(&self.layout, inode, offset)
    }

    /// Makes the committed layers durable after a delay, in the background.
    pub(crate) fn sync_soon(self: &Arc<Self>) {
        if self.sync_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let store = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(SYNC_DELAY).await;
            store.sync_due.store(false, Ordering::Release);
            store.notify_changed();
            let syncing = Arc::clone(&store);
            let synced = tokio::task::spawn_blocking(move || {
                if let Err(error) = layers::sync(&syncing.layout) {
                    tracing::warn!(%error, "layers are not marked as synced; a power cut would have them pulled again");
                }
                syncing.try_protect()
            });
            // A thread that fetched the last data of a layer still has its file open.
            if matches!(synced.await, Ok(false)) {
                store.sync_soon();
            }
        });
    }
}
