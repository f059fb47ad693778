//! The hosts to ask for an image, their order, and the credentials for each.
//!
//! Mirrors come before the registry itself. The credentials of a caller go only to the registry that the image names. A
//! mirror gets only the credentials that are configured for it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    auth::AuthCache,
    config::{InternalRedirects, RegistryConfig},
    host::Host,
    session::Session,
    traffic::HostTraffic,
};
use crate::{credentials::Credentials, error::StoreError, limits::Limits, progress::Progress, reference::Reference};

/// The caller of a registry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller<'a> {
    /// The image that it asks for.
    pub(crate) reference: &'a Reference,
    /// Its own credentials.
    pub(crate) credentials: Option<&'a Credentials>,
    /// How long it waits without receiving a byte.
    pub(crate) idle_timeout: Duration,
}

/// The configured registries, and the hosts that were used so far.
pub(crate) struct Endpoints {
    configured: HashMap<String, RegistryConfig>,
    /// For hosts without a configuration.
    internal_redirects: InternalRedirects,
    hosts: Mutex<HashMap<String, Arc<Host>>>,
    cache: Arc<AuthCache>,
}

impl Endpoints {
    /// Checks the configuration. Contacts no host.
    pub(crate) fn new(
        registries: Vec<RegistryConfig>,
        internal_redirects: InternalRedirects,
    ) -> Result<Endpoints, StoreError> {
        let mut configured = HashMap::new();
        for registry in registries {
            let wrong =
                |problem: &str| StoreError::Configuration { host: registry.host.clone(), problem: problem.to_owned() };
            Host::new(registry.clone())?;
            for mirror in &registry.mirrors {
                Host::new(RegistryConfig { host: mirror.clone(), ..Default::default() })?;
            }
            if registry.username.is_some() != registry.password.is_some() {
                return Err(wrong("username and password must be given together"));
            }
            if configured.contains_key(&registry.host) {
                return Err(wrong("it is configured twice"));
            }
            configured.insert(registry.host.clone(), registry);
        }
        Ok(Endpoints { configured, internal_redirects, hosts: Mutex::default(), cache: Arc::default() })
    }

    fn host(&self, name: &str) -> Result<Arc<Host>, StoreError> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.get(name) {
            return Ok(Arc::clone(host));
        }
        let config = self.configured.get(name).cloned();
        let config = config.unwrap_or_else(|| RegistryConfig {
            host: name.to_owned(),
            internal_redirects: self.internal_redirects,
            ..Default::default()
        });
        let host = Host::new(config)?;
        hosts.insert(name.to_owned(), Arc::clone(&host));
        Ok(host)
    }

    /// The traffic with each host that was used so far.
    pub(crate) fn traffic(&self) -> Vec<(String, HostTraffic)> {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.iter().map(|(name, host)| (name.clone(), host.traffic().so_far())).collect()
    }

    fn configured_credentials(&self, host: &str) -> Option<Credentials> {
        let config = self.configured.get(host)?;
        Some(Credentials { username: config.username.clone()?, password: config.password.clone()? })
    }

    /// The credentials for the registry itself: those of the caller, otherwise the configured ones.
    pub(crate) fn credentials(&self, caller: Caller<'_>) -> Option<Credentials> {
        caller.credentials.cloned().or_else(|| self.configured_credentials(caller.reference.domain()))
    }

    /// A session for each host to ask, in order. The registry itself is always the last one.
    pub(crate) fn sessions(
        &self,
        caller: Caller<'_>,
        limits: &Limits,
        progress: &Arc<dyn Progress>,
    ) -> Result<Vec<Session>, StoreError> {
        let domain = caller.reference.domain();
        let session = |host: &str, namespace: Option<&str>, credentials| -> Result<Session, StoreError> {
            Ok(Session {
                host: self.host(host)?,
                repository: caller.reference.repository().to_owned(),
                actions: "pull",
                namespace: namespace.map(str::to_owned),
                credentials,
                cache: Arc::clone(&self.cache),
                limits: limits.clone(),
                idle_timeout: caller.idle_timeout,
                progress: Arc::clone(progress),
            })
        };
        let mirrors = self.configured.get(domain).map(|config| config.mirrors.as_slice()).unwrap_or_default();
        let mut sessions = Vec::new();
        for mirror in mirrors {
            sessions.push(session(mirror, Some(domain), self.configured_credentials(mirror))?);
        }
        sessions.push(session(domain, None, self.credentials(caller))?);
        Ok(sessions)
    }

    /// A session that may upload. Mirrors get no uploads.
    pub(crate) fn upload_session(
        &self,
        caller: Caller<'_>,
        limits: &Limits,
        progress: &Arc<dyn Progress>,
    ) -> Result<Option<Session>, StoreError> {
        let own = self.sessions(caller, limits, progress)?.pop();
        Ok(own.map(|own| Session { actions: "pull,push", ..own }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    fn config(host: &str, user: Option<&str>, mirrors: &[&str]) -> RegistryConfig {
        RegistryConfig {
            host: host.into(),
            username: user.map(str::to_owned),
            password: user.map(|_| "p".into()),
            mirrors: mirrors.iter().map(|mirror| (*mirror).to_owned()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn credentials_stay_with_their_host() {
        let registries = vec![
            config("docker.io", Some("hub"), &["mirror.example", "open.example"]),
            config("mirror.example", Some("mirror"), &[]),
        ];
        let endpoints = Endpoints::new(registries, InternalRedirects::default()).unwrap();
        let reference = "nginx".parse().unwrap();
        let users = |credentials: Option<&Credentials>| -> Vec<Option<String>> {
            let caller = Caller { reference: &reference, credentials, idle_timeout: Duration::from_secs(1) };
            let silent: Arc<dyn Progress> = Arc::new(Silent);
            let sessions = endpoints.sessions(caller, &Limits::default(), &silent).unwrap();
            sessions.into_iter().map(|session| session.credentials.map(|c| c.username)).collect()
        };
        assert_eq!(users(None), [Some("mirror".into()), None, Some("hub".into())]);
        let own = Credentials { username: "job".into(), password: "x".into() };
        assert_eq!(users(Some(&own)), [Some("mirror".into()), None, Some("job".into())]);
    }

    #[test]
    fn configuration_errors_are_reported_at_the_opening() {
        let half = RegistryConfig { host: "a.example".into(), username: Some("u".into()), ..Default::default() };
        for bad in [
            vec![half],
            vec![config("a", None, &[]), config("a", None, &[])],
            vec![config("a/b", None, &[])],
            vec![config("a", None, &["x y"])],
        ] {
            assert!(Endpoints::new(bad, InternalRedirects::default()).is_err());
        }
    }
}
