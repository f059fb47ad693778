//! The state that all pulls of a store share in this process.

use std::sync::Arc;

use layer::MemoryCounter;
use tokio::sync::Semaphore;

use super::{
    grants::AccessGrants,
    partial::{PartialConfig, PartialLayers},
    priority::Priority,
    resolve_cache::ResolveCache,
};
use crate::{
    credentials::CredentialSources,
    error::StoreError,
    limits::Limits,
    platform::Platform,
    registry::{Endpoints, InternalRedirects, RegistryConfig, install_tls_provider},
    store::{LayerFormat, LocalStore, Retention},
};

/// The configuration of pulls.
pub(crate) struct PullerConfig {
    pub(crate) limits: Limits,
    pub(crate) registries: Vec<RegistryConfig>,
    pub(crate) internal_redirects: InternalRedirects,
    pub(crate) credentials: CredentialSources,
    pub(crate) verify_access: bool,
    pub(crate) retention: Option<Retention>,
    pub(crate) partial: Option<PartialConfig>,
}

/// Pulls images into the local store.
pub(crate) struct Puller {
    pub(super) local: Arc<LocalStore>,
    pub(super) limits: Limits,
    /// What this machine runs. It has the feature of EROFS if layers may be EROFS images.
    pub(super) platform: Platform,
    pub(crate) endpoints: Endpoints,
    pub(super) sources: CredentialSources,
    /// Give an image that was pulled with credentials only to callers that may pull it themselves.
    pub(super) verify_access: bool,
    /// The policy by which a pull that needs disk space may remove images; `None`: it removes none.
    pub(super) retention: Option<Retention>,
    /// Bounds the layers that are fetched at the same time.
    pub(super) downloads: Semaphore,
    /// Orders the layers of background pulls after the others.
    pub(super) priority: Priority,
    /// The memory of layers that become EROFS images.
    pub(super) memory: MemoryCounter,
    pub(super) resolved: ResolveCache,
    pub(super) grants: AccessGrants,
    /// The layers that are mounted before they are complete.
    pub(crate) partial: PartialLayers,
}

impl Puller {
    /// What a layer may have on this node.
    pub(crate) fn layer_limits(&self) -> layer::Limits {
        layer::Limits { zstd_images: self.platform.has_erofs_zstd(), ..self.limits.of_a_layer() }
    }

    /// Checks the configuration. Contacts no registry.
    pub(crate) fn new(local: Arc<LocalStore>, config: PullerConfig) -> Result<Self, StoreError> {
        install_tls_provider();
        let platform = match local.format() {
            LayerFormat::Erofs { zstd } => Platform::host().with_erofs(zstd),
            LayerFormat::Directory => Platform::host(),
        };
        Ok(Self {
            local,
            platform,
            endpoints: Endpoints::new(config.registries, config.internal_redirects)?,
            sources: config.credentials,
            verify_access: config.verify_access,
            retention: config.retention,
            downloads: Semaphore::new(config.limits.parallel.max(1)),
            priority: Priority::default(),
            limits: config.limits,
            memory: MemoryCounter::default(),
            resolved: ResolveCache::default(),
            grants: AccessGrants::default(),
            partial: PartialLayers::new(config.partial),
        })
    }
}
