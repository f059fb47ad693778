//! Tar: headers, PAX records, sparse maps, and the entries that they describe.

pub mod archive;
pub mod header;
pub mod pax;
pub mod sparse;
