//! The plugin block: directories, registries, images.

use std::{path::PathBuf, time::Duration};

use image_store::{CredentialSources, LayerFormat, Limits, RegistryConfig, Retention, Secret, StoreConfig};

use super::{
    error::{ConfigErrors, ErrorCollector},
    plugin_options::PLUGIN,
    policy::{self, Policy},
    value::{self, Reader},
};

/// How the operator calls it.
const BLOCK: &str = "plugin config";

/// The plugin block's values.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// State of running tasks.
    pub state_dir: PathBuf,
    /// Images and writable layers.
    pub data_dir: PathBuf,
    /// Where the log goes beside the agent's.
    pub log_file: Option<PathBuf>,
    /// How to reach registries.
    pub registries: Vec<RegistryConfig>,
    /// Where to look for credentials when a task brings none.
    pub credentials: CredentialSources,
    /// Tasks get an image that is here only if they may pull it.
    pub verify_access: bool,
    /// Layers may be images of file systems where the node can mount them.
    pub layer_images: bool,
    /// What tasks may do.
    pub policy: Policy,
    /// How long a pull may take in all, unless the task says.
    pub image_pull_timeout: Duration,
    /// How long a pull may stand still.
    pub pull_activity_timeout: Duration,
    /// How long images are kept without a task; for ever when unset.
    pub retention: Option<Retention>,
    /// What becomes of containers that Nomad does not ask for; they stay when unset.
    pub dangling: Option<Dangling>,
    /// Ceilings of images.
    pub limits: Limits,
    /// What people may do beside running commands as tasks do.
    pub exec: ExecPolicy,
}

/// What `nomad alloc exec` may ask for before the command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecPolicy {
    /// Another user, as far as the task's own command could become that user.
    pub user: bool,
    /// Any user of the task's.
    pub any_user: bool,
    /// Another working directory.
    pub cwd: bool,
    /// Images whose programs may be run beside a task, as references or patterns with `*`.
    pub debug_images: Vec<String>,
}

/// Containers of this node that no task knows: their start's answer or the call for their removal was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dangling {
    /// How often they are looked for.
    pub period: Duration,
    /// How old they, and the plugin, must be to be removed: until then Nomad may ask for them.
    pub creation_grace: Duration,
    /// They are only told of.
    pub dry_run: bool,
}

impl PluginConfig {
    /// What the image store is opened with, on a node that can mount images of file systems.
    pub fn store(&self) -> StoreConfig {
        StoreConfig {
            root: self.data_dir.join("images"),
            limits: self.limits.clone(),
            registries: self.registries.clone(),
            credentials: self.credentials.clone(),
            verify_access: self.verify_access,
            retention: self.retention,
            layers: if self.layer_images { LayerFormat::Erofs } else { LayerFormat::Directory },
        }
    }
}

impl Default for PluginConfig {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/run/oci-rs"),
            data_dir: PathBuf::from("/var/lib/oci-rs"),
            log_file: None,
            registries: Vec::new(),
            credentials: CredentialSources::default(),
            verify_access: true,
            layer_images: true,
            policy: Policy::default(),
            image_pull_timeout: Duration::from_secs(5 * 60),
            pull_activity_timeout: Duration::from_secs(2 * 60),
            retention: Some(Retention { delay: Duration::from_secs(3 * 60), high: 85, low: 80 }),
            dangling: Some(Dangling {
                period: Duration::from_secs(5 * 60),
                creation_grace: Duration::from_secs(5 * 60),
                dry_run: false,
            }),
            limits: Limits::default(),
            exec: ExecPolicy::default(),
        }
    }
}

/// Reads the plugin block.
pub fn decode_plugin(msgpack: &[u8]) -> Result<PluginConfig, ConfigErrors> {
    let errors = ErrorCollector::default();
    let root = value::decode(msgpack, &errors);
    let config = read(&Reader::new(&root, PLUGIN, &errors));
    errors.result(BLOCK, config)
}

