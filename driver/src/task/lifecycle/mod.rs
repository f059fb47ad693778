//! The life of a task as a pure state machine: state and event to next state and actions.
//!
//! ```text
//!             Started                    Ended
//!  Starting ───────────▶ Running ─────────────────────▶ Exited ──▶ Destroyed
//!     │  ▲ Stop: cancel     │ Stop: signal, arm grace      ▲
//!     │  └──────────────────┤                              │ Ended
//!     │ StartFailed         ▼          GraceOver: kill all │
//!     ▼                  Stopping ─────────────────────────┘
//!  Destroyed
//! ```
//!
//! Three rules hold beside the diagram:
//! - A task is `Exited` only after its container reported its end. A sent signal or kill proves nothing.
//! - A task that the agent will not destroy (its start was cancelled, or its removal failed) is removed by the owner.
//! - A removal that failed is repeated.
//!
//! This module uses no clock, no lock and no system call. The owner (`task::owner`) carries the actions out.

use std::time::Duration;

use crate::error::Refusal;

/// The phase of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The image is being pulled or the container is being created.
    Starting {
        /// The agent has asked for the task's end meanwhile.
        cancelled: bool,
    },
    /// The command runs.
    Running,
    /// The task was told to end and has not ended yet.
    Stopping {
        /// All processes were killed; the container's end is awaited.
        killed: bool,
    },
    /// The task has ended. Its exit status is kept until the task is destroyed.
    Exited,
    /// Nothing of the task is left on the host.
    Destroyed,
}

/// An event in a task's life: a call of the agent, a timer, or a report about the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The command was executed.
    Started,
    /// The start failed and has undone itself.
    StartFailed,
    /// The container ended, for any reason.
    Ended,
    /// End the task: a signal, then a kill after the grace.
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
    /// Remove everything of the task from the host.
    Destroy {
        /// Also a task that still runs.
        force: bool,
    },
}

impl Event {
    /// The owner's own removal of a task, as a follow-up or a repetition.
    pub const REMOVE: Self = Self::Destroy { force: true };
}

/// One step of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Cancel the start as soon as possible.
    CancelStart,
    /// Send the pending answer to the caller of StartTask, if there is one.
    AnswerStart,
    /// Turn the pending answer of StartTask into "cancelled". It leaves when the task is destroyed.
    WithholdStartAnswer,
    /// Send this signal to the command.
    Signal(i32),
    /// Raise [`Event::GraceOver`] after this time.
    ArmGrace(Duration),
    /// Kill every process of the container.
    KillAll,
    /// Remove the container and release its image.
    Remove,
    /// Raise [`Event::REMOVE`] after a pause.
    ArmRemovalRetry,
    /// Publish the error of the failed kill: the callers that wait for the task's end receive it.
    PublishKillError,
    /// Clear the published error of an earlier kill.
    ClearKillError,
}

/// The time of the answer to the event's caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyTime {
    /// As soon as the actions are carried out.
    Now,
    /// When the task is destroyed.
    WhenDestroyed,
}

/// The state of a task that decides what an event leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifecycle {
    /// The task's phase.
    pub phase: Phase,
    /// The owner removes the task itself after its end, because the agent will not destroy it: the start was
    /// cancelled after the container had been created, or a removal failed, which an agent does not repeat.
    pub remove_after_end: bool,
}

/// The consequences of an event.
#[derive(Debug, PartialEq, Eq)]
pub struct Decision {
    /// The state after all actions succeeded.
    pub next: Lifecycle,
    /// The owner's steps, in this order.
    pub actions: Vec<Action>,
    /// The time of the caller's answer.
    pub reply: ReplyTime,
    /// The event that follows immediately, after `next` has been reached.
    pub follow_up: Option<Event>,
}

impl Lifecycle {
    /// A task in this phase that the agent is going to destroy.
    pub fn new(phase: Phase) -> Self {
        Self { phase, remove_after_end: false }
    }

    /// Decides the consequences of an event. A refusal changes nothing.
    pub fn decide(self, event: Event) -> Result<Decision, Refusal> {
        let (phase, actions) = transition(self.phase, event)?;
        let cancelled_too_late = self.phase == (Phase::Starting { cancelled: true }) && event == Event::Started;
        let next = Self { phase, remove_after_end: self.remove_after_end || cancelled_too_late };
        let ended = event == Event::Ended && phase == Phase::Exited && self.phase != Phase::Exited;
        Ok(Decision {
            next,
            actions,
            reply: if matches!(event, Event::Destroy { .. }) { ReplyTime::WhenDestroyed } else { ReplyTime::Now },
            follow_up: (ended && next.remove_after_end).then_some(Event::REMOVE),
        })
    }

    /// Decides the consequences of an action that failed while an event was carried out. The remaining actions of
    /// that event are dropped. The new actions cannot fail.
    pub fn after_failure(self, event: Event) -> (Self, Vec<Action>) {
        // The task's end may never come, so a withheld answer of StartTask leaves now.
        let mut actions = vec![Action::AnswerStart];
        let next = match event {
            Event::Destroy { .. } => {
                actions.push(Action::ArmRemovalRetry);
                Self { remove_after_end: true, ..self }
            }
            // The start was cancelled, and the kill of the new container failed.
            Event::Started => Self { phase: Phase::Stopping { killed: false }, remove_after_end: true },
            Event::GraceOver => {
                actions.push(Action::PublishKillError);
                self
            }
            Event::StartFailed | Event::Ended | Event::Stop { .. } | Event::Signal(_) => self,
        };
        (next, actions)
    }
}

fn transition(phase: Phase, event: Event) -> Result<(Phase, Vec<Action>), Refusal> {
    use Action::{AnswerStart, ArmGrace, CancelStart, ClearKillError, KillAll, Remove, WithholdStartAnswer};
    use Phase::{Destroyed, Exited, Running, Starting, Stopping};

    match (phase, event) {
        // The results of the start.
        (Starting { cancelled: false }, Event::Started) => Ok((Running, vec![AnswerStart])),
        (Starting { cancelled: true }, Event::Started) => {
            Ok((Stopping { killed: true }, vec![WithholdStartAnswer, KillAll]))
        }
        (Starting { .. }, Event::StartFailed) => Ok((Destroyed, vec![])),
        (phase, Event::Started | Event::StartFailed) => Ok((phase, vec![])),

        // The container's end.
        (Running | Stopping { .. }, Event::Ended) => Ok((Exited, vec![])),
        (phase, Event::Ended) => Ok((phase, vec![])),

        // Stop is idempotent. A later stop with a shorter grace replaces an earlier one.
        (Starting { .. }, Event::Stop { .. }) => Ok((Starting { cancelled: true }, vec![ClearKillError, CancelStart])),
        (Running | Stopping { killed: false }, Event::Stop { grace: Duration::ZERO, .. }) => {
            Ok((Stopping { killed: true }, vec![ClearKillError, KillAll]))
        }
        (Running | Stopping { killed: false }, Event::Stop { signal, grace }) => {
            Ok((Stopping { killed: false }, vec![ClearKillError, Action::Signal(signal), ArmGrace(grace)]))
        }
        (Stopping { killed: true } | Exited | Destroyed, Event::Stop { .. }) => Ok((phase, vec![ClearKillError])),
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
mod tests;
