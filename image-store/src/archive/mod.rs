//! Image archives from disk: what is in them, read member by member.
//!
//! A tar is indexed once and then read at any place; a compressed one is inflated into a nameless file first, within the same
//! limits as a layer. A directory serves as well. Member names are relative, without `..`, and name one thing each; links stay inside.
//! The file may change while it is read: whatever is taken from it is checked against a digest afterwards.

mod choose;

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
pub(crate) use choose::{Found, FoundLayer, choose};
use layer::{
    EntryKind, TarReader, UnpackError,
    buffers::{self, Buffers},
    digest::Algorithm,
    stream::{self, BlobReader, Decoder, HashingReader, Piece},
};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use tokio::sync::mpsc;

use crate::{
    commit,
    config::Limits,
    error::{PullError, StoreError},
};

/// A link may lead to a link so many times.
const MAX_LINKS: usize = 8;
const WAITING_PIECES: usize = 8;
/// Bytes of one member's name, and of all names and link targets.
const MAX_NAME: usize = 4096;
const MAX_NAMES: usize = 64 << 20;

/// Says that nobody waits for the archive any more.
pub(crate) type GivenUp = Arc<AtomicBool>;

/// An opened archive or directory.
pub(crate) struct Source {
    /// How error texts call it.
    name: String,
    kind: Form,
    given_up: GivenUp,
}

enum Form {
    Tar { file: File, members: BTreeMap<String, Member> },
    Directory(OwnedFd),
}

#[derive(Debug, PartialEq, Eq)]
enum Member {
    File { offset: u64, size: u64 },
    Link(String),
}

