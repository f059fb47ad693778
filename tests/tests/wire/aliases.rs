//! `network_aliases`: names of a task in its own hosts file and in those of its group's other tasks.

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::{calls::recoverable, node::Node, plugin::Plugin, task::Task};
use serde_json::json;

use crate::own_network::IDLE;

/// Waits until the hosts file has a name.
fn wait_for(name: &str) -> String {
    format!("until grep -w {name} /etc/hosts; do sleep 0.05; done; ")
}

async fn ended(plugin: &Plugin, task: &Task) -> String {
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    task.stdout().all(seconds(5)).await
}

#[tokio::test]
async fn the_tasks_of_a_group_find_each_others_aliases() {
    let node = Node::new();
    let options = json!({"network": {"default_mode": "host", "group_networks": true}});
    let mut plugin = node.launch_with(options).await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let network = plugin.create_network(&alloc.id, "").await.must("CreateNetwork").isolation_spec.must("a network");
    let image = images.busybox();
    let task = |name: &str| node.task(&image).in_alloc(&alloc).name(name).network(network.clone());
    let named = |name: &str, aliases: &[&str]| task(name).option("network_aliases", json!(aliases));

    // One task starts before the names exist, and adds a line of its own.
    let early = task("early").sh(&format!("echo 10.9.9.9 own >>/etc/hosts; {} grep own /etc/hosts", wait_for("db")));
    let early = early.build(&mut plugin).await;
    plugin.started(&early).await;
    let db = named("db", &["db", "db.internal"]).sh(&format!("grep -c -w db /etc/hosts; {IDLE}"));
    let db = db.build(&mut plugin).await;
    plugin.started(&db).await;
    assert_eq!(ended(&plugin, &early).await, "127.0.1.1\tdb db.internal\n10.9.9.9 own\n");
    db.stdout().contains("1\n", seconds(10)).await;

    // One starts afterwards, and sees the names at once. It has another one, which replaces nothing.
    let late = named("late", &["late"]).sh(&format!("grep -c -w db /etc/hosts; {}", wait_for("again")));
    let late = late.build(&mut plugin).await;
    plugin.started(&late).await;
    plugin.destroy(db.id(), true).await.must("DestroyTask");
    let again = named("db", &["again"]).sh("true").build(&mut plugin).await;
    plugin.started(&again).await;
    assert_eq!(ended(&plugin, &late).await, "1\n127.0.1.1\tagain\n");
    ended(&plugin, &again).await;

    // Without an address of its own a task cannot have another name.
    let task = node.task(&image).sh("true").option("network_aliases", json!(["db"])).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("network_aliases: needs a network") && !recoverable(&status), "{status}");
    plugin.destroy_network(&alloc.id).await.must("DestroyNetwork");
    node.finish(plugin).await;
}
