//! What the rules need from the place where a layer is stored.
//!
//! A store makes, finds and removes single files. It follows no symbolic links on its own, and it decides nothing.
//! Its errors name no entry.

use std::io;

use rustix::io::Errno;

use super::attributes::{Attributes, SkippedXattrs};
use crate::{error::UnpackError, tar::EntryKind};

/// A directory of the layer: the store's handle, and the canonical path from the layer's root.
pub(crate) struct Place<D> {
    pub(crate) dir: D,
    pub(crate) path: Vec<u8>,
}

/// Why a directory was not found.
#[derive(Debug)]
pub(crate) enum LookupError {
    /// It does not exist.
    Missing,
    /// A component of the path is no directory, or links lead in circles.
    NotADir,
    /// The path is longer or deeper than the limits allow.
    TooDeep,
    /// The file system failed.
    Io(io::Error),
}

impl From<Errno> for LookupError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => LookupError::Missing,
            Errno::NOTDIR | Errno::LOOP => LookupError::NotADir,
            other => LookupError::Io(other.into()),
        }
    }
}

/// One component of a path.
pub(crate) enum Step<D> {
    Dir(D),
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A file of another kind.
    Other,
}

/// A file that has a name already.
pub(crate) struct Existing {
    pub(crate) kind: EntryKind,
    /// How many names it has.
    pub(crate) names: u64,
    /// Equal for two names of the same file.
    pub(crate) inode: (u64, u64),
}

impl Existing {
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == EntryKind::Dir
    }
}

/// A file without data of its own. Device numbers are major and minor.
pub(crate) enum SpecialFile<'a> {
    Symlink(&'a [u8]),
    CharDevice((u32, u32)),
    BlockDevice((u32, u32)),
    Fifo,
}

/// Stores the files of one layer.
///
/// The functions that make a file return `None` if the name is taken, and change nothing then.
pub(crate) trait LayerStore {
    /// A handle of a directory.
    type Dir: Clone;
    /// A regular file that is being written.
    type File;

    /// Bytes of memory that an implied directory takes beside its path.
    const IMPLIED_BYTES: usize;

    /// The layer's root.
    fn root(&self) -> Self::Dir;

    /// The directory at a clean path without symbolic links, if the store finds it faster than step by step.
    /// `None`: look it up step by step.
    fn open_directly(&self, path: &[u8]) -> Result<Option<Self::Dir>, LookupError>;

    /// Looks up one component without following it. `None`: it does not exist.
    fn step(&self, parent: &Self::Dir, name: &[u8]) -> Result<Option<Step<Self::Dir>>, LookupError>;

    /// Makes a directory that no entry describes so far.
    fn make_implied(&mut self, parent: &Self::Dir, name: &[u8]) -> Result<Self::Dir, LookupError>;

    /// Notes so many more bytes of memory. Fails when the store's limit is reached, if it has one.
    fn keep(&mut self, bytes: usize) -> Result<(), UnpackError>;

    /// The file of this name.
    fn find(&self, parent: &Place<Self::Dir>, name: &[u8]) -> io::Result<Option<Existing>>;

    /// Removes the file of this name with all that it contains. Returns whether it was a directory or a symbolic link:
    /// then handles and paths that lead through it are stale.
    fn remove(&mut self, parent: &Place<Self::Dir>, name: &[u8]) -> io::Result<bool>;

    /// Makes an empty directory. [`LayerStore::describe_dir`] follows.
    fn create_dir(&mut self, parent: &Place<Self::Dir>, name: &[u8]) -> io::Result<Option<()>>;

    /// Gives a directory its attributes, at once or when the layer is finished. The last description counts.
    fn describe_dir(
        &mut self,
        parent: &Place<Self::Dir>,
        name: &[u8],
        attributes: Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<(), UnpackError>;

    /// The same for the layer's root.
    fn describe_root(&mut self, attributes: Attributes, skipped: &mut SkippedXattrs) -> Result<(), UnpackError>;

    /// Makes an empty regular file. [`LayerStore::finish_file`] ends it before the next file is made.
    fn create_file(&mut self, parent: &Place<Self::Dir>, name: &[u8], mode: u32) -> io::Result<Option<Self::File>>;

    /// Gives a sparse file its size. Called before its data is written.
    fn set_size(&mut self, file: &mut Self::File, size: u64) -> io::Result<()>;

    /// Writes a part of the data and returns how much it was. Offsets ascend.
    fn write_at(&mut self, file: &mut Self::File, offset: u64, data: &[u8]) -> io::Result<usize>;

    /// Gives a regular file its attributes after its data.
    fn finish_file(
        &mut self,
        file: Self::File,
        attributes: Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<(), UnpackError>;

    /// Makes a link, a device or a FIFO with its attributes.
    fn create_special(
        &mut self,
        parent: &Place<Self::Dir>,
        name: &[u8],
        file: &SpecialFile<'_>,
        attributes: &Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<Option<()>, UnpackError>;

    /// Gives a file of the layer a further name.
    fn link(
        &mut self,
        target: (&Place<Self::Dir>, &[u8]),
        parent: &Place<Self::Dir>,
        name: &[u8],
    ) -> io::Result<Option<()>>;

    /// Gives a file that has attributes other ones. Extended attributes are added, but a change of the owner removes
    /// capabilities, as chown(2) does.
    fn describe_again(
        &mut self,
        parent: &Place<Self::Dir>,
        name: &[u8],
        attributes: Attributes,
        skipped: &mut SkippedXattrs,
    ) -> Result<(), UnpackError>;

    /// Hides the lower layers' file of this name. The name is free in this layer.
    fn create_whiteout(&mut self, parent: &Place<Self::Dir>, name: &[u8]) -> io::Result<()>;

    /// Hides the lower layers' content of a directory.
    fn mark_opaque(&mut self, dir: &Place<Self::Dir>) -> Result<(), UnpackError>;
}
