//! The fields of `--json`: `docs/commands.md` lists exactly those that the commands print.
//!
//! The keys of `image profile --json` are digests of layers, so it has no fields.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use fixtures::{
    busybox::{self, Images},
    image::{Compression, archive},
    must::Must,
    wait::seconds,
};
use kit::node::Node;
use serde_json::{Value as Json, json};

use crate::{
    host_volumes::{Client, Spec},
    operator::run,
};

/// Words of the document that are written like fields, each with the command that it is about.
const NO_FIELDS: [(&str, &[&str]); 4] = [
    ("inspect", &["inspect", "ps"]),
    ("image ls", &["inspect"]),
    // The type of a host volume.
    ("volume ls", &["host"]),
    // An outcome is one of four. The finding of this test is `manual`.
    ("image fsck", &["mended", "mendable", "failed"]),
];

/// A command of a test: its name in the document, its arguments, and other commands. Its output also has the fields of
/// those.
type Line<'a> = (&'static str, &'a [&'a str], &'static [&'static str]);

/// A document in `docs`.
fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    fs::read_to_string(path).must("a document")
}

/// The part of the document about the output of a command. A part begins with bold names of commands.
fn part(command: &str) -> String {
    let document = document("commands.md");
    let (_, rest) = document.split_once("\n## Fields of the JSON output\n").must("the section");
    let (section, _) = rest.split_once("\n## ").must("its end");
    let parts = section.split("\n\n**").skip(1);
    let is_about = |part: &&str| {
        let head = format!("**{}", part.lines().next().unwrap_or_default());
        head.contains(&format!("**`{command} --json`**")) || head.contains(&format!("**`{command}`**"))
    };
    parts.filter(is_about).collect::<Vec<_>>().concat()
}

/// The texts between backquotes.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The words of a text that may be fields, as `plugin_block` and `driver` in `plugin_block.driver`.
fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|letter: char| !(letter.is_ascii_lowercase() || letter == '_'));
    words.filter(|word| !word.is_empty()).map(str::to_owned)
}

/// The words of a part that may be fields.
fn names(part: &str) -> BTreeSet<String> {
    spans(part).flat_map(words).collect()
}

/// The fields that a part promises: those in the first column of its table, or those outside parentheses.
fn promised(part: &str) -> BTreeSet<String> {
    let cells: Vec<&str> = part.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let text = if cells.is_empty() { outside_parentheses(part) } else { cells.join("\n") };
    let is_field = |span: &&str| span.chars().all(|letter| letter.is_ascii_lowercase() || "_.[]".contains(letter));
    spans(&text).filter(is_field).flat_map(words).collect()
}

