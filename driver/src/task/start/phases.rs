//! The durations of a start's phases.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::metrics::StartPhase;

/// One phase that has ended, well or not.
#[derive(Debug, Clone, Copy)]
pub struct PhaseTime {
    /// The phase.
    pub phase: StartPhase,
    /// The time from the beginning of the start to that of the phase.
    pub after: Duration,
    /// Its duration.
    pub elapsed: Duration,
}

/// The phases of a start so far.
#[derive(Debug)]
pub struct PhaseTimes {
    began: Instant,
    ended: Mutex<Vec<PhaseTime>>,
}

impl PhaseTimes {
    /// A start that began at this time.
    pub fn since(began: Instant) -> Self {
        Self { began, ended: Mutex::default() }
    }

    /// Does the work of a phase.
    pub async fn time<T>(&self, phase: StartPhase, work: impl Future<Output = T>) -> T {
        let after = self.began.elapsed();
        let done = work.await;
        let elapsed = self.began.elapsed().saturating_sub(after);
        self.lock().push(PhaseTime { phase, after, elapsed });
        done
    }

    /// The phases that have ended.
    pub fn ended(&self) -> Vec<PhaseTime> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<PhaseTime>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
