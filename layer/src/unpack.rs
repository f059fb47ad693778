//! A layer's blob, as it arrives → its files in overlay form, both digests computed on the way.
//!
//! [`unpack`] runs on threads of its own, never on the runtime's: one that inflates, and one that writes and is confined to the
//! directory. Small layers inflate on the writing thread too, which is cheaper on a busy machine. An image's bytes are hostile: what
//! is refused names the entry and the reason.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
};

use crate::{
    buffers,
    digest::{Algorithm, Digest},
    directory::{Applied, Applier},
    erofs::{ImageApplier, Memory},
    error::UnpackError,
    limits::Limits,
    stream::{self, Decoder, Feed, Hashed, Pipe},
    sys,
    tar::archive::{Archive, Entry},
};

/// A layer that was unpacked and whose bytes were hashed twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The digest of the blob, as it arrived.
    pub blob: Digest,
    /// Bytes of the blob.
    pub blob_bytes: u64,
    /// The digest of the unpacked bytes.
    pub diff_id: Digest,
    /// The number of unpacked bytes.
    pub bytes: u64,
    /// Entries of the archive.
    pub entries: u64,
    /// Implied directories: the archive uses them without an entry of their own. Paths from the layer's root.
    pub implicit: Vec<Vec<u8>>,
    /// The layer hides everything below it. The kernel ignores the mark on a layer's root.
    pub opaque_root: bool,
    /// The file system refused overlayfs's marks, see [`crate::marks`].
    pub copy_only: bool,
    /// The layer's files are in an image, not in a directory.
    pub image: bool,
}

/// Where a layer's files go.
#[derive(Debug)]
pub struct Output {
    /// An empty directory.
    pub directory: OwnedFd,
    /// An empty file, to be read and written, which becomes an EROFS image, unless the layer has more files than are kept in memory.
    pub image: Option<(File, Memory)>,
}

/// Unpacks a blob. Blocks; for a thread of the caller's. `side_by_side` inflates on a thread of its own.
pub fn unpack(
    feed: Feed,
    output: Output,
    diff_algorithm: Algorithm,
    side_by_side: bool,
    limits: &Limits,
) -> Result<Unpacked, UnpackError> {
    let seen = feed.seen();
    let mut decoder = Decoder::new(feed, limits)?;
    let confined = |reader: Box<dyn BufRead + Send + '_>| {
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
pub fn write<R: BufRead>(
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
