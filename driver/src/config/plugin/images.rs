//! The plugin block's options for pulls, for the form of layers and for the limits of images.

use image_store::Limits;

use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The maximum of the options for parallel downloads.
const MAX_PARALLEL: usize = 1000;

/// The options of the plugin block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "layer_format",
        OptionType::String,
        Literal(r#""auto""#),
        "form in which layers are stored. `auto` stores each layer as one EROFS file system image, which is faster to \
         write, if the kernel and the file system of `data_dir` support it (Linux 6.15; not on tmpfs or overlayfs), \
         otherwise as files in a directory. `directory` always stores files in a directory. `auto` also uses existing \
         layers of the other form; `directory` downloads them again",
    ),
    OptionSpec::honoured(
        "fs_verity",
        OptionType::Bool,
        Literal("false"),
        "the kernel verifies each block of a layer that it reads from disk, see [images](images.md#damage-on-disk). It \
         needs layers that are EROFS images, and `data_dir` on btrfs or on ext4 with the feature `verity`. On other \
         nodes the plugin does not start tasks",
    ),
    OptionSpec::honoured(
        "image_pull_timeout",
        OptionType::String,
        Literal(r#""5m""#),
        "total timeout of a pull, for tasks without `image_pull_timeout`",
    ),
    OptionSpec::honoured(
        "pull_activity_timeout",
        OptionType::String,
        Literal(r#""2m""#),
        "idle timeout of a pull: no bytes received",
    ),
    OptionSpec::honoured(
        "image_limits",
        OptionType::Block(LIMITS),
        Words("large enough for any real image"),
        "limits against hostile or broken images and registries",
    ),
];

const LIMITS: &[OptionSpec] = &[
    OptionSpec::honoured("document_kib", OptionType::Number, Literal("4096"), "size of a manifest, index or config"),
    OptionSpec::honoured("token_kib", OptionType::Number, Literal("1024"), "size of a token server's answer"),
    OptionSpec::honoured("layers", OptionType::Number, Literal("500"), "layers of an image, at most 500"),
    OptionSpec::honoured(
        "layer_mib",
        OptionType::Number,
        Literal("65536"),
        "unpacked size of one layer, including holes of sparse files",
    ),
    OptionSpec::honoured("layer_entries", OptionType::Number, Literal("2000000"), "entries of one layer"),
    OptionSpec::honoured(
        "ratio",
        OptionType::Number,
        Literal("200"),
        "ratio of a layer's unpacked size to its compressed size. It applies above `ratio_after_mib`",
    ),
    OptionSpec::honoured(
        "ratio_after_mib",
        OptionType::Number,
        Literal("64"),
        "unpacked size from which `ratio` applies",
    ),
    OptionSpec::honoured(
        "xattr_kib",
        OptionType::Number,
        Literal("64"),
        "size of one extended attribute. The kernel's maximum is 64",
    ),
    OptionSpec::honoured(
        "xattrs_kib",
        OptionType::Number,
        Literal("1024"),
        "size of all extended attributes of one file",
    ),
    OptionSpec::honoured(
        "layer_memory_kib",
        OptionType::Number,
        Literal("262144"),
        "memory for the names and attributes of directories and the names of whiteouts, which are kept until a layer \
         is unpacked",
    ),
    OptionSpec::honoured(
        "zstd_window_mib",
        OptionType::Number,
        Literal("128"),
        "memory that the decompression of a zstd layer may need (its window)",
    ),
    OptionSpec::honoured(
        "free_mib",
        OptionType::Number,
        Literal("64"),
        "disk space that a pull leaves free on the file system of `data_dir`; 0: none. With less, the node is \
         unhealthy",
    ),
    OptionSpec::honoured("parallel_layers", OptionType::Number, Literal("6"), "layers that one pull downloads at once"),
    OptionSpec::honoured(
        "parallel_downloads",
        OptionType::Number,
        Literal("12"),
        "layers that all pulls together download at once",
    ),
    OptionSpec::honoured(
        "attempts",
        OptionType::Number,
        Literal("5"),
        "attempts of a request, and consecutive interruptions of a download without progress (64 KiB)",
    ),
    OptionSpec::honoured(
        "retry_pause",
        OptionType::String,
        Literal(r#""500ms""#),
        "pause after the first failure. It doubles with each further failure",
    ),
];

/// Reads `layer_format`: whether layers may be stored as file system images.
pub fn layer_images(block: &ConfigBlock) -> bool {
    match block.string("layer_format").as_deref() {
        None | Some("auto") => true,
        // `folder` was the name of this form in earlier versions.
        Some("directory" | "folder") => false,
        Some(other) => {
            let problem = format!("{other:?} is not a form of layers");
            block.error("layer_format", problem, "write auto or directory");
            true
        }
    }
}

/// Reads `image_limits`.
pub fn limits(block: &ConfigBlock, default: Limits) -> Limits {
    let number = |option: &str, unit: u64, default: u64| {
        block.positive(option).map_or(default, |number| number.saturating_mul(unit))
    };
    let count = |option: &str, default: usize| {
        block.positive(option).map_or(default, |number| usize::try_from(number).unwrap_or(usize::MAX))
    };
    let kib = |option: &str, default: usize| usize::try_from(number(option, KIB, default as u64)).unwrap_or(usize::MAX);
    let layers = count("layers", default.layers);
    if layers > default.layers {
        let max = default.layers;
        block.error("layers", format!("is more than {max}"), format!("write {max} at most"));
    }
    Limits {
        document_bytes: number("document_kib", KIB, default.document_bytes),
        token_bytes: number("token_kib", KIB, default.token_bytes),
        layers,
        layer_bytes: number("layer_mib", MIB, default.layer_bytes),
        ratio: number("ratio", 1, default.ratio),
        ratio_grace: number("ratio_after_mib", MIB, default.ratio_grace),
        entries: number("layer_entries", 1, default.entries),
        xattr_bytes: kib("xattr_kib", default.xattr_bytes),
        xattr_total_bytes: kib("xattrs_kib", default.xattr_total_bytes),
        kept_bytes: kib("layer_memory_kib", default.kept_bytes),
        zstd_window: number("zstd_window_mib", MIB, default.zstd_window),
        free_bytes: block.non_negative("free_mib").map_or(default.free_bytes, |mib| mib.saturating_mul(MIB)),
        parallel_per_pull: count("parallel_layers", default.parallel_per_pull).min(MAX_PARALLEL),
        parallel: count("parallel_downloads", default.parallel).min(MAX_PARALLEL),
        attempts: u32::try_from(number("attempts", 1, default.attempts.into())).unwrap_or(u32::MAX),
        retry_pause: block.duration("retry_pause").unwrap_or(default.retry_pause),
        upload_chunk: default.upload_chunk,
        access_wait: default.access_wait,
    }
}
