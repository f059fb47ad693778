//! A stream of bytes → tar entries with everything that describes them. Data is read in place.
//!
//! Only the current entry is kept in memory. Extension blocks are bounded before they are read. A size given by PAX
//! always overrides the header's, so that all readers agree where the next entry begins.

use std::io::{self, BufRead};

use super::{
    entry::TarEntry,
    header::{self, BLOCK, EntryKind, Fields},
    pax::{self, Extensions},
    sparse::{self, Sparse},
};
use crate::error::UnpackError;

/// Reads entries one after the other.
pub struct TarReader<R> {
    reader: R,
    /// Unread data of the current entry, and the padding after it.
    left: u64,
    padding: u64,
    global: Extensions,
    /// The current header as it arrived; it holds GNU's sparse map.
    raw: [u8; BLOCK],
    ended: bool,
}

#[derive(Default)]
struct Pending {
    pax: Option<Extensions>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl<R: BufRead> TarReader<R> {
    /// An archive at its beginning.
    pub fn new(reader: R) -> Self {
        Self { reader, left: 0, padding: 0, global: Extensions::default(), raw: [0; BLOCK], ended: false }
    }

    /// The next entry; `None` at the end of the archive.
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>, UnpackError> {
        let mut pending = Pending::default();
        loop {
            self.skip_rest()?;
            let Some(fields) = self.header()? else {
                if pending.pax.is_some() || pending.name.is_some() || pending.link.is_some() {
                    return Err(UnpackError::refused(b"", "the archive ends after an extension header"));
                }
                return Ok(None);
            };
            self.expect(&fields)?;
            let problem = |problem: String| UnpackError::refused(&fields.name, problem);
            match fields.kind {
                EntryKind::PaxGlobal => {
                    let global = pax::parse(&self.extension(&fields)?).map_err(problem)?;
                    global.check_global().map_err(problem)?;
                    self.global = global;
                }
                EntryKind::PaxLocal => {
                    let local = pax::parse(&self.extension(&fields)?).map_err(problem)?;
                    if pending.pax.replace(local).is_some() {
                        return Err(problem("two PAX headers for one entry".into()));
                    }
                }
                EntryKind::LongName => {
                    if pending.name.replace(self.long(&fields)?).is_some() {
                        return Err(problem("two long names for one entry".into()));
                    }
                }
                EntryKind::LongLink => {
                    if pending.link.replace(self.long(&fields)?).is_some() {
                        return Err(problem("two long link names for one entry".into()));
                    }
                }
                _ => return self.entry(fields, pending).map(Some),
            }
        }
    }

    /// Data and padding that follow a header.
    fn expect(&mut self, fields: &Fields) -> Result<(), UnpackError> {
        if i64::try_from(fields.size).is_err() {
            return Err(UnpackError::refused(&fields.name, "its size is out of range"));
        }
        (self.left, self.padding) = (fields.size, padding(fields.size));
        Ok(())
    }

    /// The next header block, if there is one.
    fn header(&mut self) -> Result<Option<Fields>, UnpackError> {
        if self.ended {
            return Ok(None);
        }
        let Some(block) = self.block()? else {
            self.ended = true;
            return Ok(None);
        };
        self.raw = block;
        let fields = header::parse(&block).map_err(|problem| UnpackError::refused(b"", problem))?;
        if fields.is_none() {
            // The end is two such blocks; a lone one is forgiven only if nothing follows.
            if self.block()?.is_some_and(|second| second != [0; BLOCK]) {
                return Err(UnpackError::refused(b"", "data after a block of zeros"));
            }
            self.ended = true;
        }
        Ok(fields)
    }

    /// 512 bytes, or `None` if the stream ends exactly here.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, UnpackError> {
        let mut block = [0; BLOCK];
        if self.reader.fill_buf()?.is_empty() {
            return Ok(None);
        }
        self.reader.read_exact(&mut block)?;
        Ok(Some(block))
    }

