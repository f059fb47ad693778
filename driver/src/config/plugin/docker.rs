//! The options of the docker driver's plugin block that have no effect here.
//!
//! An operator can copy the block. The plugin writes one warning to its log for each of these options that is set.

use crate::config::{
    block::ConfigBlock,
    option::{OptionSpec, OptionType},
};

/// The options of the plugin block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    ignored("endpoint", OptionType::String, "address of the docker daemon. There is no daemon here"),
    ignored("tls", OptionType::Block(TLS), "certificates for the docker daemon. There is no daemon here"),
    ignored(
        "logging",
        OptionType::Block(LOGGING),
        "default log driver of tasks. Nomad collects stdout and stderr; `logs` in the task block sets how much is kept",
    ),
    ignored("nvidia_runtime", OptionType::String, "OCI runtime for GPUs. Containers run with the built-in runtime"),
    ignored(
        "allow_runtimes",
        OptionType::Strings,
        "OCI runtimes that tasks may use. Containers run with the built-in runtime",
    ),
    ignored(
        "infra_image",
        OptionType::String,
        "image of the container that holds a group's network. No such container is needed here",
    ),
    ignored("infra_image_pull_timeout", OptionType::String, "total timeout of the pull of `infra_image`"),
    ignored(
        "container_exists_attempts",
        OptionType::Number,
        "attempts after a conflict of container names. Names cannot conflict here",
    ),
    ignored(
        "oom_score_adj",
        OptionType::Number,
        "no effect in the docker driver either. Set `oom_score_adj` in the task block",
    ),
    ignored(
        "disable_log_collection",
        OptionType::Bool,
        "Nomad does not collect the output of tasks. Set `logs { disabled = true }` in the task instead",
    ),
    ignored(
        "windows_allow_insecure_container_admin",
        OptionType::Bool,
        "users of Windows containers. It has no meaning on Linux",
    ),
];

const TLS: &[OptionSpec] = &[
    ignored("cert", OptionType::String, "path of the client's certificate"),
    ignored("key", OptionType::String, "path of the client's key"),
    ignored("ca", OptionType::String, "path of the authority's certificate"),
];

const LOGGING: &[OptionSpec] = &[
    ignored("type", OptionType::String, "name of the log driver"),
    ignored("config", OptionType::StringAttrs, "options of the log driver"),
];

const fn ignored(name: &'static str, kind: OptionType, help: &'static str) -> OptionSpec {
    OptionSpec::ignored(name, kind, "none", help)
}

/// The names of the options that are set. Their values are not used.
pub fn read(block: &ConfigBlock) -> Vec<&'static str> {
    OPTIONS.iter().map(|option| option.name).filter(|name| block.has(name)).collect()
}
