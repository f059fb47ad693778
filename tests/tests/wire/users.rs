//! The user of the command: users and groups are resolved in the image.

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::node::Node;
use serde_json::json;

#[tokio::test]
async fn users_are_accepted_by_name_and_number() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    // The user option, then the expected uid, gid and groups.
    let cases = [
        ("", "0 0 0"),
        ("root", "0 0 0"),
        // This user is also a member of audio.
        ("user", "1000 1000 1000 29"),
        ("user:staff", "1000 50 50"),
        ("1000", "1000 1000 1000 29"),
        ("1234", "1234 0 0"),
        ("1234:5678", "1234 5678 5678"),
        ("nobody:29", "65534 29 29"),
    ];
    for (user, expected) in cases {
        let task =
            node.task(&images.busybox()).sh("echo $(id -u) $(id -g) $(id -G)").user(user).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await.trim(), expected, "user {user:?}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_jobs_user_overrides_the_images_user() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let reference = images.with_user("user");
    for (user, expected) in [("", "1000"), ("daemon", "1")] {
        let task = node.task(&reference).sh("id -u").user(user).build(&mut plugin).await;
        plugin.started(&task).await;
        plugin.wait(task.id()).await;
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await.trim(), expected, "user {user:?}");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_unknown_user_is_named_in_the_error() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for user in ["ghost", "user:ghosts"] {
        let task = node.task(&images.busybox()).sh("true").user(user).build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("a refusal");
        assert!(status.message().contains("ghost"), "{status}");
        assert!(!kit::calls::recoverable(&status), "trying again cannot help");
        plugin.inspect(task.id()).await.err().must("a failed start leaves no task");
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn supplementary_groups_are_set() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh("id -G")
        .user("user")
        .option("group_add", json!(["staff", "7777"]))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    plugin.wait(task.id()).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let text = task.stdout().all(seconds(5)).await;
    let groups: std::collections::BTreeSet<&str> = text.split_whitespace().collect();
    assert!(["1000", "50", "7777"].iter().all(|group| groups.contains(group)), "{groups:?}");
    node.finish(plugin).await;
}
