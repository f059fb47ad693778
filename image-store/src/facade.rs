//! The public store: the images on this machine, together with the pulls that add to them.

use std::{
    fmt,
    future::{self, Future},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    credentials::{CredentialSources, Credentials},
    error::{PullError, StoreError},
    lease::LeaseOwner,
    limits::Limits,
    profile::Profile,
    progress::Progress,
    publish::{self, PushRequest, Pushed},
    pull::{self, Image, LayerEvent, LoadRequest, PartialConfig, PullRequest, Puller, PullerConfig, RegistryAnswer},
    reference::Reference,
    registry::{Endpoints, HostTraffic, InternalRedirects, RegistryConfig, install_tls_provider},
    store::{
        DiskSize, ImageRecord, ImageUsage, LayerFormat, LayerRecord, LayerUsage, LocalStore, PruneReport,
        ReclaimTarget, RemovalCause, Removals, Retention, RetentionReport, StoreSize, SweepReport,
    },
};

/// The configuration of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The directory of the store; made with mode 0700.
    pub root: PathBuf,
    /// Limits against hostile or broken registries and images.
    pub limits: Limits,
    /// Registries that need more configuration than their name.
    pub registries: Vec<RegistryConfig>,
    /// The internal addresses that other registries may name.
    pub internal_redirects: InternalRedirects,
    /// Sources of credentials for pulls that bring none.
    pub credentials: CredentialSources,
    /// Give an image that was pulled with credentials only to callers that may pull it themselves.
    pub verify_access: bool,
    /// The policy by which a pull that lacks disk space may remove images that no lease holds, before it tries again.
    /// `None`: it removes none.
    pub retention: Option<Retention>,
    /// The form of new layers on disk.
    pub layers: LayerFormat,
    /// The kernel verifies each block of a layer in an EROFS image that it reads from disk (fs-verity). The file system
    /// must support it.
    pub fs_verity: bool,
    /// How native layers are served before they are complete. `None`: they are always pulled whole.
    pub partial: Option<PartialConfig>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            root: PathBuf::new(),
            limits: Limits::default(),
            registries: Vec::new(),
            internal_redirects: InternalRedirects::default(),
            credentials: CredentialSources::default(),
            verify_access: true,
            retention: None,
            layers: LayerFormat::default(),
            fs_verity: false,
            partial: None,
        }
    }
}

impl StoreConfig {
    /// Asks a registry and its mirrors whether they answer and accept the credentials of this configuration. Each is
    /// asked once, and may be silent for `silence`. All answers are complete after `limit`, or have failed. Opens no
    /// store.
    pub async fn ask_registry(
        &self,
        registry: &str,
        silence: Duration,
        limit: Duration,
    ) -> Result<Vec<RegistryAnswer>, PullError> {
        pull::answers::ask(&self.endpoints()?, &self.credentials, registry, silence, limit).await
    }

    /// Uploads an image of an OCI layout, except for the blobs that the registry has. Opens no store.
    pub async fn push(&self, request: PushRequest, progress: Arc<dyn Progress>) -> Result<Pushed, PullError> {
        publish::push(&self.endpoints()?, &self.credentials, request, &self.limits, progress).await
    }

    /// Downloads an image with everything that its index refers to, as an OCI layout in a new directory. The registry
    /// may be silent for `idle_timeout`. Opens no store.
    pub async fn fetch_layout(
        &self,
        reference: &Reference,
        target: &Path,
        idle_timeout: Duration,
        progress: Arc<dyn Progress>,
    ) -> Result<(), PullError> {
        let (endpoints, limits) = (self.endpoints()?, (&self.limits, idle_timeout));
        publish::fetch(&endpoints, &self.credentials, (reference, target), limits, progress).await
    }

    fn endpoints(&self) -> Result<Endpoints, StoreError> {
        install_tls_provider();
        Endpoints::new(self.registries.clone(), self.internal_redirects)
    }
}

/// A directory of images. Cheap to clone; clones share running pulls.
#[derive(Clone)]
pub struct Store {
    local: Arc<LocalStore>,
    puller: Arc<Puller>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("root", &self.local.root()).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens or makes a store. Removes nothing: several processes open the same store.
    pub fn open(config: StoreConfig) -> Result<Store, StoreError> {
        let StoreConfig { root, layers, limits, registries, internal_redirects, .. } = config;
        let StoreConfig { credentials, verify_access, retention, partial, fs_verity, .. } = config;
        let local = Arc::new(LocalStore::open(&root, layers, fs_verity)?);
        let config =
            PullerConfig { limits, registries, internal_redirects, credentials, verify_access, retention, partial };
        let puller = Arc::new(Puller::new(Arc::clone(&local), config)?);
        Ok(Store { local, puller })
    }

