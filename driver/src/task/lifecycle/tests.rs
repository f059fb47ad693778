//! Examples, and the effects of the actions on a simulated host.

use std::time::Duration;

use proptest::prelude::*;

use super::{Action, Decision, Event, Lifecycle, Phase, ReplyTime};
use crate::error::Refusal;

const SECOND: Duration = Duration::from_secs(1);

/// The next phase and the actions of an event for a task that the agent is going to destroy.
fn decide(phase: Phase, event: Event) -> Result<(Phase, Vec<Action>), Refusal> {
    Lifecycle::new(phase).decide(event).map(|decision| (decision.next.phase, decision.actions))
}

#[test]
fn a_stop_signals_waits_and_kills() {
    let (phase, actions) = decide(Phase::Running, Event::Stop { signal: 15, grace: SECOND }).unwrap();
    assert_eq!(phase, Phase::Stopping { killed: false });
    assert_eq!(actions, [Action::ClearKillError, Action::Signal(15), Action::ArmGrace(SECOND)]);
    let (phase, actions) = decide(phase, Event::GraceOver).unwrap();
    assert_eq!((phase, actions), (Phase::Stopping { killed: true }, vec![Action::KillAll]));
    assert_eq!(decide(phase, Event::Ended).unwrap(), (Phase::Exited, vec![]));
}

#[test]
fn a_stop_without_grace_kills_at_once() {
    let (phase, actions) = decide(Phase::Running, Event::Stop { signal: 15, grace: Duration::ZERO }).unwrap();
    assert_eq!((phase, actions), (Phase::Stopping { killed: true }, vec![Action::ClearKillError, Action::KillAll]));
}

#[test]
fn a_start_that_succeeds_is_answered_at_once() {
    let started = decide(Phase::Starting { cancelled: false }, Event::Started);
    assert_eq!(started, Ok((Phase::Running, vec![Action::AnswerStart])));
}

#[test]
fn a_start_that_was_cancelled_ends_in_a_kill_and_a_removal() {
    let task = Lifecycle::new(Phase::Starting { cancelled: false });
    let stopped = task.decide(Event::Stop { signal: 15, grace: SECOND }).unwrap();
    assert_eq!(stopped.actions, [Action::ClearKillError, Action::CancelStart]);
    let started = stopped.next.decide(Event::Started).unwrap();
    assert_eq!(started.next.phase, Phase::Stopping { killed: true });
    assert_eq!(started.actions, [Action::WithholdStartAnswer, Action::KillAll]);
    let ended = started.next.decide(Event::Ended).unwrap();
    assert_eq!(ended.follow_up, Some(Event::REMOVE), "the agent has no handle and will not ask");
    let removed = ended.next.decide(Event::REMOVE).unwrap();
    assert_eq!((removed.next.phase, removed.actions), (Phase::Destroyed, vec![Action::Remove]));
}

#[test]
fn an_end_that_the_agent_knows_of_is_not_followed_by_a_removal() {
    let ended = Lifecycle::new(Phase::Running).decide(Event::Ended).unwrap();
    let next = Lifecycle::new(Phase::Exited);
    assert_eq!(ended, Decision { next, actions: vec![], reply: ReplyTime::Now, follow_up: None });
}

#[test]
fn a_destroy_is_answered_when_the_task_is_destroyed() {
    for phase in [Phase::Exited, Phase::Running, Phase::Starting { cancelled: false }] {
        let decision = Lifecycle::new(phase).decide(Event::Destroy { force: true }).unwrap();
        assert_eq!(decision.reply, ReplyTime::WhenDestroyed, "{phase:?}");
    }
}

#[test]
fn a_removal_that_failed_is_repeated_and_follows_the_end() {
    let task = Lifecycle::new(Phase::Running);
    let (task, actions) = task.after_failure(Event::REMOVE);
    assert_eq!(actions, [Action::AnswerStart, Action::ArmRemovalRetry]);
    assert_eq!(task, Lifecycle { phase: Phase::Running, remove_after_end: true });
    assert_eq!(task.decide(Event::Ended).unwrap().follow_up, Some(Event::REMOVE));
}

#[test]
fn a_kill_that_failed_is_published_after_a_grace_and_repeated_by_a_stop() {
    let stopping = Lifecycle::new(Phase::Stopping { killed: false });
    let (task, actions) = stopping.after_failure(Event::GraceOver);
    assert_eq!((task, actions), (stopping, vec![Action::AnswerStart, Action::PublishKillError]));
    let again = task.decide(Event::Stop { signal: 15, grace: Duration::ZERO }).unwrap();
    assert_eq!(again.actions, [Action::ClearKillError, Action::KillAll]);
}

#[test]
fn a_cancelled_start_after_a_failed_kill_is_stopping_and_answered() {
    let cancelled = Lifecycle::new(Phase::Starting { cancelled: true });
    let (task, actions) = cancelled.after_failure(Event::Started);
    assert_eq!(task, Lifecycle { phase: Phase::Stopping { killed: false }, remove_after_end: true });
    assert_eq!(actions, [Action::AnswerStart]);
}

#[test]
fn refusals_name_the_reason() {
    assert_eq!(decide(Phase::Running, Event::Destroy { force: false }), Err(Refusal::StillRunning));
    assert_eq!(decide(Phase::Exited, Event::Signal(1)), Err(Refusal::NotRunning));
    assert_eq!(decide(Phase::Starting { cancelled: false }, Event::Signal(1)), Err(Refusal::StillStarting));
}

/// The host as the actions leave it.
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
                    assert!(self.container_exists, "killed a container that does not exist");
                    self.kills += 1;
                    self.alive = false;
                }
                Action::Remove => {
                    assert!(self.container_exists && !self.alive, "removed a living container");
                    assert!(!self.removed, "removed twice");
                    self.removed = true;
                }
                Action::Signal(_) => assert!(self.container_exists && !self.removed, "signalled no container"),
                Action::ArmGrace(grace) => assert!(!grace.is_zero()),
                Action::CancelStart => assert!(!self.container_exists, "cancelled a finished start"),
                Action::AnswerStart | Action::WithholdStartAnswer => assert!(self.container_exists),
                Action::ClearKillError => {}
                Action::ArmRemovalRetry | Action::PublishKillError => unreachable!("only after a failure"),
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
