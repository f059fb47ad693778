//! `oci-rs:// … --` before a command: another user, another working directory, and refused options.

use fixtures::{
    busybox::Images,
    image::{Entry, Layer},
    must::Must,
    process,
    wait::seconds,
};
use kit::{exec::Outcome, node::Node, plugin::Plugin, task::Task};
use serde_json::json;
use tonic::Status;

const SLEEP: &str = "while :; do sleep 1000; done";

async fn run(plugin: &Plugin, task: &Task, command: &str) -> Result<Outcome, Status> {
    let words: Vec<&str> = command.split(' ').collect();
    plugin.exec_to_end(task.id(), &words, None, seconds(10)).await
}

async fn output(plugin: &Plugin, task: &Task, command: &str) -> String {
    let outcome = run(plugin, task, command).await.must(command);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""), "{command}: {outcome:?}");
    outcome.stdout.trim_end().to_owned()
}

/// The user of `nomad alloc exec` sees the reason.
async fn refusal(plugin: &Plugin, task: &Task, command: &str) -> String {
    let outcome = run(plugin, task, command).await.must(command);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (125, ""), "{command}: {outcome:?}");
    outcome.stderr
}

/// A field of the command's `/proc/self/status`.
async fn field(plugin: &Plugin, task: &Task, prefix: &str, name: &str) -> String {
    let line = output(plugin, task, &format!("oci-rs:// {prefix} -- grep ^{name}: /proc/self/status")).await;
    line.split_once(':').must(name).1.trim().to_owned()
}

#[tokio::test]
async fn a_session_can_choose_user_and_working_directory() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"exec": {"user": true, "cwd": true}})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(SLEEP).build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(output(&plugin, &task, "oci-rs:// user=user -- id -u").await, "1000");
    assert_eq!(output(&plugin, &task, "oci-rs:// user=user -- id -G").await, "1000 29");
    assert_eq!(output(&plugin, &task, "oci-rs:// user=1234:5678 -- id -G").await, "5678");
    assert_eq!(output(&plugin, &task, "oci-rs:// cwd=/home/user -- pwd").await, "/home/user");
    assert_eq!(output(&plugin, &task, "oci-rs:// cwd=/home/user user=user -- env pwd").await, "/home/user");
    assert_eq!(output(&plugin, &task, "oci-rs:// -- echo -- oci-rs://").await, "-- oci-rs://");
    // The command has no more rights than a task of that user.
    let init = plugin.init_pid(&task);
    for name in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(field(&plugin, &task, "user=user", name).await, "0000000000000000", "{name}");
    }
    for name in ["CapBnd", "NoNewPrivs", "Seccomp"] {
        let own = process::status_field(init, name).must(name);
        assert_eq!(field(&plugin, &task, "user=user", name).await, own, "{name}");
    }
    let gone = refusal(&plugin, &task, "oci-rs:// cwd=/no/such -- pwd").await;
    assert!(gone.contains("/no/such"), "{gone}");
    let unknown = refusal(&plugin, &task, "oci-rs:// user=ghost -- id").await;
    assert!(unknown.contains("ghost"), "{unknown}");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// An option gives no right that the task's own command could not get.
#[tokio::test]
async fn a_session_never_has_more_rights_than_the_task() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"exec": {"user": true, "cwd": true}})).await;
    let images = Images::start().await;
    let closed = Layer::of([Entry::dir("closed").mode(0o700)]);
    let image = images.with_layers("closed", [closed]);
    let user = node.task(&image).sh(SLEEP).user("user").build(&mut plugin).await;
    plugin.started(&user).await;
    for name in ["root", "0", "daemon", "1000:0", "user:root"] {
        let refused = refusal(&plugin, &user, &format!("oci-rs:// user={name} -- id")).await;
        assert!(refused.contains("could not become that user"), "{name}: {refused}");
    }
    assert_eq!(output(&plugin, &user, "oci-rs:// user=user:audio -- id -G").await, "29", "a group that it is in");
    let refused = refusal(&plugin, &user, "oci-rs:// cwd=/closed -- pwd").await;
    assert!(refused.contains("Permission denied"), "{refused}");
    // Root without CAP_SETUID has no more rights.
    let root = node.task(&image).sh(SLEEP).option("cap_drop", json!(["setuid"])).build(&mut plugin).await;
    plugin.started(&root).await;
    let refused = refusal(&plugin, &root, "oci-rs:// user=user -- id").await;
    assert!(refused.contains("could not become that user"), "{refused}");
    for task in [&user, &root] {
        plugin.end(task).await;
    }
    node.finish(plugin).await;
}

/// If the operator allows it, a command becomes root in a user's task. It gets the task's capabilities and no more.
#[tokio::test]
async fn any_user_is_possible_if_the_operator_allows_it() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"exec": {"user": true, "any_user": true}})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(SLEEP).user("user").build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(output(&plugin, &task, "oci-rs:// user=root -- id -u").await, "0");
    let init = plugin.init_pid(&task);
    for (name, own) in
        [("CapEff", "CapBnd"), ("CapBnd", "CapBnd"), ("NoNewPrivs", "NoNewPrivs"), ("Seccomp", "Seccomp")]
    {
        let own = process::status_field(init, own).must(own);
        assert_eq!(field(&plugin, &task, "user=root", name).await, own, "{name}");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn exec_options_are_off_by_default_and_only_for_interactive_sessions() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(SLEEP).build(&mut plugin).await;
    plugin.started(&task).await;
    for (command, words) in [
        ("oci-rs:// user=user -- id", "exec.user"),
        ("oci-rs:// cwd=/ -- id", "exec.cwd"),
        ("oci-rs:// user=user id", "needs --"),
        ("oci-rs:// what=ever -- id", "\"what=ever\" is not known"),
    ] {
        let refused = refusal(&plugin, &task, command).await;
        assert!(refused.contains(words), "{command}: {refused}");
    }
    let command = ["oci-rs://", "user=user", "--", "id"];
    let refused = plugin.exec(task.id(), &command, seconds(10)).await.err().must("a refusal for a check");
    assert!(refused.message().contains("alloc exec"), "{refused}");
    // The prefix can never be the name of a program.
    let made = plugin.exec(
        task.id(),
        &["/bin/sh", "-c", "mkdir -p oci-rs: && cp /bin/busybox oci-rs:/x; oci-rs://"],
        seconds(10),
    );
    assert_eq!(made.await.must("ExecTask").result.must("a result").exit_code, 126);
    plugin.end(&task).await;
    node.finish(plugin).await;
}
