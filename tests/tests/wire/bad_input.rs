//! Starts that fail: the error text, its recoverability, and the cleanup.

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::{
    calls::recoverable,
    hcl,
    node::Node,
    plugin::Plugin,
    task::{Style, Task},
};
use serde_json::json;
use tonic::{Code, Status};

/// Checks that the start fails, that the task is unknown afterwards, and that only the client's part is left on the
/// machine.
async fn refused(node: &Node, plugin: &Plugin, task: &Task) -> Status {
    let status = plugin.start(task).await.err().must("a failed start");
    assert!(!matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::Ok), "{status}");
    plugin.inspect(task.id()).await.err().must("a failed start leaves no task");
    let traces = node.traces();
    let others: Vec<_> = traces.processes.iter().filter(|(pid, _)| *pid != plugin.process.pid()).collect();
    assert!(others.is_empty() && traces.files.is_empty() && traces.mounts.is_empty(), "after {status}:\n{traces}");
    status
}

#[tokio::test]
async fn all_config_errors_are_reported_together() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .option("command", json!("  "))
        .option("image_pull_timeout", json!("soon"))
        .option("cap_add", json!(["cap_sys_magic"]))
        .option("ulimit", json!({"nofiles": "12"}))
        .option("network_mode", json!("container:other"))
        .option("extra_hosts", json!(["no-address"]))
        .option("isolation", json!("hyperv"))
        .option("volumes", json!(["/only-one-part"]))
        .option("pid_mode", json!("elsewhere"))
        .build(&mut plugin)
        .await;
    let status = refused(&node, &plugin, &task).await;
    assert!(!recoverable(&status), "{status}");
    let options = [
        "command",
        "image_pull_timeout",
        "cap_add",
        "ulimit",
        "network_mode",
        "extra_hosts",
        "isolation",
        "volumes",
        "pid_mode",
    ];
    let missing: Vec<&str> = options.into_iter().filter(|option| !status.message().contains(option)).collect();
    assert!(missing.is_empty(), "not named: {missing:?} in {}", status.message());
    node.finish(plugin).await;
}

#[tokio::test]
async fn malformed_task_configurations_are_refused() {
    let node = Node::new();
    let plugin = node.launch().await;
    let cases: [(&str, Vec<u8>); 6] = [
        ("empty", Vec::new()),
        ("not msgpack", vec![0xc1]),
        ("not a map", vec![0x93, 1, 2, 3]),
        ("cut off", vec![0x82, 0xa5, b'i', b'm']),
        ("without an image", hcl::plain(&json!({"command": "true"}))),
        ("an image that is none", hcl::plain(&json!({"image": "UPPER CASE//:"}))),
    ];
    for (what, packed) in cases {
        let task = node.task("unused").build_packed(packed);
        let status = refused(&node, &plugin, &task).await;
        assert!(!recoverable(&status), "{what}: {status}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn tasks_run_with_both_encodings_of_the_configuration() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for style in [Style::Nomad, Style::Harness] {
        let task = node
            .task(&images.busybox())
            .sh("exit 11")
            .style(style)
            .option("labels", json!([{"a": "b"}]))
            .option("cpu_cfs_period", json!(100_000))
            .build(&mut plugin)
            .await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 11, "{style:?}");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_missing_or_unusable_command_fails_the_start() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for command in ["no-such-command", "/no/such/path", "/etc/passwd", "/etc"] {
        let task = node.task(&images.busybox()).command(command, &[]).build(&mut plugin).await;
        let status = refused(&node, &plugin, &task).await;
        assert!(status.message().contains(command), "the text names the command: {status}");
        assert!(!recoverable(&status), "{status}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_image_without_a_command_needs_one_in_the_job() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.without_command()).build(&mut plugin).await;
    let status = refused(&node, &plugin, &task).await;
    assert!(status.message().contains("command"), "{status}");
    assert!(!recoverable(&status));
    node.finish(plugin).await;
}

/// An option that the plugin block does not allow is an error. The error names the plugin option that would allow it.
#[tokio::test]
async fn options_that_the_operator_does_not_allow_are_refused() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let cases = [
        ("privileged", json!(true), "allow_privileged"),
        ("cap_add", json!(["sys_admin"]), "allow_caps"),
        ("volumes", json!(["/etc:/host-etc"]), "volumes"),
        ("mount", json!([{"type": "bind", "source": "/etc", "target": "/host-etc"}]), "volumes"),
        ("pid_mode", json!("host"), "allowed_modes"),
        ("ipc_mode", json!("host"), "allowed_modes"),
        ("uts_mode", json!("host"), "allowed_modes"),
        ("security_opt", json!(["seccomp=unconfined"]), "allow_security_opts"),
        ("security_opt", json!(["seccomp=/etc/passwd"]), "allow_security_opts"),
        ("security_opt", json!(["apparmor=x"]), "allow_security_opts"),
    ];
    for (option, value, remedy) in cases {
        let task = node.task(&images.busybox()).sh("true").option(option, value).build(&mut plugin).await;
        let status = refused(&node, &plugin, &task).await;
        assert!(status.message().contains(option) && status.message().contains(remedy), "{option}: {status}");
        assert!(!recoverable(&status), "{status}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_mount_whose_source_does_not_exist_is_refused() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let missing = node.root().join("not-there");
    let task = node.task(&images.busybox()).sh("true").mount(&missing, "/data", false, "").build(&mut plugin).await;
    let status = refused(&node, &plugin, &task).await;
    assert!(status.message().contains("not-there"), "{status}");
    node.finish(plugin).await;
}

/// An error never contains a secret of the job.
#[tokio::test]
async fn errors_and_logs_contain_no_secrets() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.missing())
        .sh("true")
        .env("API_TOKEN", "s3cr3t-token")
        .option("auth", json!({"username": "u", "password": "s3cr3t-password"}))
        .option("image_pull_timeout", json!("s3cr3t is not a time"))
        .build(&mut plugin)
        .await;
    let mistake = refused(&node, &plugin, &task).await;
    let task = node
        .task(&images.missing())
        .sh("true")
        .env("API_TOKEN", "s3cr3t-token")
        .option("auth", json!({"username": "u", "password": "s3cr3t-password"}))
        .build(&mut plugin)
        .await;
    let missing = refused(&node, &plugin, &task).await;
    let told = [
        mistake.message(),
        missing.message(),
        &plugin.process.stderr.so_far().join("\n"),
        &format!("{:?}", plugin.streams.events()),
    ]
    .join("\n");
    for secret in ["s3cr3t-token", "s3cr3t-password"] {
        assert!(!told.contains(secret), "{told}");
    }
    node.finish(plugin).await;
}

/// After any number of failed starts, the same allocation can still run.
#[tokio::test]
async fn a_failed_start_does_not_affect_the_next_start() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    for _ in 0..3 {
        let bad = node
            .task(&images.busybox())
            .in_alloc(&alloc)
            .command("/missing", &[])
            .without_logs()
            .build(&mut plugin)
            .await;
        refused(&node, &plugin, &bad).await;
    }
    let good = node.task(&images.busybox()).in_alloc(&alloc).sh("echo works").build(&mut plugin).await;
    plugin.started(&good).await;
    assert_eq!(plugin.wait(good.id()).await.code, 0);
    plugin.destroy(good.id(), true).await.must("DestroyTask");
    assert_eq!(good.stdout().all(seconds(5)).await, "works\n");
    node.finish(plugin).await;
}
