//! The AppArmor profile of tasks that name none. The virtual machine of `scripts/test-v2.sh` has AppArmor.

use std::fs;

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::{node::Node, plugin::Plugin, task::Task};
use proto::structs::attribute::Value;
use serde_json::{Value as Json, json};

use crate::cdi::Specs;

const IDLE: &str = "while :; do sleep 1000; done";
const PROFILE: &str = "oci-rs-default";
pub(crate) const CONFINED: &str = "oci-rs-default (enforce)";
/// Prints the profiles of a command, of process 1 and of all processes.
pub(crate) const PROFILES: &str =
    "cat /proc/self/attr/current; cat /proc/1/attr/current; cat /proc/*/attr/current | sort -u";

fn kernel_uses_it() -> bool {
    fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.trim() == "Y")
}

#[allow(clippy::print_stdout, reason = "a skipped test says why")]
pub(crate) fn can_load() -> bool {
    let usable = kernel_uses_it() && fs::exists("/usr/sbin/apparmor_parser").unwrap_or(false);
    if !usable {
        println!("skipped: this node has no AppArmor, or no apparmor_parser");
    }
    usable
}

async fn started(node: &Node, plugin: &mut Plugin, images: &Images, options: &[(&str, Json)]) -> Task {
    let task = node.task(&images.busybox()).sh(IDLE);
    let task = options.iter().fold(task, |task, (name, value)| task.option(name, value.clone()));
    let task = task.build(plugin).await;
    plugin.started(&task).await;
    task
}

/// The first of the scripts that has another exit than the expected one.
async fn check(plugin: &Plugin, task: &Task, scripts: &[&str], works: bool) {
    for script in scripts {
        let answer = plugin.exec(task.id(), &["/bin/sh", "-c", script], seconds(20)).await.must("ExecTask");
        let code = answer.result.as_ref().must("a result").exit_code;
        assert_eq!(code == 0, works, "{script}: {answer:?}");
    }
}

#[tokio::test]
async fn the_node_says_which_profile_its_tasks_get() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let fingerprint = plugin.streams.fingerprint().await;
    let attribute = |name: &str| fingerprint.attributes.get(name).and_then(|attribute| attribute.value.clone());
    assert_eq!(attribute("driver.oci-rs.apparmor"), Some(Value::BoolVal(kernel_uses_it())));
    if !kernel_uses_it() {
        assert_eq!(attribute("driver.oci-rs.apparmor.profile"), None);
        assert_eq!(fingerprint.health_description, "Healthy");
    } else if can_load() {
        assert_eq!(attribute("driver.oci-rs.apparmor.profile"), Some(Value::StringVal(PROFILE.to_owned())));
    }
    plugin.shutdown().await;
    if kernel_uses_it() {
        let mut plugin = node.launch_with(json!({ "apparmor_profile": "oci-rs-nobody-loaded-it" })).await;
        let fingerprint = plugin.streams.fingerprint().await;
        let text = &fingerprint.health_description;
        assert!(text.contains("\"oci-rs-nobody-loaded-it\" is not loaded on this node: load it"), "{text}");
        plugin.shutdown().await;
    }
    node.finish_without_plugin().await;
}

/// A task that names no profile is confined, and so are its init and every command of exec, also if the task has the
/// capability to mount.
#[tokio::test]
async fn tasks_and_commands_in_them_have_the_default_profile() {
    if !can_load() {
        return;
    }
    let (node, images) = (Node::new(), Images::start().await);
    let rules = json!({ "allow_caps": ["all"], "allow_security_opts": ["apparmor=unconfined"] });
    let mut plugin = node.launch_with(rules).await;
    let options = [("cap_add", json!(["sys_admin"])), ("init", json!(true))];
    let confined = started(&node, &mut plugin, &images, &options).await;
    assert_eq!(plugin.sh(&confined, PROFILES).await, [CONFINED; 3].join("\n"));
    let mounts = ["mkdir -p /mnt; mount -t tmpfs none /mnt", "mount -o remount,bind,rw /proc/sys"];
    check(&plugin, &confined, &mounts, false).await;
    check(&plugin, &confined, &["ls -l /proc/1/fd", "kill -0 1", "echo 5 > /proc/self/oom_score_adj"], true).await;
    plugin.end(&confined).await;
    let options = [("cap_add", json!(["sys_admin"])), ("security_opt", json!(["apparmor=unconfined"]))];
    let unconfined = started(&node, &mut plugin, &images, &options).await;
    assert_eq!(plugin.sh(&unconfined, "cat /proc/self/attr/current").await, "unconfined");
    check(&plugin, &unconfined, &mounts, true).await;
    plugin.end(&unconfined).await;
    node.finish(plugin).await;
}

