//! Whether a registry and its mirrors answer, and accept the credentials that a pull would send.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::{
    blocking::interrupted,
    credentials::{self, CredentialSources},
    error::PullError,
    limits::Limits,
    progress::{Progress, Silent},
    reference::Reference,
    registry::{Caller, Endpoints, Session},
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

/// Asks the registry and its mirrors, each once and all at the same time. Each may be silent for `silence`. A host that
/// has not answered after `limit` has failed.
pub(crate) async fn ask(
    endpoints: &Endpoints,
    sources: &CredentialSources,
    registry: &str,
    silence: Duration,
    limit: Duration,
) -> Result<Vec<RegistryAnswer>, PullError> {
    let deadline = Instant::now() + limit;
    let wrong = |error| PullError::malformed(registry.to_owned(), error);
    // Only the host of the name is asked.
    let reference: Reference = format!("{registry}/oci-rs/doctor").parse().map_err(wrong)?;
    let found = timeout_at(deadline, credentials::find(sources, &reference, false)).await;
    let found = found.unwrap_or_else(|_| {
        let origin = format!("the sources for {registry}");
        Err(PullError::Credentials { origin, problem: format!("no answer within {limit:?}") })
    })?;
    let caller = Caller { reference: &reference, credentials: found.as_ref(), idle_timeout: silence };
    let limits = Limits { attempts: 1, ..Limits::default() };
    let silent: Arc<dyn Progress> = Arc::new(Silent);
    let mut asked = Vec::new();
    for session in endpoints.sessions(caller, &limits, &silent)? {
        let registry = registry.to_owned();
        asked.push(tokio::spawn(async move {
            RegistryAnswer {
                host: session.host.name().to_owned(),
                mirror_of: session.namespace.is_some().then_some(registry),
                with_credentials: session.credentials.is_some(),
                answer: answer(&session, deadline, limit).await,
            }
        }));
    }
    let mut answers = Vec::new();
    for task in asked {
        answers.push(task.await.map_err(|_| interrupted())?);
    }
    Ok(answers)
}

/// The answer of one host. A host that sends a byte now and then is never silent, so there is a deadline.
async fn answer(session: &Session, deadline: Instant, limit: Duration) -> Result<(), PullError> {
    let answer = timeout_at(deadline, session.ping()).await;
    answer.unwrap_or_else(|_| {
        let (host, what) = (session.host.name().to_owned(), "its interface (/v2/)".to_owned());
        Err(PullError::Network { host, what, problem: format!("no complete answer within {limit:?}") })
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use fixtures::registry::Registry;

    use super::*;
    use crate::registry::{InternalRedirects, RegistryConfig, install_tls_provider};

    #[tokio::test]
    async fn a_mirror_without_an_answer_delays_no_other_host() {
        install_tls_provider();
        let registry = Registry::start();
        // The kernel accepts the connections, and no process reads from them.
        let deaf: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mirrors: Vec<String> = deaf.iter().map(|mirror| mirror.local_addr().unwrap().to_string()).collect();
        let config = RegistryConfig { host: registry.host(), mirrors: mirrors.clone(), ..RegistryConfig::default() };
        let endpoints = Endpoints::new(vec![config], InternalRedirects::default()).unwrap();
        let (silence, limit) = (Duration::from_secs(1000), Duration::from_secs(3));
        let sources = CredentialSources::default();
        let mut answers = ask(&endpoints, &sources, &registry.host(), silence, limit).await.unwrap();
        let own = answers.pop().unwrap();
        assert!(own.answer.is_ok() && own.mirror_of.is_none(), "{own:?}");
        let hosts: Vec<&str> = answers.iter().map(|answer| answer.host.as_str()).collect();
        assert_eq!(hosts, mirrors);
        for RegistryAnswer { mirror_of, answer, .. } in &answers {
            let problem = answer.as_ref().unwrap_err().to_string();
            assert!(problem.ends_with("no complete answer within 3s"), "{problem}");
            assert_eq!(mirror_of.as_ref(), Some(&registry.host()));
        }
    }
}