    /// The whole data of an extension entry.
    fn extension(&mut self, fields: &Fields) -> Result<Vec<u8>, UnpackError> {
        if fields.size > pax::MAX_BYTES {
            return Err(UnpackError::refused(&fields.name, format!("an extension header of {} bytes", fields.size)));
        }
        let mut data = vec![0; usize::try_from(fields.size).unwrap_or_default()];
        self.reader.read_exact(&mut data)?;
        self.left = 0;
        Ok(data)
    }

    /// A GNU long name: up to the first NUL.
    fn long(&mut self, fields: &Fields) -> Result<Vec<u8>, UnpackError> {
        let mut data = self.extension(fields)?;
        let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
        data.truncate(end);
        Ok(data)
    }

    fn entry(&mut self, mut fields: Fields, pending: Pending) -> Result<TarEntry, UnpackError> {
        let problem = |name: &[u8], problem: &str| UnpackError::refused(name, problem);
        let pax = pending.pax.unwrap_or_default();
        if both_differ(&pax.path, &pending.name) || both_differ(&pax.link, &pending.link) {
            return Err(problem(&fields.name, "PAX and GNU headers name it differently"));
        }
        if let Some(name) = pax.path.or(pending.name) {
            fields.name = name;
        }
        if let Some(link) = pax.link.or(pending.link) {
            fields.link = link;
        }
        if let (Some(size), true) = (pax.size, fields.kind.has_data()) {
            fields.size = size;
        }
        self.expect(&fields)?;
        let id = |what: &str, id: u64| match u32::try_from(id) {
            // -1 means "leave it as it is" to the kernel: such a file would silently belong to root.
            Ok(u32::MAX) | Err(_) => Err(problem(&fields.name, &format!("{what} {id} is out of range"))),
            Ok(id) => Ok(id),
        };
        let uid = id("uid", pax.uid.or(self.global.uid).unwrap_or(fields.uid))?;
        let gid = id("gid", pax.gid.or(self.global.gid).unwrap_or(fields.gid))?;
        let mut entry = TarEntry {
            kind: fields.kind,
            link: fields.link,
            mode: fields.mode,
            uid,
            gid,
            mtime: pax.mtime.or(self.global.mtime).unwrap_or((fields.mtime, 0)),
            device: fields.device,
            size: fields.size,
            xattrs: pax.xattrs,
            sparse: None,
            name: fields.name,
        };
        if entry.kind == EntryKind::GnuSparse || pax.sparse.present {
            if let Some(name) = &pax.sparse.name {
                entry.name.clone_from(name);
            }
            self.sparse(&mut entry, &pax.sparse)?;
        }
        Ok(entry)
    }

    /// Reads the map of a sparse file, which may be the first part of its data.
    fn sparse(&mut self, entry: &mut TarEntry, keys: &pax::SparseKeys) -> Result<(), UnpackError> {
        let refuse = |problem: String| UnpackError::refused(&entry.name, problem);
        let sparse = if entry.kind == EntryKind::GnuSparse {
            sparse::gnu(&self.raw, &entry.name, || {
                let mut block = [0; BLOCK];
                self.reader.read_exact(&mut block)?;
                Ok(block)
            })?
        } else if entry.kind != EntryKind::File {
            return Err(refuse("only a file can be sparse".into()));
        } else if keys.major == Some(1) && keys.minor == Some(0) {
            let (numbers, read) =
                sparse::numbers_in_data(&mut self.reader, self.left).map_err(|error| error.within(&entry.name))?;
            self.left -= read;
            Sparse::new(keys.real_size, &numbers).map_err(refuse)?
        } else if keys.major.unwrap_or(0) == 0 {
            Sparse::new(keys.real_size, &keys.numbers).map_err(refuse)?
        } else {
            return Err(refuse("an unknown sparse format".into()));
        };
        if sparse.stored() != self.left {
            return Err(refuse("its sparse map does not fit its size".into()));
        }
        entry.kind = EntryKind::File;
        entry.sparse = Some(sparse);
        Ok(())
    }