fn outside_parentheses(text: &str) -> String {
    let mut pieces = text.split('(');
    let first = pieces.next().unwrap_or_default();
    [first].into_iter().chain(pieces.filter_map(|piece| Some(piece.split_once(')')?.1))).collect()
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

/// The parts of the document list all fields that a command printed. Returns these fields.
#[track_caller]
fn expect_listed(what: &str, output: &Json, parts: &[String]) -> BTreeSet<String> {
    let mut printed = BTreeSet::new();
    fields(output, &mut printed);
    let listed: BTreeSet<String> = parts.iter().flat_map(|part| names(part)).collect();
    let missing: Vec<_> = printed.difference(&listed).collect();
    assert!(!printed.is_empty() && missing.is_empty(), "{what}: not in the document: {missing:?}");
    printed
}

/// The command printed all fields that the part of the document promises.
#[track_caller]
fn expect_printed(command: &str, printed: &BTreeSet<String>, part: &str) {
    let mut promised = promised(part);
    for (_, words) in NO_FIELDS.iter().filter(|(name, _)| *name == command) {
        promised.retain(|word| !words.contains(&word.as_str()));
    }
    let missing: Vec<_> = promised.difference(printed).collect();
    assert!(!promised.is_empty() && missing.is_empty(), "{command}: not printed: {missing:?}");
}

/// The document lists exactly the fields of this output.
#[track_caller]
pub fn expect_documented(command: &str, output: &Json) {
    let part = part(command);
    let printed = expect_listed(command, output, std::slice::from_ref(&part));
    expect_printed(command, &printed, &part);
}

/// Runs the commands. Their fields are added to `all`, by the name in the document.
async fn run_all(node: &Node, lines: &[Line<'_>], all: &mut BTreeMap<&'static str, BTreeSet<String>>) {
    for &(command, line, others) in lines {
        let said = run(node, &[line, &["--json"]].concat()).await;
        assert!([0, 3].contains(&said.code), "{line:?}: {} {}", said.code, said.err);
        let parts: Vec<String> = [&[command], others].concat().into_iter().map(part).collect();
        all.entry(command).or_default().extend(expect_listed(&format!("{line:?}"), &said.json(), &parts));
    }
}

#[tokio::test]
async fn the_document_lists_the_fields_that_commands_print() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"volumes": {"enabled": true}})).await;
    let (images, client, host_volume) = (Images::start().await, Client::new().on(&node), Spec::directory(Json::Null));
    client.create(&host_volume).well();
    let mount = json!([{"type": "volume", "target": "/data", "source": "cache"}]);
    let task = node.task(&images.busybox()).name("web").option("mount", mount).port("http", "192.0.2.1", 20080, 80);
    let task = task.option("network_mode", json!("host")).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    let image = images.busybox();
    let files = Files::make(&node);
    let remote = format!("docker://{}/team/native:1", images.host());
    let copy = format!("{}/team/copy:1", images.host());
    // A file that is not the store's.
    let foreign = node.data_dir().join("images/notes");
    fs::write(&foreign, "").must("a file");
    let mut all = BTreeMap::new();
    let lines: [Line; 22] = [
        ("ps", &["ps"], &[]),
        ("inspect", &["inspect", "web"], &["ps"]),
        ("inspect", &["inspect", &image], &["image inspect", "image ls"]),
        ("stats", &["stats", "--no-stream"], &["ps"]),
        ("events", &["events"], &["ps"]),
        ("doctor", &["doctor"], &[]),
        ("version", &["version"], &[]),
        ("df", &["df"], &["image ls"]),
        // The two have one part in the document.
        ("image ls", &["image", "ls"], &[]),
        ("image ls", &["image", "inspect", &image], &[]),
        ("image history", &["image", "history", &image], &[]),
        ("image tree", &["image", "tree"], &[]),
        ("image pull", &["image", "pull", &image], &[]),
        ("image load", &["image", "load", &files.saved, "team/app:1"], &[]),
        ("image prefetch", &["image", "prefetch", &image, "-f", &files.job], &[]),
        ("image convert", &["image", "convert", &files.layout, &files.native], &[]),
        ("image convert", &["image", "convert", &files.layout, &remote], &["image push"]),
        ("image push", &["image", "push", &files.native, &copy], &[]),
        ("image fsck", &["image", "fsck"], &[]),
        ("image prune", &["image", "prune", "--dry-run"], &[]),
        ("network ls", &["network", "ls"], &[]),
        ("volume ls", &["volume", "ls"], &[]),
    ];
    run_all(&node, &lines, &mut all).await;
    plugin.stop(task.id(), seconds(0), "").await.must("StopTask");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let lines: [Line; 2] =
        [("image rm", &["image", "rm", &image], &[]), ("image prune", &["image", "prune"], &["image ls"])];
    run_all(&node, &lines, &mut all).await;
    for (command, printed) in &all {
        expect_printed(command, printed, &part(command));
    }
    fs::remove_file(&foreign).must("remove the file");
    client.delete(&host_volume).well();
    node.finish(plugin).await;
}

/// Files for commands, as paths.
struct Files {
    /// An archive of `docker save`.
    saved: String,
    /// An archive of an OCI layout.
    layout: String,
    /// A directory that does not exist.
    native: String,
    /// A job. The name of its image has a variable, so a prefetch skips it.
    job: String,
}

impl Files {
    fn make(node: &Node) -> Self {
        let path = |name: &str| node.root().join(name).display().to_string();
        let files = Self {
            saved: path("image.tar"),
            layout: path("layout.tar"),
            native: path("native"),
            job: path("job.json"),
        };
        let built = busybox::image(Compression::Gzip);
        fs::write(&files.saved, archive(built.saved(&["team/app:1"]))).must("an archive");
        let layout = archive(built.layout(json!({"org.opencontainers.image.ref.name": "1"})));
        fs::write(&files.layout, layout).must("a layout");
        let task = json!({"Name": "t", "Driver": "oci-rs", "Config": {"image": "r.example/${meta.app}:1"}});
        let job = json!({"ID": "shop", "TaskGroups": [{"Name": "web", "Tasks": [task]}]});
        fs::write(&files.job, json!({"Job": job}).to_string()).must("a job");
        files
    }
}

#[tokio::test]
async fn the_document_lists_the_fields_of_a_migration() {
    let node = Node::new();
    let resources = json!({"CPU": 100, "MemoryMB": 64});
    let task =
        |name: &str, config: Json| json!({"Name": name, "Driver": "docker", "Config": config, "Resources": resources});
    let wrong = json!({"image": "a", "isolation": "process", "privileged": true, "hostname": "${meta.a}"});
    let tasks = [task("differs", json!({"image": "a", "tty": true})), task("wrong", wrong)];
    let job = json!({"ID": "shop", "Name": "shop", "TaskGroups": [{"Name": "web", "Tasks": tasks}]});
    let file = node.root().join("shop.json").display().to_string();
    fs::write(&file, json!({"Job": job}).to_string()).must("a job");
    let said = run(&node, &["migrate", &file, "--json"]).await;
    assert_eq!(said.code, 5, "{}", said.err);
    let document = document("migrate.md");
    let (_, part) = document.split_once("\n## JSON\n").must("the section");
    let printed = expect_listed("migrate", &said.json(), &[part.to_owned()]);
    expect_printed("migrate", &printed, part);
    node.finish_without_plugin().await;
}
