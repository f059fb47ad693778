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
    OptionSpec::honoured(
        "max_commands",
        OptionType::Number,
        Words("256, or 4096 with docker's rules"),
        "maximum number of commands that run in one task at the same time, script checks included. A further command \
         is refused",
    ),
];

/// The rules for commands in tasks: the prefixes that `nomad alloc exec` may use before the command, and a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecPolicy {
    /// `user=` with a user that the task's own command could become.
    pub user: bool,
    /// `user=` with any user.
    pub any_user: bool,
    /// `cwd=`.
    pub cwd: bool,
    /// Debug images that `image=` may name, as references or patterns with `*`.
    pub debug_images: Vec<String>,
    /// Maximum number of commands that run in one task at the same time.
    pub max_commands: usize,
}

impl Default for ExecPolicy {
    fn default() -> Self {
        Self { user: false, any_user: false, cwd: false, debug_images: Vec::new(), max_commands: 256 }
    }
}

/// `max_commands` with docker's rules. Docker has no limit. This one only keeps a task from exhausting the node.
pub const DOCKER_MAX_COMMANDS: usize = 4096;

/// Reads the `exec` block. `max_commands` is the default of the option.
pub fn read(block: &ConfigBlock, max_commands: usize) -> ExecPolicy {
    let policy = ExecPolicy {
        user: block.bool("user"),
        any_user: block.bool("any_user"),
        cwd: block.bool("cwd"),
        debug_images: block.strings("debug_images"),
        max_commands: block
            .positive("max_commands")
            .map_or(max_commands, |count| usize::try_from(count).unwrap_or(usize::MAX)),
    };
    if policy.any_user && !policy.user {
        block.error("any_user", "does nothing without user", "set user = true beside it, or remove it");
    }
    policy
}
