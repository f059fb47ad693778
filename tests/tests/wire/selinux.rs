//! SELinux labels of tasks. `LSM=selinux scripts/test-v2.sh wire selinux::` runs these tests under SELinux.

use std::{collections::BTreeSet, fs};

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::{node::Node, plugin::Plugin, task::Task};
use proto::structs::attribute::Value;
use serde_json::{Value as Json, json};

const IDLE: &str = "echo begun; while :; do sleep 1000; done";
const OWN: &str = "cat /proc/self/attr/current | tr -d '\\000'";

/// The root, file systems in memory, the small files, and the directories of the task.
pub(crate) const PLACES: &str =
    "for d in / /tmp /dev/shm /local /secrets /alloc; do echo x > $d/x || exit 1; done; cat /etc/hosts";
/// The standard devices.
pub(crate) const DEVICES: &str =
    "echo x > /dev/null && for d in zero full random urandom; do head -c 1 /dev/$d || exit 1; done";

#[allow(clippy::print_stdout, reason = "a skipped test says why")]
pub(crate) fn is_enforced() -> bool {
    let enforced = fs::read_to_string("/sys/fs/selinux/enforce").is_ok_and(|text| text.trim() == "1");
    if !enforced {
        println!("skipped: this node does not enforce SELinux");
    }
    enforced
}

async fn started(node: &Node, plugin: &mut Plugin, images: &Images, options: &[(&str, Json)]) -> Task {
    let task = node.task(&images.busybox()).sh(IDLE);
    let task = options.iter().fold(task, |task, (name, value)| task.option(name, value.clone()));
    let task = task.build(plugin).await;
    plugin.started(&task).await;
    task
}

async fn works(plugin: &Plugin, task: &Task, script: &str) -> bool {
    let answer = plugin.exec(task.id(), &["/bin/sh", "-c", script], seconds(20)).await.must("ExecTask");
    answer.result.must("a result").exit_code == 0
}

#[tokio::test]
async fn each_task_has_a_label_with_its_own_categories() {
    let node = Node::new();
    let block = json!({ "allow_security_opts": ["label=*"], "allowed_modes": { "userns": ["host"] } });
    let mut plugin = node.launch_with(block).await;
    let labelled = plugin.streams.fingerprint().await.attributes["driver.oci-rs.selinux"].value.clone();
    if !is_enforced() {
        if !fs::exists("/sys/fs/selinux/enforce").is_ok_and(|exists| exists) {
            assert_eq!(labelled, Some(Value::BoolVal(false)));
        }
        node.finish(plugin).await;
        return;
    }
    assert_eq!(labelled, Some(Value::BoolVal(true)));
    let images = Images::start().await;
    let mut tasks = Vec::new();
    let mut labels = BTreeSet::new();
    for options in [vec![], vec![("init", json!(true))], vec![("userns_mode", json!("host"))]] {
        let task = started(&node, &mut plugin, &images, &options).await;
        let label = plugin.sh(&task, OWN).await;
        assert!(label.starts_with("system_u:system_r:container_t:s0:c") && label.contains(','), "{label}");
        let command = plugin.sh(&task, "cat /proc/*/attr/current | tr '\\000' '\\n' | sort | uniq").await;
        assert!(command.contains(&label), "{command}");
        assert!(works(&plugin, &task, PLACES).await, "{options:?}");
        assert!(works(&plugin, &task, DEVICES).await, "{options:?}");
        task.stdout().contains("begun", seconds(20)).await;
        labels.insert(label);
        tasks.push(task);
    }
    assert_eq!(labels.len(), 3, "{labels:?}");
    let chosen = json!(["label=level:s0:c5,c6"]);
    let options = [("security_opt", chosen)];
    let task = started(&node, &mut plugin, &images, &options).await;
    assert_eq!(plugin.sh(&task, OWN).await, "system_u:system_r:container_t:s0:c5,c6");
    tasks.push(task);
    let task = started(&node, &mut plugin, &images, &[("security_opt", json!(["label=disable"]))]).await;
    assert!(plugin.sh(&task, OWN).await.contains(":agent_t:"));
    tasks.push(task);
    let options = [("security_opt", json!(["label=type:no_such_t"]))];
    let unknown = node.task(&images.busybox()).sh(IDLE).option(options[0].0, options[0].1.clone());
    let unknown = unknown.without_logs().build(&mut plugin).await;
    let status = plugin.start(&unknown).await.err().must("a refusal");
    assert!(status.message().contains("does not exist in this node's policy"), "{status}");
    for task in &tasks {
        plugin.end(task).await;
    }
    node.finish(plugin).await;
}

/// Files of the node are out of reach, also for root, unless the job has them labelled.
#[tokio::test]
async fn volumes_are_labelled_for_one_task_or_for_all() {
    if !is_enforced() {
        return;
    }
    let (node, images) = (Node::new(), Images::start().await);
    let mut plugin = node.launch_with(json!({ "volumes": { "enabled": true } })).await;
    let at = |name: &str| node.root().join(name);
    for name in ["plain", "shared", "private"] {
        fs::create_dir_all(at(name).join("deep")).must("a directory");
        fs::write(at(name).join("deep/file"), "text").must("a file");
    }
    let bind = |name: &str, options: &str| format!("{}:/{name}{options}", at(name).display());
    let one = json!([bind("plain", ""), bind("shared", ":z"), bind("private", ":Z"), "named:/named"]);
    let options = |volumes: Json| [("volumes", volumes), ("volume_driver", json!("local"))];
    let one = started(&node, &mut plugin, &images, &options(one)).await;
    let other = json!([bind("shared", ""), bind("private", ""), "named:/named"]);
    let other = started(&node, &mut plugin, &images, &options(other)).await;
    for (task, name, expected) in [
        (&one, "plain", false),
        (&one, "shared", true),
        (&one, "private", true),
        (&one, "named", true),
        (&other, "shared", true),
        (&other, "private", false),
        (&other, "named", true),
    ] {
        let read = format!("ls /{name} && echo x > /{name}/by-task");
        assert_eq!(works(&plugin, task, &read).await, expected, "{name} in {}", task.id());
    }
    assert!(works(&plugin, &one, "cat /private/deep/file").await);
    let of_node = node.task(&images.busybox()).sh(IDLE).option("volumes", json!(["/etc:/mnt:Z"])).without_logs();
    let of_node = of_node.build(&mut plugin).await;
    let status = plugin.start(&of_node).await.err().must("a refusal");
    assert!(status.message().contains("/etc keeps its SELinux label"), "{status}");
    plugin.end(&one).await;
    plugin.end(&other).await;
    node.finish(plugin).await;
}
