//! Singleflight: one lock per key inside this process.
//!
//! The holder of a key's lock does the work. The waiters get the lock one after the other and find the work done. A
//! failure is not shared: the next waiter does the work with its own credentials and its own timeout.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// The lock of one key. The value inside passes from one holder to the next.
pub(crate) type KeyLock<V> = Arc<tokio::sync::Mutex<V>>;

/// The locks of all keys that have a holder or a waiter.
pub(crate) struct Singleflight<K, V = ()>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<V>>>>);

impl<K, V> Default for Singleflight<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq, V: Default> Singleflight<K, V> {
    /// The lock of a key. All callers that keep it at the same time get the same one.
    pub(crate) fn get(&self, key: K) -> KeyLock<V> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(&key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = KeyLock::default();
        locks.insert(key, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_lock_for_as_long_as_it_is_kept() {
        let locks = Singleflight::<&str, u8>::default();
        let first = locks.get("a");
        *first.try_lock().unwrap() = 7;
        assert!(Arc::ptr_eq(&first, &locks.get("a")) && !Arc::ptr_eq(&first, &locks.get("b")));
        drop(first);
        assert_eq!(*locks.get("a").try_lock().unwrap(), 0);
    }
}
