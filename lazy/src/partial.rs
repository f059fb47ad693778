//! A layer whose data is not all here: its files on disk, and the check of each chunk before it is written.
//!
//! The directory of a partial layer contains:
//! - `fs.erofs`: the image, sparse. The metadata is complete from the beginning, and the hash tree but for its lowest
//!   level (module `hashes`).
//! - `partial.json`: the record. It is written last, so a directory without it is of no use.
//! - `present`: one byte for each chunk of data. It is set after the chunk was written.
//!
//! A killed process leaves the two files as they were written, because the kernel has them. After a reboot they may
//! disagree, so each chunk that counts as present is verified again.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io,
    ops::Range,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use host::{
    boot,
    durable::{self, Durability},
    record,
};
use layer::{CheckedImage, Digest, Limits, Parts, digest::Hasher};
use serde::{Deserialize, Serialize};

use crate::{
    description::{CHUNK, Description, chunk_count, chunks_of, range_of, range_of_all},
    error::{LazyError, at},
    front::{self, Front},
    hashes::Hashes,
    plan::GAP,
    source::Sources,
};

/// The name of the file with the image of a layer, in the directory of the layer.
pub const IMAGE: &str = "fs.erofs";
const RECORD: &str = "partial.json";
const PRESENT: &str = "present";
/// The version of the record. With version 1, the whole hash tree was here from the beginning.
const VERSION: u32 = 2;
/// Bytes that are read at once.
const BUFFER: usize = 1 << 20;
/// Bytes that are hashed when a chunk has come. A job takes no bytes from its source meanwhile, and after a longer
/// pause the link would have nothing to do. It is more than a chunk, because many chunks may precede the next missing
/// one.
const AHEAD: u64 = 4 * CHUNK;

/// The record of a partial layer.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    description: Description,
    chunk: u64,
    boot_id: String,
}

/// A layer whose data is not all here.
#[derive(Debug)]
pub struct PartialLayer {
    directory: PathBuf,
    description: Description,
    parts: Parts,
    hashes: Hashes,
    map: File,
    present: Vec<bool>,
    hashed: Mutex<Hashed>,
    /// What of the whole image is left to check, see [`CheckedImage::padding`]. `None`: this process has not checked
    /// the metadata.
    padding: Option<Vec<Range<u64>>>,
    /// See [`PartialLayer::gap`].
    gap: usize,
}

/// The beginning of an image that its digest has covered so far.
struct Hashed {
    hasher: Hasher,
    bytes: u64,
    buffer: Vec<u8>,
}

impl fmt::Debug for Hashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashed").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Hashed {
    fn new(digest: &Digest) -> Self {
        Self { hasher: Hasher::new(digest.algorithm()), bytes: 0, buffer: Vec::new() }
    }

    /// Goes on until `end`. An error leaves it where it is.
    fn go_on(&mut self, image: &File, end: u64) -> io::Result<()> {
        self.buffer.resize(BUFFER, 0);
        while self.bytes < end {
            let part = self.buffer.len().min((end - self.bytes) as usize);
            let part = &mut self.buffer[..part];
            image.read_exact_at(part, self.bytes)?;
            self.hasher.update(part);
            self.bytes += part.len() as u64;
        }
        Ok(())
    }
}

impl PartialLayer {
    fn new(
        directory: &Path,
        description: Description,
        parts: Parts,
        (map, present): (File, Vec<bool>),
        padding: Option<Vec<Range<u64>>>,
    ) -> Self {
        let (directory, hashed) = (directory.to_owned(), Mutex::new(Hashed::new(&description.digest)));
        Self { directory, description, parts, hashes: Hashes::new(parts), map, present, hashed, padding, gap: GAP }
    }

    /// Fetches the parts that must be there before the mount and writes them to an empty directory, with some chunks of
    /// the profile. Blocks. Also returns what the metadata says about the layer.
    ///
    /// # Errors
    /// No source delivers parts that this program wrote, or the file system fails.
    pub fn create(
        directory: &Path,
        description: Description,
        sources: &Sources,
        limits: &Limits,
    ) -> Result<(Self, CheckedImage), LazyError> {
        let parts = description.parts().ok_or_else(|| description.refused("its length is not that of its metadata"))?;
        let trial = open_directory(directory)?;
        let mut result = Err(description.refused("it has no source"));
        for source in sources.iter() {
            result = front::fetch(&**source, &description, &parts, (limits, &trial));
            match &result {
                Ok(_) => break,
                Err(error) => tracing::debug!(source = source.name(), %error, "this source does not deliver the layer"),
            }
        }
        let Front { metadata, hash_tree, hashes, first, mut checked, gap } = result?;
        let path = directory.join(IMAGE);
        let image = private().create(true).truncate(true).open(&path).map_err(at("creating", &path))?;
        let written = image
            .set_len(parts.total())
            .and_then(|()| image.write_all_at(&metadata, 0))
            .and_then(|()| image.write_all_at(&hash_tree, parts.file_system()));
        written.map_err(at("writing", &path))?;
        let present = vec![false; chunk_count(&parts)];
        let map = write_map(directory, &present)?;
        let padding = Some(std::mem::take(&mut checked.padding));
        let mut layer = Self { gap, ..Self::new(directory, description, parts, (map, present), padding) };
        for (start, bytes) in hashes {
            layer.hashes.accept(&image, start, &bytes).map_err(at("writing", &path))?;
        }
        // A wrong chunk, or one with wrong hashes, is asked for again when the layer is served.
        let chunks = first.iter().flat_map(|(chunks, bytes)| chunks.clone().zip(bytes.chunks(CHUNK as usize)));
        for (chunk, bytes) in chunks {
            layer.present[chunk] = layer.accept(&image, chunk, bytes).map_err(at("writing", &path))?;
        }
        write_record(directory, &layer.description)?;
        Ok((layer, checked))
    }

