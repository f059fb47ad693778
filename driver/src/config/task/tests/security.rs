//! Options that need the operator's permission.

use super::{
    super::{AppArmorChoice, IpcMode, NamespaceRequest, SeccompChoice},
    *,
};

#[test]
fn privileges_need_permission() {
    let text = error(json!({ "privileged": true }));
    assert!(text.starts_with("privileged: is not allowed on this node (remove it"), "{text}");
    assert!(
        decode_with(json!({ "privileged": true }), &policy(json!({ "allow_privileged": true }))).unwrap().privileged
    );

    let text = error(json!({ "cap_add": ["chown", "net_admin", "CAP_SYS_TIME"] }));
    assert!(text.starts_with("cap_add: this node does not allow CAP_NET_ADMIN, CAP_SYS_TIME (remove it"), "{text}");
    assert!(error(json!({ "cap_add": ["all"] })).starts_with("cap_add: this node does not allow \"all\""));
    assert!(error(json!({ "cap_add": ["fly"] })).starts_with("cap_add: \"fly\" is no capability"));
    assert!(error(json!({ "cap_drop": ["fly"] })).starts_with("cap_drop: \"fly\" is no capability"));

    let allowed = policy(json!({ "allow_caps": ["all"] }));
    let spec = decode_with(json!({ "cap_add": ["NET_ADMIN"], "cap_drop": ["ALL"] }), &allowed).unwrap();
    assert_eq!(spec.capabilities.granted, ["CAP_NET_ADMIN"].into());
    assert_eq!(spec.capabilities.requested, ["CAP_NET_ADMIN"].into());
}

#[test]
fn log_drivers_and_their_files_need_permission() {
    let refusal = |driver: &str, config: Json, plugin: Json, rules: DriverName| {
        let plugin = decode_plugin(&from_json(&plugin), rules).unwrap();
        let block = json!({ "logging": { "type": driver, "config": [config] } });
        decode_with(block, &plugin.policy).err().unwrap_or_default()
    };
    let unix = |path: &str| json!({ "syslog-address": format!("unix://{path}") });
    let journal = json!({ "journald-socket": "/run/systemd/notify" });
    let tls = json!({ "syslog-address": "tcp+tls://h:1", "syslog-tls-cert": "/etc/c", "syslog-tls-key": "/etc/k" });
    let (own, docker) = (DriverName::OciRs, DriverName::Docker);
    for (driver, config, plugin, rules, expected) in [
        ("syslog", json!({}), json!({}), own, ""),
        ("syslog", unix("/dev/log"), json!({}), own, ""),
        ("journald", json!({}), json!({}), own, ""),
        ("syslog", unix("/run/docker.sock"), json!({}), own, "logging.config.syslog-address: \"/run/docker"),
        ("syslog", unix("/run/docker.sock"), json!({}), docker, ""),
        ("syslog", unix("/run/a/s"), json!({ "allow_log_paths": ["/run/a/*"] }), own, ""),
        ("syslog", unix("/run/a/../s"), json!({ "allow_log_paths": ["/run/a/*"] }), own, "has `..`"),
        ("syslog", unix("/dev/log"), json!({ "allow_log_paths": [] }), docker, "to `allow_log_paths` in the plugin"),
        ("syslog", tls.clone(), json!({}), own, "logging.config.syslog-tls-key: \"/etc/k\" is not allowed"),
        ("syslog", tls, json!({}), docker, ""),
        ("fluentd", json!({ "fluentd-address": "unix:///run/f" }), json!({}), own, "logging.config.fluentd-address: "),
        // With docker, no job can choose this socket.
        ("journald", journal.clone(), json!({}), own, "logging.config.journald-socket: \"/run/sy"),
        ("journald", journal.clone(), json!({}), docker, "is not allowed on this node"),
        ("journald", journal, json!({ "allow_log_paths": ["*"] }), docker, ""),
        ("syslog", json!({}), json!({ "allow_log_drivers": ["journald"] }), docker, "driver \"syslog\" is not"),
        ("journald", json!({}), json!({ "allow_log_drivers": ["journald"] }), own, ""),
        ("local", json!({}), json!({ "allow_log_drivers": [] }), own, ""),
    ] {
        let text = refusal(driver, config, plugin.clone(), rules);
        let fits = if expected.is_empty() { text.is_empty() } else { text.contains(expected) };
        assert!(fits, "{driver} under {plugin}: {text}");
    }
    // The operator's own choice needs no permission.
    let logging = json!({ "type": "syslog", "config": unix("/run/s") });
    let operators = policy(json!({ "logging": logging, "allow_log_drivers": [], "allow_log_paths": [] }));
    assert!(decode_with(json!({}), &operators).unwrap().delivery.is_some());
}

