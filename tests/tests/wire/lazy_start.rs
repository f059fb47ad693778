//! Tasks that start before their image is complete.

use std::{
    collections::HashSet,
    fs,
    io::Write,
    path::PathBuf,
    time::{Duration, Instant},
};

use fixtures::{
    busybox,
    image::{Compression, Entry, Layer, archive},
    must::Must,
    process,
    random::Random,
    registry::{Action, Fault, Registry},
    wait::{eventually, seconds},
};
use kit::{
    announced_reads::{forget, groups_of},
    node::Node,
    plugin::Plugin,
    task::Task,
};
use proto::driver::DriverTaskEvent;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};

use crate::{
    layers::{largest_native_layer, mounts_images},
    operator,
};

/// Lines of the large file. Together they are several megabytes, also when they are compressed.
const LINES: usize = 100_000;
/// Prints the number of lines of the file that are as they should be.
const COUNT: &str = "grep -c '^line [0-9]* [0-9a-f]* of the large file$' /large";
/// Waits until the test goes on.
const PAUSE: &str = "while [ ! -e /local/go ]; do sleep 0.02; done";
/// Metadata and hash tree of a layer are asked for before its data.
const FRONT: usize = 2;

/// A registry with a native image of busybox, and with the large file in the layer with this digest.
pub struct Scene {
    registry: Registry,
    pub name: String,
    layer: String,
}

impl Scene {
    /// `None`, with a message, if this node does not start tasks before their image is here.
    pub async fn new(node: &Node) -> Option<Self> {
        if !mounts_images(node) || !announces_reads() {
            return None;
        }
        let (mut large, mut random) = (Vec::new(), Random::new(3));
        for line in 0..LINES {
            writeln!(large, "line {line} {:016x}{:016x} of the large file", random.next(), random.next())
                .must("memory");
        }
        let built = busybox::with(Compression::Gzip, [Layer::of([Entry::file("large", large)])]);
        let (layout, native) = (node.root().join("layout.tar"), node.root().join("native"));
        fs::write(&layout, archive(built.layout(json!({"org.opencontainers.image.ref.name": "1"})))).must("a layout");
        let paths = [&layout, &native].map(|path| path.display().to_string());
        operator::run(node, &["image", "convert", &paths[0], &paths[1]]).await.well();
        let registry = Registry::start();
        let name = registry.reference("team/native:1");
        operator::run(node, &["image", "push", &paths[1], &name]).await.well();
        let (layer, _) = largest_native_layer(&native);
        Some(Self { registry, name, layer })
    }

    /// The registry delivers the front of the layer with the large file, and then nothing.
    fn stop(&self, front: usize) {
        self.registry.fault(Fault::on(&self.layer, Action::Status(503, Vec::new())).after(front));
    }
}

/// Whether this kernel tells of reads before they happen (Linux 6.15). Prints the reason of a skipped test.
#[allow(clippy::print_stdout, reason = "a skipped test says why")]
fn announces_reads() -> bool {
    let (release, version) = crate::layers::kernel();
    if version < (6, 15) {
        println!("skipped: Linux {release} does not announce reads");
    }
    version >= (6, 15)
}

fn lazy() -> Json {
    json!({"lazy": {"min_size": "1"}})
}

/// Ends the task's [`PAUSE`].
fn tell(task: &Task) {
    fs::write(task.dir().join("local/go"), "").must("tell the task to go on");
}

/// Waits until the task says that its next read waits.
async fn begins(task: &Task) {
    task.stdout().contains("begins", seconds(30)).await;
}

/// A record of a task.
fn record_of(node: &Node, task: &Task, record: &str) -> Option<PathBuf> {
    let tasks = fs::read_dir(node.state_dir().join("tasks")).must("tasks");
    let mut paths = tasks.map(|entry| entry.must("an entry").path());
    let found = paths.find(|path| path.to_string_lossy().contains(task.id().rsplit('/').next().unwrap_or("")));
    Some(found?.join(record))
}

/// The process of a task with this name, by its record.
fn process_of(node: &Node, task: &Task, record: &str) -> Option<i32> {
    let text = fs::read(record_of(node, task, record)?).ok()?;
    let record: Json = serde_json::from_slice(&text).ok()?;
    let pid = record["pid"].as_i64().or_else(|| record["record"]["pid"].as_i64())?;
    i32::try_from(pid).ok()
}

