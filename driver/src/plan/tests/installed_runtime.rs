//! Tasks with an OCI runtime of the node.

use runtime::plan::InstalledRuntime;

use super::*;

fn case(task: Json) -> Case {
    let plugin = json!({
        "network": { "default_mode": "host" }, "volumes": { "enabled": true, "allow_shared": true },
        "userns": { "mode": "auto" },
        "allow_runtimes": ["runsc", "runc"], "runtime": { "runsc": { "args": ["--platform=ptrace"] } },
    });
    let mut case = Case::under(plugin, task);
    case.node.runtime = Some("/usr/bin/runsc".into());
    case
}

#[test]
fn the_container_names_the_executable_that_was_found() {
    let plan = case(json!({ "runtime": "runsc" })).plan().unwrap();
    let args = vec!["--platform=ptrace".to_owned()];
    let expected = InstalledRuntime { name: "runsc".into(), path: "/usr/bin/runsc".into(), args };
    assert_eq!(plan.container.runtime, Some(expected));
    assert_eq!(plan.container.user_namespace, None);
    assert_eq!(plan.userns_obstacle.as_deref(), Some("its runtime \"runsc\" is not the built-in one"));
    assert_eq!(case(json!({ "runtime": "runc" })).container().runtime, None, "the built-in one");
}

#[test]
fn a_runtime_that_is_not_there_or_cannot_do_it_is_refused_with_a_remedy() {
    let mut missing = case(json!({ "runtime": "runsc" }));
    missing.node.runtime = None;
    let error = missing.error();
    assert!(error.starts_with("runtime: \"runsc\" is not installed on this node"), "{error}");
    assert!(error.contains("`runtime \"runsc\"`") && error.contains("`driver.oci-rs.runtimes`"), "{error}");
    let bind = json!({ "type": "bind", "source": "/srv", "target": "/srv",
        "bind_options": [{ "propagation": "rslave" }] });
    for (task, expected) in [
        (json!({ "init": true }), "init: the init process needs the built-in runtime"),
        (json!({ "mount": [bind] }), "mount: the propagation of the mount /srv needs the built-in runtime"),
    ] {
        let mut task = task.clone();
        task["runtime"] = json!("runsc");
        let error = case(task).error();
        assert!(error.starts_with(expected), "{error}");
    }
}
