//! The plugin block's options for garbage collection: unused images and dangling containers.

use std::time::Duration;

use image_store::Retention;

use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
};

/// The options of `gc`.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured("image", OptionType::Bool, Literal("true"), "remove images that no task uses"),
    OptionSpec::honoured(
        "image_delay",
        OptionType::String,
        Literal(r#""3m""#),
        "how long after its last use an image is removed",
    ),
    OptionSpec::honoured(
        "disk_high_percent",
        OptionType::Number,
        Literal("85"),
        "high watermark of the file system of `data_dir`, in percent of bytes or of inodes. Above it, unused images \
         are removed without delay, the least recently used first",
    ),
    OptionSpec::honoured(
        "disk_low_percent",
        OptionType::Number,
        Words("five below `disk_high_percent`"),
        "low watermark: below it, removal without delay ends",
    ),
    OptionSpec::ignored(
        "container",
        OptionType::Bool,
        "none",
        "remove containers that have ended. They are always removed when Nomad destroys the task",
    ),
    OptionSpec::honoured(
        "dangling_containers",
        OptionType::Block(DANGLING),
        Words("as below"),
        "remove containers of this node that belong to no task, because the answer to their start, or the call for \
         their removal, was lost",
    ),
];

const DANGLING: &[OptionSpec] = &[
    OptionSpec::honoured("enabled", OptionType::Bool, Literal("true"), "remove dangling containers"),
    OptionSpec::honoured(
        "dry_run",
        OptionType::Bool,
        Literal("false"),
        "remove nothing, only write to the log what would be removed",
    ),
    OptionSpec::honoured("period", OptionType::String, Literal(r#""5m""#), "how often the driver looks for them"),
    OptionSpec::honoured(
        "creation_grace",
        OptionType::String,
        Literal(r#""5m""#),
        "minimum age of the container, and minimum run time of the plugin, before a container is removed. Until then \
         Nomad may still ask for it",
    ),
    OptionSpec::honoured(
        "unanswered_grace",
        OptionType::String,
        Literal(r#""20s""#),
        "a container whose start was not answered is removed when the agent has not asked for any task of an earlier \
         plugin for this time",
    ),
];

/// The removal of dangling containers: containers of this node that belong to no task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dangling {
    /// How often the driver looks for them.
    pub period: Duration,
    /// The minimum age of the container and of the plugin. Until then Nomad may still ask for the container.
    pub creation_grace: Duration,
    /// A container of an unanswered start is removed after this time without a RecoverTask.
    pub unanswered_grace: Duration,
    /// Only log what would be removed.
    pub dry_run: bool,
}

/// Reads the watermarks and the delay. `None` if images are kept for ever.
pub fn retention(gc: &ConfigBlock, default: Option<Retention>) -> Option<Retention> {
    // The option is ignored, but a value of the wrong type is an error.
    gc.bool("container");
    let default = default?;
    let high = percent(gc, "disk_high_percent").unwrap_or(default.high);
    let low = percent(gc, "disk_low_percent").unwrap_or(high.saturating_sub(5));
    if low > high {
        gc.error("disk_low_percent", format!("is above disk_high_percent, {high}"), "make it smaller");
    }
    let delay = gc.duration("image_delay").unwrap_or(default.delay);
    gc.bool_or("image", true).then_some(Retention { delay, high, low })
}

fn percent(gc: &ConfigBlock, option: &str) -> Option<u8> {
    let number = gc.positive(option)?;
    let percent = u8::try_from(number).ok().filter(|percent| *percent <= 100);
    if percent.is_none() {
        gc.error(option, "is more than 100 percent", "write a number from 1 to 100");
    }
    percent
}

/// Reads `dangling_containers`. `None` if dangling containers are kept.
pub fn dangling(gc: &ConfigBlock, default: Option<Dangling>) -> Option<Dangling> {
    let default = default?;
    let block = gc.block("dangling_containers");
    let dangling = Dangling {
        period: block.duration("period").unwrap_or(default.period),
        creation_grace: block.duration("creation_grace").unwrap_or(default.creation_grace),
        unanswered_grace: block.duration("unanswered_grace").unwrap_or(default.unanswered_grace),
        dry_run: block.bool_or("dry_run", default.dry_run),
    };
    block.bool_or("enabled", true).then_some(dangling)
}