    /// The layer after its directory was renamed.
    #[must_use]
    pub fn moved_to(self, directory: &Path) -> Self {
        Self { directory: directory.to_owned(), ..self }
    }

    /// Opens a layer that a process, or another boot, left incomplete. `None`: there is none that may be used. After a
    /// reboot all of it is read and verified. Blocks.
    ///
    /// # Errors
    /// The file system fails.
    pub fn open(directory: &Path, limits: &Limits) -> Result<Option<Self>, LazyError> {
        let path = directory.join(RECORD);
        let record: Option<Record> = match record::read(VERSION, &path) {
            Ok(record) => record,
            Err(record::RecordError::Io(error)) => return Err(at("reading", &path)(error.source)),
            Err(record::RecordError::Invalid { .. }) => None,
        };
        let Some(Record { description, chunk, boot_id }) = record else { return Ok(None) };
        let Some(parts) = description.parts().filter(|_| chunk == CHUNK) else { return Ok(None) };
        let path = directory.join(PRESENT);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(at("reading", &path))?,
        };
        let mut present: Vec<bool> = bytes.into_iter().map(|byte| byte == 1).collect();
        if present.len() != chunk_count(&parts) {
            return Ok(None);
        }
        let image = directory.join(IMAGE);
        match fs::metadata(&image) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found if found.as_ref().is_ok_and(|found| found.len() != parts.total()) => return Ok(None),
            found => found.map_err(at("reading", &image))?,
        };
        let now = boot::id().map_err(at("reading", Path::new(boot::PATH)))?;
        if boot_id == now {
            let map = private().open(&path).map_err(at("opening", &path))?;
            return Ok(Some(Self::new(directory, description, parts, (map, present), None)));
        }
        let Some(checked) = verify_again(directory, &description, &parts, &mut present, limits)? else {
            return Ok(None);
        };
        let map = write_map(directory, &present)?;
        write_record(directory, &description)?;
        Ok(Some(Self::new(directory, description, parts, (map, present), Some(checked.padding))))
    }

    /// The path of the image. It may be mounted only while the layer is served.
    pub fn image(&self) -> PathBuf {
        self.directory.join(IMAGE)
    }

    /// What the manifest says about the layer.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The chunks that come before the others.
    pub(crate) fn first(&self) -> &[Range<usize>] {
        &self.description.first
    }

    /// Missing chunks between two parts of the profile that are fetched with them.
    pub(crate) fn gap(&self) -> usize {
        self.gap
    }

    /// The chunks that are here.
    pub(crate) fn present(&self) -> &[bool] {
        &self.present
    }

    /// What of a range of the file is data.
    pub(crate) fn data_of(&self, range: &Range<u64>) -> Range<u64> {
        range.start.max(self.parts.metadata)..range.end.min(self.parts.file_system())
    }

    /// The chunks of data that a range of the file touches.
    pub(crate) fn chunks_of(&self, range: &Range<u64>) -> Range<usize> {
        chunks_of(&self.parts, range)
    }

    /// The bytes of a chunk.
    pub(crate) fn range_of(&self, chunk: usize) -> Range<u64> {
        range_of(&self.parts, chunk)
    }

    /// Writes a chunk if it is the right one. `Ok(false)`: it is not, and nothing was written. `image` must be a
    /// descriptor whose accesses are not announced.
    pub(crate) fn accept(&self, image: &File, chunk: usize, bytes: &[u8]) -> io::Result<bool> {
        let range = self.range_of(chunk);
        if bytes.len() as u64 != range.end - range.start || !matches(image, &self.hashes, range.clone(), bytes)? {
            return Ok(false);
        }
        image.write_all_at(bytes, range.start)?;
        self.map.write_all_at(&[1], chunk as u64)?;
        Ok(true)
    }

    /// The part of the hash tree that must be fetched before these chunks, of which there is one at least, can be
    /// accepted. `None`: it is here.
    pub(crate) fn missing_hashes(&self, image: &File, chunks: Range<usize>) -> io::Result<Option<Range<u64>>> {
        self.hashes.missing(image, range_of_all(&self.parts, &chunks))
    }

    /// The part of the hash tree that may be missing.
    pub(crate) fn unknown_hashes(&self) -> Option<Range<u64>> {
        self.hashes.unknown()
    }

    /// Writes a part of the hash tree as far as it is right. Returns how many of the bytes are whole blocks.
    pub(crate) fn accept_hashes(&self, image: &File, start: u64, bytes: &[u8]) -> io::Result<usize> {
        self.hashes.accept(image, start, bytes)
    }

    /// Hashes a next part of the beginning with this many chunks, of which all are here, so that less is left when the
    /// last one comes. Does nothing if another thread does so.
    pub(crate) fn hash_ahead(&self, image: &File, chunks: usize) {
        let Some(last) = chunks.checked_sub(1) else { return };
        if let Ok(mut hashed) = self.hashed.try_lock()
            && let end = self.range_of(last).end.min(hashed.bytes + AHEAD)
            && let Err(error) = hashed.go_on(image, end)
        {
            // The check of the whole image goes on here, and reports a failure.
            tracing::debug!(layer = %self.description.digest, %error, "the beginning of a layer is not hashed");
        }
    }

    /// Checks the complete image as a whole. `Ok(Some)`: why it is not the layer. Metadata and hash tree that this
    /// process has checked are not parsed again: the digest covers them.
    pub(crate) fn check_whole(&self, image: &File, limits: &Limits) -> io::Result<Option<String>> {
        let found = self.digest(image)?;
        if found != self.description.digest {
            return Ok(Some(format!("its digest is {found}, although its hash tree is right: the manifest is wrong")));
        }
        let checked = match &self.padding {
            Some(padding) => layer::check_padding(image, padding),
            None => {
                let root = self.description.root().unwrap_or_default();
                layer::check_image(image, self.parts.metadata, &root, limits).map(drop)
            }
        };
        Ok(checked.err().map(|error| LazyError::of_layer(&self.description.digest, error).to_string()))
    }

    /// The digest of the complete image.
    fn digest(&self, image: &File) -> io::Result<Digest> {
        let mut hashed = self.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        hashed.go_on(image, self.parts.total())?;
        let finished = std::mem::replace(&mut *hashed, Hashed::new(&self.description.digest));
        Ok(finished.hasher.finish())
    }
}

