//! What the fuzz targets need beside the public items: re-exports only.

pub use crate::{sys::confine_thread, tar::pax, unpack::write};
