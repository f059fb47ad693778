//! The reads that wait for an answer. Pure.
//!
//! The kernel matches an answer by a number, and takes the oldest event that has it. A predecessor of this process may
//! have read events with numbers that this process uses too, and may have answered them or not. So the events of one
//! number are answered together, when all of them may be; one that must fail makes all of them fail. Whichever of them
//! the kernel takes, no reader passes before its data is here.

use std::{collections::BTreeMap, ops::Range, time::Instant};

use crate::{slots::FileId, sys::Verdict};

/// One read. `D` is its descriptor, which keeps the number in use.
#[derive(Debug)]
pub(crate) struct Waiting<D> {
    pub(crate) slot: usize,
    pub(crate) number: i32,
    /// The file. `None`: any that is served, because a predecessor ended before it noted the file.
    pub(crate) file: Option<FileId>,
    /// The bytes that are about to be read.
    pub(crate) range: Range<u64>,
    /// When the read fails.
    pub(crate) deadline: Instant,
    pub(crate) verdict: Option<Verdict>,
    /// Of this process; `None` for the event of a predecessor.
    pub(crate) _descriptor: Option<D>,
}

impl<D> Waiting<D> {
    /// Whether it may read this file.
    pub(crate) fn concerns(&self, file: FileId) -> bool {
        self.file.is_none_or(|own| own == file)
    }

    /// Whether it still waits for data.
    pub(crate) fn is_open(&self) -> bool {
        self.verdict.is_none()
    }
}

/// The numbers that may be answered, each with the verdict for all of its events.
pub(crate) fn answerable<D>(waiting: &[Waiting<D>]) -> Vec<(i32, Verdict)> {
    let mut numbers: BTreeMap<i32, Option<Verdict>> = BTreeMap::new();
    for event in waiting {
        let both = |so_far: Option<Verdict>| match (so_far, event.verdict) {
            (Some(Verdict::Allow), Some(Verdict::Allow)) => Some(Verdict::Allow),
            (Some(_), Some(_)) => Some(Verdict::Deny),
            _ => None,
        };
        numbers.entry(event.number).and_modify(|so_far| *so_far = both(*so_far)).or_insert(event.verdict);
    }
    numbers.into_iter().filter_map(|(number, verdict)| Some((number, verdict?))).collect()
}

/// The next deadline of a read that waits for data.
pub(crate) fn next_deadline<D>(waiting: &[Waiting<D>]) -> Option<Instant> {
    waiting.iter().filter(|event| event.is_open()).map(|event| event.deadline).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: i32, verdict: Option<Verdict>) -> Waiting<()> {
        let deadline = Instant::now();
        Waiting { slot: 0, number, file: None, range: 0..1, deadline, verdict, _descriptor: None }
    }

    #[test]
    fn events_of_one_number_are_answered_together_and_one_failure_is_that_of_all() {
        use Verdict::{Allow, Deny};
        for (verdicts, expected) in [
            (&[Some(Allow)][..], Some(Allow)),
            (&[None], None),
            (&[Some(Allow), None], None),
            (&[None, Some(Deny)], None),
            (&[Some(Allow), Some(Allow)], Some(Allow)),
            (&[Some(Allow), Some(Deny)], Some(Deny)),
            (&[Some(Deny), Some(Allow), Some(Allow)], Some(Deny)),
        ] {
            let mut waiting: Vec<_> = verdicts.iter().map(|verdict| event(5, *verdict)).collect();
            waiting.push(event(6, None));
            let expected: Vec<_> = expected.map(|verdict| (5, verdict)).into_iter().collect();
            assert_eq!(answerable(&waiting), expected, "{verdicts:?}");
        }
    }
}
