//! The options that concern docker: those of its plugin block that mean nothing here, and those of a plugin that has
//! its name.
//!
//! An operator can copy the block. The plugin writes one warning to its log for each option that is set and has no
//! effect.

use std::path::PathBuf;

use crate::{
    config::{
        block::ConfigBlock,
        log_driver::LogDriver,
        option::{
            DefaultValue::{Literal, Words},
            OptionSpec, OptionType,
        },
    },
    name::DriverName,
};

/// The docker version that behaves as the driver does.
pub const VERSION: &str = "28.0.0";

/// The address of the docker daemon that an operator need not name.
const SOCKET: &str = "unix:///var/run/docker.sock";

/// The options of the plugin block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::honoured(
        "strict",
        OptionType::Bool,
        Literal("false"),
        "with the name `docker`: the rules for tasks have oci-rs's defaults and not docker's, see \
         [stand-in for docker](#a-stand-in-for-docker)",
    ),
    OptionSpec::honoured(
        "docker_version",
        OptionType::String,
        Literal(r#""28.0.0""#),
        "with the name `docker`: the node attribute `driver.docker.version`, which jobs constrain on",
    ),
    OptionSpec::honoured(
        "endpoint",
        OptionType::String,
        Words("`unix:///var/run/docker.sock`"),
        "with the name `docker`: the socket of a docker daemon, from which containers of Nomad's docker driver are \
         removed (see [the switch on a running node](#the-switch-on-a-running-node)). Other addresses, and the name \
         `oci-rs`: no effect",
    ),
    OptionSpec::honoured(
        "docker_stop_timeout",
        OptionType::String,
        Words("`10s`"),
        "the time between the stop signal of a container of Nomad's docker driver and SIGKILL, when it is removed \
         through the socket in `endpoint`. The jobs' `kill_timeout` is not known there",
    ),
    OptionSpec::honoured(
        "migrate_volumes",
        OptionType::Bool,
        Literal("false"),
        "the first start of a task with a named volume copies the data of docker's volume of the same name, unless the \
         volume exists here. The socket in `endpoint` tells where the data is; without an answer the task does not \
         start",
    ),
    ignored("tls", OptionType::Block(TLS), "certificates for the docker daemon. There is no daemon here"),
    OptionSpec::honoured(
        "logging",
        OptionType::Block(LOGGING),
        Words("Nomad collects stdout and stderr"),
        "log driver of tasks without `logging`, with the same values. A driver that tasks cannot name either is \
         ignored: Nomad collects the output",
    ),
    ignored("nvidia_runtime", OptionType::String, "OCI runtime for GPUs. Containers run with the built-in runtime"),
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
    OptionSpec::honoured(
        "type",
        OptionType::String,
        Words("`json-file`"),
        "`json-file`, `local`, `none`, `syslog`, `journald`, `gelf` or `fluentd`",
    ),
    OptionSpec::honoured("config", OptionType::StringAttrs, Words("none"), "options of the log driver"),
];

const fn ignored(name: &'static str, kind: OptionType, help: &'static str) -> OptionSpec {
    OptionSpec::ignored(name, kind, "none", help)
}

/// The log driver of tasks that name none.
pub fn log_driver(block: &ConfigBlock) -> LogDriver {
    default_log_driver(block).unwrap_or_default()
}

/// `None` if the block names a driver that is not supported.
fn default_log_driver(block: &ConfigBlock) -> Option<LogDriver> {
    let logging = block.block("logging");
    match logging.string("type") {
        Some(name) => LogDriver::read(&name, &logging, "config"),
        None => Some(LogDriver::default()),
    }
}

/// The socket of the docker daemon. A driver with docker's name removes this daemon's containers.
pub fn socket(block: &ConfigBlock, driver: DriverName) -> Option<PathBuf> {
    let endpoint = block.string("endpoint").unwrap_or_else(|| SOCKET.to_owned());
    let path = endpoint.strip_prefix("unix://").filter(|path| path.starts_with('/'))?;
    (driver == DriverName::Docker).then(|| PathBuf::from(path))
}

/// The names of the options that are set and have no effect.
pub fn ignored_options(block: &ConfigBlock, driver: DriverName) -> Vec<&'static str> {
    let mut ignored = OPTIONS.to_vec();
    ignored.retain(|option| match option.name {
        "strict" | "docker_version" => false,
        "logging" => default_log_driver(block).is_none(),
        "endpoint" | "docker_stop_timeout" | "migrate_volumes" => {
            block.has(option.name) && socket(block, driver).is_none()
        }
        name => block.has(name),
    });
    ignored.into_iter().map(|option| option.name).collect()
}
