//! A limit on how many networks are worked on at the same time.
//!
//! Each one means several processes of several megabytes, so many tasks at once must not mean many times that memory.
//! What containers share on the host (a bridge, chains of rules) is created by the first call of the plugins. Some
//! plugins fail when two of them create it at the same time, so that call has to run alone.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A semaphore with an exclusive mode: one holder can take all permits.
#[derive(Debug)]
pub(crate) struct Semaphore {
    permits: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How many permits are held.
    held: usize,
    /// The one permit that is held is exclusive.
    exclusive: bool,
    /// How many calls of `acquire_exclusive` wait. They go before calls of `acquire`.
    waiting_exclusive: usize,
}

/// A permit of a [`Semaphore`]. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    semaphore: &'a Semaphore,
}

impl Semaphore {
    /// A semaphore with this number of permits, at least one.
    pub fn new(permits: usize) -> Self {
        Self { permits: permits.max(1), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for a permit.
    pub fn acquire(&self) -> Permit<'_> {
        let full = |state: &mut State| state.exclusive || state.waiting_exclusive > 0 || state.held >= self.permits;
        let mut state = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        state.held += 1;
        Permit { semaphore: self }
    }

    /// Waits until no permit is held, and takes all of them.
    pub fn acquire_exclusive(&self) -> Permit<'_> {
        let mut state = self.lock();
        state.waiting_exclusive += 1;
        let occupied = |state: &mut State| state.held > 0;
        let mut state = self.changed.wait_while(state, occupied).unwrap_or_else(PoisonError::into_inner);
        state.waiting_exclusive -= 1;
        state.held += 1;
        state.exclusive = true;
        Permit { semaphore: self }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.semaphore.lock();
        state.held -= 1;
        state.exclusive = false;
        drop(state);
        self.semaphore.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use super::Semaphore;

    #[test]
    fn no_more_than_all_permits_are_held_and_an_exclusive_one_is_the_only_one() {
        const PERMITS: usize = 3;
        let semaphore = Semaphore::new(PERMITS);
        let holders = AtomicUsize::new(0);
        thread::scope(|scope| {
            for number in 0..24 {
                let (semaphore, holders) = (&semaphore, &holders);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let exclusive = number % 6 == 0;
                        let permit = if exclusive { semaphore.acquire_exclusive() } else { semaphore.acquire() };
                        let held = holders.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(held <= if exclusive { 1 } else { PERMITS }, "{held} permits");
                        thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        drop(semaphore.acquire_exclusive());
    }
}
