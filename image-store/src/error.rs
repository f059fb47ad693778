//! Everything that can go wrong, sorted by what the caller can do about it.
//!
//! [`PullError::recoverable`] is the one question a caller asks. Texts name the image, host, layer or file and never hold a
//! secret: credentials do not travel inside errors, and URLs appear without their query.

use std::{io, path::PathBuf, time::Duration};

use crate::{digest::Digest, lease::LeaseOwner};

/// A failure of the store's own files.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file operation failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a participle: "opening".
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: SharedIo,
    },
    /// The store on disk was written by another version.
    #[error("the image store {} has format {found:?}, this version reads {expected:?}; move it away or use the version that wrote it", path.display())]
    Version {
        /// The store.
        path: PathBuf,
        /// Format on disk.
        found: String,
        /// Format that we know.
        expected: &'static str,
    },
    /// The image is held by a lease.
    #[error("image {reference} is in use by {:?}", owner.to_string())]
    InUse {
        /// Which image.
        reference: String,
        /// The owner of one of its leases.
        owner: LeaseOwner,
    },
    /// A registry's configuration is wrong.
    #[error("registry {host}: {problem}")]
    Configuration {
        /// The registry as configured.
        host: String,
        /// What is wrong with it and what would be right.
        problem: String,
    },
}

impl StoreError {
    /// Wraps an I/O error with its context; made for `map_err`.
    pub(crate) fn io<E: Into<io::Error>>(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |error| StoreError::Io { action, path, source: SharedIo::from(error.into()) }
    }

    /// Whether the file system ran out of space, inodes or quota.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, StoreError::Io { source, .. } if source.is_disk_full())
    }
}

/// An [`io::Error`] that can be told to several callers.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct SharedIo(std::sync::Arc<io::Error>);

impl SharedIo {
    /// Whether the file system ran out of space, inodes or quota.
    pub fn is_disk_full(&self) -> bool {
        matches!(self.0.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

impl From<io::Error> for SharedIo {
    fn from(error: io::Error) -> Self {
        Self(std::sync::Arc::new(error))
    }
}

/// Why an image could not be made ready.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The registry could not be reached or the connection broke for good.
    #[error("{host}: {what}: {problem}")]
    Network {
        /// The host that was talked to.
        host: String,
        /// What was asked for.
        what: String,
        /// What happened.
        problem: String,
    },
    /// The registry answered with a status that is neither success nor one of the cases below.
    #[error("{host}: {what}: HTTP status {status}{detail}")]
    Status {
        /// The host that answered.
        host: String,
        /// What was asked for.
        what: String,
        /// The status code.
        status: u16,
        /// What the registry added, led by ": ", or nothing.
        detail: String,
    },
    /// The registry does not have it.
    #[error("{host}: {what} not found{detail}")]
    NotFound {
        /// The host that answered.
        host: String,
        /// What was asked for.
        what: String,
        /// What the registry added, led by ": ", or nothing.
        detail: String,
    },
    /// The registry refuses it to these credentials, or to anonymous callers.
    #[error("{host}: {what}: access denied {}{detail}", if *anonymous { "without credentials; configure auth for this registry, and check the name" } else { "with the given credentials" })]
    Denied {
        /// The host that answered.
        host: String,
        /// What was asked for.
        what: String,
        /// Whether no credentials were sent.
        anonymous: bool,
        /// What the registry added, led by ": ", or nothing.
        detail: String,
    },
    /// A source of credentials that should have answered failed.
    #[error("credentials from {origin}: {problem}; repair it, or set auth_soft_fail to go on without")]
    Credentials {
        /// Which file or helper.
        origin: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The image is here, but came with credentials, and the registry does not agree that this caller may have it.
    #[error(
        "it is on this node, but was pulled with credentials, so the task must be allowed to pull it itself (plugin option verify_access): {reason}"
    )]
    Access {
        /// What the registry said, or why it could not be asked.
        reason: Box<PullError>,
    },
    /// The whole pull took longer than the caller allowed.
    #[error("pulling {reference} did not finish within {limit:?}")]
    Timeout {
        /// Which image.
        reference: String,
        /// The caller's limit.
        limit: Duration,
    },
    /// Whoever asked for it wants it no more.
    #[error("the pull was given up")]
    GivenUp,
    /// Nothing arrived for too long.
    #[error("{host}: {what}: nothing arrived for {limit:?}")]
    Inactive {
        /// The silent host.
        host: String,
        /// What was asked for.
        what: String,
        /// The caller's limit.
        limit: Duration,
    },
    /// More than there may be.
    #[error("{what} exceeds the limit of {limit}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// The limit, with its unit.
        limit: String,
    },
    /// Content does not hash to what it was asked by.
    #[error("{what}: digest mismatch: expected {expected}, got {actual}")]
    DigestMismatch {
        /// What was hashed.
        what: String,
        /// What the image says.
        expected: Digest,
        /// What arrived.
        actual: Digest,
    },
    /// A manifest, index, config or token is not what its kind requires.
    #[error("{what}: {problem}")]
    Malformed {
        /// Which document.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// Well-formed, but nothing that can be run here.
    #[error("{what}: {problem}")]
    Unsupported {
        /// Which document.
        what: String,
        /// What it is, and what would do.
        problem: String,
    },
    /// An index without a manifest for this machine.
    #[error("{reference}: no image for platform {wanted}; the index offers {offered}")]
    NoPlatform {
        /// Which image.
        reference: String,
        /// This machine's platform.
        wanted: String,
        /// What there is.
        offered: String,
    },
    /// A layer that cannot or must not be unpacked.
    #[error("layer {layer}: {problem}")]
    Layer {
        /// The layer's blob.
        layer: Digest,
        /// The entry and what is wrong with it.
        problem: String,
    },
    /// No space, no inodes, or no quota left.
    #[error("no space left for the image: {problem}; free space in the data directory")]
    DiskFull {
        /// Where and what.
        problem: String,
        /// How many bytes are missing at least, if that was found out before anything was written.
        missing: Option<u64>,
    },
    /// The store's own files failed.
    #[error("image store: {0}")]
    Store(StoreError),
}

impl PullError {
    /// Whether trying again later can help without anybody changing the job or the image.
    pub fn recoverable(&self) -> bool {
        match self {
            PullError::Network { .. }
            | PullError::Timeout { .. }
            | PullError::Inactive { .. }
            | PullError::DiskFull { .. } => true,
            PullError::Access { reason } => reason.recoverable(),
            PullError::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            PullError::Store(StoreError::Io { .. }) => true,
            PullError::Store(_)
            | PullError::NotFound { .. }
            | PullError::Denied { .. }
            | PullError::Credentials { .. }
            | PullError::TooLarge { .. }
            | PullError::DigestMismatch { .. }
            | PullError::Malformed { .. }
            | PullError::Unsupported { .. }
            | PullError::NoPlatform { .. }
            | PullError::GivenUp
            | PullError::Layer { .. } => false,
        }
    }

    pub(crate) fn malformed(what: impl Into<String>, problem: impl ToString) -> Self {
        PullError::Malformed { what: what.into(), problem: problem.to_string() }
    }
}

impl From<StoreError> for PullError {
    fn from(error: StoreError) -> Self {
        if error.is_disk_full() {
            PullError::DiskFull { problem: error.to_string(), missing: None }
        } else {
            PullError::Store(error)
        }
    }
}
