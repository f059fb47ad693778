//! The end of a layer: what had to wait until no entry could contradict it any more.

use rustix::{
    fs::{AtFlags, FileType},
    io::Errno,
};

use super::{Applied, Applier, tree::LookupError};
use crate::{error::UnpackError, marks, name};

impl Applier {
    /// Whiteouts, opaque directories, and the attributes of directories.
    pub(crate) fn finish(mut self) -> Result<Applied, UnpackError> {
        for (parent, name) in std::mem::take(&mut self.whiteouts) {
            self.whiteout(&parent, &name)?;
        }
        let opaque_root = self.opaque.remove(&b""[..]);
        for path in std::mem::take(&mut self.opaque) {
            let (fd, _) = match self.tree.open_dir(&path) {
                Ok(found) => found,
                // A later entry replaced the directory and thereby hides what lay below it.
                Err(LookupError::Missing | LookupError::NotADir | LookupError::TooDeep) => continue,
                Err(LookupError::Io(error)) => return Err(UnpackError::disk(&path, "opening it", error)),
            };
            let readable =
                marks::hide_all(&fd).map_err(|errno| UnpackError::disk(&path, "marking it opaque", errno.into()))?;
            self.copy_only |= !readable;
        }
        self.finish_dirs()?;
        let implicit = self.tree.implicit().iter().cloned().collect();
        let (entries, copy_only, not_set) = (self.entries, self.copy_only, self.not_set);
        Ok(Applied { entries, implicit, opaque_root, not_set, copy_only, image: false })
    }

    fn whiteout(&mut self, parent: &[u8], name: &[u8]) -> Result<(), UnpackError> {
        let path = name::join(parent, name);
        let disk = |errno: Errno| UnpackError::disk(&path, "making its whiteout", errno.into());
        let parent = match self.tree.dir(parent, false) {
            Ok(found) if found.path == parent => found,
            // A later entry replaced the directory, perhaps by a link to another one.
            Ok(_) | Err(LookupError::Missing | LookupError::NotADir | LookupError::TooDeep) => return Ok(()),
            Err(LookupError::Io(error)) => return Err(UnpackError::disk(&path, "making its whiteout", error)),
        };
        match rustix::fs::statat(&*parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                // Removed and made again: a new directory, which inherits nothing.
                self.tree.made_explicit(&path);
                self.opaque.insert(path);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(Errno::NOENT) => {
                self.copy_only |= !marks::hide(&*parent, name).map_err(disk)?;
                Ok(())
            }
            Err(errno) => Err(disk(errno)),
        }
    }

    /// Deepest first: a directory that we may not enter ourselves any more needs nothing inside it any more.
    fn finish_dirs(&mut self) -> Result<(), UnpackError> {
        for (path, record) in std::mem::take(&mut self.dirs).into_iter().rev() {
            // Only if it is still the directory that the entry was about.
            let (fd, stat) = match self.tree.open_dir(&path) {
                Ok(found) => found,
                Err(LookupError::Missing | LookupError::NotADir | LookupError::TooDeep) => continue,
                Err(LookupError::Io(error)) => return Err(UnpackError::disk(&path, "opening it", error)),
            };
            if stat.st_ino == record.inode {
                record.attributes.set(&fd, &stat, &mut self.not_set).map_err(|error| error.of(&path))?;
            }
        }
        Ok(())
    }
}
