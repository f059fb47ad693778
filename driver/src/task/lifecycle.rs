//! What may happen to a task, and what follows: a pure function of the task's phase and one event.
//!
//! ```text
//!             Started                    Ended
//!  Starting ───────────▶ Running ─────────────────────▶ Exited ──▶ (destroyed)
//!     │  ▲ Stop: cancel     │ Stop: signal, arm grace      ▲
//!     │  └──────────────────┤                              │ Ended
//!     │ StartFailed         ▼          GraceOver: kill all │
//!     ▼                  Stopping ─────────────────────────┘
//!  (forgotten)
//! ```
//!
//! No clock, no lock and no system call here: the owner of a task (`task::owner`) carries the actions out. Ending is only
//! ever learned from the container itself, never assumed because a signal was sent.

use std::time::Duration;

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Its image is being fetched or its container made.
    Starting {
        /// Somebody asked for its end meanwhile.
        cancelled: bool,
    },
    /// Its command runs.
    Running,
    /// It was told to end and has not yet.
    Stopping {
        /// Everything in it was killed; all that is left is to hear of the end.
        killed: bool,
    },
    /// It ended; the exit status is kept until the task is destroyed.
    Exited,
    /// Gone, with nothing left on the host.
    Destroyed,
}

/// What happens to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its command was executed.
    Started,
    /// It could not be started; the start has undone itself.
    StartFailed,
    /// The container ended, for whatever reason.
    Ended,
    /// End it: a signal, then after the grace a kill.
    Stop {
        /// Number of the signal.
        signal: i32,
        /// Time between the signal and the kill; zero kills at once.
        grace: Duration,
    },
    /// The grace of a stop has passed.
    GraceOver,
    /// Send a signal.
    Signal(i32),
    /// Remove everything of it from the host.
    Destroy {
        /// Also when it still runs.
        force: bool,
    },
}

/// What the owner is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Give the start up as soon as it can be.
    CancelStart,
    /// Send this signal to the command.
    Signal(i32),
    /// Come back with [`Event::GraceOver`] after this time.
    ArmGrace(Duration),
    /// Kill every process of the container.
    KillAll,
    /// Remove the container and release its image.
    Remove,
}

/// Why an event is refused. The task is untouched then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The task does not run yet.
    #[error("task is still starting")]
    StillStarting,
    /// The task runs no more.
    #[error("task is not running")]
    NotRunning,
    /// The task must be stopped first.
    #[error("task is still running: stop it first, or destroy it with force")]
    StillRunning,
}