    /// Makes an image ready and leases it: its layers stay on disk until [`Store::release`]. Asks the registry if
    /// necessary. An existing lease of the same owner is replaced, but only by a success.
    pub async fn acquire(
        &self,
        request: PullRequest,
        owner: impl Into<LeaseOwner>,
        progress: Arc<dyn Progress>,
    ) -> Result<Image, PullError> {
        self.acquire_unless(request, owner, progress, future::pending()).await
    }

    /// As [`Store::acquire`], until `cancelled` is ready. Then it returns [`PullError::Cancelled`], and no part of the
    /// pull runs any more.
    pub async fn acquire_unless(
        &self,
        request: PullRequest,
        owner: impl Into<LeaseOwner>,
        progress: Arc<dyn Progress>,
        cancelled: impl Future<Output = ()>,
    ) -> Result<Image, PullError> {
        let owner = owner.into();
        let work = |token| pull::acquire(&self.puller, &request, owner, progress, token);
        pull::until_cancelled(cancelled, (&request.reference, request.timeout), work).await
    }

    /// Makes an image of an archive ready and leases it, as [`Store::acquire`] does with an image of a registry. Reads
    /// the output of `docker save` and OCI layouts, plain or compressed.
    pub async fn load(&self, request: LoadRequest, owner: impl Into<LeaseOwner>) -> Result<Image, PullError> {
        self.load_unless(request, owner, future::pending()).await
    }

    /// As [`Store::load`], until `cancelled` is ready; see [`Store::acquire_unless`].
    pub async fn load_unless(
        &self,
        request: LoadRequest,
        owner: impl Into<LeaseOwner>,
        cancelled: impl Future<Output = ()>,
    ) -> Result<Image, PullError> {
        let (reference, limit, owner) = (request.reference.clone(), request.timeout, owner.into());
        let work = |token| pull::load(&self.puller, request, owner, token);
        pull::until_cancelled(cancelled, (&reference, limit), work).await
    }

    /// Releases a lease. An unknown one is fine. The release counts as a use of the image. With the lease of a task,
    /// those of the images that it mounts are released.
    pub fn release(&self, owner: impl Into<LeaseOwner>) -> Result<(), StoreError> {
        self.local.release(&owner.into())
    }

    /// Sets the last use of a pulled image to now. An unknown image is fine.
    pub fn touch(&self, reference: &Reference) -> Result<(), StoreError> {
        self.local.touch(reference)
    }

    /// The owners of all leases.
    pub fn leases(&self) -> Result<Vec<LeaseOwner>, StoreError> {
        self.local.leases()
    }

    /// The staging directories in which ended processes left parts of layers. A sweep removes them.
    pub fn interrupted_pulls(&self) -> Result<Vec<PathBuf>, StoreError> {
        self.local.interrupted_pulls()
    }

    /// Sets the function that is called each time after this process removed layers. A file of a removed layer uses
    /// disk space as long as a process holds it open, for instance by a mount; the function lets go of such files. Only
    /// the first call has an effect.
    pub fn on_removal(&self, callback: impl Fn() + Send + Sync + 'static) {
        self.local.on_removal(callback);
    }

    /// Serves the incomplete layers that a process before this one served, as soon as that process has ended.
    /// `find_group` returns the descriptor that another process holds ([`Image::group`]), by the device and inode of
    /// the files whose reads it announces. Returns at once. Needs an async runtime.
    pub fn resume_layers(
        &self,
        find_group: impl FnOnce(&[(u64, u64)]) -> Option<OwnedFd> + Send + 'static,
    ) -> Result<(), StoreError> {
        self.puller.resume_partial(find_group)
    }

    /// Sets the function that is called with each event of a layer that is used before it is complete, or that is
    /// damaged. It must not block. Only the first call has an effect.
    pub fn on_layer_event(&self, listener: impl Fn(LayerEvent) + Send + Sync + 'static) {
        self.puller.partial.listen(listener);
    }

    /// The kernel's log says that a block of the file with this inode changed on disk, which is part of the data at
    /// this offset. If a layer has the file, no further task gets it, and [`Store::on_layer_event`] tells its users.
    /// Blocks.
    pub fn block_changed(&self, inode: u64, offset: u64) -> Result<(), StoreError> {
        self.puller.block_changed(inode, offset)
    }

