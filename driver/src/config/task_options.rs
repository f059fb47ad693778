//! The options of a task's `config` block: every one of the docker driver's, with its names and types.

use super::option::{
    DefaultValue::{self, Literal, Required, Words},
    OptionSpec,
    OptionType::{self, Block, Blocks, Bool, Number, NumberMaps, String, StringAttrs, StringMaps, Strings},
    Support::{Honoured, Ignored, Partial, Refused},
};

const fn honoured(name: &'static str, kind: OptionType, default: DefaultValue, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default, support: Honoured, help }
}

const fn partly(name: &'static str, kind: OptionType, default: DefaultValue, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default, support: Partial, help }
}

const fn ignored(name: &'static str, kind: OptionType, help: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default: Words(""), support: Ignored, help }
}

const fn refused(name: &'static str, kind: OptionType, help: &'static str, remedy: &'static str) -> OptionSpec {
    OptionSpec { name, kind, default: Words(""), support: Refused(remedy), help }
}

/// `config` of a task.
pub const TASK: &[OptionSpec] = &[
    honoured(
        "advertise_ipv6_address",
        Bool,
        Words("false"),
        "services with `address_mode = \"driver\"` or `\"auto\"` advertise the container's IPv6 address; needs a network of the task's own that has one",
    ),
    honoured(
        "args",
        Strings,
        Words("the image's CMD"),
        "arguments of `command`, or without it the arguments of the image's entrypoint",
    ),
    honoured(
        "auth",
        Block(AUTH),
        Words("the plugin's `auth`, its `registry` block, or anonymous"),
        "credentials for the registry",
    ),
    honoured(
        "auth_soft_fail",
        Bool,
        Words("false"),
        "when the plugin's `auth.config` or `auth.helper` fails, go on as if it knew nothing",
    ),
    honoured(
        "cap_add",
        Strings,
        Words("none"),
        "capabilities to add, within the plugin's `allow_caps`; `all` for every one",
    ),
    honoured("cap_drop", Strings, Words("none"), "capabilities to drop; `all` for every one"),
    honoured(
        "cgroupns",
        String,
        Words("`host`, or `private` where the plugin's `allowed_modes` has no `host`"),
        "cgroup namespace: `host` or `private`",
    ),
    honoured(
        "command",
        String,
        Words("the image's CMD"),
        "replaces the image's CMD; the image's entrypoint still runs and gets it as its first argument",
    ),
    ignored("container_exists_attempts", Number, "attempts after a name conflict: names cannot conflict"),
    honoured(
        "cpu_cfs_period",
        Number,
        Literal("100000"),
        "period of `cpu_hard_limit` in microseconds, 1000 to 1000000",
    ),
    honoured(
        "cpu_hard_limit",
        Bool,
        Words("false"),
        "the task gets no more CPU time than its share, even if the node is idle",
    ),
    ignored("cpuset_cpus", String, "has no effect in the docker driver either: use `resources { cores = … }`"),
    honoured("devices", Blocks(DEVICES), Words("none"), "device nodes of the host"),
    honoured("dns_options", Strings, Words("the host's"), "resolver options; the group's `dns` block wins"),
    honoured(
        "dns_search_domains",
        Strings,
        Words("the host's"),
        "search domains, `.` for none; the group's `dns` block wins",
    ),
    honoured("dns_servers", Strings, Words("the host's"), "addresses of name servers; the group's `dns` block wins"),
    honoured(
        "entrypoint",
        Strings,
        Words("the image's"),
        "replaces the image's entrypoint, whose CMD is then not used either",
    ),
    honoured("extra_hosts", Strings, Words("none"), "further lines of /etc/hosts as `name:address`"),
    honoured("force_pull", Bool, Words("false"), "ask the registry even if the image is present"),
    honoured("group_add", Strings, Words("none"), "further groups of the command, names or ids of the image"),
    ignored(
        "healthchecks",
        Block(HEALTHCHECKS),
        "the image's HEALTHCHECK is never run: use `check` in the service block",
    ),
    honoured(
        "hostname",
        String,
        Words("the group's host name, or the first part of the allocation's id"),
        "host name in the container",
    ),
    honoured("image", String, Required, "the image, as in `nginx:1.27` or `registry.example/app@sha256:…`"),
    honoured("image_pull_timeout", String, Words("the plugin's, `5m`"), "how long the pull may take in all"),
    honoured("init", Bool, Words("false"), "run an init as process 1 that forwards signals and reaps orphans"),
    partly("interactive", Bool, Words("false"), "keep stdin open: only together with `tty`, where it is open anyway"),
    partly(
        "ipc_mode",
        String,
        Words("`private`"),
        "IPC namespace: `private` or `shareable`, which are the same here, `none` without a /dev/shm, `host` within the plugin's `allowed_modes`",
    ),
    honoured("ipv4_address", String, Words("a free one"), "IPv4 address in a network of the task's own"),
    honoured("ipv6_address", String, Words("a free one"), "IPv6 address in a network of the task's own"),
    refused(
        "isolation",
        String,
        "isolation mode of Windows containers",
        "remove it; it means nothing on Linux, where the docker driver refuses it as well",
    ),
    honoured(
        "labels",
        StringMaps,
        Words("the image's `org.opencontainers.image.*`"),
        "labels of the container; others of the image are left out, because programs act upon some",
    ),
    honoured(
        "load",
        String,
        Words("the image is pulled"),
        "archive with the image, relative to the task's `local` directory: from `docker save` or an OCI layout, compressed or not; `image` is its name in the archive",
    ),
    partly(
        "logging",
        Block(LOGGING),
        Words("Nomad collects stdout and stderr"),
        "log driver: `json-file` and `local` change nothing, `none` discards the output",
    ),
    honoured("mac_address", String, Words("any"), "hardware address in a network of the task's own"),
    honoured(
        "memory_hard_limit",
        Number,
        Words("`memory`, or `memory_max`"),
        "hard memory limit in MiB; `memory` is then what the kernel tries to spare",
    ),
    partly("mount", Blocks(MOUNT), Words("none"), "a mount; types `bind`, `tmpfs` and `volume`"),
    partly("mounts", Blocks(MOUNT), Words("none"), "older form of `mount`, with the same options"),
    refused(
        "network_aliases",
        Strings,
        "further names in docker's DNS",
        "register the names as services and let Consul or Nomad resolve them",
    ),
    partly(
        "network_mode",
        String,
        Words("the group's network, otherwise the plugin's `network.default_mode`, `bridge`"),
        "`bridge` (or `default`) for a network of the task's own on the driver's bridge, unless the group has one; `cni/<name>` for one of the operator's CNI networks; `host` for the host's network; `none` for no network at all",
    ),
    honoured(
        "oom_score_adj",
        Number,
        Words("0"),
        "-1000 to 1000: higher ends earlier when the node runs out of memory",
    ),
    partly(
        "pid_mode",
        String,
        Words("the container's own"),
        "`host`: the container sees the host's processes; within the plugin's `allowed_modes`",
    ),
    honoured(
        "pids_limit",
        Number,
        Words("the plugin's, otherwise none"),
        "highest number of processes and threads, up to the plugin's `pids_limit`",
    ),
    partly(
        "port_map",
        NumberMaps,
        Words("the same ports as on the host"),
        "ports of the container by the labels of the task's own `network` block in `resources`, which is docker's old form; ports of the group's `network` block say `to` themselves",
    ),
    honoured(
        "ports",
        Strings,
        Words("none"),
        "labels of the group's ports that are published, tcp and udp, when the task has a network of its own; in a group with a network they are mapped without it",
    ),
    honoured(
        "privileged",
        Bool,
        Words("false"),
        "every capability and device, no restrictions; needs the plugin's `allow_privileged`",
    ),
    honoured(
        "readonly_rootfs",
        Bool,
        Words("false"),
        "the container cannot write to its root file system; the image's volumes stay writable",
    ),
    partly("runtime", String, Words("built in"), "OCI runtime: `runc` means the built-in one"),
    partly(
        "security_opt",
        Strings,
        Words("`no-new-privileges=true`"),
        "`no-new-privileges`, also with `=true` or `=false`; `seccomp=` with `builtin`, `unconfined` or the path of a profile on the node; `apparmor=` with the name of a profile; `apparmor=unconfined` and `label=disable` change nothing. What weakens or replaces a restriction must be in the plugin's `allow_security_opts`",
    ),
    honoured("shm_size", Number, Words("67108864"), "size of /dev/shm in bytes"),
    refused(
        "storage_opt",
        StringAttrs,
        "options of the storage driver",
        "remove it; the size of the writable layer cannot be limited",
    ),
    honoured(
        "sysctl",
        StringMaps,
        Words("none"),
        "kernel parameters of the container's namespaces: `net.*`, `fs.mqueue.*` and the IPC ones of `kernel.*`",
    ),
    honoured("tty", Bool, Words("false"), "give the command a terminal; all output is then stdout"),
    honoured(
        "ulimit",
        StringMaps,
        Words("the agent's"),
        "resource limits by name, `\"soft:hard\"` or one number for both; -1 is unlimited",
    ),
    partly("userns_mode", String, Words("`host`"), "user namespace: `host` is what containers have"),
    partly(
        "uts_mode",
        String,
        Words("the container's own"),
        "`host`: the container has the host's name; within the plugin's `allowed_modes`",
    ),
    partly(
        "volume_driver",
        String,
        Words("sources are paths"),
        "with `local`, a source in `volumes` that does not begin with `/` is the name of a volume",
    ),
    honoured(
        "volumes",
        Strings,
        Words("none"),
        "binds as `source:destination[:options]`; a relative source lies in the task's directory",
    ),
    honoured("work_dir", String, Words("the image's"), "working directory, absolute"),
];