#[test]
fn a_negative_oom_score_needs_permission() {
    let score = |score: i32, plugin: Json| {
        let policy = policy(plugin);
        decode_with(json!({ "oom_score_adj": score }), &policy).map(|spec| spec.oom_score_adj)
    };
    for (wanted, plugin, allowed) in [
        (0, json!({}), true),
        (1000, json!({}), true),
        (-1, json!({}), false),
        (-1000, json!({ "allow_privileged": true }), false),
        (-500, json!({ "min_oom_score_adj": -500 }), true),
        (-501, json!({ "min_oom_score_adj": -500 }), false),
    ] {
        assert_eq!(score(wanted, plugin.clone()).ok(), allowed.then_some(wanted), "{wanted} {plugin}");
    }
    let text = error(json!({ "oom_score_adj": -1000 }));
    assert!(text.starts_with("oom_score_adj: -1000 is below 0, the lowest value that this node allows"), "{text}");
    assert!(text.contains("min_oom_score_adj = -1000"), "{text}");
}

#[test]
fn security_options_that_weaken_nothing_need_no_permission() {
    for (options, expected) in [
        (json!(["no-new-privileges"]), Some(true)),
        (json!(["no-new-privileges=true"]), Some(true)),
        (json!(["no-new-privileges:true"]), Some(true)),
        (json!(["no-new-privileges=false"]), Some(false)),
        (json!(["no-new-privileges:false"]), Some(false)),
        (json!(["apparmor=unconfined", "label=disable", "label:disable"]), None),
    ] {
        assert_eq!(decode(json!({ "security_opt": options })).security.no_new_privileges, expected, "{options}");
    }
    for (option, expected) in
        [("apparmor=unconfined", AppArmorChoice::Unconfined), ("apparmor:docker-default", AppArmorChoice::Default)]
    {
        assert_eq!(decode(json!({ "security_opt": [option] })).security.apparmor, Some(expected));
    }
    let options = ["disable", "user:u", "role:r", "type:web_t", "level:s0:c1,c2", "filetype:web_file_t"];
    let labels = decode(json!({ "security_opt": options.map(|option| format!("label={option}")) })).security.labels;
    assert_eq!(labels.iter().map(ToString::to_string).collect::<Vec<_>>(), options);
    let builtin = decode(json!({ "security_opt": ["seccomp=builtin"] })).security;
    assert_eq!((builtin.seccomp, builtin.apparmor), (Some(SeccompChoice::Builtin), None));
    for (option, expected) in [
        ("seccomp=etc/x.json", "\"etc/x.json\" is no path of a seccomp profile (write the absolute path"),
        ("seccomp=/etc/../x.json", "\"/etc/../x.json\" is no path of a seccomp profile"),
        ("seccomp", "\"\" is no path of a seccomp profile"),
        ("label=web_t", "\"web_t\" is no option of SELinux labels (write `disable`"),
        ("label=type:web t", "\"type:web t\" is no option of SELinux labels"),
        ("label=type:a:b", "\"type:a:b\" is no option of SELinux labels"),
        ("apparmor=two words", "\"apparmor=two words\" is not supported"),
        ("no-new-privileges=maybe", "\"no-new-privileges=maybe\" is not supported (use `no-new-privileges=…`"),
        ("systempaths=unconfined", "\"systempaths=unconfined\" is not supported"),
    ] {
        let text = error(json!({ "security_opt": [option] }));
        assert!(text.starts_with(&format!("security_opt: {expected}")), "{text}");
    }
}