    /// Whether a container uses a layer that is not complete.
    pub fn uses_incomplete_layers(&self, container: &str) -> Result<bool, StoreError> {
        self.local.uses_incomplete_layers(container)
    }

    /// What containers of this node read first of these layers, as far as it was noted. Blocks.
    pub fn profile(&self, layers: &[LayerRecord]) -> Result<Profile, StoreError> {
        let limits = self.puller.layer_limits();
        let noted = |layer| self.local.first_reads(layer, &limits).transpose();
        Ok(Profile { layers: layers.iter().filter_map(noted).collect::<Result<_, _>>()? })
    }

    /// Whether a predecessor's layers are served, or will be.
    pub fn resumes_layers(&self) -> bool {
        self.puller.partial.resumes()
    }

    /// Uses these credentials for the incomplete layers of an image. A predecessor had them from its task.
    pub fn renew_credentials(&self, image: &Reference, credentials: &Credentials) {
        self.puller.renew_credentials(image, credentials);
    }

    /// Ends the service of incomplete layers. Their readers wait for the next process that serves.
    pub fn stop_serving_layers(&self) {
        self.puller.partial.stop();
    }

    /// Removes the images that the policy no longer keeps, and layers without an image.
    pub fn retain(&self, policy: &Retention) -> Result<RetentionReport, StoreError> {
        self.local.retain(policy, ReclaimTarget::PolicyOnly)
    }

    /// Why the file system has no room for any pull; `None` if it has.
    pub fn space_problem(&self) -> Result<Option<String>, StoreError> {
        self.puller.space_problem()
    }

    /// Waits until [`Store::retain`] may find more than the last time. For one waiter.
    pub async fn changed(&self) {
        self.local.changed().await;
    }

    /// Removes what ended processes and other boots left behind, and syncs the layers of this boot.
    pub fn sweep(&self) -> Result<SweepReport, StoreError> {
        self.local.sweep()
    }

    /// The records of all images.
    pub fn list(&self) -> Result<Vec<ImageRecord>, StoreError> {
        self.local.images()
    }

    /// All images with their use, sorted by name.
    pub fn usage(&self) -> Result<Vec<ImageUsage>, StoreError> {
        self.local.usage()
    }

    /// The bytes of an image's config, verified; `None` if they are missing or damaged.
    pub fn config(&self, image: &ImageRecord) -> Result<Option<Vec<u8>>, StoreError> {
        self.local.config(image)
    }

    /// The size of all images together. Reads a small file for each image and layer.
    pub fn size(&self) -> Result<StoreSize, StoreError> {
        self.local.size()
    }

    /// The use of the file system of the store. One system call.
    pub fn disk_size(&self) -> Result<DiskSize, StoreError> {
        let bytes = self.local.disk_use()?.bytes;
        Ok(DiskSize { used: bytes.used, available: bytes.available })
    }

    /// How full the file system of the store is, in percent of its bytes or of its inodes: the higher one. It is
    /// compared with the watermarks of [`Retention`].
    pub fn fill_percent(&self) -> Result<u8, StoreError> {
        let disk = self.local.disk_use()?;
        Ok(disk.bytes.percent().max(disk.inodes.percent()))
    }

    /// What this process asked of each registry and mirror so far, and what it received.
    pub fn traffic(&self) -> Vec<(String, HostTraffic)> {
        self.puller.endpoints.traffic()
    }

    /// The images that this process removed by the retention policy so far, by the cause.
    pub fn removals(&self) -> [(RemovalCause, Removals); 4] {
        self.local.removals()
    }

    /// Makes new layers durable now. The plugin does so by itself after a short delay; a process that ends has to call
    /// this.
    pub fn sync(&self) -> Result<(), StoreError> {
        self.local.sync()
    }

    /// Removes an image and everything that only it refers to. `Ok(false)`: there was none.
    pub fn remove(&self, reference: &Reference) -> Result<bool, StoreError> {
        self.local.remove(reference)
    }

    /// All layers on disk with their use.
    pub fn layer_usage(&self) -> Result<Vec<LayerUsage>, StoreError> {
        self.local.layer_usage()
    }

    /// What [`Store::prune`] would remove now.
    pub fn prunable(&self) -> Result<PruneReport, StoreError> {
        self.local.prunable()
    }

    /// Removes all images that no lease holds, and everything unreferenced.
    pub fn prune(&self) -> Result<PruneReport, StoreError> {
        self.local.prune()
    }
}
