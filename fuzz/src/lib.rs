//! What the fuzz targets run: any bytes in, a panic if a parser or the unpacker breaks a promise.
//!
//! - `sandbox`: unpacks layers in both forms and checks that nothing outside the layer's directory changed.
//! - `entries`: makes well-formed archives from bytes. `model`: works out in memory what such an archive must become.
//! - `parsers`: everything else that reads bytes of strangers.

mod entries;
mod limits;
mod model;
mod parsers;
mod sandbox;
mod tree;

pub use parsers::{archive, cdi, challenges, docker_config, documents, native, pax, reference};
pub use sandbox::{unpack_blob, unpack_entries};
