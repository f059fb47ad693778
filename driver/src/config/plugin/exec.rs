//! The plugin block's options for `nomad alloc exec`.

use crate::config::{
    block::ConfigBlock,
    option::{DefaultValue::Words, OptionSpec, OptionType},
};

/// The options of `exec`.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "user",
        OptionType::Bool,
        Words("false"),
        "allows `user=`: the command runs as another user. Only users that the task's own command could become are \
         possible",
    ),
    OptionSpec::honoured(
        "any_user",
        OptionType::Bool,
        Words("false"),
        "allows `user=` with any user. Root in a task that runs as another user gets all capabilities that the task \
         may have",
    ),
    OptionSpec::honoured(
        "cwd",
        OptionType::Bool,
        Words("false"),
        "allows `cwd=`: the command runs in another working directory",
    ),
    OptionSpec::honoured(
        "debug_images",
        OptionType::Strings,
        Words("none"),
        "images that `image=` may name, as references or patterns with `*` (`registry.example/tools/*`). The command \
         uses the programs of that image, which is pulled with the node's own credentials",
    ),
];

/// The prefixes that `nomad alloc exec` may use before the command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecPolicy {
    /// `user=` with a user that the task's own command could become.
    pub user: bool,
    /// `user=` with any user.
    pub any_user: bool,
    /// `cwd=`.
    pub cwd: bool,
    /// Debug images that `image=` may name, as references or patterns with `*`.
    pub debug_images: Vec<String>,
}

/// Reads the `exec` block.
pub fn read(block: &ConfigBlock) -> ExecPolicy {
    let policy = ExecPolicy {
        user: block.bool("user"),
        any_user: block.bool("any_user"),
        cwd: block.bool("cwd"),
        debug_images: block.strings("debug_images"),
    };
    if policy.any_user && !policy.user {
        block.error("any_user", "does nothing without user", "set user = true beside it, or remove it");
    }
    policy
}
