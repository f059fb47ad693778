//! The plugin block's options for the driver's own log.

use std::path::PathBuf;

use tracing::level_filters::LevelFilter;

use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
};

/// The options of the plugin block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "log_file",
        OptionType::String,
        Words("`oci-rs.log` in `data_dir`, or `docker.log` with the name `docker`"),
        "file for the log, which also goes to the agent's log. `none` writes no file",
    ),
    OptionSpec::honoured(
        "log_level",
        OptionType::String,
        Literal(r#""debug""#),
        "lowest level of the lines that the plugin writes, to the file and to the agent: `trace`, `debug`, `info`, \
         `warn`, `error` or `off`. The agent shows only the lines that its own `log_level` admits. A release build \
         writes no line of the level `trace`",
    ),
    OptionSpec::honoured(
        "log_rotate_bytes",
        OptionType::Number,
        Literal("16777216"),
        "size at which the log file is renamed to `<name>.1` and a new one is begun",
    ),
    OptionSpec::honoured(
        "log_rotate_max_files",
        OptionType::Number,
        Literal("1"),
        "number of renamed log files that are kept, 1 to 1000",
    ),
];

/// The value of `log_file` that switches the file off.
const NO_FILE: &str = "none";

/// The largest value of `log_rotate_max_files`.
const MOST_FILES: u64 = 1000;

/// The driver's own log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// Whether the log is also written to a file.
    pub to_file: bool,
    /// The file. `None` is a file in `data_dir`.
    pub file: Option<PathBuf>,
    /// The lowest level that is written.
    pub level: LevelFilter,
    /// A larger file is renamed.
    pub rotate_bytes: u64,
    /// The number of renamed files that are kept.
    pub rotate_files: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { to_file: true, file: None, level: LevelFilter::DEBUG, rotate_bytes: 16 << 20, rotate_files: 1 }
    }
}

/// Reads the options.
pub fn read(block: &ConfigBlock) -> LogOptions {
    let default = LogOptions::default();
    let to_file = block.string("log_file").as_deref() != Some(NO_FILE);
    LogOptions {
        to_file,
        file: if to_file { block.absolute_path("log_file") } else { None },
        level: level(block).unwrap_or(default.level),
        rotate_bytes: block.positive("log_rotate_bytes").unwrap_or(default.rotate_bytes),
        rotate_files: rotate_files(block).unwrap_or(default.rotate_files),
    }
}

/// Each rotation renames all files, so their number has a bound.
fn rotate_files(block: &ConfigBlock) -> Option<u64> {
    let files = block.positive("log_rotate_max_files")?;
    if files > MOST_FILES {
        let remedy = format!("write a number up to {MOST_FILES}, or raise log_rotate_bytes");
        block.error("log_rotate_max_files", format!("{files} files are too many"), remedy);
    }
    Some(files)
}

/// The level by its name, as in the agent's configuration.
fn level(block: &ConfigBlock) -> Option<LevelFilter> {
    let name = block.string("log_level")?.to_ascii_lowercase();
    // The type's own parser also accepts numbers.
    let known = ["trace", "debug", "info", "warn", "error", "off"].contains(&name.as_str());
    let level = name.parse().ok().filter(|_| known);
    if level.is_none() {
        let remedy = "write trace, debug, info, warn, error or off";
        block.error("log_level", format!("{name:?} is no level"), remedy);
    }
    level
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{
        config::{decode_plugin, from_json},
        name::DriverName,
    };

    #[test]
    fn the_number_of_log_files_has_a_bound() {
        for (files, good) in [(1, true), (1000, true), (1001, false), (i64::MAX, false)] {
            let block = json!({ "log_rotate_max_files": files });
            let decoded = decode_plugin(&from_json(&block), DriverName::OciRs);
            assert_eq!(decoded.is_ok(), good, "{files}");
        }
    }
}
