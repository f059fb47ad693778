//! A layer's blob, as it arrives → its files in overlay form, both digests computed on the way.
//!
//! [`unpack`] runs on threads of its own, never on the runtime's: one that inflates, and one that writes and is confined to the
//! directory. Small layers inflate on the writing thread too, which is cheaper on a busy machine. An image's bytes are hostile: what
//! is refused names the entry and the reason.

mod apply;
mod archive;
mod attributes;
mod finish;
mod gzip;
mod header;
mod image;
pub(crate) mod marks;
mod name;
pub(crate) mod pax;
mod sparse;
pub(crate) mod stream;
pub(crate) mod tree;

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
};

pub(crate) use apply::Applied;
use apply::Applier;
pub(crate) use archive::Archive;
use archive::Entry;
pub(crate) use header::Kind;
use image::ImageApplier;
pub(crate) use image::Memory;
pub use image::SampleImage;
use name::Target;
use rustix::io::Errno;
use stream::{Decoder, Feed, Hashed, Pipe};
use tree::LookupError;

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
    /// Its files are in an image, not in a directory.
    pub(crate) image: bool,
}

/// Where a layer's files go.
#[derive(Debug)]
pub(crate) struct Output {
    /// An empty directory.
    pub(crate) directory: OwnedFd,
    /// An empty file, to be read and written, which becomes an EROFS image, unless the layer has more files than are kept in memory.
    pub(crate) image: Option<(File, Memory)>,
}

/// Unpacks a blob. Blocks; for a thread of the caller's. `side_by_side` inflates on a thread of its own.
pub(crate) fn unpack(
    feed: Feed,
    output: Output,
    diff_algorithm: Algorithm,
    side_by_side: bool,
    limits: &Limits,
) -> Result<Unpacked, UnpackError> {
    let seen = feed.seen();
    let mut decoder = Decoder::new(feed, limits)?;
    let confined = |reader: Box<dyn io::BufRead + Send + '_>| {
        sys::confine_thread(output.directory.as_fd())
            .map_err(|error| UnpackError::disk(b"", "confining the unpacking thread", error))?;
        write(Hashed::new(reader, diff_algorithm, Arc::clone(&seen), limits.clone()), output, limits)
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
    let (Applied { entries, implicit, opaque_root, not_set, copy_only, image }, diff_id, bytes) = result?;
    let (blob, blob_bytes) = decoder.into_feed().finish()?;
    if not_set.count > 0 {
        let (count, first) = (not_set.count, not_set.first);
        tracing::warn!(layer = %blob, count, first, "extended attributes that an image may not set, or that nothing can hold here");
    }
    Ok(Unpacked { blob, blob_bytes, diff_id, bytes, entries, implicit, opaque_root, copy_only, image })
}

/// Unpacks an archive; with what became of it, its digest and length.
pub(crate) fn write<R: BufRead>(
    hashed: Hashed<R>,
    output: Output,
    limits: &Limits,
) -> Result<(Applied, Digest, u64), UnpackError> {
    let mut archive = Archive::new(hashed);
    let mut last = Vec::new();
    let Output { directory, image } = output;
    let mut applier = match image {
        None => Applier::new(directory, limits.clone()),
        Some((file, memory)) => {
            let mut applier = ImageApplier::new(file, limits.clone(), memory)?;
            let fits = each_entry(&mut archive, &mut last, |entry, archive| {
                applier.apply(entry, archive)?;
                Ok(!applier.is_full())
            })?;
            if fits {
                let (_, diff_id, bytes) = archive.finish().map_err(|error| error.after(&last))?.finish();
                return Ok((applier.finish(&diff_id)?, diff_id, bytes));
            }
            applier.into_directory(directory)?
        }
    };
    each_entry(&mut archive, &mut last, |entry, archive| applier.apply(entry, archive).map(|()| true))?;
    let applied = applier.finish()?;
    let (_, diff_id, bytes) = archive.finish().map_err(|error| error.after(&last))?.finish();
    Ok((applied, diff_id, bytes))
}

/// Hands over one entry after the other, for as long as more are wanted. Whether the archive has ended.
fn each_entry<R: BufRead>(
    archive: &mut Archive<R>,
    last: &mut Vec<u8>,
    mut apply: impl FnMut(&Entry, &mut Archive<R>) -> Result<bool, UnpackError>,
) -> Result<bool, UnpackError> {
    while let Some(entry) = archive.next().map_err(|error| error.after(last))? {
        let more = apply(&entry, archive).map_err(|error| error.within(&entry.name))?;
        *last = entry.name;
        if !more {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What an entry asks for, which of the layer's root is only that it be a directory.
fn classify(entry: &Entry) -> Result<Target, UnpackError> {
    let refuse = |problem| UnpackError::refused(&entry.name, problem);
    match name::classify(&entry.name).map_err(refuse)? {
        Target::Root if entry.kind != Kind::Dir => Err(refuse("the layer's root must be a directory".to_owned())),
        target => Ok(target),
    }
}

fn check_entries(entries: u64, limits: &Limits) -> Result<(), UnpackError> {
    let limit = limits.entries;
    if entries > limit {
        return Err(UnpackError::refused(b"", format!("the layer has more than {limit} entries")));
    }
    Ok(())
}

/// `bytes` are the sizes of sparse files as they appear.
fn check_apparent(entry: &Entry, bytes: u64, limits: &Limits) -> Result<(), UnpackError> {
    let limit = limits.layer_bytes;
    if bytes > limit {
        return Err(UnpackError::refused(&entry.name, format!("sparse files of more than {limit} bytes")));
    }
    Ok(())
}

/// A symbolic link's target is one that the kernel takes.
fn check_target(entry: &Entry) -> Result<(), UnpackError> {
    if entry.link.is_empty() || entry.link.contains(&0) || entry.link.len() > 4095 {
        return Err(UnpackError::refused(&entry.name, "a symbolic link with an impossible target"));
    }
    Ok(())
}

/// A device's numbers, as far as Linux has them.
fn device(entry: &Entry) -> Result<(u32, u32), UnpackError> {
    match (u32::try_from(entry.device.0), u32::try_from(entry.device.1)) {
        (Ok(major @ ..=0xfff), Ok(minor @ ..=0xf_ffff)) => Ok((major, minor)),
        _ => Err(UnpackError::refused(&entry.name, "a device number out of range")),
    }
}

/// Why an entry has no directory to stand in.
fn no_parent(entry: &[u8], error: LookupError) -> UnpackError {
    match error {
        LookupError::Missing | LookupError::NotADir => {
            UnpackError::refused(entry, "its parent is no directory of this layer")
        }
        LookupError::TooDeep => UnpackError::refused(entry, "it lies too deep, or behind too many links"),
        LookupError::Io(error) => UnpackError::disk(entry, "opening its parent", error),
    }
}
