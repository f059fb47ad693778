//! A layer's blob, as it arrives → its files in overlay form. Both digests are computed on the way.
//!
//! [`unpack`] works on threads of its own, never on those of an async runtime. One thread writes and is confined to the
//! directory. A large layer is decompressed on a second thread; a small one is decompressed by the writing thread,
//! which is cheaper on a busy node. The bytes of an image are hostile: a refusal names the entry and the reason.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
};

use crate::{
    apply::{Applied, Applier, SkippedXattrs, Trial},
    buffers,
    digest::{Algorithm, Digest},
    directory::DirectoryStore,
    erofs::{self, ErofsStore, MemoryCounter},
    error::UnpackError,
    limits::Limits,
    stream::{BlobReader, Decoder, HashingReader, Pipe, pump},
    sys,
    tar::{TarEntry, TarReader},
};

/// A layer that was unpacked, with the digests of both its forms.
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
    /// Paths of directories that the archive uses without describing them, from the layer's root.
    pub implied_directories: Vec<Vec<u8>>,
    /// The layer hides everything below it. The kernel ignores the mark on a layer's root.
    pub opaque_root: bool,
    /// The file system refused overlayfs's marks, so the layer can be copied but not mounted, see [`crate::marks`].
    pub copy_only: bool,
    /// The layer's files are in an image, not in a directory.
    pub is_image: bool,
}

/// Where a layer's files go.
#[derive(Debug)]
pub struct Output {
    /// An empty directory.
    pub directory: OwnedFd,
    /// An empty file, open for reading and writing, which becomes an EROFS image. A layer with more files than are kept
    /// in memory goes to the directory all the same.
    pub image: Option<(File, MemoryCounter)>,
}

/// The files of a layer that were written, with the digest and the number of the unpacked bytes.
#[derive(Debug)]
pub struct Written {
    /// What is known from the entries.
    pub applied: Applied,
    /// See [`Unpacked::copy_only`].
    pub copy_only: bool,
    /// See [`Unpacked::is_image`].
    pub is_image: bool,
    /// The digest of the unpacked bytes.
    pub diff_id: Digest,
    /// The number of unpacked bytes.
    pub bytes: u64,
}

/// Unpacks a blob. Blocks, so it needs a thread of the caller's. `two_threads` decompresses on a thread of its own.
///
/// # Errors
/// The layer is refused, the file system fails, or the blob ends before its end.
pub fn unpack(
    blob: BlobReader,
    output: Output,
    diff_algorithm: Algorithm,
    two_threads: bool,
    limits: &Limits,
) -> Result<Unpacked, UnpackError> {
    let received = blob.received();
    let mut decoder = Decoder::new(blob, limits)?;
    let confined = |reader: Box<dyn BufRead + Send + '_>| {
        sys::confine_thread(output.directory.as_fd())
            .map_err(|error| UnpackError::disk("confining the unpacking thread", error))?;
        write(HashingReader::new(reader, diff_algorithm, Arc::clone(&received), limits.clone()), output, limits)
    };
    let result: Result<Written, UnpackError> = thread::scope(|scope| {
        if two_threads {
            let (sender, pipe) = Pipe::new();
            let writer = scope.spawn(|| confined(Box::new(pipe)));
            pump(&mut decoder, &sender);
            drop(sender);
            writer.join()
        } else {
            let reader = BufReader::with_capacity(buffers::SIZE, &mut decoder);
            scope.spawn(|| confined(Box::new(reader))).join()
        }
    })
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let Written { applied, copy_only, is_image, diff_id, bytes } = result?;
    let (blob, blob_bytes) = decoder.into_blob().finish()?;
    let Applied { entries, implied_directories, opaque_root, skipped } = applied;
    warn_of_skipped(&blob, &skipped);
    Ok(Unpacked { blob, blob_bytes, diff_id, bytes, entries, implied_directories, opaque_root, copy_only, is_image })
}

fn warn_of_skipped(layer: &Digest, skipped: &SkippedXattrs) {
    let SkippedXattrs { count, first } = skipped;
    if *count > 0 {
        tracing::warn!(
            %layer,
            count,
            first,
            "extended attributes that an image may not set, or that nothing can hold here"
        );
    }
}

/// Unpacks an archive on this thread.
///
/// # Errors
/// The layer is refused, the file system fails, or the archive cannot be read.
pub fn write<R: BufRead>(reader: HashingReader<R>, output: Output, limits: &Limits) -> Result<Written, UnpackError> {
    let mut archive = TarReader::new(reader);
    let mut last = Vec::new();
    let Output { directory, image } = output;
    let failed = |error| UnpackError::disk("opening the layer's directory", error);
    let trial = || Trial::on(&directory).map_err(failed);
    let mut applier = match image {
        None => {
            let trial = trial()?;
            Applier::new(DirectoryStore::new(directory, limits), limits.clone(), trial)
        }
        Some((file, memory)) => {
            let mut applier = Applier::new(ErofsStore::new(file, limits, memory)?, limits.clone(), trial()?);
            if apply_while_it_fits(&mut archive, &mut last, &mut applier)? {
                let (diff_id, bytes) = read_to_end(archive, &last)?;
                let (store, applied) = applier.finish()?;
                store.finish(&diff_id)?;
                return Ok(Written { applied, copy_only: false, is_image: true, diff_id, bytes });
            }
            erofs::into_directory(applier, directory)?
        }
    };
    each_entry(&mut archive, &mut last, |entry, archive| applier.apply(entry, archive).map(|()| true))?;
    let (store, mut applied) = applier.finish()?;
    let copy_only = store.finish(&mut applied.skipped)?;
    let (diff_id, bytes) = read_to_end(archive, &last)?;
    Ok(Written { applied, copy_only, is_image: false, diff_id, bytes })
}

/// Applies the entries of an archive for as long as the store has room. Returns whether the archive has ended.
pub(crate) fn apply_while_it_fits<R: BufRead>(
    archive: &mut TarReader<R>,
    last: &mut Vec<u8>,
    applier: &mut Applier<ErofsStore>,
) -> Result<bool, UnpackError> {
    each_entry(archive, last, |entry, archive| {
        applier.apply(entry, archive)?;
        Ok(!applier.store.is_full())
    })
}

/// The digest and the number of all bytes, those behind the archive included.
pub(crate) fn read_to_end<R: BufRead>(
    archive: TarReader<HashingReader<R>>,
    last: &[u8],
) -> Result<(Digest, u64), UnpackError> {
    let (_, diff_id, bytes) = archive.finish().map_err(|error| error.after(last))?.finish();
    Ok((diff_id, bytes))
}

/// Applies one entry after the other for as long as `apply` wants more. Returns whether the archive has ended.
/// `last` is the name of the last entry that was applied.
fn each_entry<R: BufRead>(
    archive: &mut TarReader<R>,
    last: &mut Vec<u8>,
    mut apply: impl FnMut(&TarEntry, &mut TarReader<R>) -> Result<bool, UnpackError>,
) -> Result<bool, UnpackError> {
    while let Some(entry) = archive.next_entry().map_err(|error| error.after(last))? {
        let more = apply(&entry, archive).map_err(|error| error.within(&entry.name))?;
        *last = entry.name;
        if !more {
            return Ok(false);
        }
    }
    Ok(true)
}
