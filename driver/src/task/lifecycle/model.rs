//! A second account of a task's life, written from what Nomad and the kernel rely on and not from the decider: flags that
//! are only ever raised, and for each call what they allow. Whatever happens in whatever order, both must say the same.

use std::time::Duration;

use proptest::prelude::*;

use super::{Action, Event, Phase, Refusal, decide};

/// What has happened so far.
#[derive(Debug, Clone, Default)]
struct Life {
    /// The command was executed.
    born: bool,
    /// The start is not wanted any more.
    unwanted: bool,
    /// It was told to end, by whatever means.
    told: bool,
    /// Everything in it was killed.
    killed: bool,
    /// The container has ended.
    ended: bool,
    /// Nothing of it is left, or never was.
    gone: bool,
}

impl Life {
    /// There is a process to act on.
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

    fn kill(&mut self) -> Vec<Action> {
        self.told = true;
        self.killed = true;
        vec![Action::KillAll]
    }

    fn give_up(&mut self) -> Vec<Action> {
        self.unwanted = true;
        vec![Action::CancelStart]
    }

    fn hear(&mut self, event: Event) -> Result<Vec<Action>, Refusal> {
        let nothing = Ok(Vec::new());
        match event {
            Event::Started if self.born || self.gone => nothing,
            Event::Started => {
                self.born = true;
                if self.unwanted { Ok(self.kill()) } else { nothing }
            }
            Event::StartFailed => {
                self.gone |= !self.born;
                nothing
            }
            Event::Ended => {
                self.ended |= self.runs();
                nothing
            }
            Event::Stop { signal, grace } => Ok(match () {
                () if !self.born && !self.gone => self.give_up(),
                () if !self.runs() || self.killed => Vec::new(),
                () if grace == Duration::ZERO => self.kill(),
                () => {
                    self.told = true;
                    vec![Action::Signal(signal), Action::ArmGrace(grace)]
                }
            }),
            Event::GraceOver => Ok(if self.runs() && self.told && !self.killed { self.kill() } else { Vec::new() }),
            Event::Signal(signal) if self.runs() => Ok(vec![Action::Signal(signal)]),
            Event::Signal(_) if self.born || self.gone => Err(Refusal::NotRunning),
            Event::Signal(_) => Err(Refusal::StillStarting),
            Event::Destroy { .. } if self.gone => nothing,
            Event::Destroy { .. } if self.ended => {
                self.gone = true;
                Ok(vec![Action::Remove])
            }
            Event::Destroy { force: false } => Err(Refusal::StillRunning),
            Event::Destroy { force: true } if !self.born => Ok(self.give_up()),
            Event::Destroy { force: true } => {
                self.gone = true;
                Ok(vec![Action::KillAll, Action::Remove])
            }
        }
    }
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
    fn both_accounts_agree(sequence in prop::collection::vec(events(), 0..30)) {
        let mut life = Life::default();
        let mut phase = life.phase();
        for event in sequence {
            let expected = life.hear(event);
            let decided = decide(phase, event);
            match (&expected, &decided) {
                (Ok(actions), Ok((next, decided))) => {
                    prop_assert_eq!(decided, actions, "{:?} in {:?}", event, phase);
                    phase = *next;
                }
                (Err(refusal), Err(decided)) => prop_assert_eq!(decided, refusal, "{:?} in {:?}", event, phase),
                _ => prop_assert!(false, "{:?} in {:?}: {:?}, but {:?}", event, phase, decided, expected),
            }
            prop_assert_eq!(phase, life.phase(), "after {:?}", event);
        }
    }
}