/// A hook of a device runs on the node, and the profile of the task is not for it.
#[tokio::test]
async fn a_task_with_hooks_has_the_profile_and_its_hooks_have_not() {
    if !can_load() {
        return;
    }
    let (node, images) = (Node::new(), Images::start().await);
    let seen = node.root().join("profile-of-the-hook");
    let script = format!("/bin/cat /proc/self/attr/current > {}", seen.display());
    let hook = json!({"hookName": "createRuntime", "path": "/bin/sh", "args": ["sh", "-c", script]});
    let specs = Specs::of(&node);
    specs.write("hook.json", "vendor.test/class", &json!({"one": {"hooks": [hook]}}), &json!({}));
    let mut plugin = node.launch_with(specs.options()).await;
    let device = ("devices", json!([{"cdi": "vendor.test/class=one"}]));
    for init in [true, false] {
        let task = started(&node, &mut plugin, &images, &[device.clone(), ("init", json!(init))]).await;
        assert_eq!(fs::read_to_string(&seen).must("the hook's output"), "unconfined\n");
        assert_eq!(plugin.sh(&task, PROFILES).await, [CONFINED; 3].join("\n"));
        plugin.end(&task).await;
    }
    node.finish(plugin).await;
}

/// The rules of the profile itself: the task has every right but those that the profile takes.
#[tokio::test]
async fn the_default_profile_protects_the_node_from_a_privileged_task() {
    if !can_load() {
        return;
    }
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch_with(json!({ "allow_privileged": true })).await;
    let own = std::process::id();
    let of_others = format!("kill -0 {own}");
    let protected = [
        "v=$(cat /proc/sys/kernel/panic); echo $v > /proc/sys/kernel/panic",
        "v=$(cat /proc/sys/vm/swappiness); echo $v > /proc/sys/vm/swappiness",
        "v=$(cat /sys/kernel/mm/transparent_hugepage/enabled | sed 's/.*\\[//; s/\\].*//')
         echo $v > /sys/kernel/mm/transparent_hugepage/enabled",
        "echo h > /proc/sysrq-trigger",
        "mkdir -p /mnt; mount -t tmpfs none /mnt",
        "cat /proc/2/stack",
        &of_others,
    ];
    let usable = ["echo 5 > /proc/self/oom_score_adj", "mkdir /sys/fs/cgroup/x; rmdir /sys/fs/cgroup/x", "kill -0 $$"];
    let privileged = [("privileged", json!(true)), ("pid_mode", json!("host"))];
    let free = started(&node, &mut plugin, &images, &privileged).await;
    assert_eq!(plugin.sh(&free, "cat /proc/self/attr/current").await, "unconfined", "as with docker");
    check(&plugin, &free, &protected, true).await;
    check(&plugin, &free, &usable, true).await;
    plugin.end(&free).await;
    let mut options = privileged.to_vec();
    options.push(("security_opt", json!(["apparmor=docker-default"])));
    let confined = started(&node, &mut plugin, &images, &options).await;
    assert_eq!(plugin.sh(&confined, "cat /proc/self/attr/current").await, CONFINED);
    check(&plugin, &confined, &protected, false).await;
    check(&plugin, &confined, &usable, true).await;
    plugin.end(&confined).await;
    node.finish(plugin).await;
}
