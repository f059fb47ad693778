//! One message to or from a subsystem of netfilter.

use super::attributes::Attributes;

/// The length of netlink's header.
const HEADER: usize = 16;
/// The length of netfilter's own header behind it: family, version, and a number of the subsystem.
const SUBHEADER: usize = 4;

/// The kernel answers, also if the request succeeds.
pub(crate) const ACK: u16 = 4;
/// All objects are wanted.
pub(crate) const DUMP: u16 = 0x300;
/// The object is created if it does not exist.
pub(crate) const CREATE: u16 = 0x400;
/// A rule is added at the end of its chain. Without this flag it is added at the begin.
pub(crate) const APPEND: u16 = 0x800;
const REQUEST: u16 = 1;

/// The dump may lack objects, because others changed them meanwhile.
const INTERRUPTED: u16 = 0x10;

/// The type of a message that reports an error, or with the code 0 a success.
const ERROR: u16 = 2;
/// The type of the last message of a dump.
const DONE: u16 = 3;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// The subsystem in the upper byte, its operation in the lower.
    pub(crate) kind: u16,
    /// Flags beside that of a request.
    pub(crate) flags: u16,
    /// The protocol family.
    pub(crate) family: u8,
    /// The version of the request's meaning, which only conntrack's flush uses.
    pub(crate) version: u8,
    /// A number whose meaning depends on the kind.
    pub(crate) resource: u16,
    /// What the request is about.
    pub(crate) attributes: Attributes,
}

impl Message {
    /// Appends the encoded message to a datagram.
    pub(crate) fn encode(&self, sequence: u32, datagram: &mut Vec<u8>) {
        let attributes = self.attributes.as_bytes();
        datagram.extend(((HEADER + SUBHEADER + attributes.len()) as u32).to_ne_bytes());
        datagram.extend(self.kind.to_ne_bytes());
        datagram.extend((self.flags | REQUEST).to_ne_bytes());
        datagram.extend(sequence.to_ne_bytes());
        // The kernel knows the sender by its socket.
        datagram.extend(0_u32.to_ne_bytes());
        datagram.extend([self.family, self.version]);
        datagram.extend(self.resource.to_be_bytes());
        datagram.extend(attributes);
    }
}

/// A message from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    /// The result of a request: 0 or an error number.
    Result { sequence: u32, error: i32 },
    /// A dump is complete.
    Done,
    /// An object.
    Object { kind: u16, sequence: u32, family: u8, attributes: &'a [u8] },
}

/// Whether a datagram belongs to a dump that must be repeated.
pub(crate) fn interrupted(mut datagram: &[u8]) -> bool {
    while let Some(header) = datagram.first_chunk::<HEADER>() {
        if u16::from_ne_bytes([header[6], header[7]]) & INTERRUPTED != 0 {
            return true;
        }
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        datagram = datagram.get(length.max(HEADER).next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

/// The messages of a datagram. It ends at the first one that is not complete.
pub(crate) fn replies(mut datagram: &[u8]) -> impl Iterator<Item = Reply<'_>> {
    std::iter::from_fn(move || {
        let header = datagram.get(..HEADER)?;
        let number = |at: usize| header.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let (length, sequence) = (number(0)? as usize, number(8)?);
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let body = datagram.get(HEADER..length)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(match kind {
            ERROR => Reply::Result { sequence, error: -i32::from_ne_bytes(*body.first_chunk()?) },
            DONE => Reply::Done,
            _ => Reply::Object { kind, sequence, family: *body.first()?, attributes: body.get(SUBHEADER..)? },
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ACK, HEADER, INTERRUPTED, Message, Reply, interrupted, replies};
    use crate::netlink::Attributes;

    fn message(kind: u16) -> Message {
        let attributes = Attributes::new().text(1, "t");
        Message { kind, flags: ACK, family: 2, version: 0, resource: 10, attributes }
    }

    #[test]
    fn a_message_has_both_headers() {
        let mut datagram = Vec::new();
        message(0x0a03).encode(7, &mut datagram);
        let expected: [u8; 28] =
            [28, 0, 0, 0, 3, 10, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 10, 6, 0, 1, 0, b't', 0, 0, 0];
        assert_eq!(datagram, expected);
    }

    #[test]
    fn objects_results_and_the_end_of_a_dump_are_told_apart() {
        let mut datagram = Vec::new();
        message(0x0a03).encode(7, &mut datagram);
        datagram.extend([20, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff]);
        datagram.extend([20, 0, 0, 0, 3, 0, 2, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let attributes = message(0).attributes;
        let expected = [
            Reply::Object { kind: 0x0a03, sequence: 7, family: 2, attributes: attributes.as_bytes() },
            Reply::Result { sequence: 8, error: libc::ENOENT },
            Reply::Done,
        ];
        assert_eq!(replies(&datagram).collect::<Vec<_>>(), expected);
        datagram.truncate(datagram.len() - 1);
        assert_eq!(replies(&datagram).count(), 2);
    }

    #[test]
    fn an_interrupted_dump_is_recognized_by_any_of_its_messages() {
        let mut datagram = Vec::new();
        message(0x0a03).encode(1, &mut datagram);
        message(0x0a03).encode(2, &mut datagram);
        assert!(!interrupted(&datagram));
        Message { flags: INTERRUPTED, ..message(3) }.encode(3, &mut datagram);
        assert!(interrupted(&datagram));
    }

    proptest! {
        #[test]
        fn no_datagram_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..99), length in 0_u8..99) {
            replies(&bytes).count();
            interrupted(&bytes);
            let mut bytes = bytes;
            bytes.splice(..bytes.len().min(4), [length, 0, 0, 0]);
            prop_assert!(replies(&bytes).count() <= bytes.len() / HEADER);
        }
    }
}
