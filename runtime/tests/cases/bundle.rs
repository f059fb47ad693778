//! The bundle in the state directory, run by another OCI runtime.

use std::{fs, process::Command};

use runtime::plan::Seccomp;
use serde_json::{Value as Json, json};

use crate::common::{Node, eventually, schema};

pub const CASES: &[(&str, fn())] = &[("bundle_is_complete", is_complete), ("bundle_runs_under_runc", runs_under_runc)];

fn config(node: &Node, id: &str) -> Json {
    let path = node.directory.path().join("state/tasks").join(id).join("bundle/config.json");
    serde_json::from_slice(&fs::read(path).expect("a bundle")).expect("JSON")
}

/// What the runtime specification's schema requires of the parts that we use.
fn is_complete() {
    let node = Node::new();
    let container = node.start(node.plan("sleep 100"));
    let config = config(&node, container.id().as_str());
    schema::assert_valid(&config);
    for pointer in [
        "/ociVersion",
        "/root/path",
        "/process/cwd",
        "/process/args/0",
        "/process/user/uid",
        "/process/user/gid",
        "/hostname",
        "/mounts/0/destination",
        "/linux/namespaces/0/type",
        "/linux/seccomp/defaultAction",
        "/linux/seccomp/architectures/0",
        "/linux/cgroupsPath",
    ] {
        assert!(config.pointer(pointer).is_some() || pointer == "/hostname", "{pointer} is missing");
    }
    let seccomp = &config["linux"]["seccomp"];
    assert_eq!((&seccomp["defaultAction"], &seccomp["defaultErrnoRet"]), (&json!("SCMP_ACT_ERRNO"), &json!(1)));
    let calls = seccomp["syscalls"].as_array().expect("calls");
    let about = |name: &str| -> Vec<&Json> {
        calls.iter().filter(|call| call["names"].as_array().is_some_and(|names| names.contains(&json!(name)))).collect()
    };
    assert_eq!(about("read")[0]["action"], "SCMP_ACT_ALLOW");
    assert!(about("mount").is_empty(), "not allowed");
    assert_eq!(
        (&about("clone3")[0]["action"], &about("clone3")[0]["errnoRet"]),
        (&json!("SCMP_ACT_ERRNO"), &json!(38))
    );
    let clone = json!([{"index": 0, "value": 0x7e02_0000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]);
    assert_eq!(about("clone")[0]["args"], clone);
    let families: Vec<u64> = about("socket").iter().filter_map(|call| call["args"][0]["valueTwo"].as_u64()).collect();
    assert!(families.contains(&1) && families.contains(&16) && !families.contains(&38) && !families.contains(&40));
    assert!(calls.iter().all(|call| call["names"].as_array().is_some_and(|names| !names.is_empty())));

    let mut plan = node.plan("sleep 100");
    plan.security.seccomp = Seccomp::Unconfined;
    let container = node.start(plan);
    assert_eq!(self::config(&node, container.id().as_str())["linux"].get("seccomp"), None);
}

fn runs_under_runc() {
    if Command::new("runc").arg("--version").output().is_err() {
        return fixtures::program::missing("runc");
    }
    let node = Node::new();
    let script = "grep -E 'Seccomp:|NoNewPrivs|CapBnd|CapEff' /proc/self/status; \
                  unshare -m true 2>/dev/null || echo refused; id -u; pwd; hostname";
    let mut plan = node.plan(&format!("{script}; sleep 100"));
    // The other runtime does not map the ids of its root.
    plan.user_namespace = None;
    plan.cwd = "/home/web".to_owned();
    plan.hostname = Some("bundled".to_owned());
    plan.user = "web".to_owned();
    plan.files = vec![("/etc/hosts".to_owned(), "127.0.0.1 localhost\n".to_owned())];
    let mut ours = plan.clone();
    ours.id = format!("{}-ours", plan.id).parse().expect("an id");
    ours.args[2] = script.to_owned();
    let (_, ours, err) = node.run(ours);
    assert!(ours.contains("Seccomp:\t2") && ours.contains("refused"), "{ours} {err}");

    // The other runtime runs while the container runs: the bundle names its files. Only its processes see its root.
    let container = node.start(plan);
    let id = format!("oci-rs-runc-{}-{}", std::process::id(), container.id());
    let mut config = config(&node, container.id().as_str());
    config["process"]["args"][2] = json!(script);
    config["linux"]["cgroupsPath"] = json!(format!("/oci-rs-test/{id}"));
    let bundle = node.directory.path().join("runc");
    fs::create_dir_all(bundle.join("root")).expect("a directory");
    let copied =
        Command::new("cp").arg("-a").arg(node.directory.path().join("layer/.")).arg(bundle.join("root")).status();
    assert!(copied.expect("cp").success());
    config["root"]["path"] = json!("root");
    fs::write(bundle.join("config.json"), config.to_string()).expect("written");
    let run = |args: &[&str]| {
        let state = node.directory.path().join("runc-state");
        Command::new("runc").arg("--root").arg(state).args(args).arg(&id).output().expect("runc")
    };
    let output = run(&["run", "--bundle", bundle.to_str().expect("text")]);
    let theirs = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    drop(run(&["delete", "--force"]));
    eventually("the end of runc's groups", || crate::common::control_groups(&format!("/oci-rs-test/{id}")).is_empty());
    assert_eq!(theirs, ours, "{error}");
}
