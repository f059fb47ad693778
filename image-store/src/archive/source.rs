//! An opened archive: its members, read in any order.
//!
//! A tar is indexed once. A compressed tar is inflated into a nameless file first, within the same limits as a layer. A
//! directory works as well.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use host::resolve::open_below;
use layer::{
    buffers::{self, Buffers},
    digest::Algorithm,
    stream::{self, BlobReader, Decoder, HashingReader, Piece},
};
use rustix::fs::{FileType, OFlags, ResolveFlags};
use tokio::sync::mpsc;

use super::index::{self, Member};
use crate::{
    error::{PullError, StoreError},
    files,
    limits::Limits,
};

/// Pieces that may wait between the reader and the decoder.
const WAITING_PIECES: usize = 8;

/// Set when the load was cancelled. Reading the archive ends then.
pub type Cancelled = Arc<AtomicBool>;

/// Ends the reading of an archive when it is dropped.
#[derive(Default)]
pub(crate) struct CancelOnDrop(Cancelled);

impl CancelOnDrop {
    /// The flag for the reader.
    pub(crate) fn flag(&self) -> Cancelled {
        Arc::clone(&self.0)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An opened archive or directory.
pub struct Source {
    /// The name in error texts.
    name: String,
    form: Form,
    cancelled: Cancelled,
}

/// The form of an archive on disk.
enum Form {
    Tar { file: File, members: BTreeMap<String, Member> },
    Directory(OwnedFd),
}

impl Source {
    /// Opens an archive or a directory. A compressed archive is inflated into a nameless file in `scratch`. Blocks.
    pub fn open(
        name: String,
        fd: OwnedFd,
        limits: &Limits,
        scratch: &Path,
        cancelled: Cancelled,
    ) -> Result<Source, PullError> {
        let stat = rustix::fs::fstat(&fd).map_err(StoreError::io("examining", &name))?;
        let form = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Form::Directory(fd),
            FileType::RegularFile => {
                let mut file = File::from(fd);
                if is_compressed(&file).map_err(StoreError::io("reading", &name))? {
                    file = inflate(&name, &file, limits, scratch, &cancelled)?;
                }
                let whole = whole(&name, &file, &cancelled)?;
                let members = index::index(&name, whole, limits)?;
                Form::Tar { file, members }
            }
            _ => {
                let problem = "it is neither a file nor a directory".to_owned();
                return Err(PullError::Unsupported { what: name, problem });
            }
        };
        Ok(Source { name, form, cancelled })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The content of a member; `None` if there is no member of this name.
    pub fn member(&self, name: &str) -> Result<Option<Part>, PullError> {
        let part = |file: File, offset, left| Part { file, offset, left, cancelled: Arc::clone(&self.cancelled) };
        match &self.form {
            Form::Tar { file, members } => {
                let Some((offset, size)) = index::find(members, name) else { return Ok(None) };
                let file = file.try_clone().map_err(StoreError::io("opening", &self.name))?;
                Ok(Some(part(file, offset, size)))
            }
            Form::Directory(directory) => {
                let path = format!("{}/{name}", self.name);
                let flags = OFlags::RDONLY | OFlags::NONBLOCK;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let fd = match open_below(directory, name, flags, resolve) {
                    Err(rustix::io::Errno::NOENT) => return Ok(None),
                    Err(rustix::io::Errno::XDEV | rustix::io::Errno::LOOP) => {
                        return Err(self.malformed(format!("{name:?} leads out of it")));
                    }
                    result => result.map_err(StoreError::io("opening", &path))?,
                };
                let stat = rustix::fs::fstat(&fd).map_err(StoreError::io("examining", &path))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(self.malformed(format!("{name:?} is no file")));
                }
                Ok(Some(part(File::from(fd), 0, u64::try_from(stat.st_size).unwrap_or(0))))
            }
        }
    }

    /// The whole content of a small member.
    pub(crate) fn document(&self, name: &str, limits: &Limits) -> Result<Option<Vec<u8>>, PullError> {
        let Some(mut part) = self.member(name)? else { return Ok(None) };
        if part.size() > limits.document_bytes {
            let (what, limit) = (format!("{}: {name:?}", self.name), format!("{} bytes", limits.document_bytes));
            return Err(PullError::TooLarge { what, limit });
        }
        let mut bytes = Vec::new();
        part.read_to_end(&mut bytes).map_err(|error| self.malformed(format!("{name:?}: {error}")))?;
        Ok(Some(bytes))
    }

    pub(crate) fn malformed(&self, problem: impl ToString) -> PullError {
        PullError::malformed(self.name.clone(), problem)
    }
}

/// A part of a file.
pub struct Part {
    file: File,
    offset: u64,
    left: u64,
    cancelled: Cancelled,
}

impl Part {
    /// Number of bytes that are not read yet.
    pub fn size(&self) -> u64 {
        self.left
    }

