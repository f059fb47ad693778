//! Resolved names, shared by callers that ask for the same name at the same time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use layer::Digest;

use super::resolved::Resolved;
use crate::{
    credentials::Credentials,
    reference::Reference,
    registry::auth,
    singleflight::{KeyLock, Singleflight},
};

/// How long a resolved name is kept for callers that asked while it was being resolved.
const LIFETIME: Duration = Duration::from_secs(60);

/// A name and the fingerprint of the caller's credentials. Two callers share the answer of a registry only if both are
/// equal.
pub(super) type Requester = (Reference, Option<Digest>);

/// The requester of a name.
pub(super) fn requester(reference: &Reference, credentials: Option<&Credentials>) -> Requester {
    (reference.clone(), credentials.map(auth::fingerprint))
}

/// The resolved names of the last minute, and one lock per name.
#[derive(Default)]
pub(super) struct ResolveCache {
    locks: Singleflight<Requester>,
    resolved: Mutex<HashMap<Requester, (Instant, Arc<Resolved>)>>,
}

impl ResolveCache {
    /// The lock for questions to the registry about one name.
    pub(super) fn lock(&self, requester: &Requester) -> KeyLock<()> {
        self.locks.get(requester.clone())
    }

    /// The meaning of a name, if it was resolved after `since`.
    pub(super) fn get(&self, requester: &Requester, since: Instant) -> Option<Arc<Resolved>> {
        let resolved = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        resolved.get(requester).filter(|(at, _)| *at >= since).map(|(_, resolved)| Arc::clone(resolved))
    }

    pub(super) fn put(&self, requester: Requester, resolved: &Arc<Resolved>) {
        let mut known = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (at, _)| at.elapsed() < LIFETIME);
        known.insert(requester, (Instant::now(), Arc::clone(resolved)));
    }
}
