//! PAX extended header records → what they override in the next entry.
//!
//! Pure. Records end where their stated length says, never at a newline: extended attributes are binary. The `tar`
//! crate's reader splits at newlines and cannot be used. The last record of a key counts; an empty value unsets the
//! key, except for extended attributes, whose values may be empty.

use crate::error::Problem;

/// Longest extension block that is read.
pub const MAX_BYTES: u64 = 1 << 20;

/// The kernel lists at most 64 KiB of names for one file (xattr(7)).
const MAX_XATTRS: usize = 1024;

/// Names and values of extended attributes.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Values that replace header fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extensions {
    /// The name of the entry.
    pub path: Option<Vec<u8>>,
    /// The target of a link.
    pub link: Option<Vec<u8>>,
    /// Bytes of data in the archive.
    pub size: Option<u64>,
    /// The owner.
    pub uid: Option<u64>,
    /// The group.
    pub gid: Option<u64>,
    /// Seconds and nanoseconds of the last modification.
    pub mtime: Option<(i64, u32)>,
    /// Names and values as in the archive. The applier decides which ones may be set.
    pub xattrs: Xattrs,
    /// What GNU's sparse formats say.
    pub sparse: SparseKeys,
}

/// The records of GNU's three sparse formats, not checked yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SparseKeys {
    /// The major version of the format.
    pub major: Option<u64>,
    /// The minor version of the format.
    pub minor: Option<u64>,
    /// The name of the entry.
    pub name: Option<Vec<u8>>,
    /// The file's size with its holes.
    pub real_size: Option<u64>,
    /// Offsets and lengths in turn, from `map` or from pairs of `offset` and `numbytes`.
    pub numbers: Vec<u64>,
    /// Whether there is any such record.
    pub present: bool,
}

/// Reads a block of records.
pub fn parse(block: &[u8]) -> Result<Extensions, Problem> {
    let mut extensions = Extensions::default();
    let mut rest = block;
    while !rest.is_empty() {
        let (key, value, after) = record(rest)?;
        extensions.set(key, value)?;
        rest = after;
    }
    Ok(extensions)
}

/// Key, value, and the bytes that follow.
type Record<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// The first record.
fn record(rest: &[u8]) -> Result<Record<'_>, Problem> {
    let malformed = || "malformed PAX record".to_owned();
    let space = rest.iter().take(20).position(|byte| *byte == b' ').ok_or_else(malformed)?;
    let length = usize::try_from(decimal("PAX record length", &rest[..space])?).map_err(|_| malformed())?;
    let body = rest.get(space + 1..length).ok_or_else(malformed)?;
    let body = body.strip_suffix(b"\n").ok_or_else(malformed)?;
    let equals = body.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
    let (key, value) = (&body[..equals], &body[equals + 1..]);
    if key.is_empty() || key.contains(&0) {
        return Err(malformed());
    }
    Ok((key, value, &rest[length..]))
}

impl Extensions {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Problem> {
        let present = !value.is_empty();
        let number = |what| present.then(|| decimal(what, value)).transpose();
        match key {
            b"path" => self.path = name("path", value)?,
            b"linkpath" => self.link = name("linkpath", value)?,
            b"size" => self.size = number("PAX size")?,
            b"uid" => self.uid = number("PAX uid")?,
            b"gid" => self.gid = number("PAX gid")?,
            b"mtime" => self.mtime = present.then(|| time(value)).transpose()?,
            _ => {
                if let Some(attribute) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.retain(|(known, _)| known != attribute);
                    if self.xattrs.len() >= MAX_XATTRS {
                        return Err(format!("more than {MAX_XATTRS} extended attributes"));
                    }
                    self.xattrs.push((attribute.to_vec(), value.to_vec()));
                } else if let Some(sparse) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.set(sparse, value)?;
                }
            }
        }
        Ok(())
    }

    /// Refuses a global block that would make parsers disagree about the sizes or names of entries.
    pub fn check_global(&self) -> Result<(), Problem> {
        if self.path.is_some() || self.link.is_some() || self.size.is_some() || self.sparse.present {
            return Err("a global PAX header sets a path, a link or a size for all entries".into());
        }
        Ok(())
    }
}

impl SparseKeys {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Problem> {
        let number = || decimal("PAX sparse field", value);
        self.present = true;
        match key {
            b"major" => self.major = Some(number()?),
            b"minor" => self.minor = Some(number()?),
            b"name" => self.name = name("GNU.sparse.name", value)?,
            b"size" | b"realsize" => self.real_size = Some(number()?),
            b"offset" | b"numbytes" => self.numbers.push(number()?),
            b"map" if !value.is_empty() => {
                let numbers = value.split(|byte| *byte == b',').map(|part| decimal("PAX sparse map", part));
                self.numbers = numbers.collect::<Result<_, _>>()?;
            }
            // The number of blocks follows from the map.
            _ => {}
        }
        Ok(())
    }
}

