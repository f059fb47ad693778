//! Credentials and the configuration of their sources.
//!
//! A [`Secret`] never appears in `Debug` output, and no error contains one.

use std::{fmt, path::PathBuf};

/// The user name that marks an identity (refresh) token.
pub(crate) const IDENTITY_TOKEN_USER: &str = "<token>";
/// The user name that marks a token for the registry itself.
pub(crate) const REGISTRY_TOKEN_USER: &str = "<registrytoken>";

/// Where credentials come from if a job contains none. Looked up in this order; the first match is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialSources {
    /// A `config.json` of docker.
    pub config_file: Option<PathBuf>,
    /// The name of a credential helper. The program is `docker-credential-<name>`.
    pub helper: Option<String>,
}

/// The credentials of a caller at a registry.
///
/// The user name `<token>` marks the password as an identity (refresh) token, which a token server exchanges. The user
/// name `<registrytoken>` marks it as a token that the registry itself accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user name.
    pub username: String,
    /// The password or token.
    pub password: Secret,
}

/// A string that must not be shown.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself. Only for sending and hashing it.
    pub fn expose(&self) -> &str {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_secrets() {
        let credentials = Credentials { username: "joe".into(), password: "hunter2".into() };
        assert!(!format!("{credentials:?}").contains("hunter2"));
    }
}
