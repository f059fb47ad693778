//! Access grants by registry and credentials, with their expiry.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use layer::Digest;

use super::resolve_cache::Requester;

/// The grants that registries gave a short time ago. A grant belongs to a name, to credentials and to one content.
#[derive(Default)]
pub(super) struct AccessGrants(Mutex<HashMap<(Requester, Digest), Instant>>);

impl AccessGrants {
    /// Whether the requester has a valid grant for this content.
    pub(super) fn includes(&self, requester: &Requester, content: &Digest) -> bool {
        let grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        grants.get(&(requester.clone(), content.clone())).is_some_and(|until| *until > Instant::now())
    }

    pub(super) fn add(&self, requester: Requester, content: Digest, until: Instant) {
        let mut grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        grants.retain(|_, until| *until > now);
        grants.insert((requester, content), until);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_grant_ends_and_belongs_to_one_content() {
        let [a, b] = ["a", "b"].map(|text| Digest::sha256(text.as_bytes()));
        let requester: Requester = ("r.example/a".parse().unwrap(), None);
        let grants = AccessGrants::default();
        grants.add(requester.clone(), a.clone(), Instant::now() + Duration::from_secs(60));
        grants.add(requester.clone(), b.clone(), Instant::now());
        assert!(grants.includes(&requester, &a) && !grants.includes(&requester, &b));
    }
}
