//! The event stream: one JSON document in each line.

use reqwest::Response;
use serde_json::Value as Json;

use super::{Api, ApiError};
use crate::error::with_causes;

/// A line may hold all jobs of one request. A longer one is a fault of the sender.
const LONGEST_LINE: usize = 64 << 20;

/// The events of one index.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Nothing has happened: the agent shows that it is there.
    Heartbeat,
    /// Events, all with this index.
    Events {
        /// The index.
        index: u64,
        /// The events.
        events: Vec<Json>,
    },
}

/// An open stream.
pub struct EventStream {
    response: Response,
    lines: Lines,
}

impl EventStream {
    /// Asks for the events of jobs of a namespace, `*` for all, from an index on. Without an index, or if the agent no
    /// longer has it, the stream begins at a later one.
    pub async fn open(api: &Api, namespace: &str, index: u64) -> Result<Self, ApiError> {
        let index = index.to_string();
        let query = [("topic", "Job"), ("namespace", namespace), ("index", index.as_str())];
        let response = api.stream(&["v1", "event", "stream"], &query).await?;
        Ok(Self { response, lines: Lines::default() })
    }

    /// The next frame. An error ends the stream.
    pub async fn next(&mut self) -> Result<Frame, String> {
        loop {
            if let Some(line) = self.lines.next() {
                return frame(&line);
            }
            let chunk = self.response.chunk().await.map_err(|error| with_causes(&error.without_url()))?;
            self.lines.push(&chunk.ok_or("the agent ended the stream of events")?)?;
        }
    }
}

fn frame(line: &[u8]) -> Result<Frame, String> {
    let text = || String::from_utf8_lossy(line).chars().take(200).collect::<String>();
    let mut document: Json = serde_json::from_slice(line).map_err(|error| format!("{error} in {:?}", text()))?;
    match (document["Index"].as_u64(), document.get_mut("Events").map(Json::take)) {
        (Some(index), Some(Json::Array(events))) => Ok(Frame::Events { index, events }),
        _ if document.as_object().is_some_and(|fields| !fields.contains_key("Error")) => Ok(Frame::Heartbeat),
        _ => Err(format!("not an event: {:?}", text())),
    }
}

/// Received bytes, as lines.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// The bytes up to here have no end of a line.
    searched: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.bytes.len() + bytes.len() > LONGEST_LINE {
            return Err(format!("a line of the stream of events is longer than {} MiB", LONGEST_LINE >> 20));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// The next line that is complete and not empty.
    fn next(&mut self) -> Option<Vec<u8>> {
        while let Some(length) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') {
            let rest = self.bytes.split_off(self.searched + length + 1);
            let line = std::mem::replace(&mut self.bytes, rest);
            self.searched = 0;
            if !line.trim_ascii().is_empty() {
                return Some(line);
            }
        }
        self.searched = self.bytes.len();
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::{Frame, LONGEST_LINE, Lines, frame};

    #[test]
    fn frames_are_told_apart() {
        let events = Frame::Events { index: 7, events: vec![json!({ "Topic": "Job" })] };
        assert_eq!(frame(br#"{"Index": 7, "Events": [{"Topic": "Job"}]}"#), Ok(events));
        assert_eq!(frame(b"{}"), Ok(Frame::Heartbeat));
        for wrong in ["", "Permission denied", "3", "[]", r#"{"Error": "ACL token expired"}"#] {
            assert!(frame(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_given_up() {
        let mut lines = Lines::default();
        lines.push(&vec![b' '; LONGEST_LINE]).unwrap();
        assert!(lines.next().is_none() && lines.push(b"x").is_err());
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_arrive(
            text in "[a-c\n ]{0,30}",
            sizes in prop::collection::vec(1..6_usize, 30),
        ) {
            let (mut lines, mut rest, mut found) = (Lines::default(), text.as_bytes(), Vec::new());
            for size in sizes {
                let (now, later) = rest.split_at(size.min(rest.len()));
                lines.push(now).unwrap();
                found.extend(std::iter::from_fn(|| lines.next()));
                rest = later;
            }
            let complete = text.rfind('\n').map_or("", |end| &text[..end]);
            let expected: Vec<&str> = complete.split('\n').filter(|line| !line.trim().is_empty()).collect();
            let found: Vec<&str> =
                found.iter().map(|line| std::str::from_utf8(line).unwrap().trim_end_matches('\n')).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
