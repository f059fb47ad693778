//! One host as the source of a layer's ranges.

use std::{
    ops::{ControlFlow, Range},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use layer::Digest;
use lazy::{Source, SourceError};
use tokio::runtime::Handle;

use crate::{
    credentials::{self, CredentialSources, Credentials},
    error::{PullError, StoreError},
    reference::Reference,
    registry::Session,
};

/// The hosts of images, and the node's credentials for them.
pub(in crate::pull) trait Hosts: Send + Sync {
    /// The hosts that have the layers of an image: mirrors, then the registry. Each request is tried once.
    fn sessions(&self, image: &Reference, credentials: Option<&Credentials>) -> Result<Vec<Session>, StoreError>;

    /// Where the node has credentials.
    fn credential_sources(&self) -> &CredentialSources;
}

/// A host that has a layer.
pub(in crate::pull) struct HostSource {
    runtime: Handle,
    access: Weak<dyn Hosts>,
    image: Reference,
    blob: (Digest, u64),
    name: String,
    session: Mutex<Session>,
}

/// The hosts that have a layer of an image: mirrors, then the registry. Needs an async runtime.
pub(in crate::pull) fn sources(
    access: &Arc<dyn Hosts>,
    (image, blob): (&Reference, (Digest, u64)),
    credentials: Option<&Credentials>,
) -> Result<Vec<Arc<HostSource>>, StoreError> {
    let sessions = access.sessions(image, credentials)?;
    let source = |session: Session| {
        Arc::new(HostSource {
            runtime: Handle::current(),
            access: Arc::downgrade(access),
            image: image.clone(),
            blob: blob.clone(),
            name: session.host.name().to_owned(),
            session: Mutex::new(session),
        })
    };
    Ok(sessions.into_iter().map(source).collect())
}

impl HostSource {
    /// Access that ended may have been that of short-lived credentials. The node's sources may have newer ones by now.
    async fn renew(&self) -> Option<Session> {
        let access = self.access.upgrade()?;
        let found = credentials::find(access.credential_sources(), &self.image, true).await.ok()??;
        self.use_credentials(&*access, &found)
    }

    /// Replaces the credentials.
    pub(super) fn use_credentials(&self, access: &dyn Hosts, credentials: &Credentials) -> Option<Session> {
        let renewed = access.sessions(&self.image, Some(credentials)).ok()?;
        let renewed = renewed.into_iter().find(|session| session.host.name() == self.name)?;
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = renewed.clone();
        Some(renewed)
    }
}

impl Source for HostSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), SourceError> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let blob = (&self.blob.0, self.blob.1);
        let read = async {
            match session.read_range(blob, range.clone(), sink).await {
                // Nothing was delivered.
                Err(refused @ (PullError::Denied { .. } | PullError::Access { .. })) => match self.renew().await {
                    Some(renewed) => renewed.read_range(blob, range, sink).await,
                    None => Err(refused),
                },
                read => read,
            }
        };
        self.runtime.block_on(read).map_err(|error| SourceError(error.to_string()))
    }
}
