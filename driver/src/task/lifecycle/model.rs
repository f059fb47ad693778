//! A second account of a task's life, written from the needs of Nomad and the kernel and not from the state machine.
//!
//! It consists of flags that are only ever raised, and of the effects that they allow each event. For any order of
//! events and failures, both accounts must agree.

use std::time::Duration;

use proptest::prelude::*;

use super::{Action, Decision, Event, Lifecycle, Phase, ReplyTime};
use crate::error::Refusal;

/// The past of a task.
#[derive(Debug, Clone, Default)]
struct Life {
    /// The command was executed.
    born: bool,
    /// The start was cancelled.
    unwanted: bool,
    /// The task was told to end.
    told: bool,
    /// All processes were killed.
    killed: bool,
    /// The container has ended.
    ended: bool,
    /// Nothing of the task is left, or ever was.
    gone: bool,
    /// The agent will not destroy the task.
    abandoned: bool,
}

impl Life {
    /// The task has a process.
    fn runs(&self) -> bool {
        self.born && !self.ended && !self.gone
    }

    fn phase(&self) -> Phase {
        match (self.gone, self.ended, self.born, self.told) {
            (true, ..) => Phase::Destroyed,
            (_, true, ..) => Phase::Exited,
            (_, _, false, _) => Phase::Starting { cancelled: self.unwanted },
            (_, _, _, true) => Phase::Stopping { killed: self.killed },
            _ => Phase::Running,
        }
    }

    fn lifecycle(&self) -> Lifecycle {
        Lifecycle { phase: self.phase(), remove_after_end: self.abandoned }
    }

    fn kill(&mut self) -> Vec<Action> {
        self.told = true;
        self.killed = true;
        vec![Action::KillAll]
    }

    fn give_up(&mut self) -> Vec<Action> {
        self.unwanted = true;
        vec![Action::CancelStart]
    }

    fn stop(&mut self, signal: i32, grace: Duration) -> Vec<Action> {
        match () {
            () if !self.born && !self.gone => self.give_up(),
            () if !self.runs() || self.killed => Vec::new(),
            () if grace == Duration::ZERO => self.kill(),
            () => {
                self.told = true;
                vec![Action::Signal(signal), Action::ArmGrace(grace)]
            }
        }
    }

    /// The actions of an event and the event that follows it, when all actions succeed.
    fn hear(&mut self, event: Event) -> Result<(Vec<Action>, Option<Event>), Refusal> {
        let actions = match event {
            Event::Started if self.born || self.gone => Vec::new(),
            Event::Started => {
                self.born = true;
                self.abandoned |= self.unwanted;
                if self.unwanted {
                    [vec![Action::WithholdStartAnswer], self.kill()].concat()
                } else {
                    vec![Action::AnswerStart]
                }
            }
            Event::StartFailed => {
                self.gone |= !self.born;
                Vec::new()
            }
            Event::Ended => {
                let follow_up = (self.runs() && self.abandoned).then_some(Event::Destroy { force: true });
                self.ended |= self.runs();
                return Ok((Vec::new(), follow_up));
            }
            Event::Stop { signal, grace } => [vec![Action::ClearKillError], self.stop(signal, grace)].concat(),
            Event::GraceOver if self.runs() && self.told && !self.killed => self.kill(),
            Event::GraceOver => Vec::new(),
            Event::Signal(signal) if self.runs() => vec![Action::Signal(signal)],
            Event::Signal(_) if self.born || self.gone => return Err(Refusal::NotRunning),
            Event::Signal(_) => return Err(Refusal::StillStarting),
            Event::Destroy { .. } if self.gone => Vec::new(),
            Event::Destroy { .. } if self.ended => {
                self.gone = true;
                vec![Action::Remove]
            }
            Event::Destroy { force: false } => return Err(Refusal::StillRunning),
            Event::Destroy { force: true } if !self.born => self.give_up(),
            Event::Destroy { force: true } => {
                self.gone = true;
                vec![Action::KillAll, Action::Remove]
            }
        };
        Ok((actions, None))
    }

    /// The actions after a failed action of an event. `self` is the life before that event.
    fn fail(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Started => {
                // The command runs, whether it could be killed or not.
                (self.born, self.told, self.abandoned) = (true, true, true);
                vec![Action::AnswerStart]
            }
            Event::Destroy { .. } => {
                self.abandoned = true;
                vec![Action::AnswerStart, Action::ArmRemovalRetry]
            }
            Event::GraceOver => vec![Action::AnswerStart, Action::PublishKillError],
            _ => vec![Action::AnswerStart],
        }
    }
}

/// Actions that can fail on a real host.
fn can_fail(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::KillAll | Action::Remove | Action::Signal(_)))
}

fn events() -> impl Strategy<Value = Event> {
    let grace = prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        Just(Duration::from_secs(5)),
        Just(Duration::MAX)
    ];
    prop_oneof![
        3 => Just(Event::Started),
        1 => Just(Event::StartFailed),
        2 => Just(Event::Ended),
        4 => (1..32_i32, grace).prop_map(|(signal, grace)| Event::Stop { signal, grace }),
        2 => Just(Event::GraceOver),
        2 => (1..32_i32).prop_map(Event::Signal),
        2 => any::<bool>().prop_map(|force| Event::Destroy { force }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn both_accounts_agree(sequence in prop::collection::vec((events(), prop::bool::weighted(0.2)), 0..30)) {
        let mut life = Life::default();
        let mut task = life.lifecycle();
        for (event, fails) in sequence {
            let before = life.clone();
            let expected = life.hear(event);
            let decided = task.decide(event);
            match (expected, decided) {
                (Ok((actions, _)), Ok(decision)) if fails && can_fail(&actions) => {
                    prop_assert_eq!(&decision.actions, &actions, "{:?} in {:?}", event, task);
                    life = before;
                    let expected = life.fail(event);
                    let (next, actions) = task.after_failure(event);
                    prop_assert_eq!(actions, expected, "failed {:?} in {:?}", event, task);
                    task = next;
                }
                (Ok((actions, follow_up)), Ok(decision)) => {
                    let destroy = matches!(event, Event::Destroy { .. });
                    let reply = if destroy { ReplyTime::WhenDestroyed } else { ReplyTime::Now };
                    let expected = Decision { next: life.lifecycle(), actions, reply, follow_up };
                    prop_assert_eq!(&decision, &expected, "{:?} in {:?}", event, task);
                    task = decision.next;
                }
                (Err(expected), Err(refusal)) => {
                    prop_assert_eq!(refusal, expected, "{:?} in {:?}", event, task);
                }
                (expected, decided) => {
                    prop_assert!(false, "{:?} in {:?}: {:?}, but {:?}", event, task, decided, expected);
                }
            }
            prop_assert_eq!(task, life.lifecycle(), "after {:?}", event);
        }
    }
}
