//! Every option of the plugin block: its value, its default and its error texts.

use std::{path::Path, time::Duration};

use image_store::{InternalRedirects, Limits};
use serde_json::{Value as Json, json};
use tracing::level_filters::LevelFilter;

use super::{DefaultNetwork, LogOptions, PluginConfig, Policy, RootChoice, Rules, decode_plugin};
use crate::{
    config::msgpack::from_json,
    name::DriverName::{Docker, OciRs},
};

fn decode(block: Json) -> PluginConfig {
    decode_plugin(&from_json(&block), OciRs).unwrap()
}

#[test]
fn no_block_and_an_empty_block_give_the_defaults() {
    let default = PluginConfig::default();
    for config in [
        decode_plugin(b"", OciRs).unwrap(),
        decode(json!({})),
        // The block with the defaults that Nomad fills in.
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
        assert!(config.log == LogOptions::default() && config.verify_access && config.registries.is_empty());
    }
    assert_eq!(default.policy.allow_caps.names.len(), 13);
}

#[test]
fn set_options_replace_the_defaults() {
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
        "verify_access": false, "layer_format": "directory", "fs_verity": true,
        "auth": { "config": "/etc/docker/config.json", "helper": "ecr-login" },
        "image_pull_timeout": "1h", "pull_activity_timeout": "10s", "allow_privileged": true, "allow_caps": ["all"],
        "volumes": { "enabled": true, "selinuxlabel": "z", "allow_types": ["ext*"], "mount_timeout": "5s" },
        "pids_limit": "100", "extra_labels": ["job*"],
        "rootfs": "copy", "allow_security_opts": ["seccomp=*"],
        "allowed_modes": { "pid": ["host"], "cgroupns": ["private"] },
    }));
    assert_eq!(config.state_dir, Path::new("/run/x"));
    assert_eq!(config.log.file.as_deref(), Some(Path::new("/var/log/x.log")));
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
    assert!(config.fs_verity && !PluginConfig::default().fs_verity);
    assert_eq!(config.credentials.helper.as_deref(), Some("ecr-login"));
    let policy = &config.policy;
    assert!(policy.allow_privileged && policy.volumes_enabled && policy.allow_caps.all);
    assert_eq!((policy.rootfs, PluginConfig::default().policy.rootfs), (RootChoice::Copy, RootChoice::Auto));
    assert_eq!((policy.pids_limit, &policy.extra_labels[..]), (Some(100), &["job*".to_owned()][..]));
    assert_eq!(policy.allow_security_opts, ["seccomp=*"]);
    assert_eq!((&policy.volume_types[..], policy.volume_timeout.as_secs()), (&["ext*".to_owned()][..], 5));
    assert_eq!(
        (&policy.allowed_modes.pid[..], &policy.allowed_modes.cgroupns[..]),
        (&["host".to_owned()][..], &["private".to_owned()][..])
    );
}

#[test]
fn garbage_collection_follows_the_gc_block() {
    let retention = |gc: Json| decode(json!({ "gc": gc })).retention;
    // All options of docker's block.
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
    let own = json!({ "dry_run": true, "period": "7s", "creation_grace": "1h", "unanswered_grace": "9s" });
    let own = dangling(own).unwrap();
    let seconds = [own.period, own.creation_grace, own.unanswered_grace].map(|time| time.as_secs());
    assert_eq!((own.dry_run, seconds), (true, [7, 3600, 9]));
    let full = retention(json!({ "disk_high_percent": 70 })).unwrap();
    assert_eq!((full.high, full.low), (70, 65));
}