fn name(what: &str, value: &[u8]) -> Result<Option<Vec<u8>>, Problem> {
    if value.contains(&0) {
        return Err(format!("PAX {what} holds a NUL byte"));
    }
    Ok((!value.is_empty()).then(|| value.to_vec()))
}

/// A decimal number without sign.
pub fn decimal(what: &str, text: &[u8]) -> Result<u64, Problem> {
    let wrong = || format!("{what} is no number in range");
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(wrong());
    }
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)
}

/// Seconds with a fraction, to nanoseconds; the fraction of a negative time counts upwards as the kernel's does.
fn time(text: &[u8]) -> Result<(i64, u32), Problem> {
    let wrong = || "PAX mtime is no time in range".to_owned();
    let text = std::str::from_utf8(text).map_err(|_| wrong())?;
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let seconds = i64::try_from(decimal("PAX mtime", whole.as_bytes())?).map_err(|_| wrong())?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let nanos: u32 = format!("{fraction:0<9}").get(..9).and_then(|digits| digits.parse().ok()).ok_or_else(wrong)?;
    Ok(match (negative, nanos) {
        (false, nanos) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, nanos) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(key: &str, value: &[u8]) -> Vec<u8> {
        let payload = 1 + key.len() + 1 + value.len() + 1;
        let mut length = payload + 1;
        while length != payload + length.to_string().len() {
            length = payload + length.to_string().len();
        }
        [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
    }

    #[test]
    fn reads_binary_values() {
        let block = [encode("SCHILY.xattr.user.x", b"a\nb\0=c"), encode("path", b"p")].concat();
        let parsed = parse(&block).unwrap();
        assert_eq!(parsed.xattrs, [(b"user.x".to_vec(), b"a\nb\0=c".to_vec())]);
        assert_eq!(parsed.path.as_deref(), Some(&b"p"[..]));
    }

    #[test]
    fn the_last_value_counts_and_an_empty_one_unsets() {
        let parsed = parse(&[encode("size", b"1"), encode("size", b"2")].concat()).unwrap();
        assert_eq!(parsed.size, Some(2));
        let parsed = parse(&[encode("size", b"1"), encode("size", b"")].concat()).unwrap();
        assert_eq!(parsed.size, None);
    }

    #[test]
    fn an_extended_attribute_may_be_empty() {
        let parsed =
            parse(&[encode("SCHILY.xattr.user.x", b"1"), encode("SCHILY.xattr.user.x", b"")].concat()).unwrap();
        assert_eq!(parsed.xattrs, [(b"user.x".to_vec(), Vec::new())]);
    }

    #[test]
    fn times_have_nanoseconds() {
        for (text, expected) in [
            ("1700000000.123456789", (1_700_000_000, 123_456_789)),
            ("1.5", (1, 500_000_000)),
            ("1.1234567899", (1, 123_456_789)),
            ("7", (7, 0)),
            ("-1.25", (-2, 750_000_000)),
            ("-3", (-3, 0)),
        ] {
            assert_eq!(time(text.as_bytes()), Ok(expected), "{text}");
        }
        for bad in ["", "x", "1.x", "--1", "99999999999999999999"] {
            assert!(time(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn refuses_broken_records() {
        for bad in
            [&b"5 a=b"[..], b"x a=b\n", b"6a=b\n\n", b"7 path\n\n", b"99 a=b\n", b"3 \n", b"-5 a=b\n", b"8 path=\0\n"]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(parse(&encode("size", b"-1")).is_err());
        assert!(parse(&encode("path", b"a\0b")).is_err());
    }

    #[test]
    fn attributes_are_counted() {
        let block = |count: usize| {
            (0..count).flat_map(|at| encode(&format!("SCHILY.xattr.user.{at}"), b"1")).collect::<Vec<_>>()
        };
        assert_eq!(parse(&block(MAX_XATTRS)).unwrap().xattrs.len(), MAX_XATTRS);
        assert!(parse(&block(MAX_XATTRS + 1)).unwrap_err().contains("extended attributes"));
    }

    #[test]
    fn sparse_forms() {
        let pairs = [encode("GNU.sparse.offset", b"0"), encode("GNU.sparse.numbytes", b"5")].concat();
        assert_eq!(parse(&pairs).unwrap().sparse.numbers, [0, 5]);
        assert_eq!(parse(&encode("GNU.sparse.map", b"1,2,3,4")).unwrap().sparse.numbers, [1, 2, 3, 4]);
        assert!(parse(&encode("GNU.sparse.map", b"1,,3")).is_err());
    }

    #[test]
    fn global_headers_may_not_rename_or_resize() {
        assert!(parse(&encode("comment", b"git")).unwrap().check_global().is_ok());
        assert!(parse(&encode("path", b"x")).unwrap().check_global().is_err());
        assert!(parse(&encode("size", b"1")).unwrap().check_global().is_err());
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&bytes).ok();
        }

        #[test]
        fn records_survive(value in proptest::collection::vec(any::<u8>(), 1..200)) {
            let block = encode("SCHILY.xattr.user.k", &value);
            prop_assert_eq!(&parse(&block).unwrap().xattrs[0].1, &value);
        }
    }
}
