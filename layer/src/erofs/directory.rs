//! A layer of more files than are kept in memory goes on in a directory, with what came so far.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

use super::{
    ImageApplier, disk,
    tree::{Content, Id, Node, ROOT},
};
use crate::{
    directory::Applier,
    error::UnpackError,
    name,
    tar::{archive::Entry, header::Kind},
};

impl ImageApplier {
    /// Makes in an empty directory what is in the tree, and empties the image's file.
    pub(crate) fn into_directory(mut self, root: OwnedFd) -> Result<Applier, UnpackError> {
        let failed = |error: io::Error| UnpackError::disk(b"", "moving the layer to a directory", error);
        self.file.flush().map_err(failed)?;
        let mut applier = Applier::new(root, self.limits);
        let data = self.file.get_ref();
        // The first name of what has another one.
        let mut named: HashMap<Id, Vec<u8>> = HashMap::new();
        let mut waiting = vec![(ROOT, Vec::new())];
        while let Some((id, path)) = waiting.pop() {
            let node = self.tree.node(id);
            let first = named.get(&id).cloned();
            if self.tree.implicit().contains(&path) {
                applier.parent(&path, &path)?;
            } else {
                make(&mut applier, &entry(node, &path, first.clone()), node, data)?;
            }
            if let Content::Dir(names) = &node.content {
                waiting.extend(names.iter().map(|(name, child)| (*child, name::join(&path, name))));
            } else if node.names > 1 && first.is_none() {
                named.insert(id, path);
            }
        }
        data.set_len(0).map_err(failed)?;
        applier.entries = self.entries;
        applier.apparent = self.apparent;
        applier.whiteouts = self.whiteouts;
        applier.opaque = self.opaque;
        applier.not_set = self.not_set;
        Ok(applier)
    }
}

/// What an archive would say about a file.
fn entry(node: &Node, path: &[u8], first: Option<Vec<u8>>) -> Entry {
    let device = |number: u32| (u64::from(number >> 8 & 0xfff), u64::from(number & 0xff | number >> 12 & 0xf_ff00));
    let (kind, link, device) = match (first, &node.content) {
        (Some(first), _) => (Kind::HardLink, first, (0, 0)),
        (None, Content::Dir(_)) => (Kind::Dir, Vec::new(), (0, 0)),
        (None, Content::File { .. }) => (Kind::File, Vec::new(), (0, 0)),
        (None, Content::Symlink(target)) => (Kind::Symlink, target.to_vec(), (0, 0)),
        (None, Content::CharDevice(number)) => (Kind::Char, Vec::new(), device(*number)),
        (None, Content::BlockDevice(number)) => (Kind::Block, Vec::new(), device(*number)),
        (None, Content::Fifo) => (Kind::Fifo, Vec::new(), (0, 0)),
    };
    let Node { mode, uid, gid, mtime, .. } = *node;
    let xattrs = node.xattrs.clone();
    Entry { kind, name: path.to_vec(), link, mode, uid, gid, mtime, device, size: 0, xattrs, sparse: None }
}

fn make(applier: &mut Applier, entry: &Entry, node: &Node, data: &File) -> Result<(), UnpackError> {
    let (parent, name) = name::split(&entry.name);
    if name.is_empty() {
        return applier.root(entry);
    }
    let parent = applier.parent(parent, &entry.name)?;
    match (entry.kind, &node.content) {
        (Kind::HardLink, _) => applier.hard_link(entry, &parent, name),
        (_, Content::Dir(_)) => applier.dir(entry, &parent, name),
        (_, Content::Symlink(_)) => applier.symlink(entry, &parent, name),
        (_, Content::CharDevice(_)) => applier.node(entry, &parent, name, rustix::fs::FileType::CharacterDevice),
        (_, Content::BlockDevice(_)) => applier.node(entry, &parent, name, rustix::fs::FileType::BlockDevice),
        (_, Content::Fifo) => applier.node(entry, &parent, name, rustix::fs::FileType::Fifo),
        (_, Content::File { block, size }) => applier.file(entry, &parent, name, |_, to| {
            copy(data, u64::from(*block) * disk::BLOCK, *size, to)
                .map_err(|error| UnpackError::disk(&entry.name, "copying it", error))
        }),
    }
}

/// Copies a part of a file to the beginning of another, its holes left out. Moves the file's offset.
fn copy(mut from: &File, begin: u64, size: u64, to: &OwnedFd) -> io::Result<()> {
    let mut to = File::from(to.try_clone()?);
    to.set_len(size)?;
    let end = begin + size;
    let mut at = begin;
    while at < end {
        at = match seek(from, SeekFrom::Data(at)) {
            // Nothing but a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            found => found?,
        };
        let hole = if at < end { seek(from, SeekFrom::Hole(at))?.min(end) } else { end };
        if at < hole {
            from.seek(io::SeekFrom::Start(at))?;
            to.seek(io::SeekFrom::Start(at - begin))?;
            // The kernel copies where it can, which is not everywhere.
            match io::copy(&mut from.take(hole - at), &mut to)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                copied => at += copied,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::FileExt, path::Path};

    use super::*;

    #[test]
    fn a_part_of_a_file_is_copied_within_a_file_system_and_to_another() {
        let far = Path::new("/dev/shm");
        let directories = [std::env::temp_dir(), if far.is_dir() { far.to_owned() } else { std::env::temp_dir() }];
        let from = tempfile::tempfile_in(&directories[0]).unwrap();
        from.write_all_at(&[1; 5000], 8192).unwrap();
        from.write_all_at(&[2; 100], 8192 + (1 << 20)).unwrap();
        from.set_len(4 << 20).unwrap();
        for (begin, size) in [(8192, (1 << 20) + 100), (8192, 10), (8192 + (1 << 20), 5000), (2 << 20, 1 << 20), (0, 0)]
        {
            let mut wanted = vec![0; size];
            from.read_exact_at(&mut wanted, begin).unwrap();
            for directory in &directories {
                let to = OwnedFd::from(tempfile::tempfile_in(directory).unwrap());
                copy(&from, begin, size as u64, &to).unwrap();
                let (mut copied, to) = (vec![3; size], File::from(to));
                to.read_exact_at(&mut copied, 0).unwrap();
                assert!(
                    copied == wanted && to.metadata().unwrap().len() == size as u64,
                    "{begin} {size} {directory:?}"
                );
            }
        }
    }
}
