//! Tar archives: headers, PAX records, sparse maps, and the entries that they describe.

mod entry;
mod header;
pub mod pax;
mod reader;
mod sparse;

pub use entry::TarEntry;
pub use header::EntryKind;
pub use pax::Xattrs;
pub use reader::TarReader;
