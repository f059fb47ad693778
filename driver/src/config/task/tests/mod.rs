//! Every option of the task block: its value, its default and its error texts.

mod mounts;
mod security;

use std::{collections::BTreeMap, time::Duration};

use runtime::plan::{Propagation, Rlimit};
use serde_json::{Value as Json, json};

use super::{
    Addresses, DeviceRequest, ExtraHost, MountRequest, MountSource, NamespaceRequest, NetworkMode, OPTIONS, TaskSpec,
    decode_task,
};
use crate::{
    config::{
        decode_plugin,
        msgpack::from_json,
        option::{OptionType, Support},
        plugin::Policy,
    },
    name::DriverName,
};

fn policy(block: Json) -> Policy {
    decode_plugin(&from_json(&block), DriverName::OciRs).unwrap().policy
}

/// Decodes a block to which an image is added.
fn decode_with(mut block: Json, policy: &Policy) -> Result<TaskSpec, String> {
    block.as_object_mut().unwrap().entry("image").or_insert(json!("nginx:1.27"));
    decode_task(&from_json(&block), policy).map_err(|errors| errors.to_string())
}

fn decode(block: Json) -> TaskSpec {
    decode_with(block, &Policy::default()).unwrap()
}

/// The text of the only error of a block, without its beginning.
fn error(block: Json) -> String {
    error_with(block, &Policy::default())
}

fn error_with(block: Json, policy: &Policy) -> String {
    let text = decode_with(block.clone(), policy).expect_err(&block.to_string());
    text.strip_prefix("invalid task config: ").unwrap_or_else(|| panic!("more than one error: {text}")).to_owned()
}

#[test]
fn a_block_with_an_image_alone_is_valid() {
    let spec = decode(json!({}));
    let granted = spec.capabilities.granted.clone();
    assert_eq!(granted.len(), 13);
    let mut expected = TaskSpec { image: "nginx:1.27".into(), ..TaskSpec::default() };
    expected.capabilities.granted = granted;
    assert_eq!(spec, expected);
}

#[test]
fn nil_and_empty_values_count_as_unset() {
    // The form in which Nomad sends a block: every option is there, nil or empty.
    let mut all = serde_json::Map::new();
    for option in OPTIONS {
        let empty = if matches!(option.kind, OptionType::Blocks(_)) { json!([]) } else { Json::Null };
        all.insert(option.name.to_owned(), empty);
    }
    all.insert("cpu_cfs_period".into(), json!(100_000));
    all.insert("image".into(), json!("nginx:1.27"));
    assert_eq!(decode(Json::Object(all)), decode(json!({})));

    // A job that sets every option to an empty value.
    let mut all = serde_json::Map::new();
    for option in OPTIONS {
        let value = match option.kind {
            OptionType::String => json!(""),
            OptionType::Bool => json!(false),
            OptionType::Number => json!(0),
            OptionType::Strings | OptionType::StringMaps | OptionType::NumberMaps | OptionType::Blocks(_) => json!([]),
            OptionType::Block(_) | OptionType::StringAttrs | OptionType::Labelled(..) => json!({}),
        };
        all.insert(option.name.to_owned(), value);
    }
    all.insert("image".into(), json!("nginx:1.27"));
    // The default of this option is not the empty value.
    all.insert("lazy".into(), json!(true));
    let spec = decode(Json::Object(all));
    assert_eq!(TaskSpec { entrypoint: None, ..spec }, decode(json!({})));
}

