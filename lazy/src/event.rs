//! The bytes of an event → what is about to be read. Pure.

use std::ops::Range;

use crate::sys::EVENT;

/// The version of the form of events that this build reads (`FANOTIFY_METADATA_VERSION`).
const VERSION: u8 = 3;
/// Bytes of the fixed part.
const FIXED: usize = 24;
/// The part that names a range (`FAN_EVENT_INFO_TYPE_RANGE`).
const RANGE: u8 = 6;

/// A read that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The number of the descriptor that the kernel made for the event. Answers name it.
    pub(crate) number: i32,
    /// The bytes that are about to be read. All of the file if the kernel does not say it.
    pub(crate) range: Range<u64>,
}

/// The event in a slot; `None` if there is none.
pub(crate) fn decode(bytes: &[u8; EVENT]) -> Option<Announced> {
    let (length, version) = (u32_at(bytes, 0), bytes[4]);
    if (length as usize) < FIXED || version != VERSION {
        return None;
    }
    let number = u32_at(bytes, 16).cast_signed();
    let whole = 0..u64::MAX;
    if length as usize != EVENT || bytes[FIXED] != RANGE {
        return Some(Announced { number, range: whole });
    }
    let (offset, count) = (u64_at(bytes, FIXED + 8), u64_at(bytes, FIXED + 16));
    // Without a count, the kernel does not know the end.
    let range = if count == 0 { whole } else { offset..offset.saturating_add(count) };
    Some(Announced { number, range })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(length: u32, info: u8, offset: u64, count: u64) -> [u8; EVENT] {
        let mut bytes = [0; EVENT];
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4] = 3;
        bytes[16..20].copy_from_slice(&17i32.to_ne_bytes());
        bytes[24] = info;
        bytes[32..40].copy_from_slice(&offset.to_ne_bytes());
        bytes[40..48].copy_from_slice(&count.to_ne_bytes());
        bytes
    }

    #[test]
    fn an_event_names_its_range_or_means_the_whole_file() {
        for (length, info, offset, count, range) in [
            (48, 6, 8192, 4096, Some(8192..12288)),
            (48, 6, 8192, u64::MAX, Some(8192..u64::MAX)),
            (48, 6, 8192, 0, Some(0..u64::MAX)),
            (48, 1, 8192, 4096, Some(0..u64::MAX)),
            (24, 0, 0, 0, Some(0..u64::MAX)),
            (0, 0, 0, 0, None),
        ] {
            let expected = range.map(|range| Announced { number: 17, range });
            assert_eq!(decode(&event(length, info, offset, count)), expected, "{length} {info} {count}");
        }
        let mut later = event(48, 6, 0, 1);
        later[4] = 4;
        assert_eq!(decode(&later), None);
    }
}
