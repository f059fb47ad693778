//! One entry of an archive, with everything that describes it.

use super::{header::EntryKind, pax::Xattrs, sparse::Sparse};

/// One entry, its extensions applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarEntry {
    /// What it is.
    pub kind: EntryKind,
    /// Its name, as it stands in the archive.
    pub name: Vec<u8>,
    /// The target of a link.
    pub link: Vec<u8>,
    /// Permissions and the three special bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Seconds and nanoseconds of the last modification.
    pub mtime: (i64, u32),
    /// Major and minor number of a device.
    pub device: (u64, u64),
    /// Bytes of data in the archive.
    pub size: u64,
    /// Extended attributes.
    pub xattrs: Xattrs,
    /// Where the data goes if the file has holes.
    pub sparse: Option<Sparse>,
}
