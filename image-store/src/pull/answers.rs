//! Whether a registry and its mirrors answer, and accept the credentials that a pull would send.

use std::{sync::Arc, time::Duration};

use crate::{
    credentials::{self, CredentialSources},
    error::PullError,
    limits::Limits,
    progress::{Progress, Silent},
    reference::Reference,
    registry::{Caller, Endpoints},
};

/// The answer of one host.
#[derive(Debug)]
pub struct RegistryAnswer {
    /// The host.
    pub host: String,
    /// It is a mirror of this registry.
    pub mirror_of: Option<String>,
    /// Credentials were sent.
    pub with_credentials: bool,
    /// Success, or why a pull would fail.
    pub answer: Result<(), PullError>,
}

/// Asks the registry and its mirrors, each once.
pub(crate) async fn ask(
    endpoints: &Endpoints,
    sources: &CredentialSources,
    registry: &str,
    limit: Duration,
) -> Result<Vec<RegistryAnswer>, PullError> {
    let wrong = |error| PullError::malformed(registry.to_owned(), error);
    // Only the host of the name is asked.
    let reference: Reference = format!("{registry}/oci-rs/doctor").parse().map_err(wrong)?;
    let found = credentials::find(sources, &reference, false).await?;
    let caller = Caller { reference: &reference, credentials: found.as_ref(), idle_timeout: limit };
    let limits = Limits { attempts: 1, ..Limits::default() };
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    let mut answers = Vec::new();
    for session in endpoints.sessions(caller, &limits, &silent)? {
        let host = session.host.name().to_owned();
        answers.push(RegistryAnswer {
            mirror_of: session.namespace.is_some().then(|| registry.to_owned()),
            with_credentials: session.credentials.is_some(),
            answer: session.ping().await,
            host,
        });
    }
    Ok(answers)
}
