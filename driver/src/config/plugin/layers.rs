//! The plugin block's limits of writable layers.

use crate::config::{
    block::ConfigBlock,
    option::{DefaultValue::Words, OptionSpec, OptionType},
};

/// The options of `writable_layer`.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "size",
        OptionType::String,
        Words("`max_size`"),
        "limit of tasks that set no `size` in `storage_opt`, as in `10G`",
    ),
    OptionSpec::honoured(
        "max_size",
        OptionType::String,
        Words("none"),
        "the most that tasks may set. With it, no task is without a limit",
    ),
];

/// Limits of the tasks' writable layers, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerLimits {
    /// The limit of tasks that set none.
    pub size: Option<u64>,
    /// The most that tasks may set.
    pub max: Option<u64>,
}

impl LayerLimits {
    /// The smallest limit.
    pub const SMALLEST: u64 = 1 << 20;

    /// The limit of a task that sets none.
    pub fn of_tasks_without(&self) -> Option<u64> {
        self.size.or(self.max)
    }
}

/// Reads the limits.
pub fn read(block: &ConfigBlock) -> LayerLimits {
    let size = |option: &str| {
        let text = block.string(option)?;
        let bytes = log_drivers::size(&text).filter(|bytes| *bytes >= LayerLimits::SMALLEST);
        if bytes.is_none() {
            block.error(option, format!("{text:?} is no size from 1M on"), "write it as in \"10G\" or \"512M\"");
        }
        bytes
    };
    let limits = LayerLimits { size: size("size"), max: size("max_size") };
    if limits.size > limits.max && limits.max.is_some() {
        block.error("size", "is more than `max_size`", "write at most `max_size`");
    }
    limits
}
