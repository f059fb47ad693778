//! The plugin block's options for images that are used before they are complete.

use std::time::Duration;

use image_store::PartialConfig;

use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
};

/// The options of `lazy`.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "enabled",
        OptionType::Bool,
        Literal("true"),
        "tasks start before their native image is complete, see [lazy images](lazy-images.md)",
    ),
    OptionSpec::honoured("min_size", OptionType::String, Literal(r#""4M""#), "smaller layers are pulled whole"),
    OptionSpec::honoured(
        "read_timeout",
        OptionType::String,
        Literal(r#""60s""#),
        "how long a read waits for data that does not arrive before it fails with `EIO`",
    ),
    OptionSpec::honoured(
        "bandwidth",
        OptionType::String,
        Words("no limit"),
        "bytes per second, as in `50M`, for the data that no read waits for. It holds for all layers together",
    ),
    OptionSpec::honoured(
        "profile",
        OptionType::String,
        Words("none"),
        "how long, as in `30s`, reads of a new layer are noted for `oci-rs image profile`. Until then the layer counts \
         as incomplete",
    ),
];

/// The values where the operator sets none.
pub fn default() -> PartialConfig {
    PartialConfig { min_size: 4 << 20, read_timeout: Duration::from_secs(60), bandwidth: None, profile: None }
}

/// Reads the block. `None`: images are always pulled whole.
pub fn read(block: &ConfigBlock) -> Option<PartialConfig> {
    let default = default();
    let size = |option: &str| {
        let text = block.string(option)?;
        let bytes = log_drivers::size(&text).filter(|bytes| *bytes > 0);
        if bytes.is_none() {
            block.error(option, format!("{text:?} is no size"), "write it as in \"16M\" or \"1G\"");
        }
        bytes
    };
    let config = PartialConfig {
        min_size: size("min_size").unwrap_or(default.min_size),
        read_timeout: block.duration("read_timeout").unwrap_or(default.read_timeout),
        bandwidth: size("bandwidth"),
        profile: block.duration("profile"),
    };
    block.bool_or("enabled", true).then_some(config)
}
