//! Numbers of the EROFS format (`erofs_fs.h` of Linux), and how they are read.

/// Bytes of a block of an image, and of a block of its hash tree.
pub const BLOCK: u64 = 4096;
/// The longest name of a file (`EROFS_NAME_LEN`).
pub(super) const MAX_NAME: usize = 255;
/// The offset of the superblock in the first block, which holds nothing else.
pub(super) const SUPER: usize = 1024;
/// Bytes of the superblock.
pub(super) const SUPER_BYTES: usize = 128;
pub(super) const MAGIC: u32 = 0xe0f5_e1e2;
/// An inode's number is its offset in the metadata, counted in slots.
pub(super) const SLOT: u64 = 32;
pub(super) const INODE: u64 = 64;
/// The offset of the root's inode. No file has number 0, which readdir(3) takes for a name without a file.
pub(super) const FIRST: u64 = 2 * SLOT;
pub(super) const DIRENT: usize = 12;
/// `i_format`: an inode of 64 bytes, its content in blocks …
pub(super) const PLAIN: u16 = 1;
/// … or in blocks except for its end, which follows the inode.
pub(super) const INLINE: u16 = 1 | 2 << 1;
/// … or compressed in chunks, with an index that follows the inode.
pub(super) const COMPRESSED: u16 = 1 | 1 << 1;
pub(super) const XATTR_HEADER: usize = 12;
/// Prefixes of names that are stored as a number (`EROFS_XATTR_INDEX_*`).
pub(super) const PREFIXES: [(&[u8], u8); 5] = [
    (b"user.", 1),
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"trusted.", 4),
    (b"security.", 6),
];

/// How many blocks these bytes take.
pub(super) fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK)
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
