//! The attributes of a netlink message: a length, a type and a value each, padded to four bytes.

/// Marks an attribute whose value is a list of attributes.
const NESTED: u16 = 0x8000;
/// Marks a value in network byte order.
const NETWORK_ORDER: u16 = 0x4000;
/// The length of an attribute's header, and the alignment of attributes.
const HEADER: usize = 4;

/// A list of attributes that is being built.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

impl Attributes {
    /// No attributes.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a value as it is.
    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = HEADER + value.len();
        debug_assert!(length <= usize::from(u16::MAX), "attributes have at most 64 KiB");
        self.0.extend((length as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(HEADER), 0);
        self
    }

    /// Adds a text, with the NUL that ends it.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// Adds a number in network byte order.
    pub(crate) fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a list of attributes.
    pub(crate) fn nested(self, kind: u16, attributes: &Self) -> Self {
        self.nested_bytes(kind, &attributes.0)
    }

    /// Adds an encoded list of attributes.
    pub(crate) fn nested_bytes(self, kind: u16, list: &[u8]) -> Self {
        self.bytes(kind | NESTED, list)
    }

    /// The encoded list.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The attributes of an encoded list, each with its type. The list ends at the first one that is not complete.
pub(crate) fn fields(mut list: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = list.split_first_chunk::<HEADER>()?;
        let [length, kind] = [[header[0], header[1]], [header[2], header[3]]].map(u16::from_ne_bytes);
        let length = usize::from(length);
        let value = list.get(HEADER..length)?;
        list = list.get(length.next_multiple_of(HEADER)..).unwrap_or_default();
        Some((kind & !(NESTED | NETWORK_ORDER), value))
    })
}

/// The first attribute of this type.
pub(crate) fn find(list: &[u8], kind: u16) -> Option<&[u8]> {
    fields(list).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// The first attribute of this type, a number in network byte order.
pub(crate) fn find_number(list: &[u8], kind: u16) -> Option<u32> {
    find(list, kind)?.try_into().ok().map(u32::from_be_bytes)
}

/// The first attribute of this type, a text.
pub(crate) fn find_text(list: &[u8], kind: u16) -> Option<&str> {
    let value = find(list, kind)?;
    std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Attributes, fields, find, find_number, find_text};

    #[test]
    fn attributes_are_padded_and_nested() {
        let inner = Attributes::new().bytes(1, &[0x7f]);
        let list = Attributes::new().text(1, "ip").number(2, 5).nested(3, &inner);
        let expected: [u8; 28] = [
            7, 0, 1, 0, b'i', b'p', 0, 0, // The padding is not part of the length.
            8, 0, 2, 0, 0, 0, 0, 5, // Network byte order.
            12, 0, 3, 0x80, 5, 0, 1, 0, 0x7f, 0, 0, 0,
        ];
        assert_eq!(list.as_bytes(), expected);
        assert_eq!(find_text(list.as_bytes(), 1), Some("ip"));
        assert_eq!(find_number(list.as_bytes(), 2), Some(5));
        assert_eq!(find(find(list.as_bytes(), 3).expect("a list"), 1), Some([0x7f].as_slice()));
        assert_eq!((find(list.as_bytes(), 4), find_number(list.as_bytes(), 1)), (None, None));
    }

    #[test]
    fn a_list_ends_at_an_incomplete_attribute() {
        for rest in [&[3, 0, 1, 0][..], &[9, 0, 1, 0, 1], &[8, 0, 1], &[0, 0, 0, 0]] {
            let mut list = Attributes::new().number(7, 1).as_bytes().to_vec();
            list.extend(rest);
            assert_eq!(fields(&list).map(|(kind, _)| kind).collect::<Vec<_>>(), [7], "{rest:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            values in prop::collection::vec((1_u16..100, prop::collection::vec(any::<u8>(), 0..9)), 0..9),
        ) {
            let list = values.iter().fold(Attributes::new(), |list, (kind, value)| list.bytes(*kind, value));
            let read: Vec<_> = fields(list.as_bytes()).map(|(kind, value)| (kind, value.to_vec())).collect();
            prop_assert_eq!(read, values);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            fields(&bytes).count();
        }
    }
}
