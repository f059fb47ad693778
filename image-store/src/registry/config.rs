//! The configuration of one registry.

use std::path::PathBuf;

use crate::credentials::Secret;

/// How to reach one registry.
#[derive(Debug, Clone, Default)]
pub struct RegistryConfig {
    /// The registry as in image references: `docker.io`, `registry.example:5000`.
    pub host: String,
    /// Use plain HTTP. Loopback addresses always use it, unless `ca_file`, `cert_file` or `insecure_skip_verify` is
    /// set.
    pub plain_http: bool,
    /// PEM file of certificate authorities to trust in addition to those of the system.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client certificate, and of the chain to its authority.
    pub cert_file: Option<PathBuf>,
    /// PEM file of the key of the client certificate.
    pub key_file: Option<PathBuf>,
    /// Headers of every request to this host. No other host gets them.
    pub headers: Vec<(String, Secret)>,
    /// Hosts to try first, in this order.
    pub mirrors: Vec<String>,
    /// User name at this registry.
    pub username: Option<String>,
    /// Password or token at this registry.
    pub password: Option<Secret>,
    /// Accept any certificate from this host. The targets of redirects to other hosts are verified.
    pub insecure_skip_verify: bool,
    /// The internal addresses on which redirects and token servers may be.
    pub internal_redirects: InternalRedirects,
}

/// The internal addresses (loopback, link-local, private) that a registry may name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum InternalRedirects {
    /// Private ones if the registry has a private or loopback address, loopback ones if it has one of these.
    #[default]
    OfRegistry,
    /// In addition all loopback and private ones. Link-local ones remain refused: cloud providers serve a machine's
    /// credentials there.
    ExceptLinkLocal,
    /// All.
    All,
}

impl RegistryConfig {
    /// Whether an option is set that makes sense only for TLS.
    pub(super) fn wants_tls(&self) -> bool {
        self.ca_file.is_some() || self.cert_file.is_some() || self.insecure_skip_verify
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_secrets() {
        let config = RegistryConfig { password: Some("hunter2".into()), ..Default::default() };
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
