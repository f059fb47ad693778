//! The task block's options for the command, its output and its labels.

use log_drivers::LogOptions;

use crate::config::{
    block::ConfigBlock,
    error::{Needs, Permission},
    log_driver::LogDriver,
    option::{DefaultValue::Words, OptionSpec, OptionType},
    pattern::any_matches,
    plugin::{Policy, RuntimeChoice, RuntimeRequest},
};

/// The options of the task block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "args",
        OptionType::Strings,
        Words("the image's CMD"),
        "arguments of `command`. Without `command`, arguments of the image's entrypoint",
    ),
    OptionSpec::honoured(
        "command",
        OptionType::String,
        Words("the image's CMD"),
        "replaces the image's CMD. If the image has an entrypoint, the entrypoint runs with `command` as its first \
         argument",
    ),
    OptionSpec::honoured(
        "entrypoint",
        OptionType::Strings,
        Words("the image's"),
        "replaces the image's entrypoint and CMD",
    ),
    OptionSpec::honoured("work_dir", OptionType::String, Words("the image's"), "working directory, an absolute path"),
    OptionSpec::honoured(
        "group_add",
        OptionType::Strings,
        Words("none"),
        "supplementary groups of the command, as names in the image or ids",
    ),
    OptionSpec::honoured(
        "tty",
        OptionType::Bool,
        Words("false"),
        "run the command in a terminal. All output then goes to stdout",
    ),
    OptionSpec::honoured(
        "interactive",
        OptionType::Bool,
        Words("false"),
        "keep stdin open: a read waits instead of seeing the end of the input. Nomad never sends data",
    ),
    OptionSpec::honoured(
        "init",
        OptionType::Bool,
        Words("false"),
        "run an init as process 1, which forwards signals and reaps orphaned processes",
    ),
    OptionSpec::partial(
        "runtime",
        OptionType::String,
        Words("built in"),
        "OCI runtime, if the plugin's `allow_runtimes` has the name: `runc`, `crun`, `youki` and \
         `io.containerd.runc.v2`, which mean the built-in one, `nvidia`, which means it with [NVIDIA \
         devices](devices.md#nvidia), `runsc` (gVisor) and `kata` where they are installed, and the operator's. See \
         [runtimes](runtimes.md)",
    ),
    OptionSpec::refused(
        "isolation",
        OptionType::String,
        "isolation mode of Windows containers",
        "remove it; it has no meaning on Linux, where the docker driver refuses it as well",
    ),
    OptionSpec::honoured(
        "labels",
        OptionType::StringMaps,
        Words("the image's `org.opencontainers.image.*`"),
        "labels of the container. Other labels of the image are dropped, because some programs act upon labels",
    ),
    OptionSpec::partial(
        "logging",
        OptionType::Block(LOGGING),
        Words("Nomad collects stdout and stderr"),
        "log driver, see [logs](#log-drivers). `json-file` and `local` change nothing, `none` discards the output",
    ),
    OptionSpec::ignored(
        "healthchecks",
        OptionType::Block(HEALTHCHECKS),
        "",
        "the image's HEALTHCHECK is never run. Use `check` in the service block",
    ),
    OptionSpec::ignored(
        "container_exists_attempts",
        OptionType::Number,
        "",
        "attempts after a conflict of container names. Names cannot conflict here",
    ),
];

const HEALTHCHECKS: &[OptionSpec] =
    &[OptionSpec::ignored("disable", OptionType::Bool, "", "switch off the image's HEALTHCHECK")];

const LOGGING: &[OptionSpec] = &[
    OptionSpec::partial(
        "type",
        OptionType::String,
        Words("`json-file`"),
        "`json-file`, `local`, `none`, `syslog`, `journald`, `gelf` or `fluentd`",
    ),
    OptionSpec::partial("driver", OptionType::String, Words("`json-file`"), "the same as `type`"),
    OptionSpec::honoured(
        "config",
        OptionType::StringMaps,
        Words("none"),
        "options of the log driver. Those of `json-file` and `local` are ignored: `logs` in the task block sets how \
         much is kept",
    ),
];

