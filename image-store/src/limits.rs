//! Limits against hostile or broken registries and images, and against too much work at the same time.

use std::time::Duration;

/// The limits of a store. The defaults fit every image that people run on purpose.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a manifest, index or config.
    pub document_bytes: u64,
    /// Bytes of the answer of a token server.
    pub token_bytes: u64,
    /// Layers of an image. The kernel stacks at most 500 directories.
    pub layers: usize,
    /// Unpacked bytes of one layer, holes of sparse files included.
    pub layer_bytes: u64,
    /// The unpacked bytes may be this many times the compressed bytes …
    pub ratio: u64,
    /// … after this many bytes.
    pub ratio_grace: u64,
    /// Entries of one layer.
    pub entries: u64,
    /// Bytes of one extended attribute.
    pub xattr_bytes: usize,
    /// Bytes of all extended attributes of one file.
    pub xattr_total_bytes: usize,
    /// Bytes of memory for data that is kept until the end of a layer: names and attributes of directories, names of
    /// whiteouts.
    pub kept_bytes: usize,
    /// Bytes of memory that a zstd layer may ask for: its window, rounded down to a power of two, 2 GiB at most.
    pub zstd_window: u64,
    /// Bytes that must stay free on the file system of the store.
    pub free_bytes: u64,
    /// Layers that one pull fetches at the same time.
    pub parallel_per_pull: usize,
    /// Layers that the whole store fetches at the same time.
    pub parallel: usize,
    /// Bytes of one chunk of an upload.
    pub upload_chunk: u64,
    /// Attempts of one request, and consecutive breaks of one body without progress.
    pub attempts: u32,
    /// The first pause between two attempts. Each further pause is twice as long.
    pub retry_pause: Duration,
    /// How long a caller that had a private image before waits for the registry to confirm its access.
    pub access_wait: Duration,
}

impl Limits {
    /// The part that concerns the unpacking of one layer.
    pub(crate) fn of_a_layer(&self) -> layer::Limits {
        layer::Limits {
            layer_bytes: self.layer_bytes,
            ratio: self.ratio,
            ratio_grace: self.ratio_grace,
            entries: self.entries,
            xattr_bytes: self.xattr_bytes,
            xattr_total_bytes: self.xattr_total_bytes,
            kept_bytes: self.kept_bytes,
            zstd_window: self.zstd_window,
            ..layer::Limits::default()
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let layer = layer::Limits::default();
        Self {
            document_bytes: 4 << 20,
            token_bytes: 1 << 20,
            layers: 500,
            layer_bytes: layer.layer_bytes,
            ratio: layer.ratio,
            ratio_grace: layer.ratio_grace,
            entries: layer.entries,
            xattr_bytes: layer.xattr_bytes,
            xattr_total_bytes: layer.xattr_total_bytes,
            kept_bytes: layer.kept_bytes,
            zstd_window: layer.zstd_window,
            free_bytes: 64 << 20,
            parallel_per_pull: 6,
            parallel: 12,
            upload_chunk: 8 << 20,
            attempts: 5,
            retry_pause: Duration::from_millis(500),
            // With the rest of a start it is less than a second.
            access_wait: Duration::from_millis(700),
        }
    }
}