#[test]
fn security_options_that_weaken_something_need_permission() {
    let file = SeccompChoice::File("/etc/seccomp/web.json".into());
    let cases = [
        ("seccomp=unconfined", Some(SeccompChoice::Unconfined), None),
        ("seccomp:/etc/seccomp/web.json", Some(file), None),
        ("apparmor=web-1", None, Some(AppArmorChoice::Profile("web-1".to_owned()))),
    ];
    let lists = [json!(["seccomp=unconfined"]), json!(["seccomp=/etc/seccomp/*"]), json!(["apparmor=web-*"])];
    for (position, (option, seccomp, apparmor)) in cases.iter().enumerate() {
        let block = json!({ "security_opt": [option] });
        let canonical = option.replacen(':', "=", 1);
        let expected = format!(
            "security_opt: {canonical:?} is not allowed on this node (remove it, or have the operator set \
             `allow_security_opts = [{canonical:?}]`"
        );
        assert!(error(block.clone()).starts_with(&expected), "{option}");
        for (index, list) in lists.iter().enumerate() {
            let policy = policy(json!({ "allow_security_opts": list }));
            match decode_with(block.clone(), &policy) {
                Ok(spec) if index == position => {
                    assert_eq!((&spec.security.seccomp, &spec.security.apparmor), (seccomp, apparmor));
                }
                Err(_) if index != position => {}
                other => panic!("{option} with {list}: {other:?}"),
            }
        }
        decode_with(block, &policy(json!({ "allow_privileged": true }))).unwrap();
    }
    // The operator's list replaces the default, which allows this value.
    let text = error_with(
        json!({ "security_opt": ["no-new-privileges=false"] }),
        &policy(json!({ "allow_security_opts": ["seccomp=*"] })),
    );
    assert!(text.starts_with("security_opt: \"no-new-privileges=false\" is not allowed"), "{text}");
}

#[test]
fn namespaces_of_the_host_need_permission() {
    let host = |option: &str| json!({ option: "host" });
    for (option, kind) in [("pid_mode", "pid"), ("ipc_mode", "ipc"), ("uts_mode", "uts")] {
        let text = error(host(option));
        assert!(text.starts_with(&format!("{option}: \"host\" is not allowed on this node (remove it")), "{text}");
        assert!(text.contains(&format!("`allowed_modes {{ {kind} = [\"host\"] }}`")), "{text}");
        for other in ["pid", "ipc", "uts"] {
            let policy = policy(json!({ "allowed_modes": { other: ["ho*"] } }));
            assert_eq!(decode_with(host(option), &policy).is_ok(), other == kind, "{option} {other}");
        }
        decode_with(host(option), &policy(json!({ "allow_privileged": true }))).unwrap();
        for private in ["", "private"] {
            assert_eq!(decode(json!({ option: private })).namespaces, NamespaceRequest::default());
        }
    }
    let all = policy(json!({ "allowed_modes": [{ "pid": ["*"], "ipc": ["*"], "uts": ["*"], "userns": ["*"] }] }));
    let spec = decode_with(json!({ "pid_mode": "host", "ipc_mode": "host", "uts_mode": "host" }), &all).unwrap();
    let expected =
        NamespaceRequest { host_pid: true, ipc: IpcMode::Host, host_uts: true, ..NamespaceRequest::default() };
    assert_eq!(spec.namespaces, expected);
    assert_eq!(decode(json!({ "ipc_mode": "none" })).namespaces.ipc, IpcMode::None);
    let text = error_with(json!({ "uts_mode": "host", "hostname": "web" }), &all);
    assert!(text.starts_with("hostname: cannot be set together with `uts_mode = \"host\"`"), "{text}");
}

#[test]
fn the_nodes_user_namespace_needs_permission_where_tasks_have_their_own() {
    let host = || json!({ "userns_mode": "host" });
    let off = policy(json!({ "userns": { "mode": "off" } }));
    let without = decode_with(host(), &off).unwrap();
    assert!(without.namespaces.host_user, "without user namespaces it is what every task gets");
    error_with(host(), &policy(json!({})));
    for mode in ["auto", "require"] {
        let text = error_with(host(), &policy(json!({ "userns": { "mode": mode } })));
        assert!(text.starts_with("userns_mode: \"host\" is not allowed on this node (remove it"), "{text}");
        let allowed = policy(json!({ "userns": { "mode": mode }, "allowed_modes": { "userns": ["host"] } }));
        assert!(decode_with(host(), &allowed).unwrap().namespaces.host_user);
        assert!(!decode_with(json!({}), &allowed).unwrap().namespaces.host_user);
    }
}

#[test]
fn an_operator_can_enforce_private_cgroup_namespaces() {
    let private = policy(json!({ "allowed_modes": { "cgroupns": ["private"] } }));
    assert!(decode_with(json!({}), &private).unwrap().namespaces.private_cgroup);
    let text = error_with(json!({ "cgroupns": "host" }), &private);
    assert!(text.starts_with("cgroupns: \"host\" is not allowed on this node"), "{text}");
    assert!(!decode(json!({ "cgroupns": "host" })).namespaces.private_cgroup);
}
