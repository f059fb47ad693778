//! The summary of a layer's files: their number, their size, and one hash over everything but their contents.
//!
//! The summary is taken once, in the background, when a layer is synced, and `fsck` compares it. A layer never changes
//! after its commit, so every difference is damage. Contents are not read, because that would cost as much as the pull.
//! A written file shows by its size or its time.

use std::{
    collections::HashSet,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use layer::{
    Digest, ImageFile, ImageReader,
    digest::{Algorithm, Hasher},
};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// The largest list of names and the largest value that the kernel allows.
const XATTR_BYTES: usize = 64 << 10;

/// The summary of a layer's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TreeSummary {
    /// Files and directories, the layer's root included.
    pub(crate) entries: u64,
    /// Sizes of the regular files; a file counts once per name.
    pub(crate) bytes: u64,
    /// A hash over path, type, mode, owner, times, device, target, number of names and extended attributes of each
    /// entry.
    pub(crate) digest: Digest,
}

impl TreeSummary {
    /// The difference between the recorded summary and `found`, in words; `None` if they are equal.
    pub(crate) fn difference(&self, found: &TreeSummary) -> Option<String> {
        if self == found {
            return None;
        }
        Some(if self.entries != found.entries {
            format!("has {} entries instead of {}", found.entries, self.entries)
        } else if self.bytes != found.bytes {
            format!("holds {} bytes instead of {}", found.bytes, self.bytes)
        } else {
            "has other names, types, modes, owners, times, devices or attributes than were unpacked".to_owned()
        })
    }
}

/// Walks a layer's files below `top`. Follows no link, and keeps one directory open at a time. Errors name `root` as
/// the path.
pub(crate) fn summarize(top: &OwnedFd, root: &Path) -> Result<TreeSummary, StoreError> {
    let mut summary = Summary::new();
    let mut buffer = vec![0; XATTR_BYTES];
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        directory(&mut summary, top, &path, (&mut waiting, &mut buffer))
            .map_err(StoreError::io("examining", root.join(String::from_utf8_lossy(&path).as_ref())))?;
    }
    Ok(summary.finish())
}

/// Walks the files of a layer's image without a mount. The summary is that of the mounted image, except for a few
/// attributes that the kernel shows in another form. Errors name `image` as the path.
pub(crate) fn summarize_image(reader: &ImageReader, image: &Path) -> Result<TreeSummary, StoreError> {
    let failed = || StoreError::io("examining", image);
    let mut summary = Summary::new();
    let mut waiting = vec![(Vec::new(), reader.root().map_err(failed())?)];
    let mut directories = HashSet::new();
    while let Some((path, directory)) = waiting.pop() {
        // A damaged directory can contain itself.
        if !directories.insert(directory.number) {
            let problem = format!("the directory {} has two names", String::from_utf8_lossy(&path));
            return Err(failed()(io::Error::new(io::ErrorKind::InvalidData, problem)));
        }
        summary.add(in_image(reader, &path, &directory).map_err(failed())?);
        for (name, file) in reader.files(&directory).map_err(failed())? {
            let path = join(&path, &name);
            if file.is_dir() {
                waiting.push((path, file));
            } else {
                summary.add(in_image(reader, &path, &file).map_err(failed())?);
            }
        }
    }
    Ok(summary.finish())
}

/// Names and values of extended attributes.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// What a summary covers of a file.
struct Entry<'a> {
    /// From the layer's root, which is empty.
    path: &'a [u8],
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: (i64, u64),
    links: u64,
    size: u64,
    /// As in `st_rdev`.
    device: u64,
    /// Of a link.
    target: Vec<u8>,
    xattrs: Attributes,
}

struct Summary {
    hasher: Hasher,
    entries: u64,
    bytes: u64,
}

impl Summary {
    fn new() -> Self {
        Self { hasher: Hasher::new(Algorithm::Sha256), entries: 0, bytes: 0 }
    }

    fn finish(self) -> TreeSummary {
        TreeSummary { entries: self.entries, bytes: self.bytes, digest: self.hasher.finish() }
    }

