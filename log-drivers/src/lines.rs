//! Output as messages of one line each, as docker splits it.
//!
//! A line of more than 16 KiB is sent in parts of 16 KiB. The part after the last newline of all output is a part that
//! is not the last one of its line. The rest of a line whose newline follows a full part is a message without bytes.

use std::{sync::Arc, time::SystemTime};

use crate::message::{Message, Partial, Source};

/// The most bytes of one message.
const LONGEST: usize = 16 * 1024;

/// Splits the output of one stream.
#[derive(Debug)]
pub struct Lines<I> {
    source: Source,
    /// Makes the ids of lines with several parts.
    new_id: I,
    /// The bytes since the last newline or full part.
    open: Vec<u8>,
    /// The parts of the open line that are complete: their id, their number, and the time of the first one.
    parts: Option<(Arc<str>, u32, SystemTime)>,
}

impl<I: FnMut() -> Arc<str>> Lines<I> {
    /// Splits the output of `source`.
    pub fn new(source: Source, new_id: I) -> Self {
        Self { source, new_id, open: Vec::new(), parts: None }
    }

    /// Takes output that was read at `now`. `emit` takes the messages that became complete.
    pub fn take(&mut self, mut output: &[u8], now: SystemTime, emit: &mut impl FnMut(Message)) {
        while !output.is_empty() {
            let room = &output[..output.len().min(LONGEST - self.open.len())];
            match room.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    self.open.extend_from_slice(&output[..end]);
                    output = &output[end + 1..];
                    emit(self.message(now, true));
                }
                None => {
                    self.open.extend_from_slice(room);
                    output = &output[room.len()..];
                    if self.open.len() == LONGEST {
                        emit(self.message(now, false));
                    }
                }
            }
        }
    }

    /// The output has ended: `emit` takes the bytes without a newline.
    pub fn end(&mut self, now: SystemTime, emit: &mut impl FnMut(Message)) {
        if !self.open.is_empty() {
            emit(self.message(now, false));
        }
    }

    /// The open bytes as a message. `last`: a newline follows them.
    fn message(&mut self, now: SystemTime, last: bool) -> Message {
        let line = std::mem::take(&mut self.open);
        let (time, partial) = match (self.parts.take(), last) {
            (None, true) => (now, None),
            (parts, last) => {
                let (id, before, time) = parts.unwrap_or_else(|| ((self.new_id)(), 0, now));
                let partial = Partial { id: id.clone(), ordinal: before + 1, last };
                self.parts = (!last).then_some((id, before + 1, time));
                (time, Some(partial))
            }
        };
        Message { source: self.source, line, time, partial }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn ids() -> impl FnMut() -> Arc<str> {
        let mut next = 0;
        move || {
            next += 1;
            format!("id{next}").into()
        }
    }

    /// The messages of output that comes in these pieces, one a second.
    fn split<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Message> {
        let mut lines = Lines::new(Source::Stdout, ids());
        let (mut messages, mut now) = (Vec::new(), SystemTime::UNIX_EPOCH);
        for piece in pieces {
            lines.take(piece, now, &mut |message| messages.push(message));
            now += Duration::from_secs(1);
        }
        lines.end(now, &mut |message| messages.push(message));
        messages
    }

    /// Length of the line, and its part as `id/ordinal/last`.
    fn shape(messages: &[Message]) -> Vec<(usize, String)> {
        let part = |message: &Message| match &message.partial {
            Some(part) => format!("{}/{}/{}", part.id, part.ordinal, part.last),
            None => String::new(),
        };
        messages.iter().map(|message| (message.line.len(), part(message))).collect()
    }

    #[test]
    fn a_newline_ends_a_message() {
        let messages = split([&b"one\n\nt"[..], b"wo\nth", b"ree\n"]);
        let lines: Vec<&[u8]> = messages.iter().map(|message| message.line.as_slice()).collect();
        assert_eq!(lines, [&b"one"[..], b"", b"two", b"three"]);
        assert!(messages.iter().all(|message| message.partial.is_none()));
    }

    /// As docker does it, see the parity cases.
    #[test]
    fn a_long_line_comes_in_parts() {
        for (length, newline, expected) in [
            (16_383, true, vec![(16_383, "")]),
            (16_384, true, vec![(16_384, "id1/1/false"), (0, "id1/2/true")]),
            (16_385, true, vec![(16_384, "id1/1/false"), (1, "id1/2/true")]),
            (40_000, true, vec![(16_384, "id1/1/false"), (16_384, "id1/2/false"), (7232, "id1/3/true")]),
            (3, false, vec![(3, "id1/1/false")]),
            (16_390, false, vec![(16_384, "id1/1/false"), (6, "id1/2/false")]),
        ] {
            let mut output = vec![b'x'; length];
            output.extend(newline.then_some(b'\n'));
            let expected: Vec<(usize, String)> =
                expected.into_iter().map(|(len, part)| (len, part.to_owned())).collect();
            assert_eq!(shape(&split([&output[..]])), expected, "{length} {newline}");
        }
    }

    #[test]
    fn the_parts_of_a_line_have_one_time_and_the_next_line_another_id() {
        let long = [b'x'; 16_384];
        let messages = split([&long[..], &long, b"end\nnext\n", &long, b"\n"]);
        let times: Vec<u64> = messages
            .iter()
            .map(|message| message.time.duration_since(SystemTime::UNIX_EPOCH).expect("later").as_secs())
            .collect();
        assert_eq!(times, [0, 0, 0, 2, 3, 3]);
        let ids: Vec<Option<&str>> =
            messages.iter().map(|message| message.partial.as_ref().map(|part| &*part.id)).collect();
        assert_eq!(ids, [Some("id1"), Some("id1"), Some("id1"), None, Some("id2"), Some("id2")]);
    }

    proptest! {
        #[test]
        fn the_messages_do_not_depend_on_the_pieces_and_lose_nothing(
            lines in proptest::collection::vec((0_usize..40_000, any::<bool>()), 0..6),
            cuts in proptest::collection::vec(1_usize..20_000, 0..12),
        ) {
            let mut output = Vec::new();
            for (length, newline) in lines {
                output.extend(std::iter::repeat_n(b'a', length));
                output.extend(newline.then_some(b'\n'));
            }
            let whole = split([&output[..]]);
            let mut pieces = Vec::new();
            let mut rest = &output[..];
            for cut in cuts {
                let (piece, left) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                rest = left;
            }
            pieces.push(rest);
            prop_assert_eq!(shape(&split(pieces)), shape(&whole));
            let mut joined = Vec::new();
            for message in &whole {
                joined.extend_from_slice(&message.line);
                joined.extend(message.partial.as_ref().is_none_or(|part| part.last).then_some(b'\n'));
            }
            prop_assert!(joined == output);
            prop_assert!(whole.iter().all(|message| message.line.len() <= LONGEST));
        }
    }
}
