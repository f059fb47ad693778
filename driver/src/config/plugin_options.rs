//! The options of the plugin block.

use super::option::{
    DefaultValue::{Literal, Required, Words},
    OptionSpec,
    OptionType::{Block, Bool, Labelled, Number, String, StringMaps, Strings},
    Support::{Honoured, Ignored},
};

const fn honoured(
    name: &'static str,
    kind: super::option::OptionType,
    default: super::option::DefaultValue,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { name, kind, default, support: Honoured, help }
}

const fn ignored(name: &'static str, kind: super::option::OptionType, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default: Words("none"), support: Ignored, help }
}

/// What docker calls its default capabilities, less `NET_RAW`.
pub const DEFAULT_ALLOW_CAPS: &str = r#"["AUDIT_WRITE","CHOWN","DAC_OVERRIDE","FOWNER","FSETID","KILL","MKNOD","NET_BIND_SERVICE","SETFCAP","SETGID","SETPCAP","SETUID","SYS_CHROOT"]"#;

/// What docker's images rely on most often, and what docker allows without being asked.
pub const DEFAULT_ALLOW_SECURITY_OPTS: &str = r#"["no-new-privileges=false"]"#;

/// `config` in `plugin "oci-rs"`.
pub const PLUGIN: &[OptionSpec] = &[
    honoured(
        "state_dir",
        String,
        Literal(r#""/run/oci-rs""#),
        "directory for the state of running tasks; its content may go with a reboot",
    ),
    honoured(
        "data_dir",
        String,
        Literal(r#""/var/lib/oci-rs""#),
        "directory for images and writable layers; its content must survive a reboot",
    ),
    honoured(
        "rootfs",
        String,
        Literal(r#""auto""#),
        "how an image becomes a container's root: `overlay` mounts its layers, `copy` copies them for each task, which is slow and takes their space once more, `auto` copies only where overlayfs does not work with `data_dir` (on another overlay, on NFS) and tells the task so",
    ),
    honoured(
        "layer_format",
        String,
        Literal(r#""auto""#),
        "how a layer's files are kept: `auto` as one file with a file system in it (EROFS), which is written faster than the files one by one, where the kernel and the file system of `data_dir` allow it (Linux 6.15; not in memory, not on another overlay); `directory` always as files in a directory. Layers in the other form that are there already are used by `auto`, and fetched anew by `directory`",
    ),
    honoured(
        "log_file",
        String,
        Words("`oci-rs.log` in `data_dir`"),
        "file that the log goes to beside the agent's log",
    ),
    honoured(
        "registry",
        Labelled("host", REGISTRY),
        Words("none"),
        "how to reach one registry; the label is its host, with its port if it has one",
    ),
    honoured(
        "verify_access",
        Bool,
        Literal("true"),
        "give an image that was pulled with credentials only to tasks whose own credentials, or lack of them, the registry accepts for it",
    ),
    honoured("auth", Block(AUTH), Words("none"), "where to look for credentials when a task brings none"),
    honoured(
        "image_pull_timeout",
        String,
        Literal(r#""5m""#),
        "how long the pull of an image may take in all, for tasks that do not say",
    ),
    honoured("pull_activity_timeout", String, Literal(r#""2m""#), "how long a pull may go without receiving a byte"),
    honoured("allow_privileged", Bool, Literal("false"), "tasks may set `privileged`"),
    honoured(
        "allow_caps",
        Strings,
        Literal(DEFAULT_ALLOW_CAPS),
        "capabilities that tasks may have; `all` allows every one",
    ),
    honoured(
        "allow_security_opts",
        Strings,
        Literal(DEFAULT_ALLOW_SECURITY_OPTS),
        "values of `security_opt` that weaken or replace a restriction and that tasks may use, as names or patterns with `*`: `no-new-privileges=false`, `seccomp=unconfined`, `seccomp=/etc/nomad.d/seccomp/*`, `apparmor=web-*`",
    ),
    honoured(
        "allowed_modes",
        Block(ALLOWED_MODES),
        Words("none but the container's own, and both of `cgroupns`"),
        "namespaces of the host that tasks may ask for, as lists of modes or patterns with `*`; on a node that allows `privileged`, tasks may ask for any",
    ),
    honoured(
        "numa_memory",
        Bool,
        Literal("false"),
        "the memory of tasks with `cores` comes from the NUMA nodes of these cores and from no other, also when those are full",
    ),
    honoured("volumes", Block(VOLUMES), Literal("{ enabled = false }"), "host paths and named volumes in tasks"),
    honoured("gc", Block(GC), Words("images go three minutes after their last use"), "what is cleaned up, and when"),
    honoured(
        "image_limits",
        Block(IMAGE_LIMITS),
        Words("fit any image that people run on purpose"),
        "ceilings against hostile or broken images and registries",
    ),
    honoured(
        "network",
        Block(NETWORK),
        Words("see below"),
        "networks of single tasks, see [networking.md](networking.md)",
    ),
    honoured(
        "exec",
        Block(EXEC),
        Words("nothing is allowed"),
        "what `nomad alloc exec` may ask for before the command, see [exec](exec.md)",
    ),
    honoured("pids_limit", Number, Words("no limit"), "default and highest `pids_limit` of tasks"),
    honoured(
        "extra_labels",
        Strings,
        Words("none"),
        "further labels of Nomad's on every container, as names or patterns with `*`: `job_name`, `job_id`, `parent_job_id`, `task_group_name`, `task_name`, `namespace`, `node_name`, `node_id`",
    ),
];

const EXEC: &[OptionSpec] = &[
    honoured("user", Bool, Words("false"), "`user=`: as another user that the task's own command could become"),
    honoured(
        "any_user",
        Bool,
        Words("false"),
        "`user=` is not limited to what the task's own command could become: root in a task that runs as a user gets the capabilities that the task may have at most",
    ),
    honoured("cwd", Bool, Words("false"), "`cwd=`: in another working directory"),
    honoured(
        "debug_images",
        Strings,
        Words("none"),
        "`image=`: with programs of one of these images, as references or patterns with `*` (`registry.example/tools/*`); they are pulled with the node's own credentials",
    ),
];

const AUTH: &[OptionSpec] = &[
    honoured(
        "config",
        String,
        Words("none"),
        "path of a docker `config.json` (`auths`, `credHelpers`, `credsStore`), read at each pull",
    ),
    honoured(
        "helper",
        String,
        Words("none"),
        "credential helper to ask when the file knows nothing; `x` stands for the program `docker-credential-x`",
    ),
];

const ALLOWED_MODES: &[OptionSpec] = &[
    honoured("pid", Strings, Words("none"), "values of `pid_mode`: `host`"),
    honoured("ipc", Strings, Words("none"), "values of `ipc_mode`: `host`"),
    honoured("uts", Strings, Words("none"), "values of `uts_mode`: `host`"),
    honoured(
        "cgroupns",
        Strings,
        Words("every one"),
        "values of `cgroupns`; where `host` is not among them, containers have a cgroup namespace of their own",
    ),
    ignored("userns", Strings, "values of `userns_mode`: containers are in the host's user namespace anyway"),
];

const REGISTRY: &[OptionSpec] = &[
    honoured("plain_http", Bool, Words("false"), "speak HTTP without TLS; loopback addresses need no such permission"),
    honoured(
        "ca_file",
        String,
        Words("the system's authorities"),
        "file with certificates (PEM) that are trusted for this registry",
    ),
    honoured(
        "cert_file",
        String,
        Words("none"),
        "file with the certificate (PEM) that this registry wants to see, read again when it changes, like `ca_file` and `key_file`",
    ),
    honoured("key_file", String, Words("none"), "file with the key (PEM) of `cert_file`"),
    honoured(
        "headers",
        StringMaps,
        Words("none"),
        "further headers for requests to this registry; they go nowhere else",
    ),
    honoured("insecure_skip_verify", Bool, Words("false"), "accept any certificate"),
    honoured("mirrors", Strings, Words("none"), "hosts that are asked first, in this order"),
    honoured("auth", Block(REGISTRY_AUTH), Words("anonymous"), "credentials for tasks that bring none"),
];

const REGISTRY_AUTH: &[OptionSpec] =
    &[honoured("username", String, Required, "user name"), honoured("password", String, Required, "password or token")];

const GC: &[OptionSpec] = &[
    honoured("image", Bool, Literal("true"), "remove images that no task uses"),
    honoured("image_delay", String, Literal(r#""3m""#), "how long after its last use an image is removed"),
    honoured(
        "disk_high_percent",
        Number,
        Literal("85"),
        "how full the file system of `data_dir` may be, of bytes or of inodes, before unused images go without a delay, the least recently used ones first",
    ),
    honoured("disk_low_percent", Number, Words("five below `disk_high_percent`"), "how full it may be for that to end"),
    ignored("container", Bool, "remove containers that have ended: they always are, when Nomad destroys the task"),
    honoured(
        "dangling_containers",
        Block(DANGLING),
        Words("as below"),
        "remove containers of this node that no task knows, because the answer to their start or the call for their removal was lost",
    ),
];

const IMAGE_LIMITS: &[OptionSpec] = &[
    honoured("document_kib", Number, Literal("4096"), "size of a manifest, index or config"),
    honoured("token_kib", Number, Literal("1024"), "size of a token server's answer"),
    honoured("layers", Number, Literal("500"), "layers of an image, 500 at most"),
    honoured("layer_mib", Number, Literal("65536"), "unpacked size of one layer, holes of sparse files included"),
    honoured("layer_entries", Number, Literal("2000000"), "entries of one layer"),
    honoured("ratio", Number, Literal("200"), "a layer's unpacked size may be this many times its compressed one …"),
    honoured("ratio_after_mib", Number, Literal("64"), "… once it is larger than this"),
    honoured("xattr_kib", Number, Literal("64"), "size of one extended attribute; the kernel takes no more than 64"),
    honoured("xattrs_kib", Number, Literal("1024"), "size of all extended attributes of one file"),
    honoured(
        "layer_memory_kib",
        Number,
        Literal("262144"),
        "memory for what the unpacking of a layer keeps until its end: names and attributes of directories, names of whiteouts",
    ),
    honoured(
        "zstd_window_mib",
        Number,
        Literal("128"),
        "memory that a zstd layer may ask for to be unpacked (its window)",
    ),
    honoured("free_mib", Number, Literal("64"), "room that a pull must leave on the file system of `data_dir`"),
    honoured("parallel_layers", Number, Literal("6"), "layers that one pull fetches at once"),
    honoured("parallel_downloads", Number, Literal("12"), "layers that all pulls together fetch at once"),
    honoured(
        "attempts",
        Number,
        Literal("5"),
        "how often a request is tried, and how often in a row a transfer may break without progress",
    ),
    honoured(
        "retry_pause",
        String,
        Literal(r#""500ms""#),
        "the pause after the first failure; it doubles with each further one",
    ),
];

const NETWORK: &[OptionSpec] = &[
    honoured(
        "default_mode",
        String,
        Literal(r#""bridge""#),
        "network of tasks that set no `network_mode` and whose group has no network: `bridge` as with docker, or `host`",
    ),
    honoured(
        "bridge",
        String,
        Literal(r#""oci-rs""#),
        "name of the driver's own bridge, which is made when the first task needs it",
    ),
    honoured("subnet", String, Literal(r#""172.26.80.0/20""#), "its IPv4 addresses; the first one is the bridge's own"),
    honoured("subnet_ipv6", String, Words("no IPv6"), "its IPv6 addresses, as in `fd00:26:80::/64`"),
    honoured(
        "cni_path",
        String,
        Literal(r#""/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni""#),
        "directories with CNI plugins, separated by colons; the first one that has a plugin provides it",
    ),
    honoured(
        "cni_config_dir",
        String,
        Literal(r#""/opt/cni/config""#),
        "directory with the networks that `network_mode = \"cni/<name>\"` names",
    ),
];

const DANGLING: &[OptionSpec] = &[
    honoured("enabled", Bool, Literal("true"), "remove them"),
    honoured("dry_run", Bool, Literal("false"), "only write to the log which would be removed"),
    honoured("period", String, Literal(r#""5m""#), "how often to look for them"),
    honoured(
        "creation_grace",
        String,
        Literal(r#""5m""#),
        "how old a container must be to be removed, and the plugin too: until then Nomad may ask for it",
    ),
];

const VOLUMES: &[OptionSpec] = &[
    honoured("enabled", Bool, Words("false"), "tasks may bind host paths outside their allocation's directory"),
    OptionSpec {
        name: "selinuxlabel",
        kind: String,
        default: Words("none"),
        support: Ignored,
        help: "SELinux label for volumes: containers get no SELinux label of their own, so theirs need no change",
    },
];
