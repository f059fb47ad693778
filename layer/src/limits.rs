//! The ceilings that a layer must keep while it is unpacked.

/// Ceilings against hostile or broken layers. The defaults fit every image that people run on purpose.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Unpacked bytes of one layer, holes of sparse files included.
    pub layer_bytes: u64,
    /// The unpacked bytes may be this many times the compressed ones …
    pub ratio: u64,
    /// … after so many bytes.
    pub ratio_grace: u64,
    /// Entries of one layer.
    pub entries: u64,
    /// Bytes of one extended attribute.
    pub xattr_bytes: usize,
    /// Bytes of all extended attributes of one file.
    pub xattr_total_bytes: usize,
    /// Bytes of memory for what is kept until a layer's end: names and attributes of directories, names of whiteouts.
    pub kept_bytes: usize,
    /// Bytes of memory that a zstd layer may ask for: its window, rounded down to a power of two, 2 GiB at most.
    pub zstd_window: u64,
    /// Whether a native image may be compressed: the kernel that will mount it reads zstd.
    pub zstd_images: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            layer_bytes: 64 << 30,
            ratio: 200,
            ratio_grace: 64 << 20,
            entries: 2_000_000,
            xattr_bytes: 64 << 10,
            xattr_total_bytes: 1 << 20,
            kept_bytes: 256 << 20,
            zstd_window: 128 << 20,
            zstd_images: true,
        }
    }
}
