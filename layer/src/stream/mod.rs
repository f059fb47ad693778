//! The way of a layer's bytes: blob → hash → decompress → hash → unpacked bytes. Nothing is stored.
//!
//! [`BlobReader`] hashes the blob as it arrives. [`Decoder`] decompresses it. [`HashingReader`] hashes the result and
//! ends a stream that grows beyond its limits. `Pipe` brings blocks to another thread.

mod blob;
mod decoder;
mod error;
mod gzip;
mod hashing;
mod pipe;
#[cfg(test)]
mod tests;

pub use blob::{BlobReader, Piece};
pub use decoder::{Decoder, is_compressed};
pub use error::aborted;
pub use hashing::HashingReader;
pub(crate) use pipe::{Pipe, pump};
