//! A layer's blob, as it arrives → a folder in overlay form, both digests computed on the way.
//!
//! [`unpack`] runs on threads of its own, never on the runtime's: one that inflates, and one that writes and is confined to the
//! folder. Small layers inflate on the writing thread too, which is cheaper on a busy machine. An image's bytes are hostile: what
//! is refused names the entry and the reason.

mod apply;
mod archive;
mod attributes;
mod finish;
mod gzip;
mod header;
pub(crate) mod marks;
mod name;
pub(crate) mod pax;
mod sparse;
pub(crate) mod stream;
pub(crate) mod tree;

use std::{
    io::{self, BufReader},
    os::fd::{AsFd, OwnedFd},
    thread,
};

pub(crate) use apply::Applied;
use apply::Applier;
pub(crate) use archive::Archive;
pub(crate) use header::Kind;
use rustix::io::Errno;
use stream::{Decoder, Feed, Hashed, Pipe};

use crate::{
    buffers,
    config::Limits,
    digest::{Algorithm, Digest},
    sys,
};

/// Why a layer was not unpacked.
#[derive(Debug)]
pub(crate) enum UnpackError {
    /// Its bytes are broken or ask for something that is not done.
    Refused { entry: Option<String>, problem: String },
    /// The file system failed.
    Disk { entry: String, action: &'static str, source: io::Error },
    /// The bytes stopped coming because the pull was given up.
    Aborted,
}

impl UnpackError {
    pub(crate) fn refused(entry: &[u8], problem: impl Into<String>) -> Self {
        UnpackError::Refused { entry: (!entry.is_empty()).then(|| show(entry)), problem: problem.into() }
    }

    /// Names the entry that was being applied, where the one who failed did not know it.
    fn within(self, name: &[u8]) -> Self {
        match self {
            UnpackError::Refused { entry: None, problem } => Self::refused(name, problem),
            error => error,
        }
    }

    /// Says which entry came before what could not be read.
    fn after(self, name: &[u8]) -> Self {
        match self {
            UnpackError::Refused { entry: None, problem } if !name.is_empty() => {
                UnpackError::Refused { entry: None, problem: format!("{problem} (after entry \"{}\")", show(name)) }
            }
            error => error,
        }
    }

    fn disk(entry: &[u8], action: &'static str, source: io::Error) -> Self {
        // Names and values that no file system can hold are the image's fault, not the machine's.
        if matches!(
            source.raw_os_error().map(Errno::from_raw_os_error),
            Some(Errno::NAMETOOLONG | Errno::INVAL | Errno::TOOBIG | Errno::RANGE | Errno::MLINK | Errno::FBIG)
        ) {
            return Self::refused(entry, format!("{action}: {source}"));
        }
        UnpackError::Disk { entry: show(entry), action, source }
    }
}

impl From<io::Error> for UnpackError {
    /// Errors of the stream; those of the file system are made with their context.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionAborted => UnpackError::Aborted,
            io::ErrorKind::UnexpectedEof => UnpackError::refused(b"", "it ends in the middle"),
            _ => UnpackError::Refused { entry: None, problem: error.to_string() },
        }
    }
}

/// A name from an image, fit for a log.
fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(200).flat_map(char::escape_debug).collect()
}

/// A layer that was unpacked and whose bytes were hashed twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) blob: Digest,
    pub(crate) blob_bytes: u64,
    pub(crate) diff_id: Digest,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) implicit: Vec<Vec<u8>>,
    pub(crate) opaque_root: bool,
    pub(crate) copy_only: bool,
}

/// Unpacks a blob into an empty folder. Blocks; for a thread of the caller's. `side_by_side` inflates on a thread of its own.
pub(crate) fn unpack(
    feed: Feed,
    root: OwnedFd,
    diff_algorithm: Algorithm,
    side_by_side: bool,
    limits: &Limits,
) -> Result<Unpacked, UnpackError> {
    let seen = feed.seen();
    let mut decoder = Decoder::new(feed, limits)?;
    let confined = |reader: Box<dyn io::BufRead + Send + '_>| {
        sys::confine_thread(root.as_fd())
            .map_err(|error| UnpackError::disk(b"", "confining the unpacking thread", error))?;
        let root = root.try_clone().map_err(|error| UnpackError::disk(b"", "opening the layer's folder", error))?;
        let hashed = Hashed::new(reader, diff_algorithm, std::sync::Arc::clone(&seen), limits.clone());
        let (applied, hashed) = write(hashed, root, limits)?;
        let (_, diff_id, bytes) = hashed.finish();
        Ok((applied, diff_id, bytes))
    };
    let result: Result<(Applied, Digest, u64), UnpackError> = thread::scope(|scope| {
        if side_by_side {
            let (sender, pipe) = Pipe::new();
            let writer = scope.spawn(|| confined(Box::new(pipe)));
            stream::pump(&mut decoder, &sender);
            drop(sender);
            writer.join()
        } else {
            let reader = BufReader::with_capacity(buffers::SIZE, &mut decoder);
            scope.spawn(|| confined(Box::new(reader))).join()
        }
    })
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let (Applied { entries, implicit, opaque_root, not_set, copy_only }, diff_id, bytes) = result?;
    let (blob, blob_bytes) = decoder.into_feed().finish()?;
    if not_set.count > 0 {
        let (count, first) = (not_set.count, not_set.first);
        tracing::warn!(layer = %blob, count, first, "extended attributes that an image may not set, or that nothing can hold here");
    }
    Ok(Unpacked { blob, blob_bytes, diff_id, bytes, entries, implicit, opaque_root, copy_only })
}

pub(crate) fn write<R: io::BufRead>(
    hashed: Hashed<R>,
    root: OwnedFd,
    limits: &Limits,
) -> Result<(Applied, Hashed<R>), UnpackError> {
    let mut archive = Archive::new(hashed);
    let mut applier = Applier::new(root, limits.clone());
    let mut last = Vec::new();
    while let Some(entry) = archive.next().map_err(|error| error.after(&last))? {
        applier.apply(&entry, &mut archive).map_err(|error| error.within(&entry.name))?;
        last = entry.name;
    }
    let applied = applier.finish()?;
    Ok((applied, archive.finish().map_err(|error| error.after(&last))?))
}