/// Checks options that add nothing to the task's values.
pub fn check_ignored(block: &ConfigBlock) {
    // These options are ignored, but a value of the wrong type is an error.
    block.block("healthchecks").bool("disable");
    block.integer("container_exists_attempts");
}

/// Reads `runtime`. `None` is the built-in one.
pub fn runtime(block: &ConfigBlock, policy: &Policy) -> Option<RuntimeRequest> {
    let name = block.string("runtime")?;
    match policy.runtimes.choose(&name) {
        None => {
            let remedy = format!(
                "remove it, or have the operator name its executable in the plugin block: `runtime {name:?} {{ path = \
                 \"…\" }}`, and add it to `allow_runtimes`"
            );
            block.error("runtime", format!("{name:?} is not supported: this node knows no such runtime"), remedy);
            None
        }
        Some(_) if !policy.allow_runtimes.contains(&name) => {
            let remedy = "remove it, or have the operator add it to `allow_runtimes` in the plugin block";
            let permission = Permission { option: "allow_runtimes", needs: Needs::Entries(vec![name.clone()]) };
            block.forbid("runtime", format!("{name:?} is not allowed on this node"), remedy, permission);
            None
        }
        Some(RuntimeChoice::BuiltIn) => None,
        Some(RuntimeChoice::Installed(request)) => Some(request),
    }
}

/// Reads `command`.
pub fn command(block: &ConfigBlock) -> Option<String> {
    let command = block.string("command")?;
    if command.trim() != command {
        block.error(
            "command",
            format!("{command:?} begins or ends with white space"),
            "it is the name of one program; arguments belong into `args`",
        );
    }
    Some(command)
}

/// Reads `work_dir`.
pub fn work_dir(block: &ConfigBlock) -> Option<String> {
    let directory = block.string("work_dir")?;
    if !directory.starts_with('/') {
        block.error("work_dir", format!("{directory:?} is not an absolute path"), "begin it with /");
    }
    Some(directory)
}

/// Reads `logging`. The operator's log driver is that of tasks without the block.
pub fn log_driver(block: &ConfigBlock, policy: &Policy) -> LogDriver {
    let logging = block.block("logging");
    let (option, name) = match (logging.string("type"), logging.string("driver")) {
        (Some(name), _) => ("type", name),
        (None, Some(name)) => ("driver", name),
        (None, None) if logging.has("config") => return LogDriver::default(),
        (None, None) => return policy.log_driver.clone(),
    };
    let driver = LogDriver::read(&name, &logging, "config").unwrap_or_else(|| {
        let remedy = format!("write one of {}, or let a log shipper read the log files", LogDriver::names());
        logging.error(option, format!("{name:?} is not supported"), remedy);
        LogDriver::default()
    });
    if let LogDriver::Deliver(options) = &driver {
        check_delivery(&logging, option, policy, options);
    }
    driver
}

/// Refuses a log driver, and files of the node in its options, that the operator does not allow.
fn check_delivery(logging: &ConfigBlock, option: &str, policy: &Policy, options: &LogOptions) {
    let forbid = |option: &str, problem: String, permission: &'static str, entry: String| {
        let remedy = format!("remove it, or have the operator add {entry:?} to `{permission}` in the plugin block");
        let permission = Permission { option: permission, needs: Needs::Entries(vec![entry]) };
        logging.forbid(option, problem, remedy, permission);
    };
    let name = options.driver();
    if !any_matches(&policy.allow_log_drivers, name) {
        let problem = format!("the log driver {name:?} is not allowed on this node");
        forbid(option, problem, "allow_log_drivers", name.to_owned());
    }
    for file in options.node_files().into_iter().filter(|file| !policy.allows_log_path(file)) {
        let path = file.path.to_string_lossy().into_owned();
        let option = format!("config.{}", file.option);
        if file.has_parent_component() {
            logging.error(&option, format!("{path:?} has `..`"), "write the path without it");
        } else {
            forbid(&option, format!("{path:?} is not allowed on this node"), "allow_log_paths", path);
        }
    }
}
