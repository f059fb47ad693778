//! Blocks for tests, written as JSON.

pub use super::json::{encode, msgpack};
