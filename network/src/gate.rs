//! How many networks are worked on at once.
//!
//! Each one is some processes of some megabytes each, so many tasks at once must not mean many times that. And what plugins share on
//! the host (a bridge, chains of rules) is made by whoever comes first: some of them fail when two come first.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lets some in at once, or one alone.
#[derive(Debug)]
pub(crate) struct Gate {
    width: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    inside: usize,
    alone: bool,
    /// Those who want to be alone: nobody comes in before them.
    waiting: usize,
}

/// Being inside.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    gate: &'a Gate,
}

impl Gate {
    pub fn new(width: usize) -> Self {
        Self { width: width.max(1), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for a place beside others.
    pub fn enter(&self) -> Turn<'_> {
        let full = |state: &mut State| state.alone || state.waiting > 0 || state.inside >= self.width;
        let mut state = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        state.inside += 1;
        Turn { gate: self }
    }

    /// Waits until nobody else is inside.
    pub fn enter_alone(&self) -> Turn<'_> {
        let mut state = self.lock();
        state.waiting += 1;
        let occupied = |state: &mut State| state.inside > 0;
        let mut state = self.changed.wait_while(state, occupied).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state.inside += 1;
        state.alone = true;
        Turn { gate: self }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.inside -= 1;
        state.alone = false;
        drop(state);
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use super::Gate;

    #[test]
    fn never_more_than_the_width_and_nobody_beside_one_who_is_alone() {
        const WIDTH: usize = 3;
        let gate = Gate::new(WIDTH);
        let inside = AtomicUsize::new(0);
        thread::scope(|scope| {
            for number in 0..24 {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let alone = number % 6 == 0;
                        let turn = if alone { gate.enter_alone() } else { gate.enter() };
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(now <= if alone { 1 } else { WIDTH }, "{now} inside");
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        drop(gate.enter_alone());
    }
}