#[test]
fn every_limit_of_images_has_its_option() {
    let changed = decode(json!({ "image_limits": {
        "document_kib": 1, "token_kib": 2, "layers": 3, "layer_mib": 4, "layer_entries": 5, "ratio": 6,
        "ratio_after_mib": 7,
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
        upload_chunk: Limits::default().upload_chunk,
        access_wait: Limits::default().access_wait,
    };
    assert_eq!(format!("{:?}", changed.store().limits), format!("{expected:?}"));
    assert_eq!(decode(json!({ "image_limits": { "free_mib": 0 } })).limits.free_bytes, 0);
    // The defaults in the table of options are the defaults without the block.
    let shown = json!({ "image_limits": [{
        "document_kib": 4096, "token_kib": 1024, "layers": 500, "layer_mib": 65536, "layer_entries": 2_000_000,
        "ratio": 200, "ratio_after_mib": 64, "xattr_kib": 64, "xattrs_kib": 1024, "layer_memory_kib": 262_144,
        "zstd_window_mib": 128, "free_mib": 64, "parallel_layers": 6, "parallel_downloads": 12, "attempts": 5,
        "retry_pause": "500ms",
    }]});
    assert_eq!(format!("{:?}", decode(shown).limits), format!("{:?}", Limits::default()));
}

#[test]
fn network_options_replace_the_defaults() {
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
fn errors_name_option_and_remedy() {
    for (block, expected) in [
        (json!({ "gc": { "image_delay": "soon" } }), "gc.image_delay: \"soon\" is not a duration"),
        (json!({ "gc": { "disk_high_percent": 101 } }), "gc.disk_high_percent: is more than 100 percent"),
        (
            json!({ "gc": { "disk_high_percent": 50, "disk_low_percent": 60 } }),
            "gc.disk_low_percent: is above disk_high_percent, 50 (make it smaller)",
        ),
        (json!({ "state_dir": "run" }), "state_dir: \"run\" is not an absolute path (begin it with /)"),
        (json!({ "data_dir": "/run/oci-rs/data" }), "state_dir: lies within data_dir, or the other way round"),
        (json!({ "allow_caps": ["fly"] }), "allow_caps: \"fly\" is no capability"),
        (json!({ "pull_activity_timeout": "x" }), "pull_activity_timeout: \"x\" is not a duration"),
        (json!({ "writable_layer": { "size": "x" } }), "writable_layer.size: \"x\" is no size from 1M on"),
        (json!({ "writable_layer": { "max_size": "1k" } }), "writable_layer.max_size: \"1k\" is no size from 1M on"),
        (
            json!({ "writable_layer": { "size": "2G", "max_size": "1G" } }),
            "writable_layer.size: is more than `max_size` (write at most `max_size`)",
        ),
        (json!({ "image_limits": { "layers": 501 } }), "image_limits.layers: is more than 500 (write 500 at most)"),
        (json!({ "pids_limit": -2 }), "pids_limit: is -2 (write a number of processes, or -1 for no limit)"),
        (json!({ "min_oom_score_adj": 1 }), "min_oom_score_adj: 1 is out of bounds (use -1000 to 0)"),
        (json!({ "min_oom_score_adj": -1001 }), "min_oom_score_adj: -1001 is out of bounds"),
        (
            json!({ "network": { "default_mode": "none" } }),
            "network.default_mode: \"none\" cannot be the default network of all tasks (write bridge or host)",
        ),
        (json!({ "network": { "bridge": "a-name-of-16-let" } }), "network.bridge: \"a-name-of-16-let\" cannot name"),
        (json!({ "network": { "bridge": "a/b" } }), "network.bridge: \"a/b\" cannot name an interface"),
        (json!({ "network": { "subnet": "fd00::/64" } }), "network.subnet: \"fd00::/64\" is no IPv4 subnet"),
        (json!({ "network": { "subnet": "10.0.0.0/31" } }), "network.subnet: \"10.0.0.0/31\" is no IPv4 subnet"),
        (json!({ "network": { "subnet_ipv6": "10.0.0.0/8" } }), "network.subnet_ipv6: \"10.0.0.0/8\" is no IPv6"),
        (json!({ "network": { "cni_path": "/a:b" } }), "network.cni_path: \"b\" is not an absolute path"),
        (json!({ "network": { "cni_config_dir": "x" } }), "network.cni_config_dir: \"x\" is not an absolute path"),
        (json!({ "layer_format": "zip" }), "layer_format: \"zip\" is not a form of layers (write auto or directory)"),
        (
            json!({ "rootfs": "vfs" }),
            "rootfs: \"vfs\" is not a way to make a root file system (write auto, overlay or copy)",
        ),
        (
            json!({ "registry": { "https://r.example": {} } }),
            "registry: \"https://r.example\" is not a registry's host",
        ),
        (json!({ "registry": { "r": { "mirrors": ["http://m"] } } }), "registry[\"r\"].mirrors: \"http://m\" is not"),
        (json!({ "registry": { "r": { "auth": { "username": "u" } } } }), "registry[\"r\"].auth: needs both"),
        (json!({ "registry": { "r": { "tls": true } } }), "registry[\"r\"].tls: is no option"),
        (json!({ "registry": ["r"] }), "registry: expects blocks with a label, not a list"),
        (json!({ "registry": { "r": { "cert_file": "/c" } } }), "registry[\"r\"].cert_file: needs key_file beside it"),
        (json!({ "auth": { "config": "x" } }), "auth.config: \"x\" is not an absolute path"),
        (json!({ "auth": [{ "helper": "/x/y" }] }), "auth.helper: \"/x/y\" is no credential helper's name"),
        (json!({ "end_point": "unix:///x" }), "end_point: is no option of this driver"),
    ] {
        let text = decode_plugin(&from_json(&block), OciRs).unwrap_err().to_string();
        assert!(text.starts_with(&format!("invalid plugin config: {expected}")), "{text}");
    }
}

#[test]
fn options_of_docker_without_an_effect_are_accepted_and_named() {
    let block = json!({
        "endpoint": "unix:///run/docker.sock", "tls": [{ "cert": "/c", "key": "/k", "ca": "/a" }],
        "logging": [{ "type": "splunk", "config": { "splunk-url": "https://10.0.0.1" } }],
        "nvidia_runtime": "nvidia", "allow_runtimes": ["runc", "nvidia"], "infra_image": "pause:3",
        "infra_image_pull_timeout": "5m", "container_exists_attempts": 5, "oom_score_adj": 0,
        "disable_log_collection": false, "windows_allow_insecure_container_admin": true,
    });
    // A value that is the same as an unset option is not worth a warning.
    let expected = [
        "endpoint",
        "tls",
        "logging",
        "nvidia_runtime",
        "infra_image",
        "infra_image_pull_timeout",
        "container_exists_attempts",
        "windows_allow_insecure_container_admin",
    ];
    assert_eq!(decode(block.clone()).ignored, expected);
    let stand_in = decode_plugin(&from_json(&block), Docker).unwrap();
    assert_eq!(stand_in.ignored, expected[1..]);
    assert_eq!(stand_in.dockerd.as_deref(), Some(Path::new("/run/docker.sock")));
    let other = decode_plugin(&from_json(&json!({ "endpoint": "tcp://10.0.0.1:2376" })), Docker).unwrap();
    assert_eq!((other.ignored, other.dockerd), (vec!["endpoint"], None));
    let unset = json!({ "endpoint": null, "tls": [], "logging": null, "allow_runtimes": null, "oom_score_adj": null });
    assert!(decode(unset).ignored.is_empty());
    assert!(decode(json!({ "logging": { "type": "none" }, "strict": true })).ignored.is_empty());
}

#[test]
fn docker_rules_apply_with_dockers_name_unless_the_operator_sets_others() {
    let docker = |block: Json| decode_plugin(&from_json(&block), Docker).unwrap();
    let wide = docker(json!({}));
    assert_eq!((wide.policy, wide.verify_access), (Policy::of(Rules::Docker), false));
    let strict = docker(json!({ "strict": true }));
    assert_eq!((strict.policy, strict.verify_access), (Policy::default(), true));
    assert_eq!((wide.internal_redirects, wide.exec.max_commands), (InternalRedirects::ExceptLinkLocal, 4096));
    assert_eq!((strict.internal_redirects, strict.exec.max_commands), (InternalRedirects::OfRegistry, 256));
    assert_eq!(docker(json!({ "exec": { "max_commands": 7 } })).exec.max_commands, 7);
    let redirects = |registry: Json| {
        let set = docker(json!({ "registry": { "a.example": registry } }));
        set.registries[0].internal_redirects
    };
    assert_eq!(redirects(json!({})), InternalRedirects::ExceptLinkLocal);
    assert_eq!(redirects(json!({ "internal_redirects": true })), InternalRedirects::All);
    assert_eq!(redirects(json!({ "internal_redirects": false })), InternalRedirects::OfRegistry);
    let own = decode(json!({ "strict": false }));
    assert_eq!((own.policy, own.verify_access), (Policy::default(), true));
    // The rules that only docker has may be set alone.
    let set = docker(json!({
        "verify_access": true, "no_new_privileges": true, "allow_security_opts": [], "allowed_modes": { "pid": [] },
    }));
    let modes = set.policy.allowed_modes;
    assert!(set.verify_access && set.policy.no_new_privileges && set.policy.allow_security_opts.is_empty());
    assert!(modes.pid.is_empty() && modes.ipc == ["*"] && modes.uts == ["*"]);
    let leaves = |mode: &str, modes: Json| {
        let set = docker(json!({ "userns": { "mode": mode }, "allowed_modes": modes }));
        set.policy.allowed_modes.userns
    };
    assert!(leaves("require", json!({})).is_empty(), "a required namespace is left with a written permission only");
    assert_eq!((leaves("auto", json!({})), leaves("off", json!({}))), (vec!["*".to_owned()], vec!["*".to_owned()]));
    assert_eq!(leaves("require", json!({ "userns": ["host"] })), ["host"]);
    assert_eq!((wide.dockerd.as_deref(), own.dockerd), (Some(Path::new("/var/run/docker.sock")), None));
    assert_eq!(docker(json!({ "docker_version": "27.1" })).docker_version, "27.1");
    let seconds = |config: &PluginConfig| (config.docker_stop_timeout.as_secs(), config.migrate_volumes);
    let set = docker(json!({ "docker_stop_timeout": "2m", "migrate_volumes": true }));
    assert_eq!((seconds(&docker(json!({}))), seconds(&set)), ((10, false), (120, true)));
    assert_eq!(decode(json!({ "migrate_volumes": true })).ignored, ["migrate_volumes"], "without a daemon");
    // Which driver makes the networks of groups is no rule for tasks.
    let group_networks = |config: PluginConfig| config.group_networks;
    assert!(group_networks(docker(json!({ "strict": true }))) && !group_networks(decode(json!({}))));
    assert!(!group_networks(docker(json!({ "network": { "group_networks": false } }))));
    assert!(group_networks(decode(json!({ "network": { "group_networks": true } }))));
}

#[test]
fn the_log_has_nomads_levels_and_may_be_without_a_file() {
    let log = |block| decode(block).log;
    let set = log(json!({ "log_level": "WARN", "log_rotate_bytes": 4096, "log_rotate_max_files": 3 }));
    assert_eq!((set.level, set.rotate_bytes, set.rotate_files), (LevelFilter::WARN, 4096, 3));
    assert!(set.to_file && set.file.is_none());
    assert_eq!(log(json!({ "log_level": "off" })).level, LevelFilter::OFF);
    let none = log(json!({ "log_file": "none" }));
    assert!(!none.to_file && none.file.is_none());
    for wrong in ["loud", "3"] {
        let error = decode_plugin(&from_json(&json!({ "log_level": wrong })), OciRs).unwrap_err().to_string();
        assert!(error.contains("log_level") && error.contains("write trace, debug"), "{error}");
    }
    assert!(decode_plugin(&from_json(&json!({ "log_file": "x.log" })), OciRs).is_err(), "a path is absolute");
}