/// Decides what follows from an event.
pub fn decide(phase: Phase, event: Event) -> Result<(Phase, Vec<Action>), Refusal> {
    use Action::{ArmGrace, CancelStart, KillAll, Remove};
    use Phase::{Destroyed, Exited, Running, Starting, Stopping};

    match (phase, event) {
        // The start's own results.
        (Starting { cancelled: false }, Event::Started) => Ok((Running, vec![])),
        (Starting { cancelled: true }, Event::Started) => Ok((Stopping { killed: true }, vec![KillAll])),
        (Starting { .. }, Event::StartFailed) => Ok((Destroyed, vec![])),
        (phase, Event::Started | Event::StartFailed) => Ok((phase, vec![])),

        // The container's end.
        (Running | Stopping { .. }, Event::Ended) => Ok((Exited, vec![])),
        (phase, Event::Ended) => Ok((phase, vec![])),

        // Stop: idempotent, and a later one with less patience wins.
        (Starting { .. }, Event::Stop { .. }) => Ok((Starting { cancelled: true }, vec![CancelStart])),
        (Running | Stopping { killed: false }, Event::Stop { grace: Duration::ZERO, .. }) => {
            Ok((Stopping { killed: true }, vec![KillAll]))
        }
        (Running | Stopping { killed: false }, Event::Stop { signal, grace }) => {
            Ok((Stopping { killed: false }, vec![Action::Signal(signal), ArmGrace(grace)]))
        }
        (Stopping { killed: true } | Exited | Destroyed, Event::Stop { .. }) => Ok((phase, vec![])),
        (Stopping { killed: false }, Event::GraceOver) => Ok((Stopping { killed: true }, vec![KillAll])),
        (phase, Event::GraceOver) => Ok((phase, vec![])),

        (Running | Stopping { .. }, Event::Signal(signal)) => Ok((phase, vec![Action::Signal(signal)])),
        (Starting { .. }, Event::Signal(_)) => Err(Refusal::StillStarting),
        (Exited | Destroyed, Event::Signal(_)) => Err(Refusal::NotRunning),

        (Exited, Event::Destroy { .. }) => Ok((Destroyed, vec![Remove])),
        (Running | Stopping { .. }, Event::Destroy { force: true }) => Ok((Destroyed, vec![KillAll, Remove])),
        (Starting { .. }, Event::Destroy { force: true }) => Ok((Starting { cancelled: true }, vec![CancelStart])),
        (Starting { .. } | Running | Stopping { .. }, Event::Destroy { force: false }) => Err(Refusal::StillRunning),
        (Destroyed, Event::Destroy { .. }) => Ok((Destroyed, vec![])),
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{Action, Event, Phase, Refusal, decide};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_stop_signals_waits_and_kills() {
        let (phase, actions) = decide(Phase::Running, Event::Stop { signal: 15, grace: SECOND }).unwrap();
        assert_eq!(phase, Phase::Stopping { killed: false });
        assert_eq!(actions, [Action::Signal(15), Action::ArmGrace(SECOND)]);
        let (phase, actions) = decide(phase, Event::GraceOver).unwrap();
        assert_eq!((phase, actions), (Phase::Stopping { killed: true }, vec![Action::KillAll]));
        assert_eq!(decide(phase, Event::Ended).unwrap(), (Phase::Exited, vec![]));
    }

    #[test]
    fn a_stop_without_grace_kills_at_once() {
        let (phase, actions) = decide(Phase::Running, Event::Stop { signal: 15, grace: Duration::ZERO }).unwrap();
        assert_eq!((phase, actions), (Phase::Stopping { killed: true }, vec![Action::KillAll]));
    }

    #[test]
    fn a_start_that_was_cancelled_ends_in_a_kill() {
        let (phase, actions) =
            decide(Phase::Starting { cancelled: false }, Event::Stop { signal: 15, grace: SECOND }).unwrap();
        assert_eq!(actions, [Action::CancelStart]);
        let (phase, actions) = decide(phase, Event::Started).unwrap();
        assert_eq!((phase, actions), (Phase::Stopping { killed: true }, vec![Action::KillAll]));
    }

    #[test]
    fn refusals_name_the_reason() {
        assert_eq!(decide(Phase::Running, Event::Destroy { force: false }), Err(Refusal::StillRunning));
        assert_eq!(decide(Phase::Exited, Event::Signal(1)), Err(Refusal::NotRunning));
        assert_eq!(decide(Phase::Starting { cancelled: false }, Event::Signal(1)), Err(Refusal::StillStarting));
    }

    /// A second, independent account of a task: what exists on the host, by the actions alone.
    #[derive(Debug, Default)]
    struct Host {
        container_exists: bool,
        alive: bool,
        removed: bool,
        kills: u32,
    }

    impl Host {
        fn carry_out(&mut self, actions: &[Action]) {
            for action in actions {
                match action {
                    Action::KillAll => {
                        assert!(self.container_exists, "killed what does not exist");
                        self.kills += 1;
                        self.alive = false;
                    }
                    Action::Remove => {
                        assert!(self.container_exists && !self.alive, "removed a living container");
                        assert!(!self.removed, "removed twice");
                        self.removed = true;
                    }
                    Action::Signal(_) => assert!(self.container_exists && !self.removed, "signalled nothing"),
                    Action::ArmGrace(grace) => assert!(!grace.is_zero()),
                    Action::CancelStart => assert!(!self.container_exists, "cancelled a finished start"),
                }
            }
        }
    }

    fn events() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Started),
            Just(Event::StartFailed),
            Just(Event::Ended),
            Just(Event::Stop { signal: 15, grace: SECOND }),
            Just(Event::Stop { signal: 15, grace: Duration::ZERO }),
            Just(Event::GraceOver),
            Just(Event::Signal(1)),
            Just(Event::Destroy { force: true }),
            Just(Event::Destroy { force: false }),
        ]
    }

    proptest! {
        #[test]
        fn any_order_of_events_leaves_the_host_consistent(sequence in prop::collection::vec(events(), 0..40)) {
            let mut phase = Phase::Starting { cancelled: false };
            let mut host = Host::default();
            for event in sequence {
                // The kernel's part: a container starts once and ends once.
                match event {
                    Event::Started | Event::StartFailed if host.container_exists || phase == Phase::Destroyed => continue,
                    Event::Started => { host.container_exists = true; host.alive = true; }
                    Event::Ended if !host.container_exists || phase == Phase::Destroyed => continue,
                    Event::Ended => host.alive = false,
                    _ => {}
                }
                let Ok((next, actions)) = decide(phase, event) else { continue };
                host.carry_out(&actions);
                phase = next;
                prop_assert_eq!(phase == Phase::Destroyed && host.container_exists, host.removed);
                if phase == Phase::Exited { prop_assert!(!host.alive); }
            }
        }
    }
}
