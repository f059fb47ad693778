//! Which hosts to ask for an image, in which order, and as whom.
//!
//! Mirrors come before the registry itself. Credentials that a caller gives are for the registry that the image names and go
//! nowhere else; a mirror is only ever sent what is configured for it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Session, auth::AuthCache, transport::Host};
use crate::{
    config::{Credentials, Limits, PullRequest, RegistryConfig},
    error::StoreError,
};

/// All configured registries, and those that were met on the way.
pub(crate) struct Endpoints {
    configured: HashMap<String, RegistryConfig>,
    hosts: Mutex<HashMap<String, Arc<Host>>>,
    cache: Arc<AuthCache>,
}

impl Endpoints {
    /// Checks the configuration; nothing is contacted.
    pub(crate) fn new(registries: Vec<RegistryConfig>) -> Result<Endpoints, StoreError> {
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
        Ok(Endpoints { configured, hosts: Mutex::default(), cache: Arc::default() })
    }

    fn host(&self, name: &str) -> Result<Arc<Host>, StoreError> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.get(name) {
            return Ok(Arc::clone(host));
        }
        let config = self.configured.get(name).cloned();
        let config = config.unwrap_or_else(|| RegistryConfig { host: name.to_owned(), ..Default::default() });
        let host = Host::new(config)?;
        hosts.insert(name.to_owned(), Arc::clone(&host));
        Ok(host)
    }

    fn configured_credentials(&self, host: &str) -> Option<Credentials> {
        let config = self.configured.get(host)?;
        Some(Credentials { username: config.username.clone()?, password: config.password.clone()? })
    }

    /// Whom a request goes out as: the caller's own word, else what is configured.
    pub(crate) fn credentials(&self, request: &PullRequest) -> Option<Credentials> {
        request.credentials.clone().or_else(|| self.configured_credentials(request.reference.domain()))
    }

    /// Everyone to ask, best first; the registry itself comes last and is always there.
    pub(crate) fn sessions(&self, request: &PullRequest, limits: &Limits) -> Result<Vec<Session>, StoreError> {
        let domain = request.reference.domain();
        let session = |host: &str, namespace: Option<&str>, credentials| -> Result<Session, StoreError> {
            Ok(Session {
                host: self.host(host)?,
                repository: request.reference.repository().to_owned(),
                namespace: namespace.map(str::to_owned),
                credentials,
                cache: Arc::clone(&self.cache),
                limits: limits.clone(),
                inactivity: request.inactivity,
            })
        };
        let mirrors = self.configured.get(domain).map(|config| config.mirrors.as_slice()).unwrap_or_default();
        let mut sessions = Vec::new();
        for mirror in mirrors {
            sessions.push(session(mirror, Some(domain), self.configured_credentials(mirror))?);
        }
        sessions.push(session(domain, None, self.credentials(request))?);
        Ok(sessions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let endpoints = Endpoints::new(vec![
            config("docker.io", Some("hub"), &["mirror.example", "open.example"]),
            config("mirror.example", Some("mirror"), &[]),
        ])
        .unwrap();
        let mut request = PullRequest::new("nginx".parse().unwrap());
        let users = |request: &PullRequest| -> Vec<Option<String>> {
            let sessions = endpoints.sessions(request, &Limits::default()).unwrap();
            sessions.into_iter().map(|session| session.credentials.map(|c| c.username)).collect()
        };
        assert_eq!(users(&request), [Some("mirror".into()), None, Some("hub".into())]);
        request.credentials = Some(Credentials { username: "job".into(), password: "x".into() });
        assert_eq!(users(&request), [Some("mirror".into()), None, Some("job".into())]);
    }

    #[test]
    fn mistakes_are_told_when_opening() {
        let half = RegistryConfig { host: "a.example".into(), username: Some("u".into()), ..Default::default() };
        for bad in [
            vec![half],
            vec![config("a", None, &[]), config("a", None, &[])],
            vec![config("a/b", None, &[])],
            vec![config("a", None, &["x y"])],
        ] {
            assert!(Endpoints::new(bad).is_err());
        }
    }
}
