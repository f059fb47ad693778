//! One 512-byte tar header → values, or the reason why not.
//!
//! Pure. The `tar` crate knows the layouts of the v7, ustar and GNU formats. The numbers are read here, because a
//! number that overflows, is negative or is malformed must be refused.

use tar::Header;

use crate::error::Problem;

pub(crate) const BLOCK: usize = 512;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A further name of a file.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    Char,
    /// A block device.
    Block,
    /// A directory.
    Dir,
    /// A FIFO.
    Fifo,
    /// GNU's old sparse format: the map follows in the header.
    GnuSparse,
    /// PAX records for the next entry.
    PaxLocal,
    /// PAX records for all entries that follow.
    PaxGlobal,
    /// GNU's long name of the next entry.
    LongName,
    /// GNU's long link target of the next entry.
    LongLink,
}

impl EntryKind {
    /// Whether data follows the header. The size field of other kinds is ignored, as Go and thus every image tool does.
    pub fn has_data(self) -> bool {
        !matches!(
            self,
            EntryKind::HardLink
                | EntryKind::Symlink
                | EntryKind::Char
                | EntryKind::Block
                | EntryKind::Dir
                | EntryKind::Fifo
        )
    }
}

/// The fields of one header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) kind: EntryKind,
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) size: u64,
    pub(crate) mtime: i64,
    pub(crate) device: (u64, u64),
}

/// Reads a header block. `Ok(None)`: a block of zeros, which ends an archive.
pub(crate) fn parse(block: &[u8; BLOCK]) -> Result<Option<Fields>, Problem> {
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    check_sum(block)?;
    let header = Header::from_byte_slice(block);
    let old = header.as_old();
    let name = text(&old.name).to_vec();
    let kind = kind(old.linkflag[0], &name)?;
    let (name, device) = if let Some(ustar) = header.as_ustar() {
        let device = device(kind, &ustar.dev_major, &ustar.dev_minor)?;
        (join_prefix(text(&ustar.prefix), name), device)
    } else if let Some(gnu) = header.as_gnu() {
        (name, device(kind, &gnu.dev_major, &gnu.dev_minor)?)
    } else {
        (name, (0, 0))
    };
    let mode = unsigned("mode", &old.mode)?;
    Ok(Some(Fields {
        kind,
        name,
        link: text(&old.linkname).to_vec(),
        // Some writers store the file type in the upper bits.
        mode: (mode & 0o7777) as u32,
        uid: unsigned("uid", &old.uid)?,
        gid: unsigned("gid", &old.gid)?,
        size: if kind.has_data() { unsigned("size", &old.size)? } else { 0 },
        mtime: signed("mtime", &old.mtime)?,
        device,
    }))
}

fn device(kind: EntryKind, major: &[u8], minor: &[u8]) -> Result<(u64, u64), Problem> {
    if matches!(kind, EntryKind::Char | EntryKind::Block) {
        Ok((unsigned("device major", major)?, unsigned("device minor", minor)?))
    } else {
        Ok((0, 0))
    }
}

fn kind(flag: u8, name: &[u8]) -> Result<EntryKind, Problem> {
    Ok(match flag {
        // v7 had no type for directories.
        0 if name.ends_with(b"/") => EntryKind::Dir,
        0 | b'0' | b'7' => EntryKind::File,
        b'1' => EntryKind::HardLink,
        b'2' => EntryKind::Symlink,
        b'3' => EntryKind::Char,
        b'4' => EntryKind::Block,
        b'5' => EntryKind::Dir,
        b'6' => EntryKind::Fifo,
        b'S' => EntryKind::GnuSparse,
        b'x' => EntryKind::PaxLocal,
        b'g' => EntryKind::PaxGlobal,
        b'L' => EntryKind::LongName,
        b'K' => EntryKind::LongLink,
        other => return Err(format!("unknown entry type {:?}", char::from(other))),
    })
}

