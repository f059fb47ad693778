//! The errors of the crate, grouped by what the caller can do about them.
//!
//! [`PullError::recoverable`] tells whether a later attempt can help. Texts name the image, host, layer or file. They
//! never contain a secret: errors carry no credentials, and URLs appear without their query.

use std::{io, path::PathBuf, time::Duration};

use layer::Digest;

use crate::lease::LeaseOwner;

/// A failure of the store's own files.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A file operation failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The attempted action, as a participle: "opening".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: SharedIo,
    },
    /// Another version wrote the store on disk.
    #[error(
        "the image store {} has format {found:?}, this version reads {expected:?}; \
         move it away or use the version that wrote it",
        path.display()
    )]
    Version {
        /// The store.
        path: PathBuf,
        /// The format on disk.
        found: String,
        /// The format that this build knows.
        expected: &'static str,
    },
    /// The kernel cannot verify the blocks of layers (fs-verity), although it shall.
    #[error(
        "fs_verity: layers in {} cannot be protected: {problem}; use Linux 6.15 with data_dir on btrfs, or on ext4 \
         with the feature `verity` (tune2fs -O verity), or remove the option",
        path.display()
    )]
    Unprotected {
        /// The store.
        path: PathBuf,
        /// The reason.
        problem: &'static str,
    },
    /// A lease holds the image.
    #[error("image {reference} is in use by {:?}", owner.to_string())]
    InUse {
        /// The image.
        reference: String,
        /// The owner of one of its leases.
        owner: LeaseOwner,
    },
    /// The configuration of a registry is wrong.
    #[error("registry {host}: {problem}")]
    Configuration {
        /// The registry as configured.
        host: String,
        /// What is wrong, and what is expected.
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

/// An [`io::Error`] that can be cloned.
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

/// Why a pull or a load failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The registry could not be reached, or the connection broke too often.
    #[error("{host}: {what}: {problem}")]
    Network {
        /// The host.
        host: String,
        /// The requested content.
        what: String,
        /// The problem.
        problem: String,
    },
    /// The registry answered with a failure status other than the cases below.
    #[error("{host}: {what}: HTTP status {status}{detail}")]
    Status {
        /// The host that answered.
        host: String,
        /// The requested content.
        what: String,
        /// The status code.
        status: u16,
        /// The message of the registry after ": ", or nothing.
        detail: String,
    },
    /// The registry does not have the requested content.
    #[error("{host}: {what} not found{detail}")]
    NotFound {
        /// The host that answered.
        host: String,
        /// The requested content.
        what: String,
        /// The message of the registry after ": ", or nothing.
        detail: String,
    },
    /// The registry denies access to these credentials, or to anonymous callers.
    #[error("{host}: {what}: {}{detail}", denied(*anonymous))]
    Denied {
        /// The host that answered.
        host: String,
        /// The requested content.
        what: String,
        /// Whether no credentials were sent.
        anonymous: bool,
        /// The message of the registry after ": ", or nothing.
        detail: String,
    },
    /// A source of credentials failed.
    #[error("credentials from {origin}: {problem}; repair it, or set auth_soft_fail to go on without")]
    Credentials {
        /// The file or helper.
        origin: String,
        /// What is wrong.
        problem: String,
    },
    /// The image is on disk but was pulled with credentials, and the registry did not confirm that this caller may have
    /// it.
    #[error(
        "it is on this node, but was pulled with credentials, so the task must be allowed to pull it itself \
         (plugin option verify_access): {reason}"
    )]
    Access {
        /// The answer of the registry, or why it could not be asked.
        reason: Box<PullError>,
    },
    /// The whole pull took longer than the caller allowed.
    #[error("pulling {reference} did not finish within {limit:?}")]
    Timeout {
        /// The image.
        reference: String,
        /// The limit of the caller.
        limit: Duration,
    },
    /// The caller cancelled the pull.
    #[error("the pull was cancelled")]
    Cancelled,
    /// No bytes were received for the idle timeout.
    #[error("{host}: {what}: nothing arrived for {limit:?}")]
    IdleTimeout {
        /// The host.
        host: String,
        /// The requested content.
        what: String,
        /// The limit of the caller.
        limit: Duration,
    },
    /// A limit is exceeded.
    #[error("{what} exceeds the limit of {limit}")]
    TooLarge {
        /// The value that is too large.
        what: String,
        /// The limit, with its unit.
        limit: String,
    },
    /// Content does not hash to its digest.
    #[error("{what}: digest mismatch: expected {expected}, got {actual}")]
    DigestMismatch {
        /// The hashed content.
        what: String,
        /// The digest in the image.
        expected: Digest,
        /// The digest of the received bytes.
        actual: Digest,
    },
    /// A manifest, index, config or token does not follow its format.
    #[error("{what}: {problem}")]
    Malformed {
        /// The document.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A well-formed document that cannot be used here.
    #[error("{what}: {problem}")]
    Unsupported {
        /// The document.
        what: String,
        /// What it is, and what is expected.
        problem: String,
    },
    /// An index without a manifest for this machine.
    #[error("{reference}: no image for platform {wanted}; the index offers {offered}")]
    NoPlatform {
        /// The image.
        reference: String,
        /// The platform of this machine.
        wanted: String,
        /// The platforms in the index.
        offered: String,
    },
    /// A layer cannot be unpacked, or must not be.
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
        /// The file and the problem.
        problem: String,
        /// The least number of missing bytes, if the lack was found before the first write.
        missing: Option<u64>,
    },
    /// The store's own files failed.
    #[error("image store: {0}")]
    Store(StoreError),
}

