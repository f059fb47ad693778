//! What is known about the reader of a log FIFO, and what follows from a look at it.

/// What is known about the reader of a FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReaderState {
    /// There is a reader.
    Present,
    /// The last look found no reader, but one may have come since.
    Uncertain,
    /// There is no reader.
    Absent,
}

/// What the plugin must do with a FIFO after a look at its readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Report bytes that another process dropped before: the first look found a reader.
    Report,
    /// Hold the FIFO open, watch for its opening, and look once more.
    Hold,
    /// Keep the FIFO from staying full.
    Drain,
    /// Leave the FIFO to its reader.
    Release,
}

/// The next state and action after a look that found or did not find a reader. The FIFO was neither opened nor closed
/// since the look began.
pub(super) fn decide(state: ReaderState, has_reader: bool) -> (ReaderState, Option<Action>) {
    match (state, has_reader) {
        (ReaderState::Present, true) => (ReaderState::Present, None),
        (ReaderState::Present, false) => (ReaderState::Uncertain, Some(Action::Hold)),
        (ReaderState::Uncertain | ReaderState::Absent, false) => (ReaderState::Absent, Some(Action::Drain)),
        (ReaderState::Uncertain | ReaderState::Absent, true) => (ReaderState::Present, Some(Action::Release)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, ReaderState, decide};

    #[test]
    fn nothing_is_dropped_before_a_second_look() {
        let (state, action) = decide(ReaderState::Present, false);
        assert_eq!((state, action), (ReaderState::Uncertain, Some(Action::Hold)));
        assert_eq!(decide(state, false), (ReaderState::Absent, Some(Action::Drain)));
        assert_eq!(decide(state, true), (ReaderState::Present, Some(Action::Release)));
    }

    #[test]
    fn a_found_reader_always_leads_to_present() {
        assert_eq!(decide(ReaderState::Present, true), (ReaderState::Present, None));
        for state in [ReaderState::Uncertain, ReaderState::Absent] {
            assert_eq!(decide(state, true), (ReaderState::Present, Some(Action::Release)));
        }
    }
}
