//! Text as JSON carries it.

use std::borrow::Cow;

/// Bytes as text: each byte that is not part of a character becomes U+FFFD, as in docker.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn each_wrong_byte_is_replaced() {
        assert_eq!(text("a€".as_bytes()), "a€");
        assert_eq!(text(b"a\xe2\x82b\xff"), "a\u{fffd}\u{fffd}b\u{fffd}");
    }
}