fn denied(anonymous: bool) -> &'static str {
    match anonymous {
        true => "access denied without credentials; configure auth for this registry, and check the name",
        false => "access denied with the given credentials",
    }
}

impl PullError {
    /// Whether a later attempt can help without a change of the job or the image.
    pub fn recoverable(&self) -> bool {
        match self {
            PullError::Network { .. }
            | PullError::Timeout { .. }
            | PullError::IdleTimeout { .. }
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
            | PullError::Cancelled
            | PullError::Layer { .. } => false,
        }
    }

    /// Whether the content itself was refused, so that another form of the image may do where this one cannot.
    ///
    /// `false` for every failure of the network, of access and of this node: another form would fail too, after the
    /// same traffic.
    pub(crate) fn refuses_content(&self) -> bool {
        match self {
            PullError::Layer { .. }
            | PullError::DigestMismatch { .. }
            | PullError::Malformed { .. }
            | PullError::Unsupported { .. }
            | PullError::TooLarge { .. }
            | PullError::NotFound { .. } => true,
            PullError::Network { .. }
            | PullError::Timeout { .. }
            | PullError::IdleTimeout { .. }
            | PullError::DiskFull { .. }
            | PullError::Status { .. }
            | PullError::Store(_)
            | PullError::Denied { .. }
            | PullError::Access { .. }
            | PullError::Credentials { .. }
            | PullError::NoPlatform { .. }
            | PullError::Cancelled => false,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refused_content_is_replaced_by_another_form_of_the_image() {
        let text = || "x".to_owned();
        let digest = || Digest::sha256(b"x");
        let (host, what, problem, detail) = (text, text, text, text);
        let limit = Duration::from_secs(1);
        let io = || StoreError::io("opening", "/x")(io::Error::from(io::ErrorKind::PermissionDenied));
        let status = |status| PullError::Status { host: host(), what: what(), status, detail: detail() };
        let refused = [
            PullError::Layer { layer: digest(), problem: problem() },
            PullError::DigestMismatch { what: what(), expected: digest(), actual: Digest::sha256(b"y") },
            PullError::malformed("x", "y"),
            PullError::Unsupported { what: what(), problem: problem() },
            PullError::TooLarge { what: what(), limit: text() },
            PullError::NotFound { host: host(), what: what(), detail: detail() },
        ];
        let others = [
            PullError::Network { host: host(), what: what(), problem: problem() },
            PullError::Timeout { reference: text(), limit },
            PullError::IdleTimeout { host: host(), what: what(), limit },
            PullError::Denied { host: host(), what: what(), anonymous: true, detail: detail() },
            PullError::Access {
                reason: Box::new(PullError::NotFound { host: host(), what: what(), detail: detail() }),
            },
            PullError::Credentials { origin: text(), problem: problem() },
            PullError::NoPlatform { reference: text(), wanted: text(), offered: text() },
            PullError::DiskFull { problem: problem(), missing: None },
            PullError::Store(io()),
            PullError::Cancelled,
            status(403),
            status(429),
            status(503),
        ];
        for error in refused {
            assert!(error.refuses_content() && !error.recoverable(), "{error}");
        }
        for error in others {
            assert!(!error.refuses_content(), "{error}");
        }
    }
}
