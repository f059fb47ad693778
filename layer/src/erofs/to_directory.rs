//! A layer with more files than are kept in memory goes on in a directory, with the files that it has so far.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Seek},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};

use super::{
    format,
    store::ErofsStore,
    tree::{Content, Id, Node, ROOT},
};
use crate::{
    apply::{Applier, SpecialFile, Trial},
    directory::DirectoryStore,
    error::UnpackError,
    path,
    tar::{EntryKind, TarEntry},
};

/// Makes the files of the image in an empty directory, and empties the image's file.
pub(crate) fn into_directory(
    mut from: Applier<ErofsStore>,
    root: OwnedFd,
) -> Result<Applier<DirectoryStore>, UnpackError> {
    let failed = |error: io::Error| UnpackError::disk("moving the layer to a directory", error);
    from.store.flush().map_err(failed)?;
    let limits = from.limits.clone();
    let trial = Trial::on(&root).map_err(failed)?;
    let mut to = Applier::new(DirectoryStore::new(root, &limits), limits, trial);
    let (tree, data) = from.store.parts();
    // The first name of each file that has further names.
    let mut first_names: HashMap<Id, Vec<u8>> = HashMap::new();
    let mut waiting = vec![(ROOT, Vec::new())];
    while let Some((id, path)) = waiting.pop() {
        let node = tree.node(id);
        let first_name = first_names.get(&id);
        let made = if from.is_implied(&path) {
            to.parent(&path).map(drop)
        } else {
            make(&mut to, &path, node, first_name, data)
        };
        made.map_err(|error| error.within(&path))?;
        if let Content::Dir(names) = &node.content {
            waiting.extend(names.iter().map(|(name, child)| (*child, path::join(&path, name))));
        } else if node.names > 1 && first_name.is_none() {
            first_names.insert(id, path);
        }
    }
    data.set_len(0).map_err(failed)?;
    from.hand_over(&mut to);
    Ok(to)
}

/// Makes one file as an entry of an archive would.
fn make(
    to: &mut Applier<DirectoryStore>,
    path: &[u8],
    node: &Node,
    first_name: Option<&Vec<u8>>,
    data: &File,
) -> Result<(), UnpackError> {
    let entry = entry(node, path, first_name);
    let (parent, name) = path::split(path);
    if name.is_empty() {
        return to.root(&entry);
    }
    let parent = to.parent(parent)?;
    if first_name.is_some() {
        return to.hard_link(&entry, &parent, name);
    }
    let special = match &node.content {
        Content::Dir(_) => return to.dir(&entry, &parent, name),
        // A layer that is being unpacked has no compressed files.
        Content::File { block, size, .. } => {
            return to.file(&entry, &parent, name, |_, file| {
                copy(data, u64::from(*block) * format::BLOCK, *size, file)
                    .map_err(|error| UnpackError::disk("copying it", error))
            });
        }
        Content::Symlink(target) => SpecialFile::Symlink(target),
        Content::CharDevice(number) => SpecialFile::CharDevice(decode(*number)),
        Content::BlockDevice(number) => SpecialFile::BlockDevice(decode(*number)),
        Content::Fifo => SpecialFile::Fifo,
    };
    to.special(&entry, &parent, name, &special)
}

/// The entry that an archive would have for a file.
fn entry(node: &Node, path: &[u8], first_name: Option<&Vec<u8>>) -> TarEntry {
    let kind = match (first_name, &node.content) {
        (Some(_), _) => EntryKind::HardLink,
        (None, Content::Dir(_)) => EntryKind::Dir,
        (None, Content::File { .. }) => EntryKind::File,
        (None, Content::Symlink(_)) => EntryKind::Symlink,
        (None, Content::CharDevice(_)) => EntryKind::Char,
        (None, Content::BlockDevice(_)) => EntryKind::Block,
        (None, Content::Fifo) => EntryKind::Fifo,
    };
    let Node { mode, uid, gid, mtime, .. } = *node;
    let (link, xattrs) = (first_name.cloned().unwrap_or_default(), node.xattrs.clone());
    TarEntry { kind, name: path.to_vec(), link, mode, uid, gid, mtime, device: (0, 0), size: 0, xattrs, sparse: None }
}

/// The major and minor number of a device (`new_decode_dev` of linux/kdev_t.h).
fn decode(number: u32) -> (u32, u32) {
    (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xf_ff00)
}

/// Copies a part of a file to the beginning of another, without its holes. Moves the file's offset.
fn copy(mut from: &File, begin: u64, size: u64, to: &OwnedFd) -> io::Result<()> {
    let mut to = File::from(to.try_clone()?);
    to.set_len(size)?;
    let end = begin + size;
    let mut at = begin;
    while at < end {
        at = match seek(from, SeekFrom::Data(at)) {
            // Only a hole is left.
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