const AUTH: &[OptionSpec] = &[
    honoured("username", String, Words("none"), "user name"),
    honoured("password", String, Words("none"), "password or token"),
    ignored("email", String, "not used by registries"),
    ignored("server_address", String, "the registry follows from `image`"),
];

const DEVICES: &[OptionSpec] = &[
    honoured("host_path", String, Words("none, must be set"), "device node on the host"),
    honoured("container_path", String, Words("`host_path`"), "where it appears in the container"),
    honoured("cgroup_permissions", String, Words("`rwm`"), "`r` read, `w` write, `m` make nodes"),
];

const HEALTHCHECKS: &[OptionSpec] = &[ignored("disable", Bool, "switch off the image's HEALTHCHECK")];

const LOGGING: &[OptionSpec] = &[
    partly("type", String, Words("`json-file`"), "`json-file`, `local` or `none`"),
    partly("driver", String, Words("`json-file`"), "the same as `type`"),
    ignored("config", StringMaps, "options of the log driver: `logs` in the task block says how much is kept"),
];

const MOUNT: &[OptionSpec] = &[
    honoured("type", String, Literal(r#""volume""#), "`bind`, `tmpfs` or `volume`"),
    honoured("target", String, Words("none, must be set"), "absolute path in the container"),
    honoured(
        "source",
        String,
        Words("none"),
        "host path of a bind, relative ones lie in the task's directory; name of a volume, without one it goes with the task",
    ),
    honoured("readonly", Bool, Words("false"), "nothing can be written through it"),
    honoured("bind_options", Block(BIND), Words(""), "options of a bind"),
    honoured("tmpfs_options", Block(TMPFS), Words(""), "options of a tmpfs"),
    partly("volume_options", Block(VOLUME), Words(""), "options of a volume"),
];

const BIND: &[OptionSpec] = &[honoured(
    "propagation",
    String,
    Words("`rprivate`"),
    "`private`, `slave` or `shared`, each also with a leading `r`",
)];

const TMPFS: &[OptionSpec] = &[
    honoured("size", Number, Words("half of the memory"), "limit in bytes"),
    honoured("mode", Number, Words("1023, which is 1777 octal"), "permission bits of its root as a decimal number"),
    honoured("uid", Number, Words("0"), "owner of its root; docker has no such option"),
    honoured("gid", Number, Words("0"), "group of its root; docker has no such option"),
];

const VOLUME: &[OptionSpec] = &[
    honoured("no_copy", Bool, Words("false"), "a new volume starts empty instead of with what the image has there"),
    ignored("labels", StringMaps, "labels of the volume"),
    partly("driver_config", Block(DRIVER), Words("`local`"), "volume driver"),
];

const DRIVER: &[OptionSpec] = &[
    partly("name", String, Words("`local`"), "name of the volume driver: only `local`"),
    refused(
        "options",
        StringMaps,
        "options of the volume driver",
        "mount the file system on the node and bind it, or use a CSI volume",
    ),
];
