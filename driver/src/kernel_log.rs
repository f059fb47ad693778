//! The kernel's log: it alone tells that a block of a protected layer changed on disk (fs-verity).
//!
//! The kernel logs a change when a process reads the block. Records from before the start of the plugin are read too.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    sync::{Arc, Weak},
    thread,
};

use crate::node::Node;

const LOG: &str = "/dev/kmsg";
/// The maximum length of a record (Documentation/ABI/testing/dev-kmsg).
const MAX_RECORD: usize = 8192;

/// Tells the store about each changed block from now on, if layers are protected. Returns at once.
pub fn attend(node: &Arc<Node>) {
    if !node.config.fs_verity {
        return;
    }
    let node = Arc::downgrade(node);
    let thread = thread::Builder::new().name("kernel-log".to_owned());
    let spawned = thread.spawn(move || {
        if let Err(error) = follow(&node) {
            tracing::error!(%error, "{LOG} cannot be read: no event tells of layers that changed on disk");
        }
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread for {LOG}: no event tells of layers that changed on disk");
    }
}

/// Reads the log as long as there is a node. Each read waits for the next record.
fn follow(node: &Weak<Node>) -> std::io::Result<()> {
    let mut log = File::open(LOG)?;
    let mut record = [0; MAX_RECORD];
    loop {
        let length = match log.read(&mut record) {
            Ok(length) => length,
            // The kernel has overwritten records that were not read yet.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => continue,
            Err(error) => return Err(error),
        };
        let record = String::from_utf8_lossy(record.get(..length).unwrap_or_default());
        let Some((inode, offset)) = changed_block(&record) else { continue };
        let Some(node) = node.upgrade() else { return Ok(()) };
        if let Err(error) = node.store.block_changed(inode, offset) {
            tracing::error!(%error, inode, "a layer that changed on disk is not known");
        }
    }
}

/// The inode and the offset of a record of fs-verity (fs/verity/verify.c of Linux):
/// `level,number,microseconds,flags;fs-verity (vda, inode 1234): FILE CORRUPTED! pos=4096, level=-1, …`. Pure.
fn changed_block(record: &str) -> Option<(u64, u64)> {
    let (_, text) = record.split_once(';')?;
    let text = text.strip_prefix("fs-verity (")?;
    let (file, problem) = text.split_once("): ")?;
    let (_, inode) = file.split_once(", inode ")?;
    let (_, offset) = problem.strip_prefix("FILE CORRUPTED!")?.split_once("pos=")?;
    let offset = offset.split(|character: char| !character.is_ascii_digit()).next()?;
    Some((inode.parse().ok()?, offset.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "3,505,2588609317,-;fs-verity (loop3, inode 1234): FILE CORRUPTED! pos=8192, level=-1, \
                          want_hash=sha256:00ff, real_hash=sha256:ff00\n";

    #[test]
    fn only_a_record_of_a_changed_block_names_one() {
        assert_eq!(changed_block(RECORD), Some((1234, 8192)));
        for other in [
            "",
            "6,1,2,-;a task wrote: fs-verity (loop3, inode 1): FILE CORRUPTED! pos=1, level=0\n",
            "3,1,2,-;fs-verity (loop3, inode 1): Error -5 reading file\n",
            "3,1,2,-;fs-verity (loop3, inode x): FILE CORRUPTED! pos=1, level=0\n",
            "3,1,2,-;fs-verity (loop3, inode 1): FILE CORRUPTED! pos=, level=0\n",
            "3,1,2,-;fs-verity (loop3, inode 1): FILE CORRUPTED!\n",
        ] {
            assert_eq!(changed_block(other), None, "{other}");
        }
    }
}