    /// The file, and where the part begins in it.
    pub(crate) fn into_file(self) -> (File, u64) {
        (self.file, self.offset)
    }

    /// Sends the rest to an unpacker, until the end or until the unpacker stops. Blocks.
    pub(crate) fn send(mut self, pieces: &mpsc::Sender<Piece>) -> io::Result<()> {
        let buffers = Buffers::default();
        loop {
            let mut block = buffers.take();
            if self.left == 0 {
                pieces.blocking_send(Piece::End).ok();
                return Ok(());
            }
            let length = self.read(block.space())?;
            block.fill(length);
            if pieces.blocking_send(Piece::Data(Bytes::from_owner(block))).is_err() {
                return Ok(());
            }
        }
    }
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(stream::aborted());
        }
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let length = self.file.read_at(&mut buffer[..wanted], self.offset)?;
        if length == 0 && wanted > 0 {
            // The file was truncated after it was indexed.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += length as u64;
        self.left -= length as u64;
        Ok(length)
    }
}

/// The whole file.
pub(super) fn whole(name: &str, file: &File, cancelled: &Cancelled) -> Result<Part, PullError> {
    let left = file.metadata().map_err(StoreError::io("examining", name))?.len();
    let file = file.try_clone().map_err(StoreError::io("opening", name))?;
    Ok(Part { file, offset: 0, left, cancelled: Arc::clone(cancelled) })
}

fn is_compressed(file: &File) -> io::Result<bool> {
    let mut magic = [0; 4];
    let length = file.read_at(&mut magic, 0)?;
    Ok(stream::is_compressed(&magic[..length]))
}

/// Inflates an archive into a nameless file.
fn inflate(name: &str, file: &File, limits: &Limits, scratch: &Path, cancelled: &Cancelled) -> Result<File, PullError> {
    let path = files::temporary(scratch);
    let mut out = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(StoreError::io("creating", &path))?;
    std::fs::remove_file(&path).map_err(StoreError::io("removing", &path))?;
    let part = whole(name, file, cancelled)?;
    let broken = |error: io::Error| PullError::malformed(name, error);
    let limits = limits.of_a_layer();
    std::thread::scope(|scope| {
        let (pieces, receiver) = mpsc::channel(WAITING_PIECES);
        // If reading fails, the channel closes without an end, and the receiver reports that.
        scope.spawn(move || part.send(&pieces).ok());
        let blob = BlobReader::new(receiver, Algorithm::Sha256);
        let received = blob.received();
        let decoder = Decoder::new(blob, &limits).map_err(broken)?;
        let mut inflated =
            HashingReader::new(BufReader::with_capacity(buffers::SIZE, decoder), Algorithm::Sha256, received, limits);
        loop {
            let block = inflated.fill_buf().map_err(broken)?;
            let length = block.len();
            if length == 0 {
                return Ok(out);
            }
            out.write_all(block).map_err(StoreError::io("writing", &path))?;
            inflated.consume(length);
        }
    })
}
