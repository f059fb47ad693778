//! What the list of error texts contains.

use crate::built::Kind;

/// A section of the document.
pub(super) struct Section {
    pub title: &'static str,
    /// The crates with its attributes.
    pub crates: &'static [&'static str],
    /// The errors that sources build, each with the begin of the sources' paths.
    pub built: &'static [(&'static str, &'static str)],
}

pub(super) const SECTIONS: [Section; 13] = [
    Section {
        title: "Tasks and commands",
        crates: &["driver"],
        built: &[
            ("TaskError::Confinement", "driver/src/"),
            ("TaskError::NotOffered", "driver/src/"),
            ("TaskError::Invalid", "driver/src/"),
            ("TaskError::Internal", "driver/src/"),
            ("ExecError::Invalid", "runtime/src/"),
        ],
    },
    Section {
        title: "Options of the task block",
        crates: &[],
        built: &[
            ("ConfigError", "driver/src/config/task/"),
            ("ConfigError", "driver/src/plan/"),
            ("ConfigError", "driver/src/cli/migrate/"),
        ],
    },
    Section {
        title: "Options of the plugin block",
        crates: &[],
        built: &[("ConfigError", "driver/src/config/plugin/"), ("ConfigError", "driver/src/config/device_plugin.rs")],
    },
    Section {
        title: "Options of all blocks",
        crates: &[],
        built: &[
            ("ConfigError", "driver/src/config/block.rs"),
            ("ConfigError", "driver/src/config/msgpack.rs"),
            ("ConfigError", "driver/src/config/log_driver.rs"),
        ],
    },
    Section { title: "Options of log drivers", crates: &[], built: &[("OptionError", "log-drivers/src/")] },
    Section { title: "Checks of `oci-rs doctor`", crates: &[], built: &[("Finding", "driver/src/")] },
    Section {
        title: "Images",
        crates: &["image-store", "layer", "lazy"],
        built: &[("PullError::Malformed", "image-store/src/"), ("PullError::Unsupported", "image-store/src/")],
    },
    Section {
        title: "Containers",
        crates: &["runtime"],
        built: &[
            ("StartError", "runtime/src/"),
            ("StartError", "driver/src/task/"),
            ("RuntimeError::UserNamespace", "runtime/src/"),
            ("RuntimeError::Installed", "runtime/src/"),
        ],
    },
    Section {
        title: "Volumes",
        crates: &[],
        built: &[("VolumeError", "runtime/src/"), ("PluginError", "driver/src/volume_plugin/")],
    },
    Section {
        title: "Networks",
        crates: &["network", "firewall"],
        built: &[("NetworkError::Unsupported", "network/src/")],
    },
    Section { title: "System call filters", crates: &["seccomp"], built: &[] },
    Section { title: "Devices", crates: &["cdi"], built: &[("SpecError", "cdi/src/")] },
    Section { title: "Files of the driver", crates: &["host"], built: &[] },
];

/// The errors that sources build without an attribute.
pub(super) const KINDS: [Kind; 17] = [
    Kind { name: "ConfigError", fields: &["option", "problem", "remedy"] },
    Kind { name: "OptionError", fields: &["option", "problem", "remedy"] },
    Kind { name: "Finding", fields: &["check", "reason", "remedy"] },
    Kind { name: "StartError", fields: &["message"] },
    Kind { name: "VolumeError", fields: &["text"] },
    Kind { name: "PluginError", fields: &["0"] },
    Kind { name: "TaskError::Confinement", fields: &["0"] },
    Kind { name: "TaskError::NotOffered", fields: &["0"] },
    Kind { name: "TaskError::Invalid", fields: &["0"] },
    Kind { name: "TaskError::Internal", fields: &["0"] },
    Kind { name: "PullError::Malformed", fields: &["what", "problem"] },
    Kind { name: "PullError::Unsupported", fields: &["what", "problem"] },
    Kind { name: "NetworkError::Unsupported", fields: &["0"] },
    Kind { name: "SpecError", fields: &["0"] },
    Kind { name: "RuntimeError::UserNamespace", fields: &["0"] },
    Kind { name: "RuntimeError::Installed", fields: &["0"] },
    Kind { name: "ExecError::Invalid", fields: &["0"] },
];

/// The crates with these sources, and those whose functions give them texts.
pub(super) const BUILDERS: [&str; 6] = ["image-store", "driver", "runtime", "log-drivers", "network", "cdi"];

/// Errors that mostly carry one of another section as it is.
pub(super) const CARRIERS: [&str; 1] = ["TaskError::Internal"];

