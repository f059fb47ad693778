//! Items that only the fuzz targets need: re-exports, no code.

pub use crate::{sys::confine_thread, tar::pax, unpack::write};