#[test]
fn options_become_values() {
    let spec = decode(json!({
        "image": "https://registry.example/app:2",
        "auth": { "username": "u", "password": "p", "email": "e", "server_address": "registry.example" },
        "auth_soft_fail": true,
        "force_pull": true,
        "image_pull_timeout": "1h30m",
        "command": "run",
        "args": ["-x", ""],
        "entrypoint": ["/init"],
        "work_dir": "/srv",
        "hostname": "web-1.example",
        "readonly_rootfs": true,
        "tty": true,
        "interactive": true,
        "init": "true",
        "group_add": ["video", "44"],
        "labels": [{ "a": "1", "b": "2" }, { "b": "3" }],
        "ports": ["http"],
        "shm_size": 1048576.0,
        "memory_hard_limit": "512",
        "oom_score_adj": 5,
        "cgroupns": "private",
        "container_exists_attempts": 3,
        "cpuset_cpus": "0-1",
        "healthchecks": [{ "disable": true }],
        "runtime": "runc",
        "ipc_mode": "shareable",
    }));
    assert_eq!(spec.image, "https://registry.example/app:2");
    assert_eq!(spec.auth.as_ref().map(|auth| auth.username.as_str()), Some("u"));
    assert!(spec.force_pull && spec.readonly_rootfs && spec.tty && spec.interactive && spec.init);
    assert_eq!(spec.image_pull_timeout, Some(Duration::from_secs(5400)));
    assert_eq!(spec.command.as_deref(), Some("run"));
    assert_eq!(spec.args, ["-x", ""]);
    assert_eq!(spec.entrypoint, Some(vec!["/init".to_owned()]));
    assert_eq!(spec.work_dir.as_deref(), Some("/srv"));
    assert_eq!(spec.hostname.as_deref(), Some("web-1.example"));
    assert_eq!(spec.group_add, ["video", "44"]);
    assert_eq!(spec.labels, BTreeMap::from([("a".into(), "1".into()), ("b".into(), "3".into())]));
    assert_eq!(spec.ports, ["http"]);
    assert_eq!((spec.shm_size, spec.memory_hard_limit, spec.oom_score_adj), (Some(1 << 20), Some(512), 5));
    assert_eq!(spec.namespaces, NamespaceRequest { private_cgroup: true, ..NamespaceRequest::default() });
}

#[test]
fn refused_options_name_their_remedy() {
    let set = |kind| match kind {
        OptionType::String => json!("x"),
        OptionType::Bool => json!(true),
        OptionType::Number => json!(1),
        OptionType::Strings => json!(["x"]),
        OptionType::StringMaps => json!([{ "x": "y" }]),
        OptionType::NumberMaps => json!([{ "x": 80 }]),
        OptionType::Block(_) | OptionType::StringAttrs | OptionType::Blocks(_) | OptionType::Labelled(..) => {
            json!({ "size": "1" })
        }
    };
    let mut refused = Vec::new();
    for option in OPTIONS {
        if let Support::Refused(remedy) = option.support {
            let text = error(json!({ option.name: set(option.kind) }));
            assert!(text.starts_with(&format!("{}: is not supported: ", option.name)), "{text}");
            assert!(text.ends_with(&format!("({remedy})")) && !remedy.is_empty(), "{text}");
            refused.push(option.name);
        }
    }
    assert_eq!(refused, ["isolation"]);
}

#[test]
fn invalid_values_name_option_and_remedy() {
    for (block, expected) in [
        (json!({ "image": "" }), "image: is missing (name an image, as in \"nginx:1.27\")"),
        (json!({ "image": "a", "load": "/a.tar" }), "load: \"/a.tar\" is not a path below the task's local directory"),
        (json!({ "image": "a", "load": "x/../../a" }), "load: \"x/../../a\" is not a path below the task's local"),
        (json!({ "image": "nginx:bad tag" }), "image: invalid image reference"),
        (json!({ "image": ["a"] }), "image: expects text, not a list"),
        (json!({ "img": "a" }), "img: is no option of this driver (remove it)"),
        (json!({ "args": "a" }), "args: expects a list of texts, not text (without it: the image's CMD)"),
        (json!({ "args": [["a"]] }), "args: expects text, not a list"),
        (json!({ "args": ["a\0b"] }), "args: holds a NUL byte"),
        (json!({ "command": " sh" }), "command: \" sh\" begins or ends with white space"),
        (json!({ "work_dir": "srv" }), "work_dir: \"srv\" is not an absolute path (begin it with /)"),
        (json!({ "image_pull_timeout": "soon" }), "image_pull_timeout: \"soon\" is not a duration"),
        (json!({ "image_pull_timeout": "0s" }), "image_pull_timeout: \"0s\" is not a duration"),
        (json!({ "auth": { "password": "hunter2" } }), "auth.username: is missing beside password"),
        (json!({ "auth": { "username": "joe" } }), "auth.password: is missing beside username"),
        (json!({ "auth": "x" }), "auth: expects a block, not text"),
        (json!({ "auth": [{}, {}] }), "auth: occurs more than once"),
        (json!({ "hostname": "a b" }), "hostname: \"a b\" is not a host name"),
        (json!({ "hostname": "a".repeat(65) }), "hostname: \"aaaa"),
        (json!({ "tty": "maybe" }), "tty: expects true or false, not text"),
        (json!({ "runtime": "youki2" }), "runtime: \"youki2\" is not supported"),
        (
            json!({ "ipc_mode": "container:x" }),
            "ipc_mode: \"container:x\" is not supported: containers cannot join each other's",
        ),
        (
            json!({ "pid_mode": "container:x" }),
            "pid_mode: \"container:x\" is not supported: containers cannot join each other's",
        ),
        (json!({ "uts_mode": "other" }), "uts_mode: \"other\" is not supported (use \"host\""),
        (
            json!({ "volume_driver": "nfs" }),
            "volume_driver: \"nfs\" is not supported: there are no docker volume plugins",
        ),
        (json!({ "userns_mode": "auto" }), "userns_mode: \"auto\" is not supported"),
        (json!({ "cgroupns": "other" }), "cgroupns: \"other\" is not a cgroup namespace"),
        (json!({ "shm_size": -1 }), "shm_size: cannot be negative, but is -1"),
        (
            json!({ "shm_size": 1.5 }),
            "shm_size: expects a whole number, not a number with a fraction (without it: 67108864)",
        ),
        (json!({ "oom_score_adj": 1001 }), "oom_score_adj: 1001 is out of bounds"),
        (
            json!({ "memory_hard_limit": i64::MAX }),
            "memory_hard_limit: 9223372036854775807 MiB is more than the kernel can count",
        ),
        (json!({ "pids_limit": 4_194_305 }), "pids_limit: 4194305 is more than the kernel's maximum"),
        (json!({ "cpu_hard_limit": true, "cpu_cfs_period": 10 }), "cpu_cfs_period: 10 is out of bounds"),
        (json!({ "labels": ["a"] }), "labels: expects a map, not text"),
        (json!({ "healthchecks": { "disable": [] } }), "healthchecks.disable: expects true or false, not a list"),
    ] {
        let text = error(block.clone());
        assert!(text.starts_with(expected), "{block}: {text}");
    }
}