/// Functions that build errors from texts that cannot be read there: the source, the function, and what the text is.
pub(super) const PASSED: &[(&str, &str, &str)] = &[
    ("cdi/src/check.rs", "check", "An error of the section Devices."),
    ("cdi/src/parse.rs", "parse", "An error of a parser."),
    ("driver/src/cli/doctor/mod.rs", "of_node", "The file in which a plugin tells its configuration cannot be read."),
    (
        "driver/src/config/block.rs",
        "check_support",
        "[configuration.md](configuration.md) has the meaning of the option and the remedy.",
    ),
    ("driver/src/config/device_plugin.rs", "read", "The reason is an error of the section Devices."),
    ("driver/src/config/log_driver.rs", "deliver", "An error of the section Options of log drivers."),
    ("driver/src/config/task/devices.rs", "cdi_name", "The reason is an error of the section Devices."),
    (
        "driver/src/config/task/image.rs",
        "reference",
        "The reason is that of an invalid image reference, in the section Images.",
    ),
    (
        "driver/src/config/task/mounts.rs",
        "image",
        "The reason is that of an invalid image reference, in the section Images.",
    ),
    ("driver/src/health.rs", "apparmor", "The profile that the operator requires is missing or cannot be loaded."),
    ("driver/src/health.rs", "judge", "The plugin cannot use its directories."),
    ("driver/src/health.rs", "overlay", "The kernel cannot mount images in data_dir."),
    ("driver/src/plan/delivery.rs", "decide", "An error of the section Options of log drivers."),
    (
        "driver/src/plan/devices.rs",
        "decide",
        "The image's variable for devices is wrong. The reason is an error of the section Devices.",
    ),
    (
        "driver/src/plan/user_namespace.rs",
        "decide",
        "The kernel or the file system of the node cannot give tasks user namespaces.",
    ),
    ("driver/src/rpc/tasks.rs", "recover", "A task message that breaks a rule of Nomad's protocol."),
    ("driver/src/rpc/tasks.rs", "start", "A task message that breaks a rule of Nomad's protocol."),
    ("driver/src/volume_plugin/error.rs", "from", "An error of the section Files of the driver."),
    ("image-store/src/archive/choose.rs", "from_saved", "An error of a parser."),
    ("image-store/src/archive/index.rs", "index", "An error of the operating system."),
    ("image-store/src/archive/source.rs", "inflate", "An error of the decompression."),
    ("image-store/src/manifest.rs", "parse_config", "An error of a parser."),
    ("image-store/src/manifest.rs", "parse_document", "An error of a parser."),
    ("image-store/src/publish/convert.rs", "convert", "An error of a parser."),
    ("image-store/src/publish/convert.rs", "copy_parts", "An error of a parser."),
    ("image-store/src/publish/convert.rs", "native_manifest", "An error of a parser."),
    ("image-store/src/publish/fetch.rs", "fetch_documents", "An error of a parser."),
    ("image-store/src/publish/push.rs", "add", "An error of a parser."),
    ("image-store/src/pull/answers.rs", "ask", "An unusable URL."),
    ("image-store/src/registry/documents.rs", "ping", "An unusable URL."),
    ("image-store/src/registry/host.rs", "client_for", "An unusable certificate file."),
    ("image-store/src/registry/session.rs", "url", "An unusable URL."),
    ("runtime/src/bundle.rs", "command", "An unknown capability."),
    ("runtime/src/bundle.rs", "create", "An error of the operating system."),
    ("runtime/src/bundle.rs", "create_and_end", "An error of a parser."),
    ("runtime/src/bundle.rs", "wait_for", "An error of the operating system."),
    ("runtime/src/command/confined.rs", "run_start_hooks", "An error of a hook."),
    ("runtime/src/command/of_plan.rs", "compiled_filter", "An error of the section System call filters."),
    ("runtime/src/containers/assignments.rs", "assign", "An error of the section Files of the driver."),
    ("runtime/src/containers/user_namespace.rs", "check_user_namespace", "The reason is in the plan."),
    ("runtime/src/engine/stored.rs", "kill", "An unknown signal."),
    ("runtime/src/engine/stored.rs", "load", "An error of the operating system."),
    ("runtime/src/hooks/runner.rs", "run", "An error of a hook."),
    ("runtime/src/monitor/create/paths.rs", "make_standard_directories", "An error of the operating system."),
    ("runtime/src/monitor/lifecycle.rs", "await_creator", "An error of the container's creator."),
    ("runtime/src/monitor/lifecycle.rs", "start", "An error of the operating system."),
    ("runtime/src/relay/mod.rs", "run", "An error of a log driver."),
    ("runtime/src/rootfs/mount_tree.rs", "map_tree", "An error of the operating system."),
    ("runtime/src/rootfs/writable.rs", "mount_over", "An error of the operating system."),
    ("runtime/src/volumes/problem.rs", "from", "An error of the section Files of the driver."),
];