impl Source {
    /// Opens an archive or a directory. `scratch` is where a compressed archive is inflated. Blocks.
    pub(crate) fn open(
        name: String,
        fd: OwnedFd,
        limits: &Limits,
        scratch: &Path,
        given_up: GivenUp,
    ) -> Result<Source, PullError> {
        let stat = rustix::fs::fstat(&fd).map_err(StoreError::io("examining", &name))?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Form::Directory(fd),
            FileType::RegularFile => {
                let mut file = File::from(fd);
                if is_compressed(&file).map_err(StoreError::io("reading", &name))? {
                    file = inflate(&name, &file, limits, scratch, &given_up)?;
                }
                let members = index(&name, &file, limits, &given_up)?;
                Form::Tar { file, members }
            }
            _ => {
                let problem = "it is neither a file nor a directory".to_owned();
                return Err(PullError::Unsupported { what: name, problem });
            }
        };
        Ok(Source { name, kind, given_up })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A member's content; `None`: there is none of that name.
    pub(crate) fn member(&self, name: &str) -> Result<Option<Part>, PullError> {
        let part = |file: File, offset, left| Part { file, offset, left, given_up: Arc::clone(&self.given_up) };
        match &self.kind {
            Form::Tar { file, members } => {
                let Some((offset, size)) = find(members, name) else { return Ok(None) };
                let file = file.try_clone().map_err(StoreError::io("opening", &self.name))?;
                Ok(Some(part(file, offset, size)))
            }
            Form::Directory(directory) => {
                let path = format!("{}/{name}", self.name);
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let fd = match rustix::fs::openat2(directory.as_fd(), name, flags, Mode::empty(), resolve) {
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

    /// A small member, whole.
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

/// A piece of a file.
pub(crate) struct Part {
    file: File,
    offset: u64,
    left: u64,
    given_up: GivenUp,
}

impl Part {
    /// Bytes that are left.
    pub(crate) fn size(&self) -> u64 {
        self.left
    }

    /// Sends everything to an unpacker, until nobody reads any more. Blocks.
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
        if self.given_up.load(Ordering::Relaxed) {
            return Err(stream::aborted());
        }
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let length = self.file.read_at(&mut buffer[..wanted], self.offset)?;
        if length == 0 && wanted > 0 {
            // It was cut short since it was indexed.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.offset += length as u64;
        self.left -= length as u64;
        Ok(length)
    }
}

/// The whole file as it is now.
fn whole(name: &str, file: &File, given_up: &GivenUp) -> Result<Part, PullError> {
    let left = file.metadata().map_err(StoreError::io("examining", name))?.len();
    let file = file.try_clone().map_err(StoreError::io("opening", name))?;
    Ok(Part { file, offset: 0, left, given_up: Arc::clone(given_up) })
}

fn is_compressed(file: &File) -> io::Result<bool> {
    let mut magic = [0; 4];
    let length = file.read_at(&mut magic, 0)?;
    Ok(stream::is_compressed(&magic[..length]))
}

/// Inflates an archive into a file that has no name.
fn inflate(name: &str, file: &File, limits: &Limits, scratch: &Path, given_up: &GivenUp) -> Result<File, PullError> {
    let path = scratch.join(format!("{}{}", commit::TEMPORARY, commit::unique()));
    let mut out = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(StoreError::io("creating", &path))?;
    std::fs::remove_file(&path).map_err(StoreError::io("removing", &path))?;
    let part = whole(name, file, given_up)?;
    let broken = |error: io::Error| PullError::malformed(name, error);
    let limits = limits.of_a_layer();
    std::thread::scope(|scope| {
        let (pieces, receiver) = mpsc::channel(WAITING_PIECES);
        // If reading fails, the channel closes without an end, and the other side says so.
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

/// Counts what was consumed.
struct Counted<R> {
    inner: R,
    position: Rc<Cell<u64>>,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.position.set(self.position.get() + length as u64);
        Ok(length)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, length: usize) {
        self.inner.consume(length);
        self.position.set(self.position.get() + length as u64);
    }
}

/// Where every member is.
fn index(name: &str, file: &File, limits: &Limits, given_up: &GivenUp) -> Result<BTreeMap<String, Member>, PullError> {
    let refused = |error: UnpackError| PullError::malformed(name, describe(error));
    let position = Rc::new(Cell::new(0));
    let inner = BufReader::with_capacity(buffers::SIZE, whole(name, file, given_up)?);
    let mut archive = TarReader::new(Counted { inner, position: Rc::clone(&position) });
    let mut members = BTreeMap::new();
    let (mut count, mut names) = (0u64, 0usize);
    while let Some(entry) = archive.next().map_err(refused)? {
        count += 1;
        if count > limits.entries {
            return Err(PullError::TooLarge {
                what: format!("{name}: the number of members"),
                limit: limits.entries.to_string(),
            });
        }
        let problem = |text: &str| {
            let member: String = String::from_utf8_lossy(&entry.name).chars().take(200).collect();
            PullError::malformed(name, format!("member {member:?} {text}"))
        };
        let Some(path) = clean(&entry.name).map_err(problem)? else { continue };
        let member = match entry.kind {
            EntryKind::Dir => continue,
            EntryKind::File if entry.sparse.is_none() => Member::File { offset: position.get(), size: entry.size },
            EntryKind::HardLink => Member::Link(clean(&entry.link).map_err(problem)?.unwrap_or_default()),
            EntryKind::Symlink => Member::Link(beside(&path, &entry.link).map_err(problem)?),
            _ => return Err(problem("is neither a file nor a directory nor a link")),
        };
        names += path.len() + if let Member::Link(target) = &member { target.len() } else { 0 };
        if names > MAX_NAMES {
            return Err(PullError::TooLarge {
                what: format!("{name}: the length of all names"),
                limit: format!("{MAX_NAMES} bytes"),
            });
        }
        if members.insert(path, member).is_some() {
            return Err(problem("is there twice"));
        }
    }
    Ok(members)
}

fn describe(error: UnpackError) -> String {
    match error {
        UnpackError::Refused { entry: Some(entry), problem } => format!("member \"{entry}\": {problem}"),
        UnpackError::Refused { entry: None, problem } => format!("no image archive: {problem}"),
        UnpackError::Disk { source, .. } => source.to_string(),
        UnpackError::Aborted => "reading it was given up".to_owned(),
    }
}

fn find(members: &BTreeMap<String, Member>, name: &str) -> Option<(u64, u64)> {
    let mut name = name;
    for _ in 0..=MAX_LINKS {
        match members.get(name)? {
            Member::File { offset, size } => return Some((*offset, *size)),
            Member::Link(target) => name = target,
        }
    }
    None
}

/// A member's name in its one form; `None` is the archive's own root. Pure.
fn clean(name: &[u8]) -> Result<Option<String>, &'static str> {
    if name.len() > MAX_NAME {
        return Err("has a name that is too long");
    }
    let text = std::str::from_utf8(name).map_err(|_| "has a name that is not UTF-8")?;
    if text.starts_with('/') {
        return Err("has an absolute name");
    }
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err("has .. in its name");
    }
    Ok((!parts.is_empty()).then(|| parts.join("/")))
}

/// Where a symbolic link at `path` leads. Pure.
fn beside(path: &str, target: &[u8]) -> Result<String, &'static str> {
    const OUT: &str = "is a link that leads out of the archive";
    if target.len() > MAX_NAME {
        return Err("is a link to a name that is too long");
    }
    let target = std::str::from_utf8(target).map_err(|_| "is a link to a name that is not UTF-8")?;
    if target.starts_with('/') {
        return Err(OUT);
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop().ok_or(OUT)?),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_have_one_form() {
        for (name, expected) in [
            ("a/b", Ok(Some("a/b"))),
            ("./a//b/", Ok(Some("a/b"))),
            ("./", Ok(None)),
            ("/a", Err("has an absolute name")),
            ("a/../b", Err("has .. in its name")),
        ] {
            assert_eq!(clean(name.as_bytes()), expected.map(|name| name.map(str::to_owned)), "{name}");
        }
    }

    #[test]
    fn links_stay_inside() {
        assert_eq!(beside("id/layer.tar", b"../other/layer.tar").as_deref(), Ok("other/layer.tar"));
        assert_eq!(beside("a", b"./b").as_deref(), Ok("b"));
        for (path, target) in [("a", "../b"), ("a/b", "../../c"), ("a", "/etc/passwd")] {
            assert!(beside(path, target.as_bytes()).unwrap_err().contains("leads out"), "{target}");
        }
    }

    #[test]
    fn circles_of_links_end() {
        let link = |to: &str| Member::Link(to.to_owned());
        let members = BTreeMap::from([
            ("a".to_owned(), link("b")),
            ("b".to_owned(), link("a")),
            ("c".to_owned(), link("d")),
            ("d".to_owned(), Member::File { offset: 1, size: 2 }),
        ]);
        assert_eq!((find(&members, "a"), find(&members, "c"), find(&members, "x")), (None, Some((1, 2)), None));
    }

    proptest! {
        #[test]
        fn no_name_and_no_link_leaves_the_archive(name in "[a./]{0,12}", target in "[a./]{0,12}") {
            for path in clean(name.as_bytes()).ok().flatten().into_iter().flat_map(|path| {
                let link = beside(&path, target.as_bytes()).ok();
                [Some(path), link]
            }).flatten() {
                prop_assert!(!path.starts_with('/') && !path.split('/').any(|part| part == ".."));
            }
        }
    }
}
