//! Hooks of CDI devices: their stages, namespaces, failures and deadlines.

use std::{fs, time::Instant};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::node::Node;
use rustix::{
    io::Errno,
    process::{Pid, test_kill_process_group},
};
use serde_json::{Value as Json, json};

use crate::cdi::{IDLE, Specs, hook_program, refusal};

fn log(node: &Node) -> String {
    fs::read_to_string(node.root().join("log")).unwrap_or_default()
}

/// A spec with one device, `vendor.test/class=one`, that has these hooks.
fn write_hooks(specs: &Specs, hooks: &Json) {
    specs.write("hooks.json", "vendor.test/class", &json!({"one": {"env": ["A=b"], "hooks": hooks}}), &json!({}));
}

#[tokio::test]
async fn each_hook_runs_at_its_stage_in_its_namespaces() {
    let node = Node::new();
    let specs = Specs::of(&node);
    // What NVIDIA's hooks do: links in the container's root, and mounts there.
    let change = r#"[ "$1" = createContainer ] || exit 0
ln -s /proc/version "$root/linked" && mkdir -p "$root/mounted" && mount -t tmpfs from-the-hook "$root/mounted" || exit 9
hostname > "$root/name""#;
    let program = hook_program(&node, "hook", change);
    let hook = |stage: &str| json!({"hookName": stage, "path": program, "args": ["hook", stage]});
    let inside = json!({
        "hookName": "startContainer", "path": "/bin/sh", "env": ["MARK=7"],
        "args": ["sh", "-c", "echo $MARK $(id -u) $(sed 's/.*\"status\":\"\\([a-z]*\\).*/\\1/') > /tmp/started"],
    });
    let stages = ["createContainer", "poststop", "createRuntime", "poststart", "prestart"];
    let mut hooks: Vec<Json> = stages.iter().map(|stage| hook(stage)).collect();
    hooks.push(inside);
    write_hooks(&specs, &json!(hooks));
    let mut plugin = node.launch_with(specs.options()).await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh(IDLE)
        .option("hostname", json!("inside"))
        .option("devices", json!([{"cdi": "vendor.test/class=one"}]))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    let before = "prestart creating node\ncreateRuntime creating node\ncreateContainer creating container\n\
                  poststart running node\n";
    assert_eq!(log(&node), before);
    let script = "readlink /linked; cat /name /tmp/started; grep -c ' /mounted .* from-the-hook ' /proc/self/mountinfo";
    assert_eq!(plugin.sh(&task, script).await, "/proc/version\ninside\n7 0 created\n1");
    plugin.end(&task).await;
    assert_eq!(log(&node), format!("{before}poststop stopped node\n"));
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_hook_that_fails_or_hangs_fails_the_start() {
    let node = Node::new();
    let specs = Specs::of(&node);
    let failing = hook_program(&node, "failing", "echo the cause >&2; exit 3");
    let hanging = hook_program(&node, "hanging", "echo stuck; exec sleep 1000");
    let succeeding = hook_program(&node, "succeeding", "");
    let mut plugin = node.launch_with(specs.options()).await;
    let images = Images::start().await;
    let device = json!([{"cdi": "vendor.test/class=one"}]);
    for stage in ["prestart", "createRuntime", "createContainer", "poststart"] {
        for (program, timeout, problem) in [
            (&failing, 1000, "ended with exit code 3: the cause"),
            (&hanging, 1, "did not end within 1 s and was killed: stuck"),
        ] {
            let last = json!({"hookName": "poststop", "path": succeeding, "args": ["s", "poststop"]});
            let hook = json!({"hookName": stage, "path": program, "args": ["h", stage], "timeout": timeout});
            write_hooks(&specs, &json!([hook, last]));
            let text = refusal(&node, &mut plugin, &images, device.clone()).await;
            let expected = format!("hook {stage} {program:?} of a device's spec: {problem}");
            assert!(text.contains(&expected), "{text}\nis not: {expected}");
            assert!(log(&node).ends_with("poststop stopped node\n"), "{}", log(&node));
        }
    }
    for (hook, problem) in [
        (
            json!({"hookName": "startContainer", "path": "/no/such"}),
            "hook startContainer \"/no/such\" of a device's spec",
        ),
        (json!({"hookName": "createContainer", "path": "/no/such"}), "cannot be executed: No such file"),
        (
            json!({"hookName": "startContainer", "path": "/bin/sh", "args": ["sh", "-c", "echo no >&2; exit 4"]}),
            "ended with exit code 4: no",
        ),
    ] {
        write_hooks(&specs, &json!([hook]));
        let text = refusal(&node, &mut plugin, &images, device.clone()).await;
        assert!(text.contains(problem), "{text}\nis not: {problem}");
    }
    let warning = "a hook after the container's end failed";
    let warned = plugin.process.stderr.so_far();
    assert!(!warned.iter().any(|line| line.contains(warning)), "the last hooks succeeded: {warned:?}");
    // The end of a task does not depend on its last hooks.
    write_hooks(&specs, &json!([{"hookName": "poststop", "path": failing, "args": ["h", "last"]}]));
    let task = node.task(&images.busybox()).sh(IDLE).option("devices", device).build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.end(&task).await;
    assert!(log(&node).ends_with("last stopped node\n"), "{}", log(&node));
    plugin.process.stderr.find(seconds(10), "the warning", |line| line.contains(warning)).await;
    node.finish(plugin).await;
}

/// The hooks that come after the container was made: one in the container, and one after its end.
#[tokio::test]
async fn a_hanging_hook_in_the_container_or_after_its_end_is_killed_at_its_deadline() {
    let node = Node::new();
    let specs = Specs::of(&node);
    let mut plugin = node.launch_with(specs.options()).await;
    let images = Images::start().await;
    let task = |name: &str| {
        let device = json!([{"cdi": "vendor.test/class=one"}]);
        node.task(&images.busybox()).name(name).sh(IDLE).option("devices", device)
    };
    let script = "echo stuck; sleep 1000 & sleep 1000";
    write_hooks(
        &specs,
        &json!([{"hookName": "startContainer", "path": "/bin/sh", "args": ["sh", "-c", script], "timeout": 1}]),
    );
    let refused = task("refused").build(&mut plugin).await;
    let text = plugin.start(&refused).await.err().must("a refusal").message().to_owned();
    let problem = "did not end within 1 s and was killed: stuck";
    let expected = format!("hook startContainer \"/bin/sh\" of a device's spec: {problem}");
    assert!(text.contains(&expected), "{text}\nis not: {expected}");
    assert_eq!(refused.groups.members(), Vec::<i32>::new());

    let pid = node.root().join("pid");
    let hanging = hook_program(&node, "hanging", &format!("echo $$ > {}; {script}", pid.display()));
    let last = json!({"hookName": "poststop", "path": hanging, "args": ["h", "last"], "timeout": 1});
    let next = json!({"hookName": "poststop", "path": hook_program(&node, "next", ""), "args": ["n", "next"]});
    write_hooks(&specs, &json!([last, next]));
    let ended = task("ended").build(&mut plugin).await;
    plugin.started(&ended).await;
    let begin = Instant::now();
    plugin.end(&ended).await;
    assert!(begin.elapsed() >= seconds(1));
    // The next hook runs too.
    assert_eq!(log(&node), "last stopped node\nnext stopped node\n");
    // Its process group ended with it.
    let group = fs::read_to_string(pid).must("the hook's process").trim().parse().must("a number");
    let group = Pid::from_raw(group).must("a process group");
    assert!(eventually(seconds(10), || test_kill_process_group(group) == Err(Errno::SRCH)).await);
    let warning = format!("hook poststop {hanging:?} of a device's spec: {problem}");
    let is_told = |line: &str| line.contains("a hook after the container's end failed") && line.contains(problem);
    plugin.process.stderr.find(seconds(10), &warning, is_told).await;
    node.finish(plugin).await;
}

/// The OCI runtime specification says in which namespaces the hooks of each stage run.
#[tokio::test]
async fn the_hooks_of_each_stage_have_the_namespaces_of_the_specification() {
    const KINDS: [&str; 4] = ["mnt", "pid", "net", "uts"];
    let node = Node::new();
    let specs = Specs::of(&node);
    let file = node.root().join("namespaces");
    let print = format!("$(for kind in {}; do readlink /proc/self/ns/$kind; done)", KINDS.join(" "));
    // Before pivot_root, a hook sees the files of the node and, in the container's namespaces, the root at its path.
    let look = "[ -e \"$root/bin/busybox\" ] && sees=root || sees=nothing";
    let more = format!("{look}\necho $1 {print} $sees >> {}", file.display());
    let program = hook_program(&node, "hook", &more);
    let stages = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
    let mut hooks = stages.map(|stage| json!({"hookName": stage, "path": program, "args": ["hook", stage]})).to_vec();
    let inside = format!("echo {print} > /namespaces");
    hooks.push(json!({"hookName": "startContainer", "path": "/bin/sh", "args": ["sh", "-c", inside]}));
    write_hooks(&specs, &json!(hooks));
    let mut plugin = node.launch_with(specs.options()).await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh(IDLE)
        .option("network_mode", json!("none"))
        .option("devices", json!([{"cdi": "vendor.test/class=one"}]))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    let namespaces = |process: &str| {
        let of = |kind| fs::read_link(format!("/proc/{process}/ns/{kind}")).must(kind).display().to_string();
        KINDS.map(of)
    };
    let (of_node, of_task) = (namespaces("self"), namespaces(&plugin.init_pid(&task).to_string()));
    assert!(of_node.iter().zip(&of_task).all(|(node, task)| node != task), "{of_node:?}, {of_task:?}");
    assert_eq!(plugin.sh(&task, "cat /namespaces").await, of_task.join(" "), "startContainer");
    plugin.end(&task).await;
    let (in_node, in_task) = (format!("{} nothing", of_node.join(" ")), format!("{} root", of_task.join(" ")));
    let expected = format!(
        "prestart {in_node}\ncreateRuntime {in_node}\ncreateContainer {in_task}\npoststart {in_node}\n\
         poststop {in_node}\n"
    );
    assert_eq!(fs::read_to_string(file).must("the namespaces"), expected);
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_plugin_that_is_killed_during_a_hook_leaves_nothing() {
    let images = Images::start().await;
    for stage in ["createRuntime", "createContainer", "poststart"] {
        let node = Node::new();
        let specs = Specs::of(&node);
        let hanging = hook_program(&node, "hanging", "sleep 1000");
        write_hooks(&specs, &json!([{"hookName": stage, "path": hanging, "args": ["h", stage], "timeout": 1000}]));
        let mut plugin = node.launch_with(specs.options()).await;
        let task = node.task(&images.busybox()).sh(IDLE).option("devices", json!([{"cdi": "vendor.test/class=one"}]));
        let task = task.build(&mut plugin).await;
        let began = eventually(seconds(30), || log(&node).lines().any(|line| line.starts_with(stage)));
        tokio::select! {
            _ = plugin.start(&task) => panic!("the hook hangs"),
            began = began => assert!(began, "{stage}: the hook begins"),
        }
        plugin.process.kill().await;
        let plugin = node.launch_with(specs.options()).await;
        // The plugin removes the container in the background.
        let members = || task.groups.members();
        assert!(eventually(seconds(30), || members().is_empty()).await, "{stage}: {:?}", members());
        node.finish(plugin).await;
    }
}

#[tokio::test]
async fn a_task_with_hooks_runs_in_the_nodes_user_namespace_and_says_so() {
    let node = Node::new();
    let specs = Specs::of(&node);
    let program = hook_program(&node, "hook", "");
    write_hooks(&specs, &json!([{"hookName": "createContainer", "path": program, "args": ["h", "createContainer"]}]));
    let mut plugin = node.launch_with(specs.options_with_userns("auto")).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).option("devices", json!([{"cdi": "vendor.test/class=one"}]));
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    let expected = format!(
        "The task runs in the node's user namespace: the hook {} of a device's spec runs with the node's ids",
        program.display()
    );
    plugin.streams.event(&expected, |event| event.task_id == task.id() && event.message == expected).await;
    plugin.end(&task).await;
    node.finish(plugin).await;
}