    fn add(&mut self, mut entry: Entry<'_>) {
        let kind = FileType::from_raw_mode(entry.mode);
        self.entries += 1;
        self.text(entry.path);
        self.numbers(&[entry.mode.into(), entry.uid.into(), entry.gid.into()]);
        self.numbers(&[entry.mtime.0.cast_unsigned(), entry.mtime.1]);
        if kind != FileType::Directory {
            self.numbers(&[entry.links]);
        }
        match kind {
            FileType::RegularFile => {
                self.bytes = self.bytes.saturating_add(entry.size);
                self.numbers(&[entry.size]);
            }
            FileType::Symlink => self.text(&entry.target),
            FileType::BlockDevice | FileType::CharacterDevice => self.numbers(&[entry.device]),
            _ => {}
        }
        // The security policy of the host sets this label, not the image.
        entry.xattrs.retain(|(name, _)| name != b"security.selinux");
        entry.xattrs.sort();
        self.numbers(&[entry.xattrs.len() as u64]);
        for (name, value) in entry.xattrs {
            self.text(&name);
            self.text(&value);
        }
    }

    /// Adds the length first, so that two different trees never hash the same bytes.
    fn text(&mut self, text: &[u8]) {
        self.numbers(&[text.len() as u64]);
        self.hasher.update(text);
    }

    fn numbers(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hasher.update(&number.to_le_bytes());
        }
    }
}

/// Adds a directory and its entries. Its subdirectories are appended to `waiting`.
fn directory(
    summary: &mut Summary,
    top: &OwnedFd,
    path: &[u8],
    (waiting, buffer): (&mut Vec<Vec<u8>>, &mut [u8]),
) -> Result<(), Errno> {
    let name = if path.is_empty() { b"." } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(top, name, flags, Mode::empty())?;
    summary.add(on_disk(&directory, (path, b"."), &rustix::fs::fstat(&directory)?, buffer)?);
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort();
    for name in names {
        let stat = rustix::fs::statat(&directory, &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
        let path = join(path, &name);
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            waiting.push(path);
        } else {
            summary.add(on_disk(&directory, (&path, &name), &stat, buffer)?);
        }
    }
    Ok(())
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// The file of this name in a directory.
#[allow(clippy::useless_conversion, reason = "these are narrower on aarch64")]
fn on_disk<'a>(
    directory: &OwnedFd,
    (path, name): (&'a [u8], &[u8]),
    stat: &Stat,
    buffer: &mut [u8],
) -> Result<Entry<'a>, Errno> {
    let target = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => rustix::fs::readlinkat(directory, name, Vec::new())?.into_bytes(),
        _ => Vec::new(),
    };
    Ok(Entry {
        path,
        mode: stat.st_mode,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, stat.st_mtime_nsec),
        links: stat.st_nlink.into(),
        size: stat.st_size.cast_unsigned(),
        device: stat.st_rdev,
        target,
        xattrs: attributes(directory, name, buffer)?,
    })
}

