//! Command, environment, user, working directory, stop signal and labels, each from job and image.

use super::*;

#[test]
fn the_command_line_follows_dockers_rules() {
    for (block, expected) in [
        (json!({ "command": "run" }), "/entry run"),
        (json!({ "command": "run", "args": ["x"] }), "/entry run x"),
        (json!({ "args": ["x"] }), "/entry x"),
        (json!({ "entrypoint": ["/own"] }), "/own"),
        (json!({ "entrypoint": ["/own"], "args": ["x"] }), "/own x"),
        (json!({ "entrypoint": ["/own", "a"], "command": "run" }), "/own a run"),
        (json!({ "entrypoint": [] }), "serve -v"),
        (json!({ "entrypoint": [""], "command": "run" }), "run"),
    ] {
        assert_eq!(Case::new(block.clone()).container().args.join(" "), expected, "{block}");
    }
    for (block, cmd) in
        [(json!({ "entrypoint": [""] }), Some(vec!["x".to_owned()])), (json!({ "entrypoint": [] }), None)]
    {
        let mut case = Case::new(block);
        case.image.config.cmd = cmd;
        assert!(case.error().starts_with("command: is missing"), "{}", case.error());
    }
}

#[test]
fn later_sources_override_earlier_variables() {
    let mut case = Case::new(json!({ "tty": true, "hostname": "h" }));
    case.image.config.env =
        vec![("A".into(), "image".into()), ("B".into(), "image".into()), ("A".into(), "again".into())];
    case.task.env = BTreeMap::from([("B".into(), "task".into()), ("TERM".into(), "dumb".into())]);
    let pairs = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOSTNAME", "h"),
        ("TERM", "dumb"),
        ("A", "again"),
        ("B", "task"),
    ];
    let expected: Vec<_> = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    assert_eq!(case.container().env, expected);

    case.image.config.env.push(("PATH".into(), "/bin".into()));
    assert_eq!(case.container().env[0].1, "/bin");
    case.task.env.insert("BAD".into(), "a\0b".into());
    assert!(case.error().starts_with("env: \"BAD\" is not a variable"));
}

#[test]
fn user_working_directory_and_stop_signal_have_an_order_of_sources() {
    let mut case = Case::new(json!({ "work_dir": "/own/./x/.." }));
    case.task.user = "1000:100".into();
    case.image.config.stop_signal = Some("SIGNONSENSE".into());
    let plan = case.plan().unwrap();
    assert_eq!((plan.container.user.as_str(), plan.container.cwd.as_str()), ("1000:100", "/own"));
    assert_eq!(plan.stop_signal, libc::SIGTERM);
    let mut case = Case::new(json!({}));
    case.image.config.working_dir = "rel".into();
    assert_eq!(case.container().cwd, "/rel");
    case.image.config.working_dir = String::new();
    assert_eq!(case.container().cwd, "/");
}

#[test]
fn labels_become_annotations() {
    let mut case = Case::under(json!({ "extra_labels": ["job*", "node_id"] }), json!({ "labels": { "from": "task" } }));
    case.task.env.insert("NOMAD_JOB_PARENT_ID".into(), "parent".into());
    let annotations = case.container().annotations;
    let expected = [
        ("com.hashicorp.nomad.alloc_id", ALLOC),
        ("com.hashicorp.nomad.job_id", "shop"),
        ("com.hashicorp.nomad.job_name", "shop"),
        ("from", "task"),
    ];
    assert_eq!(annotations.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>(), expected);
    case.policy.extra_labels = vec!["parent_job_id".into()];
    assert_eq!(case.container().annotations["com.hashicorp.nomad.parent_job_id"], "parent");
}

/// CVE-2024-3154, CVE-2026-53488: programs on the host act upon annotations, so an image must not set them.
#[test]
fn only_descriptive_labels_of_an_image_are_kept() {
    let mut case = Case::new(json!({ "labels": { "run.oci.handler": "the job's own word" } }));
    for name in [
        "org.systemd.property.ExecStartPre",
        "run.oci.handler",
        "run.oci.hooks.stderr",
        "io.kubernetes.cri-o.userns-mode",
        "com.hashicorp.nomad.alloc_id",
        "org.opencontainers.imageX",
        "org.opencontainers.image.title",
    ] {
        case.image.config.labels.insert(name.into(), "the image's".into());
    }
    let expected = [
        ("com.hashicorp.nomad.alloc_id", ALLOC),
        ("org.opencontainers.image.title", "the image's"),
        ("run.oci.handler", "the job's own word"),
    ];
    let annotations = case.container().annotations;
    assert_eq!(annotations.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>(), expected);
}

#[test]
fn a_log_driver_gets_what_docker_would_say_of_the_container() {
    let config = json!({ "syslog-address": "udp://10.0.0.1", "syslog-format": "rfc5424",
        "tag": "{{.Name}}|{{.ImageName}}|{{.ImageFullID}}|{{.Command}}|{{.Hostname}}", "labels": "team" });
    let logging = json!({ "logging": { "type": "syslog", "config": [config] } });
    let container = Case::new(logging).container();
    let delivery = serde_json::to_value(container.delivery).unwrap();
    let tag = format!("web-{ALLOC}|nginx|sha256:00|/entry serve -v|node-1");
    let syslog = &delivery["destination"]["syslog"];
    assert_eq!((&syslog["tag"], &syslog["hostname"]), (&json!(tag), &json!("node-1")));
    assert_eq!(container.output.stdout, PathBuf::from("/nomad/out.fifo"), "Nomad collects it too");
    assert_eq!(Case::new(json!({})).container().delivery, None);
    let wrong = json!({ "logging": { "type": "syslog", "config": [{ "tag": "{{index .ContainerArgs 9}}" }] } });
    assert!(Case::new(wrong).error().starts_with("logging.config.tag: takes an item that a list does not have"));
}
