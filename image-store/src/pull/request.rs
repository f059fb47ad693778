//! Requests for images, and their result.

use std::{os::fd::OwnedFd, path::PathBuf, time::Duration};

use super::partial::LayerGroup;
use crate::{credentials::Credentials, manifest::ImageConfig, reference::Reference, registry::Caller};

/// A request for an image from its registry.
#[derive(Debug, Clone)]
pub struct PullRequest {
    /// The image.
    pub reference: Reference,
    /// The credentials of the caller. Without them, the credential sources of the store are asked, then the configured
    /// credentials of the registry are used, then none.
    pub credentials: Option<Credentials>,
    /// Continue without the credentials of a file or a helper that fails.
    pub soft_fail: bool,
    /// Ask the registry even if the image is on disk. The tag `latest` always asks, a digest never needs to.
    pub force: bool,
    /// Pin the name: every caller gets the image, no registry is asked for it unless a request forces that, and garbage
    /// collection keeps it. For the node's administrator.
    pub pin: bool,
    /// No task waits for the image: the pull makes way for pulls of this process that a task waits for, and a full disk
    /// makes it fail without the removal of other images.
    pub background: bool,
    /// The image may be used before it is complete. The caller passes [`Image::group`] on.
    pub lazy: bool,
    /// Total timeout of the pull.
    pub timeout: Option<Duration>,
    /// Idle timeout: how long a registry may send no byte.
    pub idle_timeout: Duration,
}

impl PullRequest {
    /// A request with the default options.
    pub fn new(reference: Reference) -> Self {
        Self {
            reference,
            credentials: None,
            soft_fail: false,
            force: false,
            pin: false,
            background: false,
            lazy: false,
            timeout: None,
            idle_timeout: Duration::from_secs(120),
        }
    }

    /// The request as registries see it.
    pub(super) fn caller(&self) -> Caller<'_> {
        Caller { reference: &self.reference, credentials: self.credentials.as_ref(), idle_timeout: self.idle_timeout }
    }
}

/// A request for an image from an archive.
#[derive(Debug)]
pub struct LoadRequest {
    /// The archive, open for reading, or a directory with the content of an archive.
    pub source: OwnedFd,
    /// The name of the archive in error texts.
    pub name: String,
    /// The image in the archive.
    pub reference: Reference,
    /// Pin the name, as [`PullRequest::pin`] does. Otherwise the image is only for the lease of this request.
    pub pin: bool,
    /// Total timeout of the load.
    pub timeout: Option<Duration>,
}

/// An image that is ready to be mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The requested image.
    pub reference: Reference,
    /// Digest of the manifest for this machine.
    pub digest: String,
    /// The layers of an overlay, topmost first; at least one. Directories, and files with an EROFS file system
    /// ([`LayerFormat`](crate::LayerFormat)).
    pub layers: Vec<PathBuf>,
    /// The file system of the store refused the marks of overlayfs, so overlayfs cannot read what the layers hide of
    /// one another. The layers can be copied.
    pub copy_only: bool,
    /// Some layers are not complete: a process that outlives this one must hold this descriptor as long as a container
    /// uses the image, and the container must end when no process holds it.
    pub group: Option<LayerGroup>,
    /// How the image wants to be run.
    pub config: ImageConfig,
}