/// Verifies everything that counts as present. `Ok(None)`: the front is damaged.
fn verify_again(
    directory: &Path,
    description: &Description,
    parts: &Parts,
    present: &mut [bool],
    limits: &Limits,
) -> Result<Option<CheckedImage>, LazyError> {
    let path = directory.join(IMAGE);
    let image = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        image => image.map_err(at("opening", &path))?,
    };
    let read = |range: Range<u64>| {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        image.read_exact_at(&mut bytes, range.start).map(|()| bytes)
    };
    if image.metadata().map_err(at("reading", &path))?.len() != parts.total() {
        return Ok(None);
    }
    let metadata = read(0..parts.metadata).map_err(at("reading", &path))?;
    let hash_tree = read(parts.front_hashes()).map_err(at("reading", &path))?;
    let Some(root) = description.root() else { return Ok(None) };
    let checked = layer::check_front(&metadata, &hash_tree, &root, limits, &open_directory(directory)?);
    let Some(checked) = checked.ok().filter(|checked| checked.parts == *parts) else { return Ok(None) };
    let hashes = Hashes::new(*parts);
    for (chunk, present) in present.iter_mut().enumerate().filter(|(_, present)| **present) {
        let range = range_of(parts, chunk);
        let bytes = read(range.clone()).map_err(at("reading", &path))?;
        *present = matches(&image, &hashes, range, &bytes).map_err(at("reading", &path))?;
    }
    Ok(Some(checked))
}

/// Whether these bytes are those of a range, by the hash tree in the image. They are not if their hashes are missing.
fn matches(image: &File, hashes: &Hashes, range: Range<u64>, bytes: &[u8]) -> io::Result<bool> {
    let hashes = hashes.of(image, range)?;
    Ok(hashes.is_some_and(|hashes| layer::blocks_match(&hashes, bytes)))
}

fn private() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    options
}

fn open_directory(path: &Path) -> Result<OwnedFd, LazyError> {
    Ok(File::open(path).map_err(at("opening", path))?.into())
}

/// Writes which chunks are here, and returns the file.
fn write_map(directory: &Path, present: &[bool]) -> Result<File, LazyError> {
    let path = directory.join(PRESENT);
    let map = private().create(true).truncate(true).open(&path).map_err(at("creating", &path))?;
    let bytes: Vec<u8> = present.iter().map(|present| u8::from(*present)).collect();
    map.write_all_at(&bytes, 0).map_err(at("writing", &path))?;
    Ok(map)
}

fn write_record(directory: &Path, description: &Description) -> Result<(), LazyError> {
    let path = directory.join(RECORD);
    let boot_id = boot::id().map_err(at("reading", Path::new(boot::PATH)))?;
    let record = Record { description: description.clone(), chunk: CHUNK, boot_id };
    let temporary = directory.join("partial.json.new");
    let written = record::encode(VERSION, &record)
        .and_then(|bytes| Ok(durable::write(&path, &temporary, &bytes, Durability::Later, |_| {})?));
    written.map_err(at("writing", &path))
}
