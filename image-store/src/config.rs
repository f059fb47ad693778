//! What the store and a pull are told: directories, limits, registries, credentials.
//!
//! A [`Secret`] never shows in `Debug` output, and errors never carry one.

use std::{fmt, path::PathBuf, time::Duration};

use crate::{reference::Reference, store::Retention};

/// Where a store lives and what it may do.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The store's directory; made with mode 0700.
    pub root: PathBuf,
    /// Ceilings against hostile or broken registries and images.
    pub limits: Limits,
    /// Registries that need more than their name.
    pub registries: Vec<RegistryConfig>,
    /// Where to look for credentials when a task brings none.
    pub credentials: CredentialSources,
    /// Give an image that came with credentials only to those who may pull it themselves.
    pub verify_access: bool,
    /// What a pull that has no room may remove before it tries once more: images that no lease holds, by the same policy that
    /// [`crate::Store::retain`] is given. `None`: nothing.
    pub retention: Option<Retention>,
    /// What new layers become.
    pub layers: LayerFormat,
}

/// How a layer's files lie on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LayerFormat {
    /// As files in a directory, on any kernel. Images are not used: this kernel may not be able to mount them.
    #[default]
    Directory,
    /// As one file with an EROFS file system in it, but for layers of very many files. For kernels that mount such a file, and an overlay
    /// over a mount that is attached nowhere (Linux 6.15); the store does not look.
    Erofs,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            root: PathBuf::new(),
            limits: Limits::default(),
            registries: Vec::new(),
            credentials: CredentialSources::default(),
            verify_access: true,
            retention: None,
            layers: LayerFormat::default(),
        }
    }
}

/// Where credentials come from that nobody wrote into a job, best first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialSources {
    /// A `config.json` of docker's.
    pub config_file: Option<PathBuf>,
    /// The name of a credential helper: the program is `docker-credential-<name>`.
    pub helper: Option<String>,
}

/// How to reach one registry.
#[derive(Debug, Clone, Default)]
pub struct RegistryConfig {
    /// The registry as it stands in image references: `docker.io`, `registry.example:5000`.
    pub host: String,
    /// Talk plain HTTP. Loopback addresses do so without being told, unless there is a `ca_file` or
    /// `insecure_skip_verify` for them.
    pub plain_http: bool,
    /// PEM file of certificate authorities to trust beside the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the certificate that we show this registry, and of the chain to its authority.
    pub cert_file: Option<PathBuf>,
    /// PEM file of that certificate's key.
    pub key_file: Option<PathBuf>,
    /// Headers to send with every request to this host, and to no other.
    pub headers: Vec<(String, Secret)>,
    /// Hosts to try first, in this order.
    pub mirrors: Vec<String>,
    /// User name for this registry.
    pub username: Option<String>,
    /// Password or token for this registry.
    pub password: Option<Secret>,
    /// Accept any certificate from this host. Redirects elsewhere are verified all the same.
    pub insecure_skip_verify: bool,
}

impl RegistryConfig {
    /// Whether what is configured makes sense for TLS only.
    pub(crate) fn wants_tls(&self) -> bool {
        self.ca_file.is_some() || self.cert_file.is_some() || self.insecure_skip_verify
    }
}

/// A string that must not be shown.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself, for the one place that sends it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(secret: T) -> Self {
        Self::new(secret)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

/// Who asks a registry. The user name `<token>` marks the password as an identity (refresh) token, which a token server exchanges;
/// `<registrytoken>` as a token that the registry itself takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub username: String,
    /// The password or token.
    pub password: Secret,
}

/// One wish for an image.
#[derive(Debug, Clone)]
pub struct PullRequest {
    /// Which image.
    pub reference: Reference,
    /// As whom; without them the store's sources are asked, then the registry's configured credentials are used, then none.
    pub credentials: Option<Credentials>,
    /// Go on without the credentials of a file or a helper that fails.
    pub soft_fail: bool,
    /// Ask the registry even if the image is here. The tag `latest` always asks, a digest never needs to.
    pub force: bool,
    /// Ceiling for the whole pull.
    pub timeout: Option<Duration>,
    /// How long a registry may send nothing.
    pub inactivity: Duration,
}

impl PullRequest {
    /// A request with nothing special about it.
    pub fn new(reference: Reference) -> Self {
        Self {
            reference,
            credentials: None,
            soft_fail: false,
            force: false,
            timeout: None,
            inactivity: Duration::from_secs(120),
        }
    }
}

/// Ceilings. The defaults fit any image that people run on purpose.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a manifest, index or config.
    pub document_bytes: u64,
    /// Bytes of a token server's answer.
    pub token_bytes: u64,
    /// Layers of an image, as the kernel stacks at most 500 directories.
    pub layers: usize,
    /// Unpacked bytes of one layer, holes of sparse files included.
    pub layer_bytes: u64,
    /// Unpacked bytes may be this many times the compressed ones …
    pub ratio: u64,
    /// … after so many bytes.
    pub ratio_grace: u64,
    /// Entries of one layer.
    pub entries: u64,
    /// Bytes of one extended attribute.
    pub xattr_bytes: usize,
    /// Bytes of all extended attributes of one file.
    pub xattr_total_bytes: usize,
    /// Memory for what is kept until a layer's end: names and attributes of directories, names of whiteouts.
    pub kept_bytes: usize,
    /// Memory that a zstd layer may ask for to be unpacked: its window, rounded down to a power of two, 2 GiB at most.
    pub zstd_window: u64,
    /// Bytes that must stay free on the store's file system.
    pub free_bytes: u64,
    /// Layers that one pull fetches at once.
    pub parallel_per_pull: usize,
    /// Layers that the whole store fetches at once.
    pub parallel: usize,
    /// How often a request is tried, and how often in a row a body may break without progress.
    pub attempts: u32,
    /// The first pause between tries; doubles each time.
    pub retry_pause: Duration,
}

impl Limits {
    /// The part that concerns the unpacking of one layer.
    pub(crate) fn of_a_layer(&self) -> layer::Limits {
        layer::Limits {
            layer_bytes: self.layer_bytes,
            ratio: self.ratio,
            ratio_grace: self.ratio_grace,
            entries: self.entries,
            xattr_bytes: self.xattr_bytes,
            xattr_total_bytes: self.xattr_total_bytes,
            kept_bytes: self.kept_bytes,
            zstd_window: self.zstd_window,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let layer::Limits {
            layer_bytes,
            ratio,
            ratio_grace,
            entries,
            xattr_bytes,
            xattr_total_bytes,
            kept_bytes,
            zstd_window,
        } = layer::Limits::default();
        Self {
            document_bytes: 4 << 20,
            token_bytes: 1 << 20,
            layers: 500,
            layer_bytes,
            ratio,
            ratio_grace,
            entries,
            xattr_bytes,
            xattr_total_bytes,
            kept_bytes,
            zstd_window,
            free_bytes: 64 << 20,
            parallel_per_pull: 6,
            parallel: 12,
            attempts: 5,
            retry_pause: Duration::from_millis(500),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_secrets() {
        let credentials = Credentials { username: "joe".into(), password: "hunter2".into() };
        let config = RegistryConfig { password: Some("hunter2".into()), ..Default::default() };
        assert!(!format!("{credentials:?} {config:?}").contains("hunter2"));
    }
}