/// The directories of the layers that are, or were, used before they were complete.
fn partial_layers(node: &Node) -> Vec<PathBuf> {
    let entries = fs::read_dir(node.data_dir().join("images/partial")).must("partial layers");
    entries.map(|entry| entry.must("an entry").path()).filter(|path| path.is_dir()).collect()
}

fn lives(pid: i32) -> bool {
    process::status_field(pid, "State").is_some_and(|state| !state.starts_with('Z'))
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).must("a pid"), Signal::KILL).must("kill");
}

/// Waits until both layers of the image are complete.
async fn completed(node: &Node) {
    let complete = || fs::read_dir(node.data_dir().join("images/layers")).is_ok_and(|layers| layers.count() == 2);
    assert!(eventually(seconds(30), complete).await, "the image is completed");
}

async fn finish(task: &Task, plugin: &mut Plugin) -> String {
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    task.stdout().all(seconds(5)).await
}

#[tokio::test]
async fn a_task_starts_before_its_image_is_here_and_reads_all_of_it() {
    let node = Node::new();
    let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
    scene.stop(FRONT);
    let mut plugin = node.launch_with(lazy()).await;
    let task = node.task(&scene.name).sh(&format!("echo begins; {COUNT}")).build(&mut plugin).await;
    plugin.started(&task).await;
    begins(&task).await;
    let told = |event: &DriverTaskEvent| event.message.contains("the task starts before all of it is here");
    plugin.streams.event("the start of an incomplete image", told).await;
    let waits = |event: &DriverTaskEvent| event.message.contains("reads of it wait");
    plugin.streams.event("the registry's failure", waits).await;
    assert!(process_of(&node, &task, "guard.json").is_some());
    let listed = operator::run(&node, &["image", "ls", "--json"]).await.well().json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    scene.registry.heal();
    assert_eq!(finish(&task, &mut plugin).await, format!("begins\n{LINES}\n"));
    // The next task finds an ordinary image.
    completed(&node).await;
    scene.stop(0);
    let task = node.task(&scene.name).sh(COUNT).build(&mut plugin).await;
    plugin.started(&task).await;
    assert!(process_of(&node, &task, "guard.json").is_none());
    assert_eq!(finish(&task, &mut plugin).await, format!("{LINES}\n"));
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_task_or_a_node_can_ask_for_the_whole_image() {
    let node = Node::new();
    let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
    let mut plugin = node.launch_with(lazy()).await;
    let task = node.task(&scene.name).option("lazy", json!(false)).sh(COUNT).build(&mut plugin).await;
    plugin.started(&task).await;
    assert!(process_of(&node, &task, "guard.json").is_none());
    assert_eq!(finish(&task, &mut plugin).await, format!("{LINES}\n"));
    operator::run(&node, &["image", "prune"]).await.well();
    plugin.shutdown().await;
    let mut plugin = node.launch_with(json!({"lazy": {"enabled": false}})).await;
    let task = node.task(&scene.name).sh(COUNT).build(&mut plugin).await;
    plugin.started(&task).await;
    assert!(process_of(&node, &task, "guard.json").is_none());
    assert_eq!(finish(&task, &mut plugin).await, format!("{LINES}\n"));
    assert!(fs::read_dir(node.data_dir().join("images/partial")).is_ok_and(|mut partial| partial.next().is_none()));
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_task_that_needs_the_whole_image_waits_for_the_layer_that_streams() {
    let node = Node::new();
    let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
    scene.stop(FRONT);
    // At this pace the layer takes half a minute.
    let mut plugin = node.launch_with(json!({"lazy": {"min_size": "1", "bandwidth": "100000"}})).await;
    let script = format!("echo begins; {PAUSE}; {COUNT}");
    let task = node.task(&scene.name).sh(&script).build(&mut plugin).await;
    plugin.started(&task).await;
    begins(&task).await;
    scene.registry.heal();
    let began = Instant::now();
    let whole = node.task(&scene.name).option("lazy", json!(false)).sh(COUNT).build(&mut plugin).await;
    plugin.started(&whole).await;
    assert!(began.elapsed() < seconds(20), "{:?}", began.elapsed());
    assert!(process_of(&node, &whole, "guard.json").is_none());
    assert_eq!(finish(&whole, &mut plugin).await, format!("{LINES}\n"));
    tell(&task);
    assert_eq!(finish(&task, &mut plugin).await, format!("begins\n{LINES}\n"));
    let requests = scene.registry.requests();
    let downloads = requests.iter().filter(|request| {
        request.method == "GET" && request.path.contains(&scene.layer) && request.header("range").is_none()
    });
    assert_eq!(downloads.count(), 0, "the layer is not downloaded as a whole");
    node.finish(plugin).await;
}

#[tokio::test]
async fn reads_wait_for_the_next_plugin() {
    let node = Node::new();
    let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
    scene.stop(FRONT);
    let mut plugin = node.launch_with(lazy()).await;
    let task = node.task(&scene.name).sh(&format!("echo begins; {COUNT}")).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    begins(&task).await;
    plugin.process.kill().await;
    scene.registry.heal();
    assert!(!task.groups.members().is_empty(), "the task waits for the next plugin");
    let mut plugin = node.launch_with(lazy()).await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert_eq!(finish(&task, &mut plugin).await, format!("begins\n{LINES}\n"));
    node.finish(plugin).await;
}

/// The plugin is killed right after it has removed the marks of complete layers: it has not answered a read that was
/// announced before, and no mark names the group in which the read waits.
#[tokio::test]
async fn a_read_that_was_announced_before_a_layer_was_complete_does_not_wait_for_ever() {
    let node = Node::new();
    let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
    // The layers stay announced when they are complete.
    let mut plugin = node.launch_with(json!({"lazy": {"min_size": "1", "profile": "600s"}})).await;
    let again = PAUSE.replace("go", "end");
    let script = format!("echo begins; {PAUSE}; {COUNT}; {again}");
    let task = node.task(&scene.name).sh(&script).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    begins(&task).await;
    let partial = partial_layers(&node);
    let is_here = |layer: &PathBuf| fs::read(layer.join("present")).is_ok_and(|chunks| !chunks.contains(&0));
    assert!(eventually(seconds(30), || partial.iter().all(is_here)).await, "all data of the layers is here");
    plugin.process.signal(Signal::STOP);
    tell(&task);
    let waits = |pid: &i32| process::status_field(*pid, "State").is_some_and(|state| state.starts_with('D'));
    assert!(eventually(seconds(10), || task.groups.members().iter().any(waits)).await, "a read waits");
    let monitor = process_of(&node, &task, "monitor.json").must("a monitor");
    for group in groups_of(monitor).must("its descriptors") {
        partial.iter().for_each(|layer| forget(&group, &layer.join("fs.erofs")).must("remove a mark"));
    }
    plugin.process.kill().await;
    let mut plugin = node.launch_with(lazy()).await;
    plugin.recover(&handle).await.must("RecoverTask");
    task.stdout().contains(&format!("{LINES}\n"), seconds(30)).await;
    assert!(process_of(&node, &task, "guard.json").is_some_and(|guard| !lives(guard)), "the guard is not needed");
    assert_eq!(groups_of(monitor).must("its descriptors").len(), 0, "the monitor keeps no reads waiting");
    fs::write(task.dir().join("local/end"), "").must("end the task");
    assert_eq!(finish(&task, &mut plugin).await, format!("begins\n{LINES}\n"));
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_guard_ends_when_the_image_is_complete_and_the_task_goes_on() {
    let node = Node::new();
    let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
    let mut plugin = node.launch_with(lazy()).await;
    let task = node.task(&scene.name).sh(&format!("echo begins; {PAUSE}; echo ends")).build(&mut plugin).await;
    plugin.started(&task).await;
    begins(&task).await;
    let guard = process_of(&node, &task, "guard.json").must("a guard");
    assert!(eventually(seconds(30), || !lives(guard)).await, "the guard ends");
    tell(&task);
    assert_eq!(finish(&task, &mut plugin).await, "begins\nends\n");
    node.finish(plugin).await;
}

/// The layers became complete right before the plugin was killed, and another container's record is damaged.
#[tokio::test]
async fn the_next_plugin_ends_a_guard_beside_one_that_it_cannot_end() {
    let node = Node::new();
    let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
    scene.stop(FRONT);
    let mut plugin = node.launch_with(lazy()).await;
    let task = node.task(&scene.name).sh(&format!("echo begins; {COUNT}; {PAUSE}")).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    begins(&task).await;
    let (record, elsewhere) = (record_of(&node, &task, "guard.json").must("a record"), node.root().join("guard.json"));
    let guard = process_of(&node, &task, "guard.json").must("a guard");
    // Without its record this plugin does not find the guard.
    fs::rename(&record, &elsewhere).must("hide the record");
    scene.registry.heal();
    completed(&node).await;
    plugin.process.kill().await;
    assert!(lives(guard));
    fs::rename(&elsewhere, &record).must("show the record");
    // Plugins look at this container first.
    let damaged = node.state_dir().join("tasks/0.docker");
    fs::create_dir(&damaged).must("a container of the driver of the other name");
    fs::write(damaged.join("guard.json"), "{").must("a damaged record");
    let mut plugin = node.launch_with(lazy()).await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert!(eventually(seconds(10), || !lives(guard)).await, "the guard ends");
    fs::remove_dir_all(&damaged).must("remove the damaged record");
    tell(&task);
    assert_eq!(finish(&task, &mut plugin).await, format!("begins\n{LINES}\n"));
    node.finish(plugin).await;
}

/// No process of the driver is left, so no read can be answered any more: the kernel ends the task.
#[tokio::test]
async fn a_task_with_an_incomplete_image_ends_when_plugin_and_monitor_are_killed() {
    for guard_first in [false, true] {
        let node = Node::new();
        let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
        scene.stop(FRONT);
        let mut plugin = node.launch_with(lazy()).await;
        let script = format!("echo begins; while true; do {COUNT}; done");
        let task = node.task(&scene.name).sh(&script).build(&mut plugin).await;
        let handle = plugin.started(&task).await;
        begins(&task).await;
        let monitor = process_of(&node, &task, "monitor.json").must("a monitor");
        let mut guard = process_of(&node, &task, "guard.json").must("a guard");
        if guard_first {
            kill(guard);
            let next = || process_of(&node, &task, "guard.json").filter(|next| *next != guard && lives(*next));
            assert!(eventually(seconds(10), || next().is_some()).await, "the monitor starts another guard");
            guard = next().must("it lives");
        }
        plugin.process.kill().await;
        kill(monitor);
        assert!(eventually(seconds(10), || task.groups.members().is_empty()).await, "the task is ended");
        assert!(eventually(seconds(10), || !lives(guard)).await, "the guard ends");
        scene.registry.heal();
        let plugin = node.launch_with(lazy()).await;
        plugin.recover(&handle).await.must("RecoverTask");
        plugin.wait(task.id()).await;
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        let (said, complained) = (task.stdout().all(seconds(5)).await, task.stderr().all(seconds(5)).await);
        assert_eq!(said, "begins\n", "no read saw zeros (guard first: {guard_first}): {complained}");
        node.finish(plugin).await;
    }
}

/// Registries limit the rate of requests, fail for a moment, and end connections.
#[tokio::test]
async fn reads_wait_until_a_registry_that_limits_or_fails_answers() {
    let limited = || Action::Status(429, vec![("Retry-After".to_owned(), "1".to_owned())]);
    let failed = || Action::Status(500, Vec::new());
    for actions in
        [vec![limited(), limited()], vec![failed(), failed()], vec![failed(), limited(), Action::Cut(50_000)]]
    {
        let node = Node::new();
        let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
        let count = actions.len();
        for action in actions {
            // A fault sees each request that no fault before it answered.
            scene.registry.fault(Fault::on(&scene.layer, action).after(FRONT).times(1));
        }
        let mut plugin = node.launch_with(lazy()).await;
        let task = node.task(&scene.name).sh(&format!("echo begins; {COUNT}")).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(finish(&task, &mut plugin).await, format!("begins\n{LINES}\n"));
        let asked = scene.registry.requests().iter().filter(|request| request.path.contains(&scene.layer)).count();
        assert!(asked > FRONT + count, "{asked} requests");
        node.finish(plugin).await;
    }
}

/// A registry that is gone for longer than the operator allows.
#[tokio::test]
async fn a_read_fails_after_the_time_limit_and_a_later_one_succeeds() {
    let node = Node::new();
    let Some(scene) = Scene::new(&node).await else { return node.finish_without_plugin().await };
    scene.stop(FRONT);
    let mut plugin = node.launch_with(json!({"lazy": {"min_size": "1", "read_timeout": "1s"}})).await;
    let script = format!("echo begins; cat /large >/dev/null || echo failed; {PAUSE}; {COUNT}");
    let task = node.task(&scene.name).sh(&script).build(&mut plugin).await;
    let began = Instant::now();
    plugin.started(&task).await;
    task.stdout().contains("failed", seconds(30)).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    let told = |event: &DriverTaskEvent| event.message.contains("could not be read (EIO)");
    plugin.streams.event("the failed read", told).await;
    scene.registry.heal();
    tell(&task);
    assert_eq!(finish(&task, &mut plugin).await, format!("begins\nfailed\n{LINES}\n"));
    node.finish(plugin).await;
}

/// Files that the readers of the kill test hash, each of several chunks. Together they are so large that a start
/// fetches a part of the hash tree only.
const FILES: usize = 12;
const FILE: usize = 1_000_000;

/// Kills plugins, monitors and both at random moments while tasks read. `OCI_RS_LAZY_START_KILLS` sets their number.
#[tokio::test]
async fn kills_of_plugins_and_monitors_never_show_a_wrong_byte() {
    let kills: usize = std::env::var("OCI_RS_LAZY_START_KILLS").map_or(12, |kills| kills.parse().must("a number"));
    let node = Node::new();
    if !mounts_images(&node) || !announces_reads() {
        return node.finish_without_plugin().await;
    }
    let (native, sums) = hashed_files(&node).await;
    let mut killed = 0;
    let mut plugin = node.launch_with(lazy()).await;
    while killed < kills {
        let mut random = Random::new(killed as u64 + 1);
        // A new registry: its image is not on the node.
        let registry = Registry::start();
        let name = registry.reference("team/native:1");
        operator::run(&node, &["image", "push", &native.display().to_string(), &name]).await.well();
        registry.fault(Fault::on("/blobs/", Action::Delay(Duration::from_millis(15))).method("GET"));
        let readers = "for i in $(seq 0 11); do busybox md5sum /files/$i & done; wait; echo all";
        let task = node.task(&name).sh(readers).build(&mut plugin).await;
        let handle = plugin.started(&task).await;
        loop {
            tokio::time::sleep(Duration::from_millis(random.next() % 60)).await;
            // The plugin twice as often: it is what the reads survive.
            let (of_plugin, of_monitor) = match random.next() % 4 {
                0 => (false, true),
                1 => (true, true),
                _ => (true, false),
            };
            let monitor = process_of(&node, &task, "monitor.json").filter(|monitor| of_monitor && lives(*monitor));
            if of_plugin {
                plugin.process.kill().await;
                killed += 1;
            }
            // The task may have ended while the plugin was killed, and its monitor with it.
            if let Some(monitor) = monitor.and_then(Pid::from_raw)
                && kill_process(monitor, Signal::KILL).is_ok()
            {
                killed += 1;
            }
            if of_plugin {
                plugin = node.launch_with(lazy()).await;
                plugin.recover(&handle).await.must("RecoverTask");
            }
            if task.groups.members().is_empty() || killed >= kills {
                break;
            }
        }
        plugin.wait(task.id()).await;
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        let said = task.stdout().all(seconds(30)).await;
        for line in said.lines().filter(|line| *line != "all") {
            assert!(sums.contains(line), "after {killed} kills: {line:?} is none of {sums:?}");
        }
        operator::run(&node, &["image", "prune"]).await.well();
    }
    node.finish(plugin).await;
}

/// A native image with the files as a layout, and the lines that a container prints for them.
async fn hashed_files(node: &Node) -> (PathBuf, HashSet<String>) {
    let mut random = Random::new(7);
    // Every other file is compressed to a half, so that all of them take as many chunks in the image.
    let mut contents: Vec<Vec<u8>> = (0..FILES).map(|number| random.bytes(FILE << (number % 2))).collect();
    contents.iter_mut().skip(1).step_by(2).flatten().for_each(|byte| *byte = b'a' + *byte % 16);
    let on_host = node.root().join("files");
    fs::create_dir(&on_host).must("a directory");
    let mut sums = HashSet::new();
    for (number, content) in contents.iter().enumerate() {
        let path = on_host.join(number.to_string());
        fs::write(&path, content).must("a file");
        let said = std::process::Command::new("md5sum").arg(&path).output().must("md5sum");
        let sum = String::from_utf8_lossy(&said.stdout).split(' ').next().unwrap_or_default().to_owned();
        sums.insert(format!("{sum}  /files/{number}"));
    }
    let files = contents.into_iter().enumerate();
    let entries = files.map(|(number, content)| Entry::file(format!("files/{number}"), content));
    let layer = Layer::of([Entry::dir("files")].into_iter().chain(entries));
    let built = busybox::with(Compression::Gzip, [layer]);
    let (layout, native) = (node.root().join("hashed.tar"), node.root().join("hashed"));
    fs::write(&layout, archive(built.layout(json!({"org.opencontainers.image.ref.name": "1"})))).must("a layout");
    let paths = [&layout, &native].map(|path| path.display().to_string());
    operator::run(node, &["image", "convert", &paths[0], &paths[1]]).await.well();
    (native, sums)
}
