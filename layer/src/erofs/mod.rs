//! A layer as one file with an EROFS file system in it.

mod compressed;
mod disk;
mod format;
mod kernel_xattrs;
mod memory;
mod native;
mod read;
mod sample;
mod store;
mod to_directory;
mod tree;

pub use compressed::is_compressed;
pub use disk::uuid;
pub use format::BLOCK;
pub use memory::MemoryCounter;
pub use native::{
    CheckedImage, Converted, FileReads, FirstReads, Parts, blocks_match, check_front, check_image, check_metadata,
    check_padding, convert, files_read, receive,
};
pub use read::{ImageFile, ImageReader};
pub use sample::SampleImage;
pub(crate) use store::ErofsStore;
pub(crate) use to_directory::into_directory;
