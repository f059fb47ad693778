//! A layer as files in a directory.

mod attributes;
mod store;

pub(crate) use store::DirectoryStore;