fn attributes(directory: &OwnedFd, name: &[u8], buffer: &mut [u8]) -> Result<Attributes, Errno> {
    // No system call of older kernels reads attributes of a name in an open directory; the path through /proc does.
    let path = [format!("/proc/self/fd/{}/", directory.as_fd().as_raw_fd()).as_bytes(), name].concat();
    let length = match rustix::fs::llistxattr(&path[..], &mut *buffer) {
        Err(Errno::OPNOTSUPP) => 0,
        result => result?,
    };
    let names = buffer[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    let value = |name: Vec<u8>| {
        let length = rustix::fs::lgetxattr(&path[..], &name[..], &mut *buffer)?;
        Ok((name, buffer[..length].to_vec()))
    };
    names.into_iter().map(value).collect()
}

fn in_image<'a>(reader: &ImageReader, path: &'a [u8], file: &ImageFile) -> io::Result<Entry<'a>> {
    let target = match FileType::from_raw_mode(file.mode) {
        FileType::Symlink => reader.target(file)?,
        _ => Vec::new(),
    };
    let (major, minor) = file.device();
    Ok(Entry {
        path,
        mode: file.mode,
        uid: file.uid,
        gid: file.gid,
        mtime: (file.mtime.0, file.mtime.1.into()),
        links: file.links.into(),
        size: file.size(),
        device: rustix::fs::makedev(major, minor),
        target,
        xattrs: file.xattrs.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
        time::{Duration, SystemTime},
    };

    use layer::{
        Output,
        stream::{BlobReader, Piece},
    };

    use super::*;
    use crate::store::layout::open_directory;

    fn summarize(root: &Path) -> Result<TreeSummary, StoreError> {
        super::summarize(&open_directory(root)?, root)
    }

    fn make(root: &Path) {
        fs::create_dir_all(root.join("b/c")).unwrap();
        for (name, text) in [("a", "one"), ("b/c/d", "two")] {
            fs::write(root.join(name), text).unwrap();
        }
        symlink("a", root.join("link")).unwrap();
        settle(root);
    }

    /// The same times everywhere, deepest first.
    fn settle(root: &Path) {
        for name in ["a", "b/c/d", "b/c", "b", ""] {
            let file = fs::File::open(root.join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        }
        let time = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, root.join("link"), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    #[test]
    fn equal_trees_are_equal_and_any_change_shows() {
        let directory = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| directory.path().join(name));
        [&one, &two].into_iter().for_each(|root| make(root));
        let good = summarize(&one).unwrap();
        assert_eq!(good, summarize(&two).unwrap());
        assert_eq!((good.entries, good.bytes), (6, 6));
        type Change = fn(&Path);
        let changes: [(&str, Change); 7] = [
            ("5 entries instead of 6", |root| fs::remove_file(root.join("a")).unwrap()),
            ("7 entries", |root| fs::write(root.join("b/new"), "").unwrap()),
            ("9 bytes instead of 6", |root| fs::write(root.join("a"), "longer").unwrap()),
            ("modes", |root| fs::set_permissions(root.join("a"), PermissionsExt::from_mode(0o600)).unwrap()),
            ("names", |root| fs::rename(root.join("a"), root.join("z")).unwrap()),
            ("times", |root| fs::write(root.join("a"), "eno").unwrap()),
            ("attributes", |root| {
                let nothing = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(root.join("b"), "user.x", b"y", nothing).unwrap();
            }),
        ];
        for (expected, change) in changes {
            fs::remove_dir_all(&two).unwrap();
            make(&two);
            change(&two);
            if !expected.starts_with("times") && !two.join("z").exists() && two.join("a").exists() {
                settle(&two);
            }
            let text = good.difference(&summarize(&two).unwrap()).unwrap();
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn a_link_in_place_of_the_root_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        symlink("/", directory.path().join("fs")).unwrap();
        assert!(summarize(&directory.path().join("fs")).is_err());
    }

    /// An archive with each kind of file, and attributes that the kernel shows as they are.
    fn archive() -> Vec<u8> {
        let list = [(1u16, 6u16, u32::MAX), (2, 7, 1000), (4, 5, u32::MAX), (0x10, 5, u32::MAX), (0x20, 4, u32::MAX)];
        let list = list.map(|(tag, permission, id)| {
            [&tag.to_le_bytes()[..], &permission.to_le_bytes(), &id.to_le_bytes()].concat()
        });
        let list = [&2u32.to_le_bytes()[..], &list.concat()].concat();
        let capability = [&0x0200_0001u32.to_le_bytes()[..], &[1; 16]].concat();
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |path: &str, kind: tar::EntryType, link: &str, xattrs: &[(&str, &[u8])]| {
            let xattrs = xattrs.iter().map(|(name, value)| (format!("SCHILY.xattr.{name}"), *value));
            let xattrs: Vec<_> = xattrs.collect();
            archive.append_pax_extensions(xattrs.iter().map(|(name, value)| (name.as_str(), *value))).unwrap();
            let data = if kind.is_file() { path.as_bytes() } else { b"" };
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(data.len() as u64);
            header.set_mode(if kind.is_dir() { 0o1755 } else { 0o4750 });
            header.set_uid(70_000 + path.len() as u64);
            header.set_gid(3);
            header.set_mtime(1_600_000_000);
            header.set_device_major(300).unwrap();
            header.set_device_minor(70_001).unwrap();
            if !link.is_empty() {
                header.set_link_name(link).unwrap();
            }
            header.set_path(path).unwrap();
            header.set_cksum();
            archive.append(&header, data).unwrap();
        };
        use tar::EntryType as Type;
        add("d/", Type::Directory, "", &[("user.d", b"of a directory")]);
        add("d/file", Type::Regular, "", &[("user.b", b"2"), ("user.a", b""), ("security.capability", &capability)]);
        add("d/hard", Type::Link, "d/file", &[]);
        add("d/soft", Type::Symlink, &"../".repeat(20), &[]);
        add("d/listed", Type::Regular, "", &[("system.posix_acl_access", &list)]);
        add("d/e/deeper", Type::Regular, "", &[]);
        add("d-block", Type::Block, "", &[]);
        add("d-char", Type::Char, "", &[]);
        add("fifo", Type::Fifo, "", &[]);
        for at in 0..300 {
            add(&format!("many/{at:0>60}"), Type::Regular, "", &[]);
        }
        archive.into_inner().unwrap()
    }

    fn blob(archive: Vec<u8>) -> BlobReader {
        let (sender, pieces) = tokio::sync::mpsc::channel(2);
        sender.try_send(Piece::Data(archive.into())).unwrap();
        sender.try_send(Piece::End).unwrap();
        BlobReader::new(pieces, Algorithm::Sha256)
    }

    /// Makes the image of a layer.
    fn unpack(archive: Vec<u8>, image: fs::File) {
        let directory = tempfile::tempdir().unwrap();
        let output = Output {
            directory: open_directory(directory.path()).unwrap(),
            image: Some((image, layer::MemoryCounter::default())),
        };
        let limits = layer::Limits::default();
        assert!(layer::unpack(blob(archive), output, Algorithm::Sha256, false, &limits).unwrap().is_image);
    }

    #[test]
    fn an_image_has_the_summary_of_its_mount() {
        let directory = tempfile::tempdir().unwrap();
        let [image, native] = ["image", "native"].map(|name| directory.path().join(name));
        let open =
            |path: &Path| fs::File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        unpack(archive(), open(&image));
        let scratch = (tempfile::tempfile().unwrap(), &open(&native));
        let (first, limits) = (layer::FirstReads::default(), layer::Limits::default());
        layer::convert(blob(archive()), scratch, Algorithm::Sha256, first, &limits).unwrap();
        let read = |path: &Path| summarize_image(&ImageReader::open(open(path)).unwrap(), path).unwrap();
        for image in [&image, &native] {
            match super::super::erofs::mount(image) {
                Ok(mount) => assert_eq!(read(image), super::summarize(&mount, image).unwrap()),
                Err(error) => println!("skipped: an image cannot be mounted here: {error}"),
            }
        }
        let found = read(&image);
        assert_eq!(found.entries, 312);
    }

    #[test]
    fn a_damaged_image_whose_directory_contains_itself_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        header.set_size(0);
        archive.append_data(&mut header, "loop", io::empty()).unwrap();
        unpack(archive.into_inner().unwrap(), file.reopen().unwrap());
        let read = || ImageReader::open(file.reopen().unwrap()).unwrap();
        assert_eq!(summarize_image(&read(), file.path()).unwrap().entries, 2);
        let root = read().root().unwrap();
        let number = read().files(&root).unwrap()[0].1.number;
        // The entry begins with the number. Its name follows those of the directory itself and of its parent.
        let entry = [&number.to_le_bytes()[..], &(3 * 12 + 3u16).to_le_bytes()].concat();
        let mut bytes = fs::read(file.path()).unwrap();
        let at = bytes.windows(entry.len()).position(|window| window == entry).unwrap();
        bytes[at..at + 8].copy_from_slice(&root.number.to_le_bytes());
        fs::write(file.path(), bytes).unwrap();
        let error = summarize_image(&read(), file.path()).unwrap_err().to_string();
        assert!(error.contains("the directory loop has two names"), "{error}");
    }
}