fn join_prefix(prefix: &[u8], name: Vec<u8>) -> Vec<u8> {
    if prefix.is_empty() { name } else { [prefix, b"/", &name].concat() }
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The sum over all bytes with the checksum field taken as spaces; some old writers summed signed bytes.
fn check_sum(block: &[u8; BLOCK]) -> Result<(), Problem> {
    if cfg!(feature = "fuzzing") {
        // Otherwise the fuzzer would spend its time on guessing sums.
        return Ok(());
    }
    const FIELD: std::ops::Range<usize> = 148..156;
    let stated = unsigned("checksum", &block[FIELD])?;
    let spaces = 32 * FIELD.len() as i64;
    let others = || block[..FIELD.start].iter().chain(&block[FIELD.end..]);
    let plain: i64 = others().map(|byte| i64::from(*byte)).sum::<i64>() + spaces;
    let as_signed: i64 = others().map(|byte| i64::from(byte.cast_signed())).sum::<i64>() + spaces;
    if i64::try_from(stated).is_ok_and(|stated| stated == plain || stated == as_signed) {
        Ok(())
    } else {
        Err("header checksum mismatch".into())
    }
}

/// A number that cannot be negative.
pub(crate) fn unsigned(what: &str, field: &[u8]) -> Result<u64, Problem> {
    match field.first() {
        Some(first) if first & 0x80 != 0 => {
            let value = base256(what, field)?;
            u64::try_from(value).map_err(|_| format!("{what} is negative or too large"))
        }
        _ => octal(what, field),
    }
}

fn signed(what: &str, field: &[u8]) -> Result<i64, Problem> {
    let value = match field.first() {
        Some(first) if first & 0x80 != 0 => base256(what, field)?,
        _ => i128::from(octal(what, field)?),
    };
    i64::try_from(value).map_err(|_| format!("{what} is out of range"))
}

/// GNU's binary form: bit 7 of the first byte marks it, the rest is a big-endian two's complement number.
fn base256(what: &str, field: &[u8]) -> Result<i128, Problem> {
    let negative = field[0] & 0x40 != 0;
    let mut value: i128 = if negative { -1 } else { 0 };
    for (at, byte) in field.iter().enumerate() {
        let byte = match (at, negative) {
            (0, true) => byte | 0x80,
            (0, false) => byte & 0x7f,
            _ => *byte,
        };
        value = value.checked_mul(256).ok_or_else(|| format!("{what} is too large"))? | i128::from(byte);
    }
    Ok(value)
}

fn octal(what: &str, field: &[u8]) -> Result<u64, Problem> {
    let padding = |byte: &u8| *byte == b' ' || *byte == 0;
    let start = field.iter().position(|byte| !padding(byte)).unwrap_or(field.len());
    let digits = field[start..].split(padding).next().unwrap_or_default();
    digits.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => value
            .checked_mul(8)
            .map(|value| value | u64::from(digit - b'0'))
            .ok_or_else(|| format!("{what} is too large")),
        _ => Err(format!("{what} is no octal number")),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(change: impl FnOnce(&mut Header)) -> [u8; BLOCK] {
        let mut header = Header::new_gnu();
        header.set_path("a/b").unwrap();
        header.set_mode(0o644);
        header.set_uid(1);
        header.set_gid(2);
        header.set_size(3);
        header.set_mtime(4);
        change(&mut header);
        header.set_cksum();
        *header.as_bytes()
    }

    #[test]
    fn reads_the_three_formats() {
        let fields = parse(&block(|_| ())).unwrap().unwrap();
        assert_eq!((fields.name.as_slice(), fields.mode, fields.uid, fields.gid), (&b"a/b"[..], 0o644, 1, 2));
        assert_eq!((fields.size, fields.mtime, fields.kind), (3, 4, EntryKind::File));

        let mut ustar = Header::new_ustar();
        let long = format!("{}/{}", "p".repeat(100), "n".repeat(90));
        ustar.set_path(&long).unwrap();
        for set in [Header::set_uid, Header::set_gid, Header::set_size, Header::set_mtime] {
            set(&mut ustar, 0);
        }
        ustar.set_mode(0o100755);
        ustar.set_cksum();
        let fields = parse(ustar.as_bytes()).unwrap().unwrap();
        assert_eq!((fields.name, fields.mode), (long.into_bytes(), 0o755));

        let v7 = block(|header| {
            header.as_mut_bytes()[257..265].fill(0);
            header.as_old_mut().linkflag[0] = 0;
            header.as_old_mut().name[..4].copy_from_slice(b"dir/");
        });
        assert_eq!(parse(&v7).unwrap().unwrap().kind, EntryKind::Dir);
    }

    #[test]
    fn zeros_end_the_archive() {
        assert_eq!(parse(&[0; BLOCK]), Ok(None));
    }

    #[test]
    fn numbers_are_strict() {
        assert_eq!(unsigned("x", b"0000644\0"), Ok(0o644));
        assert_eq!(unsigned("x", b"  644 \0\0"), Ok(0o644));
        assert_eq!(unsigned("x", b"\0\0\0\0"), Ok(0));
        assert!(unsigned("x", b"12x\0").is_err());
        assert!(unsigned("x", b"-1\0").is_err());
        assert!(unsigned("x", b"7777777777777777777777777").is_err());
        assert_eq!(unsigned("x", &[0x80, 0, 0, 0, 0, 0, 1, 0]), Ok(256));
        assert!(unsigned("x", &[0xff; 12]).is_err());
        assert_eq!(signed("x", &[0xff; 12]), Ok(-1));
        assert!(unsigned("x", &[0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn refuses_bad_checksums_and_unknown_types() {
        let mut bytes = block(|_| ());
        bytes[0] ^= 1;
        assert!(parse(&bytes).unwrap_err().contains("checksum"));
        let odd = block(|header| header.as_old_mut().linkflag[0] = b'V');
        assert!(parse(&odd).unwrap_err().contains("unknown entry type"));
    }

    #[test]
    fn sizes_of_entries_without_data_are_ignored() {
        let link = block(|header| header.as_old_mut().linkflag[0] = b'1');
        assert_eq!(parse(&link).unwrap().unwrap().size, 0);
    }

    proptest! {
        #[test]
        fn never_panics(mut bytes in proptest::collection::vec(any::<u8>(), BLOCK), fix in any::<bool>()) {
            if fix {
                // A valid sum lets the rest of the parser see the noise.
                bytes[148..156].fill(b' ');
                let sum: u32 = bytes.iter().map(|b| u32::from(*b)).sum();
                bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
            if let Ok(array) = bytes.try_into() {
                parse(&array).ok();
            }
        }

        #[test]
        fn octal_numbers_survive(value in 0u64..(1 << 33)) {
            prop_assert_eq!(unsigned("x", format!("{value:011o}\0").as_bytes()), Ok(value));
        }
    }
}