#[test]
fn all_errors_are_reported_at_once_and_without_secrets() {
    let text = decode_with(
        json!({ "image": null, "tty": [], "auth": { "password": "hunter2" }, "isolation": "x", "work_dir": "x" }),
        &Policy::default(),
    )
    .unwrap_err();
    assert!(text.starts_with("invalid task config, 5 errors: [1] isolation: "), "{text}");
    for option in ["image: ", "tty: ", "auth.username: ", "work_dir: ", "[5] "] {
        assert!(text.contains(option), "{text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
    assert!(!error(json!({ "auth": [{ "username": "u", "password": ["hunter2"] }] })).contains("hunter2"));
}

#[test]
fn bytes_that_are_not_a_block_are_refused() {
    for bytes in [&b"\xc1"[..], b"\x81", b"\x80\x80", b"\x01", b"\xd4\x00\x00"] {
        let text = decode_task(bytes, &Policy::default()).unwrap_err().to_string();
        assert!(text.contains("config: ") && text.contains("image: is missing"), "{bytes:?} {text}");
    }
    assert!(decode_task(b"", &Policy::default()).unwrap_err().to_string().contains("image: is missing"));
}

#[test]
fn network_options_are_read() {
    for (mode, expected) in [
        ("", NetworkMode::Unset),
        ("host", NetworkMode::Host),
        ("none", NetworkMode::None),
        ("bridge", NetworkMode::Bridge),
        ("default", NetworkMode::Bridge),
        ("cni/lan", NetworkMode::Named("lan".into())),
    ] {
        assert_eq!(decode(json!({ "network_mode": mode })).network_mode, expected, "{mode}");
    }
    for mode in ["my-net", "container:abc", "cni/", "cni/../x", "nat"] {
        let text = error(json!({ "network_mode": mode }));
        assert!(text.starts_with(&format!("network_mode: {mode:?} is not supported")), "{text}");
        assert!(text.contains("network { mode = \"bridge\" }"), "{text}");
    }
    let spec = decode(json!({
        "mac_address": "02:42:AC:11:00:02", "ipv4_address": "172.26.80.9", "ipv6_address": "fd00::9",
        "advertise_ipv6_address": true, "port_map": [{ "db": 6379 }, { "web": "80" }],
    }));
    let addresses = Addresses {
        mac: Some("02:42:AC:11:00:02".into()),
        ipv4: "172.26.80.9".parse().ok(),
        ipv6: "fd00::9".parse().ok(),
        advertise_ipv6: true,
    };
    assert_eq!((spec.addresses, spec.port_map), (addresses, BTreeMap::from([("db".into(), 6379), ("web".into(), 80)])));
    for mac in
        ["02:42:ac:11:00", "02:42:ac:11:00:02:03", "03:42:ac:11:00:02", "2:42:ac:11:0:2", "+2:42:ac:11:00:02", "x"]
    {
        let text = error(json!({ "mac_address": mac }));
        assert!(text.starts_with(&format!("mac_address: {mac:?} is not the hardware address")), "{text}");
    }
    for (option, value) in [("ipv4_address", "fd00::9"), ("ipv6_address", "172.26.80.9"), ("ipv4_address", "172.26.80")]
    {
        assert!(error(json!({ option: value })).starts_with(&format!("{option}: {value:?} is not an IP")), "{value}");
    }
    for port in [json!(0), json!(65536), json!("x")] {
        assert!(error(json!({ "port_map": [{ "db": port }] })).starts_with("port_map: "), "{port}");
    }

    let spec = decode(json!({
        "extra_hosts": ["db:10.0.0.5", "v6:[fd00::1]", "bare:fd00::2", "host:host-gateway"],
        "dns_servers": ["10.0.0.2", "fd00::53"],
        "dns_search_domains": ["example.com"],
        "dns_options": ["ndots:2"],
    }));
    let host = |name: &str, address: Option<&str>| ExtraHost {
        name: name.into(),
        address: address.map(|address| address.parse().unwrap()),
    };
    assert_eq!(
        spec.extra_hosts,
        [host("db", Some("10.0.0.5")), host("v6", Some("fd00::1")), host("bare", Some("fd00::2")), host("host", None)]
    );
    assert_eq!(spec.dns.servers, ["10.0.0.2", "fd00::53"]);
    for line in ["db", "db:", "db:x", ":10.0.0.1", "a b:10.0.0.1", "a\nb:10.0.0.1"] {
        assert!(error(json!({ "extra_hosts": [line] })).contains("is not `name:address`"), "{line}");
    }
    assert!(
        error(json!({ "dns_servers": ["ns.example"] })).starts_with("dns_servers: \"ns.example\" is not an IP address")
    );
    assert!(error(json!({ "dns_search_domains": ["a b"] })).starts_with("dns_search_domains: \"a b\" is not one word"));
    assert!(error(json!({ "dns_options": ["a\nnameserver 1.1.1.1"] })).contains("is not one word"));
}

#[test]
fn limits_are_read_and_bounded() {
    let spec = decode(json!({
        "ulimit": [{ "nofile": "1024:2048", "NPROC": 64, "core": "-1", "memlock": "0:-1" }],
        "sysctl": [{ "net.core.somaxconn": "1024", "kernel/shm_rmid_forced": 1, "fs.mqueue.msg_max": "20" }],
        "cpu_hard_limit": true,
    }));
    let limit = |soft, hard| Rlimit { soft, hard };
    assert_eq!(
        spec.rlimits,
        BTreeMap::from([
            ("nofile".into(), limit(1024, 2048)),
            ("nproc".into(), limit(64, 64)),
            ("core".into(), limit(u64::MAX, u64::MAX)),
            ("memlock".into(), limit(0, u64::MAX)),
        ])
    );
    let names: Vec<&String> = spec.sysctl.keys().collect();
    assert_eq!(names, ["fs.mqueue.msg_max", "kernel.shm_rmid_forced", "net.core.somaxconn"]);
    assert_eq!(spec.cpu_hard_limit, Some(100_000));
    assert_eq!(decode(json!({ "cpu_cfs_period": 5 })).cpu_hard_limit, None);

    for (limits, expected) in [
        (json!([{ "files": "1" }]), "\"files\" is no resource limit (use one of as, core"),
        (json!([{ "nofile": "x" }]), "nofile = \"x\" is not a limit"),
        (json!([{ "nofile": "-2" }]), "nofile = \"-2\" is not a limit"),
        (json!([{ "nofile": "" }]), "nofile = \"\" is not a limit"),
        (json!([{ "nofile": "2:1" }]), "nofile = \"2:1\": the soft limit is above the hard one"),
    ] {
        let text = error(json!({ "ulimit": limits }));
        assert!(text.starts_with(&format!("ulimit: {expected}")), "{text}");
    }
    for name in ["vm.swappiness", "kernel.hostname", "kernel.panic", "fs.file-max"] {
        assert!(error(json!({ "sysctl": { name: "1" } })).contains("not a parameter of the container's own"), "{name}");
    }
    for name in ["net", "net..x", "net/../kernel/panic", "net.a/b", "/net.x", "net.x ", "net.ä"] {
        assert!(error(json!({ "sysctl": { name: "1" } })).contains("is not a kernel parameter"), "{name}");
    }
}

#[test]
fn the_operator_bounds_the_number_of_processes() {
    let bounded = policy(json!({ "pids_limit": 100 }));
    let free = Policy::default();
    let limit = |block, policy| decode_with(block, policy).unwrap().pids_limit;
    assert_eq!(limit(json!({}), &free), None);
    assert_eq!(limit(json!({ "pids_limit": -1 }), &free), None);
    assert_eq!(limit(json!({ "pids_limit": 7 }), &free), Some(7));
    assert_eq!(limit(json!({}), &bounded), Some(100));
    assert_eq!(limit(json!({ "pids_limit": 0 }), &bounded), Some(100));
    assert_eq!(limit(json!({ "pids_limit": 7 }), &bounded), Some(7));
    assert_eq!(
        error_with(json!({ "pids_limit": 101 }), &bounded),
        "pids_limit: 101 is more than the 100 that this node allows (use up to 100)"
    );
}

#[test]
fn a_runtime_is_named_if_it_is_known_and_allowed() {
    let allowed = policy(json!({ "allow_runtimes": ["crun", "kata"] }));
    assert!(decode_with(json!({ "runtime": "crun" }), &allowed).is_ok());
    let refused = |runtime: &str, policy: &Policy| error_with(json!({ "runtime": runtime }), policy);
    assert!(refused("runc", &allowed).starts_with("runtime: \"runc\" is not allowed on this node"));
    assert!(refused("crun", &Policy::default()).contains("have the operator add it to `allow_runtimes`"));
    assert!(refused("runsc", &allowed).starts_with("runtime: \"runsc\" is not allowed on this node"));
    assert!(refused("sysbox", &allowed).contains("name its executable in the plugin block: `runtime \"sysbox\""));
    let chosen = |policy: &Policy, name: &str| decode_with(json!({ "runtime": name }), policy).unwrap().runtime;
    assert_eq!(chosen(&allowed, "crun"), None, "the built-in one");
    assert_eq!(chosen(&allowed, "kata").map(|request| request.program), Some("kata-runtime".into()));
    let own = policy(json!({ "allow_runtimes": ["crun"], "runtime": { "crun": { "path": "/opt/crun" } } }));
    assert_eq!(chosen(&own, "crun").map(|request| request.program), Some("/opt/crun".into()));
}

#[test]
fn logging_is_nomads() {
    for (logging, discarded) in [
        (json!({ "type": "json-file", "config": [{ "max-size": "1m" }] }), false),
        (json!({ "driver": "local" }), false),
        (json!({ "config": [{ "a": "b" }] }), false),
        (json!({ "type": "none" }), true),
    ] {
        assert_eq!(decode(json!({ "logging": logging })).discard_output, discarded, "{logging}");
    }
    let operator = policy(json!({ "logging": { "type": "none" } }));
    let under = |block: Json| decode_with(block, &operator).unwrap().discard_output;
    assert!(under(json!({})), "the operator's log driver is the default");
    assert!(!under(json!({ "logging": { "type": "json-file" } })));
    assert!(!under(json!({ "logging": { "config": [{ "max-size": "1m" }] } })), "docker's default with options");
    let uncollected = policy(json!({ "disable_log_collection": true }));
    assert!(decode_with(json!({ "logging": { "type": "local" } }), &uncollected).unwrap().discard_output);
    assert!(
        error(json!({ "logging": { "driver": "splunk" } })).starts_with("logging.driver: \"splunk\" is not supported")
    );
}

#[test]
fn a_log_driver_may_deliver_the_output_besides() {
    let logging = json!({ "logging": { "type": "syslog", "config": [{ "syslog-address": "udp://10.0.0.1" }] } });
    let spec = decode(logging.clone());
    assert!(spec.delivery.is_some() && !spec.discard_output);
    let operator = policy(logging);
    assert_eq!(decode_with(json!({}), &operator).unwrap().delivery, spec.delivery, "the operator's is the default");
    assert_eq!(decode_with(json!({ "logging": { "type": "local" } }), &operator).unwrap().delivery, None);
    for (config, expected) in [
        (json!({ "syslog-address": "10.0.0.1" }), "logging.config.syslog-address: \"10.0.0.1\" is no address"),
        (json!({ "gelf-address": "x" }), "logging.config.gelf-address: is no option of the log driver syslog"),
    ] {
        let text = error(json!({ "logging": { "type": "syslog", "config": [config] } }));
        assert!(text.starts_with(expected), "{text}");
    }
    let uncollected = policy(json!({ "disable_log_collection": true }));
    let spec = decode_with(json!({ "logging": { "type": "syslog" } }), &uncollected).unwrap();
    assert!(spec.delivery.is_some() && spec.discard_output);
}
