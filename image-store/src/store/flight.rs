//! One lock per key, inside this process, while anybody wants it.
//!
//! Whoever holds it does the work, the others find it done. A failure is nobody else's: the next one tries with its own
//! credentials and its own patience.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// A lock in memory, with what those who hold it in turn tell each other.
pub(super) type Flight<V> = Arc<tokio::sync::Mutex<V>>;

/// The locks that somebody wants.
pub(super) struct Flights<K, V = ()>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<V>>>>);

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq, V: Default> Flights<K, V> {
    pub(super) fn get(&self, key: K) -> Flight<V> {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.strong_count() > 0);
        if let Some(flight) = flights.get(&key).and_then(Weak::upgrade) {
            return flight;
        }
        let flight = Flight::default();
        flights.insert(key, Arc::downgrade(&flight));
        flight
    }
}
