//! The fields of `--json`: `docs/commands.md` lists exactly those that the commands print.

use std::{collections::BTreeSet, fs, path::Path};

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::node::Node;
use serde_json::{Value as Json, json};

use crate::operator::run;

/// The part of the document about the output of a command. A part begins with bold names of commands.
fn part(document: &str, command: &str) -> String {
    let (_, rest) = document.split_once("\n## Fields of the JSON output\n").must("the section");
    let (section, _) = rest.split_once("\n## ").must("its end");
    let parts = section.split("\n\n**").skip(1);
    let is_about = |part: &&str| {
        let head = format!("**{}", part.lines().next().unwrap_or_default());
        head.contains(&format!("**`{command} --json`**")) || head.contains(&format!("**`{command}`**"))
    };
    parts.filter(is_about).collect::<Vec<_>>().concat()
}

/// The words of a part that stand between backquotes.
fn names(part: &str) -> BTreeSet<&str> {
    part.split('`').skip(1).step_by(2).collect()
}

/// The fields of all objects, except for those in fields that hold documents of others.
fn fields(value: &Json, found: &mut BTreeSet<String>) {
    const FOREIGN: [&str; 3] = ["plan", "config", "features"];
    match value {
        Json::Array(items) => items.iter().for_each(|item| fields(item, found)),
        Json::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                if !FOREIGN.contains(&name.as_str()) {
                    fields(value, found);
                }
            }
        }
        _ => {}
    }
}

#[tokio::test]
async fn the_document_lists_the_fields_that_commands_print() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/commands.md");
    let document = fs::read_to_string(document).must("the document");
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"volumes": {"enabled": true}})).await;
    let images = Images::start().await;
    let mount = json!([{"type": "volume", "target": "/data", "source": "cache"}]);
    let task = node.task(&images.busybox()).name("web").option("mount", mount).port("http", "192.0.2.1", 20080, 80);
    let task = task.option("network_mode", json!("host")).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    let image = images.busybox();
    // Each command, and the commands that it repeats the fields of.
    let commands: [(&str, &[&str], &[&str]); 18] = [
        ("ps", &["ps"], &[]),
        ("inspect", &["inspect", "web"], &["ps"]),
        ("inspect", &["inspect", &image], &["image inspect", "image ls"]),
        ("stats", &["stats", "--no-stream"], &["ps"]),
        ("events", &["events"], &["ps"]),
        ("doctor", &["doctor"], &[]),
        ("version", &["version"], &[]),
        ("df", &["df"], &["image ls"]),
        ("image ls", &["image", "ls"], &[]),
        ("image inspect", &["image", "inspect", &image], &[]),
        ("image history", &["image", "history", &image], &[]),
        ("image tree", &["image", "tree"], &[]),
        ("image pull", &["image", "pull", &image], &[]),
        ("image prefetch", &["image", "prefetch", &image], &[]),
        ("image fsck", &["image", "fsck"], &[]),
        ("image prune", &["image", "prune", "--dry-run"], &[]),
        ("network ls", &["network", "ls"], &[]),
        ("volume ls", &["volume", "ls"], &[]),
    ];
    for (command, line, others) in commands {
        let said = run(&node, &[line, &["--json"]].concat()).await;
        assert!([0, 3].contains(&said.code), "{line:?}: {} {}", said.code, said.err);
        let mut printed = BTreeSet::new();
        fields(&said.json(), &mut printed);
        let parts: Vec<String> = [&[command], others].concat().iter().map(|name| part(&document, name)).collect();
        let listed: BTreeSet<&str> = parts.iter().flat_map(|part| names(part)).collect();
        let missing: Vec<_> = printed.iter().filter(|field| !listed.contains(field.as_str())).collect();
        assert!(!printed.is_empty() && missing.is_empty(), "{line:?}: not in docs/commands.md: {missing:?}");
    }
    // A listed field of a task is printed.
    let listed = run(&node, &["ps", "--json"]).await.well().json();
    let rows = part(&document, "ps");
    let cells = rows.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let columns: BTreeSet<&str> = cells.flat_map(names).collect();
    let unknown: Vec<_> = columns.iter().filter(|name| listed[0].get(**name).is_none()).collect();
    assert!(columns.len() > 20 && unknown.is_empty(), "not printed: {unknown:?}");
    plugin.stop(task.id(), seconds(0), "").await.must("StopTask");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    for (command, line) in [("image rm", &["image", "rm", &image][..]), ("image prune", &["image", "prune"])] {
        let said = run(&node, &[line, &["--json"]].concat()).await.well().json();
        let mut printed = BTreeSet::new();
        fields(&said, &mut printed);
        let part = part(&document, command);
        assert!(printed.iter().all(|field| names(&part).contains(field.as_str())), "{line:?}: {printed:?}");
    }
    node.finish(plugin).await;
}