fn read(block: &Reader) -> PluginConfig {
    let default = PluginConfig::default();
    let config = PluginConfig {
        state_dir: absolute(block, "state_dir").unwrap_or(default.state_dir),
        data_dir: absolute(block, "data_dir").unwrap_or(default.data_dir),
        log_file: absolute(block, "log_file"),
        registries: block.labelled("registry").iter().map(|(host, block)| registry(host, block)).collect(),
        credentials: credentials(&block.block("auth")),
        verify_access: block.bool_or("verify_access", default.verify_access),
        layer_images: layer_images(block),
        policy: policy::read(block),
        image_pull_timeout: block.duration("image_pull_timeout").unwrap_or(default.image_pull_timeout),
        pull_activity_timeout: block.duration("pull_activity_timeout").unwrap_or(default.pull_activity_timeout),
        retention: retention(&block.block("gc"), default.retention),
        dangling: dangling(&block.block("gc").block("dangling_containers"), default.dangling),
        limits: limits(&block.block("image_limits"), default.limits),
        exec: exec(&block.block("exec")),
    };
    if config.state_dir.starts_with(&config.data_dir) || config.data_dir.starts_with(&config.state_dir) {
        block.error("state_dir", "lies within data_dir, or the other way round", "give each a directory of its own");
    }
    config
}

/// An absolute path.
pub(super) fn absolute(block: &Reader, option: &str) -> Option<PathBuf> {
    let path = PathBuf::from(block.string(option)?);
    if !path.is_absolute() {
        block.error(option, format!("{path:?} is not an absolute path"), "begin it with /");
        return None;
    }
    Some(path)
}

fn retention(gc: &Reader, default: Option<Retention>) -> Option<Retention> {
    // Has no effect, but what it holds must still be of its type.
    gc.bool("container");
    let default = default?;
    let percent = |option: &str, default: u8| match gc.positive(option).map(u8::try_from) {
        None => default,
        Some(Ok(percent)) if percent <= 100 => percent,
        Some(_) => {
            gc.error(option, "is more than 100 percent", "write a number from 1 to 100");
            default
        }
    };
    let high = percent("disk_high_percent", default.high);
    let low = percent("disk_low_percent", high.saturating_sub(5));
    if low > high {
        gc.error("disk_low_percent", format!("is above disk_high_percent, {high}"), "make it smaller");
    }
    let delay = gc.duration("image_delay").unwrap_or(default.delay);
    let wanted = gc.bool_or("image", true);
    wanted.then_some(Retention { delay, high, low })
}

fn dangling(block: &Reader, default: Option<Dangling>) -> Option<Dangling> {
    let default = default?;
    let dangling = Dangling {
        period: block.duration("period").unwrap_or(default.period),
        creation_grace: block.duration("creation_grace").unwrap_or(default.creation_grace),
        dry_run: block.bool_or("dry_run", default.dry_run),
    };
    block.bool_or("enabled", true).then_some(dangling)
}

fn layer_images(block: &Reader) -> bool {
    match block.string("layer_format").as_deref() {
        None | Some("auto") => true,
        Some("directory" | "folder") => false,
        Some(other) => {
            block.error("layer_format", format!("{other:?} is no form of a layer"), "write auto or directory");
            true
        }
    }
}

