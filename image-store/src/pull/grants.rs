//! Access grants by registry and credentials, with their expiry, and refusals.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use layer::Digest;

use super::resolve_cache::Requester;

/// A name with credentials, and one content of the name.
pub(super) type Content = (Requester, Digest);

/// The answers that registries gave a short time ago. Each belongs to a name, to credentials and to one content.
#[derive(Default)]
pub(super) struct AccessGrants(Mutex<Answers>);

#[derive(Default)]
struct Answers {
    granted: HashMap<Content, Instant>,
    refused: HashSet<Content>,
}

impl AccessGrants {
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the requester has a valid grant for this content.
    pub(super) fn includes(&self, requester: &Requester, content: &Digest) -> bool {
        let answers = self.lock();
        answers.granted.get(&(requester.clone(), content.clone())).is_some_and(|until| *until > Instant::now())
    }

    /// Whether the last answer was a refusal.
    pub(super) fn is_refused(&self, requester: &Requester, content: &Digest) -> bool {
        self.lock().refused.contains(&(requester.clone(), content.clone()))
    }

    /// Records a grant. It ends a refusal.
    pub(super) fn add(&self, content: Content, until: Instant) {
        let mut answers = self.lock();
        let now = Instant::now();
        answers.granted.retain(|_, until| *until > now);
        answers.refused.remove(&content);
        answers.granted.insert(content, until);
    }

    /// Records a grant without an answer. A late answer that came meanwhile counts more.
    pub(super) fn add_grace(&self, content: Content, until: Instant) {
        let mut answers = self.lock();
        if !answers.refused.contains(&content) {
            let granted = answers.granted.entry(content).or_insert(until);
            *granted = until.max(*granted);
        }
    }

    /// Records a refusal. It ends a grant.
    pub(super) fn refuse(&self, content: Content) {
        let mut answers = self.lock();
        answers.granted.remove(&content);
        answers.refused.insert(content);
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
        let later = || Instant::now() + Duration::from_secs(60);
        grants.add((requester.clone(), a.clone()), later());
        grants.add((requester.clone(), b.clone()), Instant::now());
        assert!(grants.includes(&requester, &a) && !grants.includes(&requester, &b));
        grants.refuse((requester.clone(), a.clone()));
        grants.add_grace((requester.clone(), a.clone()), later());
        assert!(!grants.includes(&requester, &a) && grants.is_refused(&requester, &a));
        grants.add((requester.clone(), a.clone()), later());
        assert!(grants.includes(&requester, &a) && !grants.is_refused(&requester, &a));
    }
}
