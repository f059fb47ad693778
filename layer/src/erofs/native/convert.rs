//! The blob of a layer → its native image.
//!
//! The archive is unpacked into a scratch file first, because the metadata precedes the data and is known at the end.
//! Extended attributes and times are taken as they are: the file system of the machine that converts plays no role.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Write},
    ops::Range,
    os::unix::fs::FileExt,
};

use super::{
    super::{
        disk, format,
        store::ErofsStore,
        tree::{Content, Id, ROOT, Tree},
    },
    first_reads::{FileReads, find, ranges_of},
    image::{Extent, NativeImage, Parts, in_order},
    rules, verity,
};
use crate::{
    apply::{Applied, Applier, Trial},
    buffers,
    digest::{Algorithm, Digest, Hasher},
    error::UnpackError,
    limits::Limits,
    stream::{BlobReader, Decoder, HashingReader},
    tar::TarReader,
    unpack::{apply_while_it_fits, read_to_end},
};

/// A layer that was converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The digest of the blob that was read.
    pub blob: Digest,
    /// The digest of the unpacked archive.
    pub diff_id: Digest,
    /// The digest of the native image.
    pub image: Digest,
    /// The parts of the native image.
    pub parts: Parts,
    /// The root of the hash tree.
    pub hash_root: [u8; 32],
    /// Where the parts of files are that containers read first, in the order of the image.
    pub first: Vec<Range<u64>>,
    /// Whether the data has another order than the files.
    pub reordered: bool,
    /// Extended attributes that an image may not set and that were left out.
    pub skipped_xattrs: u64,
}

/// What containers read first of a layer.
#[derive(Debug, Clone, Copy, Default)]
pub struct FirstReads<'a> {
    /// The parts of files, in the order of the first reads. Files that the layer does not have are left out.
    pub files: &'a [FileReads],
    /// Whether the data of these files precedes that of the others.
    pub reorder: bool,
}

/// Converts a layer. `scratch` and `out` are empty files, open for reading and writing. Without first reads, or without
/// their order, the same layer gives the same bytes. Blocks.
///
/// # Errors
/// The layer is refused, a file cannot be written, or the blob ends before its end.
pub fn convert(
    blob: BlobReader,
    (scratch, out): (File, &File),
    diff_algorithm: Algorithm,
    first: FirstReads<'_>,
    limits: &Limits,
) -> Result<Converted, UnpackError> {
    let received = blob.received();
    let mut decoder = Decoder::new(blob, limits)?;
    let reader = BufReader::with_capacity(buffers::SIZE, &mut decoder);
    let mut archive = TarReader::new(HashingReader::new(reader, diff_algorithm, received, limits.clone()));
    let mut applier = Applier::new(ErofsStore::reproducible(scratch, limits)?, limits.clone(), Trial::none());
    let mut last = Vec::new();
    if !apply_while_it_fits(&mut archive, &mut last, &mut applier)? {
        let problem = format!("its names and attributes need more than {} bytes of memory", limits.kept_bytes);
        return Err(UnpackError::refused(&last, problem));
    }
    let (diff_id, _) = read_to_end(archive, &last)?;
    let (blob, _) = decoder.into_blob().finish()?;
    let (mut store, applied) = applier.finish()?;
    mark(store.tree_mut(), &applied);
    let failed = |error| UnpackError::disk("writing the native image", error);
    store.flush().map_err(failed)?;
    if limits.zstd_images {
        store.compress().map_err(failed)?;
    }
    let (ordered, before) = in_order(store.parts().0).map_err(failed)?;
    let files = find(&ordered, first.files);
    let order: Vec<_> = files.iter().filter(|_| first.reorder).map(|(id, _)| *id).collect();
    let image = NativeImage::new(ordered, disk::uuid(&diff_id), &order).map_err(failed)?;
    let (digest, hash_root) = write(&image, (&store, &before), out).map_err(failed)?;
    let reordered = !image.extents().is_sorted_by_key(|extent| extent.id);
    let (parts, first, skipped_xattrs) = (image.parts(), ranges_of(&image, &files), applied.skipped.count);
    Ok(Converted { blob, diff_id, image: digest, parts, hash_root, first, reordered, skipped_xattrs })
}

/// Marks the directories that no entry describes, and a root that hides everything below the layer. Overlayfs ignores
/// both marks.
fn mark(tree: &mut Tree, applied: &Applied) {
    for path in &applied.implied_directories {
        if let Some(id) = tree.find(path) {
            tree.node_mut(id).xattrs.push((rules::IMPLIED.to_vec(), rules::SET.to_vec()));
        }
    }
    if applied.opaque_root {
        tree.node_mut(ROOT).xattrs.push((rules::opaque().to_vec(), rules::SET.to_vec()));
    }
}

/// Writes all parts of the image. `before` has the numbers of its files in the store. Returns the digest and the root
/// of the hash tree.
fn write(image: &NativeImage, (store, before): (&ErofsStore, &[Id]), out: &File) -> io::Result<(Digest, [u8; 32])> {
    let (tree, scratch) = store.parts();
    let mut out = Output {
        file: BufWriter::with_capacity(buffers::SIZE, out),
        digest: Hasher::new(Algorithm::Sha256),
        tree: verity::HashTreeBuilder::default(),
    };
    image.write_metadata(&mut out)?;
    let mut buffer = vec![0; buffers::SIZE];
    for Extent { id, stored, .. } in image.extents() {
        // The data is where the unpacker put it, or behind all of that if it was compressed. Zeros follow its end.
        let Content::File { block, .. } = tree.node(before[id as usize]).content else { continue };
        copy(scratch, u64::from(block) * format::BLOCK, stored, &mut buffer, &mut out)?;
    }
    let Output { mut file, mut digest, tree } = out;
    let tree = tree.finish();
    for part in [&verity::header(image.parts().file_system() / format::BLOCK, image.uuid()), &tree.levels] {
        file.write_all(part)?;
        digest.update(part);
    }
    file.flush()?;
    Ok((digest.finish(), tree.root))
}

/// Copies a part of a file.
fn copy(from: &File, begin: u64, size: u64, buffer: &mut [u8], to: &mut impl Write) -> io::Result<()> {
    let mut done = 0;
    while done < size {
        let part = buffer.len().min(usize::try_from(size - done).unwrap_or(usize::MAX));
        from.read_exact_at(&mut buffer[..part], begin + done)?;
        to.write_all(&buffer[..part])?;
        done += part as u64;
    }
    Ok(())
}

/// Writes a file, its digest and its hash tree at once.
struct Output<'a> {
    file: BufWriter<&'a File>,
    digest: Hasher,
    tree: verity::HashTreeBuilder,
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        self.tree.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