fn limits(block: &Reader, default: Limits) -> Limits {
    let bytes = |option: &str, unit: u64, default: u64| {
        block.positive(option).map_or(default, |number| number.saturating_mul(unit))
    };
    let count = |option: &str, default: usize| {
        block.positive(option).map_or(default, |number| usize::try_from(number).unwrap_or(usize::MAX))
    };
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const MOST_AT_ONCE: usize = 1000;
    let size = |option: &str, default: usize| usize::try_from(bytes(option, KIB, default as u64)).unwrap_or(usize::MAX);
    let layers = count("layers", default.layers);
    if layers > default.layers {
        let most = default.layers;
        block.error("layers", format!("is more than {most}"), format!("write {most} at most"));
    }
    Limits {
        document_bytes: bytes("document_kib", KIB, default.document_bytes),
        token_bytes: bytes("token_kib", KIB, default.token_bytes),
        layers,
        layer_bytes: bytes("layer_mib", MIB, default.layer_bytes),
        ratio: bytes("ratio", 1, default.ratio),
        ratio_grace: bytes("ratio_after_mib", MIB, default.ratio_grace),
        entries: bytes("layer_entries", 1, default.entries),
        xattr_bytes: size("xattr_kib", default.xattr_bytes),
        xattr_total_bytes: size("xattrs_kib", default.xattr_total_bytes),
        kept_bytes: size("layer_memory_kib", default.kept_bytes),
        zstd_window: bytes("zstd_window_mib", MIB, default.zstd_window),
        free_bytes: bytes("free_mib", MIB, default.free_bytes),
        parallel_per_pull: count("parallel_layers", default.parallel_per_pull).min(MOST_AT_ONCE),
        parallel: count("parallel_downloads", default.parallel).min(MOST_AT_ONCE),
        attempts: u32::try_from(bytes("attempts", 1, default.attempts.into())).unwrap_or(u32::MAX),
        retry_pause: block.duration("retry_pause").unwrap_or(default.retry_pause),
    }
}

fn credentials(auth: &Reader) -> CredentialSources {
    let helper = auth.string("helper");
    if let Some(name) = helper.as_deref().filter(|name| name.contains(['/', ' '])) {
        auth.error(
            "helper",
            format!("{name:?} is no credential helper's name"),
            "leave out the path and docker-credential-, as in \"ecr-login\"",
        );
    }
    CredentialSources { config_file: absolute(auth, "config"), helper }
}

