//! The low-level ground that the other crates share: durable files, versioned records, file locks, system calls.
//!
//! Depends on none of them, and knows neither Nomad nor images nor containers. Errors carry the attempted action or the
//! path; the callers map them to their own types.

pub mod boot;
pub mod durable;
pub mod error;
pub mod hash;
pub mod lock;
pub mod program;
pub mod receive_mark;
pub mod record;
pub mod resolve;
pub mod sys;
pub mod tree;
pub mod tree_size;
pub mod verity;

pub use error::{Context, IoError};