    /// The next data of the current entry, as far as it is buffered; empty when all was consumed.
    pub fn data(&mut self) -> Result<&[u8], UnpackError> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let buffer = self.reader.fill_buf()?;
        if buffer.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let length = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        Ok(&buffer[..length])
    }

    /// Marks data as used.
    pub fn consume(&mut self, length: usize) {
        self.reader.consume(length);
        self.left -= length as u64;
    }

    fn skip_rest(&mut self) -> Result<(), UnpackError> {
        let mut skip = self.left + self.padding;
        while skip > 0 {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let length = buffer.len().min(usize::try_from(skip).unwrap_or(usize::MAX));
            self.reader.consume(length);
            skip -= length as u64;
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    /// Reads the bytes behind the archive, so that the hash covers them, and returns the reader.
    pub fn finish(mut self) -> Result<R, UnpackError> {
        self.skip_rest()?;
        loop {
            let length = self.reader.fill_buf()?.len();
            if length == 0 {
                return Ok(self.reader);
            }
            self.reader.consume(length);
        }
    }
}

fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

fn both_differ(a: &Option<Vec<u8>>, b: &Option<Vec<u8>>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<(TarEntry, Vec<u8>)>, UnpackError> {
        let mut archive = TarReader::new(bytes);
        let mut entries = Vec::new();
        while let Some(entry) = archive.next_entry()? {
            let mut data = Vec::new();
            loop {
                let part = archive.data()?.to_vec();
                if part.is_empty() {
                    break;
                }
                // Some of the data is left for the archive to skip.
                archive.consume(part.len().div_ceil(2));
                data.extend(part);
                if data.len() > 100_000 {
                    break;
                }
            }
            entries.push((entry, data));
        }
        archive.finish()?;
        Ok(entries)
    }

    fn sample() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(5);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        let long = "n".repeat(150);
        builder.append_pax_extensions([("mtime", &b"1.5"[..]), ("SCHILY.xattr.user.a", b"b")]).unwrap();
        builder.append_data(&mut header, "short", &b"12345"[..]).unwrap();
        builder.append_data(&mut header, &long, &b"abcde"[..]).unwrap();
        builder.append_pax_extensions([("GNU.sparse.size", &b"9"[..]), ("GNU.sparse.map", b"1,5")]).unwrap();
        builder.append_data(&mut header, "sparse", &b"abcde"[..]).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn extensions_apply_to_their_entry_only() {
        let entries = read(&sample()).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!((entries[0].0.mtime, entries[0].0.xattrs.len()), ((1, 500_000_000), 1));
        assert_eq!((entries[1].0.mtime, entries[1].0.name.len()), ((1, 0), 150));
        assert_eq!(entries[2].0.sparse.as_ref().map(|sparse| sparse.size), Some(9));
    }

    #[test]
    fn sizes_near_the_end_of_the_number_line() {
        for size in ["9223372036854775808", "18446744073709551615"] {
            let mut builder = tar::Builder::new(Vec::new());
            builder.append_pax_extensions([("size", size.as_bytes())]).unwrap();
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            builder.append_data(&mut header, "x", &b""[..]).unwrap();
            assert!(read(&builder.into_inner().unwrap()).is_err());
        }
    }

    proptest! {
        #[test]
        fn damaged_archives_end_in_words(
            damage in proptest::collection::vec((0usize..8000, any::<u8>()), 0..12),
            cut in 0usize..8000,
            mend in any::<bool>(),
        ) {
            let mut bytes = sample();
            for (at, byte) in damage {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            bytes.truncate(cut.max(512));
            if mend {
                // Right sums let the damage through to the rest of the reader.
                for block in bytes.chunks_exact_mut(BLOCK) {
                    block[148..156].fill(b' ');
                    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
                }
            }
            read(&bytes).ok();
        }
    }
}