fn exec(block: &Reader) -> ExecPolicy {
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

fn registry(host: &str, block: &Reader) -> RegistryConfig {
    let mirrors = block.strings("mirrors");
    let unusable = |name: &str| name.is_empty() || name.contains(['/', ' ', '@', '?', '#']);
    const REMEDY: &str = "write only the host and its port, as in \"registry.example:5000\"";
    if unusable(host) {
        block.errors.add("registry", format!("{host:?} is not a registry's host"), REMEDY);
    }
    for name in mirrors.iter().filter(|name| unusable(name)) {
        block.error("mirrors", format!("{name:?} is not a registry's host"), REMEDY);
    }
    let auth = block.block("auth");
    let (username, password) = (auth.string("username"), auth.string("password"));
    if auth.has("username") != auth.has("password") {
        block.error("auth", "needs both username and password", "set the missing one, or remove the block");
    }
    if block.has("cert_file") != block.has("key_file") {
        block.error("cert_file", "needs key_file beside it, and the other way round", "set both, or neither");
    }
    let headers = block.string_map("headers").into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
    RegistryConfig {
        host: host.to_owned(),
        plain_http: block.bool("plain_http"),
        ca_file: absolute(block, "ca_file"),
        cert_file: absolute(block, "cert_file"),
        key_file: absolute(block, "key_file"),
        headers,
        mirrors,
        insecure_skip_verify: block.bool("insecure_skip_verify"),
        username,
        password: password.map(Secret::new),
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use image_store::Limits;
    use serde_json::{Value as Json, json};

    use super::{
        super::{
            networks::DefaultNetwork,
            policy::{Policy, RootChoice},
        },
        PluginConfig, decode_plugin,
    };
    use crate::config::testing::msgpack;

    fn decode(block: Json) -> PluginConfig {
        decode_plugin(&msgpack(&block)).unwrap()
    }

    #[test]
    fn no_block_and_an_empty_block_are_the_defaults() {
        let default = PluginConfig::default();
        for config in [
            decode_plugin(b"").unwrap(),
            decode(json!({})),
            // As Nomad sends it.
            decode(json!({
                "state_dir": "/run/oci-rs", "data_dir": "/var/lib/oci-rs", "log_file": null, "registry": {},
                "image_pull_timeout": "5m", "pull_activity_timeout": "2m", "allow_privileged": false,
                "allow_caps": ["AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
                    "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"],
                "volumes": [{ "enabled": false }], "pids_limit": null, "extra_labels": null,
                "gc": [{ "image": true, "image_delay": "3m", "disk_high_percent": 85, "disk_low_percent": null }],
            })),
        ] {
            assert_eq!(config.policy, default.policy);
            assert_eq!((&config.state_dir, &config.data_dir), (&default.state_dir, &default.data_dir));
            assert_eq!(config.image_pull_timeout, Duration::from_secs(300));
            assert_eq!(config.pull_activity_timeout, Duration::from_secs(120));
            assert_eq!(config.retention, default.retention);
            assert!(config.log_file.is_none() && config.verify_access && config.registries.is_empty());
        }
        assert_eq!(default.policy.allow_caps.names.len(), 13);
    }

    #[test]
    fn options_are_taken_over() {
        let config = decode(json!({
            "state_dir": "/run/x", "data_dir": "/srv/x", "log_file": "/var/log/x.log",
            "registry": {
                "docker.io": { "mirrors": ["mirror.example:5000"], "auth": null },
                "r.example:5000": [{
                    "plain_http": true, "insecure_skip_verify": "true", "ca_file": "/ca.pem",
                    "cert_file": "/cert.pem", "key_file": "/key.pem", "headers": [{ "X-Team": "t" }],
                    "auth": [{ "username": "u", "password": "p" }],
                }],
            },
            "verify_access": false, "layer_format": "directory", "auth": { "config": "/etc/docker/config.json", "helper": "ecr-login" },
            "image_pull_timeout": "1h", "pull_activity_timeout": "10s", "allow_privileged": true, "allow_caps": ["all"],
            "volumes": { "enabled": true, "selinuxlabel": "z" }, "pids_limit": "100", "extra_labels": ["job*"],
            "rootfs": "copy", "allow_security_opts": ["seccomp=*"], "allowed_modes": { "pid": ["host"], "cgroupns": ["private"] },
        }));
        assert_eq!(config.state_dir, Path::new("/run/x"));
        assert_eq!(config.log_file.as_deref(), Some(Path::new("/var/log/x.log")));
        assert_eq!(config.image_pull_timeout, Duration::from_secs(3600));
        let [docker, own] = &config.registries[..] else { panic!() };
        assert_eq!((docker.host.as_str(), &docker.mirrors[..]), ("docker.io", &["mirror.example:5000".to_owned()][..]));
        assert!(!docker.plain_http && docker.username.is_none());
        assert!(own.plain_http && own.insecure_skip_verify && own.password.is_some());
        assert_eq!((own.host.as_str(), own.username.as_deref()), ("r.example:5000", Some("u")));
        assert_eq!((own.cert_file.as_deref(), own.headers.len()), (Some(Path::new("/cert.pem")), 1));
        assert_eq!(own.ca_file.as_deref(), Some(Path::new("/ca.pem")));
        assert_eq!(config.credentials.config_file.as_deref(), Some(Path::new("/etc/docker/config.json")));
        assert!(!config.verify_access && PluginConfig::default().verify_access);
        assert!(!config.layer_images && PluginConfig::default().layer_images);
        assert_eq!(config.credentials.helper.as_deref(), Some("ecr-login"));
        let policy = &config.policy;
        assert!(policy.allow_privileged && policy.volumes_enabled && policy.allow_caps.all);
        assert_eq!((policy.rootfs, PluginConfig::default().policy.rootfs), (RootChoice::Copy, RootChoice::Auto));
        assert_eq!((policy.pids_limit, &policy.extra_labels[..]), (Some(100), &["job*".to_owned()][..]));
        assert_eq!(policy.allow_security_opts, ["seccomp=*"]);
        assert_eq!(
            (&policy.allowed_modes.pid[..], &policy.allowed_modes.cgroupns[..]),
            (&["host".to_owned()][..], &["private".to_owned()][..])
        );
    }

    #[test]
    fn images_are_kept_as_long_as_the_operator_wants() {
        let retention = |gc: Json| decode(json!({ "gc": gc })).retention;
        // Docker's block, whole.
        let docker = json!({
            "image": true, "image_delay": "10m", "container": true,
            "dangling_containers": { "enabled": true, "dry_run": false, "period": "5m", "creation_grace": "5m" },
        });
        assert_eq!(retention(docker).unwrap().delay, Duration::from_secs(600));
        assert_eq!(retention(json!({ "image": false })), None);
        let dangling = |block: Json| decode(json!({ "gc": { "dangling_containers": block } })).dangling;
        let default = PluginConfig::default().dangling.unwrap();
        assert_eq!(dangling(json!({})), Some(default));
        assert_eq!(dangling(json!({ "enabled": false })), None);
        let own = dangling(json!({ "dry_run": true, "period": "7s", "creation_grace": "1h" })).unwrap();
        assert_eq!((own.dry_run, own.period.as_secs(), own.creation_grace.as_secs()), (true, 7, 3600));
        let full = retention(json!({ "disk_high_percent": 70 })).unwrap();
        assert_eq!((full.high, full.low), (70, 65));
    }

    #[test]
    fn every_limit_of_images_has_its_option() {
        let changed = decode(json!({ "image_limits": {
            "document_kib": 1, "token_kib": 2, "layers": 3, "layer_mib": 4, "layer_entries": 5, "ratio": 6, "ratio_after_mib": 7,
            "xattr_kib": 8, "xattrs_kib": 9, "layer_memory_kib": 14, "zstd_window_mib": 15, "free_mib": 10,
            "parallel_layers": 11, "parallel_downloads": 13, "attempts": 12, "retry_pause": "1s",
        }}));
        let expected = Limits {
            document_bytes: 1 << 10,
            token_bytes: 2 << 10,
            layers: 3,
            layer_bytes: 4 << 20,
            entries: 5,
            ratio: 6,
            ratio_grace: 7 << 20,
            xattr_bytes: 8 << 10,
            xattr_total_bytes: 9 << 10,
            kept_bytes: 14 << 10,
            zstd_window: 15 << 20,
            free_bytes: 10 << 20,
            parallel_per_pull: 11,
            attempts: 12,
            parallel: 13,
            retry_pause: Duration::from_secs(1),
        };
        assert_eq!(format!("{:?}", changed.store().limits), format!("{expected:?}"));
        // The defaults that the table of options shows are those that hold without the block.
        let shown = json!({ "image_limits": [{
            "document_kib": 4096, "token_kib": 1024, "layers": 500, "layer_mib": 65536, "layer_entries": 2_000_000,
            "ratio": 200, "ratio_after_mib": 64, "xattr_kib": 64, "xattrs_kib": 1024, "layer_memory_kib": 262_144,
            "zstd_window_mib": 128, "free_mib": 64, "parallel_layers": 6, "parallel_downloads": 12, "attempts": 5, "retry_pause": "500ms",
        }]});
        assert_eq!(format!("{:?}", decode(shown).limits), format!("{:?}", Limits::default()));
    }

    #[test]
    fn networks_are_the_operators_to_decide() {
        assert_eq!(decode(json!({})).policy.default_network, DefaultNetwork::Bridge);
        let shown = json!({ "network": [{
            "default_mode": "bridge", "bridge": "oci-rs", "subnet": "172.26.80.0/20", "subnet_ipv6": null,
            "cni_path": "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni", "cni_config_dir": "/opt/cni/config",
        }]});
        assert_eq!(decode(shown).policy, Policy::default());
        let policy = decode(json!({ "network": {
            "default_mode": "host", "bridge": "br0", "subnet": "10.9.3.7/16", "subnet_ipv6": "fd00:9::/64",
            "cni_path": "/a::/b", "cni_config_dir": "/etc/cni/net.d",
        }}))
        .policy;
        assert_eq!(policy.default_network, DefaultNetwork::Host);
        let network = policy.network;
        assert_eq!((network.bridge.as_str(), network.subnet.to_string().as_str()), ("br0", "10.9.0.0/16"));
        assert_eq!(network.subnet_ipv6.map(|subnet| subnet.to_string()).as_deref(), Some("fd00:9::/64"));
        assert_eq!(network.cni_path, [Path::new("/a"), Path::new("/b")]);
        assert_eq!(network.config_dir, Path::new("/etc/cni/net.d"));
    }

    #[test]
    fn mistakes_name_option_and_remedy() {
        for (block, expected) in [
            (json!({ "gc": { "image_delay": "soon" } }), "gc.image_delay: \"soon\" is not a span of time"),
            (json!({ "gc": { "disk_high_percent": 101 } }), "gc.disk_high_percent: is more than 100 percent"),
            (
                json!({ "gc": { "disk_high_percent": 50, "disk_low_percent": 60 } }),
                "gc.disk_low_percent: is above disk_high_percent, 50 (make it smaller)",
            ),
            (json!({ "state_dir": "run" }), "state_dir: \"run\" is not an absolute path (begin it with /)"),
            (json!({ "data_dir": "/run/oci-rs/data" }), "state_dir: lies within data_dir, or the other way round"),
            (json!({ "allow_caps": ["fly"] }), "allow_caps: \"fly\" is no capability"),
            (json!({ "pull_activity_timeout": "x" }), "pull_activity_timeout: \"x\" is not a span of time"),
            (json!({ "image_limits": { "layers": 501 } }), "image_limits.layers: is more than 500 (write 500 at most)"),
            (json!({ "pids_limit": -1 }), "pids_limit: cannot be negative"),
            (
                json!({ "network": { "default_mode": "none" } }),
                "network.default_mode: \"none\" cannot be everybody's network (write bridge or host)",
            ),
            (
                json!({ "network": { "bridge": "a-name-of-16-let" } }),
                "network.bridge: \"a-name-of-16-let\" cannot name",
            ),
            (json!({ "network": { "bridge": "a/b" } }), "network.bridge: \"a/b\" cannot name an interface"),
            (json!({ "network": { "subnet": "fd00::/64" } }), "network.subnet: \"fd00::/64\" is no IPv4 subnet"),
            (json!({ "network": { "subnet": "10.0.0.0/31" } }), "network.subnet: \"10.0.0.0/31\" is no IPv4 subnet"),
            (json!({ "network": { "subnet_ipv6": "10.0.0.0/8" } }), "network.subnet_ipv6: \"10.0.0.0/8\" is no IPv6"),
            (json!({ "network": { "cni_path": "/a:b" } }), "network.cni_path: \"b\" is not an absolute path"),
            (json!({ "network": { "cni_config_dir": "x" } }), "network.cni_config_dir: \"x\" is not an absolute path"),
            (json!({ "layer_format": "zip" }), "layer_format: \"zip\" is no form of a layer (write auto or directory)"),
            (json!({ "rootfs": "vfs" }), "rootfs: \"vfs\" is no way to make a root (write auto, overlay or copy)"),
            (
                json!({ "registry": { "https://r.example": {} } }),
                "registry: \"https://r.example\" is not a registry's host",
            ),
            (
                json!({ "registry": { "r": { "mirrors": ["http://m"] } } }),
                "registry[\"r\"].mirrors: \"http://m\" is not",
            ),
            (json!({ "registry": { "r": { "auth": { "username": "u" } } } }), "registry[\"r\"].auth: needs both"),
            (json!({ "registry": { "r": { "tls": true } } }), "registry[\"r\"].tls: is no option"),
            (json!({ "registry": ["r"] }), "registry: expects blocks with a label, not a list"),
            (
                json!({ "registry": { "r": { "cert_file": "/c" } } }),
                "registry[\"r\"].cert_file: needs key_file beside it",
            ),
            (json!({ "auth": { "config": "x" } }), "auth.config: \"x\" is not an absolute path"),
            (json!({ "auth": [{ "helper": "/x/y" }] }), "auth.helper: \"/x/y\" is no credential helper's name"),
            (json!({ "endpoint": "unix:///x" }), "endpoint: is no option of this driver"),
        ] {
            let text = decode_plugin(&msgpack(&block)).unwrap_err().to_string();
            assert!(text.starts_with(&format!("invalid plugin config: {expected}")), "{text}");
        }
    }
}
