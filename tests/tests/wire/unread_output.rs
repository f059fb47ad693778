//! The reader of a log is killed: the task neither ends nor blocks forever, the next reader gets the later output, and
//! dropped bytes are counted.

use std::{
    fs,
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::{
    node::Node,
    plugin::{Plugin, PluginCommand, nomad_config},
    scrape::{Scrape, address, scrape_until},
    task::Task,
};
use proto::driver::DriverTaskEvent;
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use serde_json::json;

/// A log collector as a separate process that can be killed.
struct Reader {
    process: Child,
    file: PathBuf,
}

impl Reader {
    fn start(fifo: &Path, file: PathBuf) -> Self {
        let output = fs::File::create(&file).must("a file for the log");
        let process = Command::new("cat").arg(fifo).stdout(output).spawn().must("start cat");
        Self { process, file }
    }

    fn read(&self) -> Vec<u8> {
        fs::read(&self.file).must("the log")
    }

    async fn contains(&self, text: &str) {
        let found = || self.read().windows(text.len()).any(|part| part == text.as_bytes());
        assert!(eventually(seconds(20), found).await, "no {text:?} in the log");
    }

    fn kill(&mut self) {
        self.process.kill().must("kill the reader");
        self.process.wait().must("reap the reader");
    }

    /// Waits until the last writer has closed the FIFO, and returns everything.
    async fn all(&mut self) -> Vec<u8> {
        let ended = eventually(seconds(20), || matches!(self.process.try_wait(), Ok(Some(_)))).await;
        assert!(ended, "the FIFO is still held open");
        self.read()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The process has usually ended already.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

struct Scene {
    task: Task,
    fifo: PathBuf,
}

impl Scene {
    async fn new(node: &Node, plugin: &mut Plugin, images: &Images, script: &str, terminal: bool) -> Self {
        let task = node.task(&images.busybox()).sh(script).option("tty", json!(terminal));
        let mut task = task.without_logs().build(plugin).await;
        let fifo = task.alloc.dir.join("alloc/logs/.main.stdout.fifo");
        mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o600)).must("a FIFO");
        task.config.stdout_path = fifo.to_string_lossy().into_owned();
        Self { task, fifo }
    }

    fn reader(&self, node: &Node, name: &str) -> Reader {
        Reader::start(&self.fifo, node.root().join(name))
    }

    /// Makes a file that the script waits for.
    fn tell(&self, name: &str) {
        fs::write(self.task.dir().join("local").join(name), "").must("tell the task");
    }

    async fn wait_for_file(&self, name: &str) {
        let path = self.task.dir().join("local").join(name);
        assert!(eventually(seconds(20), || path.exists()).await, "the task is blocked: no {name}");
    }

    fn tells_a_loss(&self, event: &DriverTaskEvent) -> bool {
        event.task_id == self.task.id() && event.annotations.contains_key("lost_bytes")
    }

    async fn lost(&self, plugin: &Plugin) -> usize {
        // An agent shows events of a recovered task only from the time when it waits for the task's end.
        let waits = async {
            drop(plugin.wait_raw(self.task.id()).await);
            std::future::pending().await
        };
        let event = tokio::select! {
            event = plugin.streams.event("what was lost", |event| self.tells_a_loss(event)) => event,
            never = waits => never,
        };
        assert!(event.message.contains("standard output") && event.message.contains("lost"), "{event:?}");
        event.annotations["lost_bytes"].parse().must("a number")
    }
}

const WAIT: &str = "wait_for() { while [ ! -e /local/$1 ]; do sleep 0.02; done; }";

/// A script that writes this number of bytes after `go`, and a last line after `end`.
fn much(bytes: usize) -> String {
    format!(
        "{WAIT}; echo start; wait_for go; head -c {bytes} /dev/zero | tr '\\0' x; touch /local/written; \
         wait_for end; echo resumed; exit 4"
    )
}

#[tokio::test]
async fn a_task_continues_without_a_reader_and_the_next_reader_gets_the_rest() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"metrics": {"address": "127.0.0.1:0"}})).await;
    let mut lost_of_both = 0;
    let images = Images::start().await;
    for terminal in [false, true] {
        let scene = Scene::new(&node, &mut plugin, &images, &much(3_000_000), terminal).await;
        let mut first = scene.reader(&node, "first");
        plugin.started(&scene.task).await;
        first.contains("start").await;
        first.kill();
        scene.tell("go");
        scene.wait_for_file("written").await;
        let mut second = scene.reader(&node, "second");
        let lost = scene.lost(&plugin).await;
        scene.tell("end");
        assert_eq!(plugin.wait(scene.task.id()).await.code, 4);
        plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
        let (before, after) = (first.read(), second.all().await);
        let resumed: &[u8] = if terminal { b"resumed\r\n" } else { b"resumed\n" };
        assert!(after.ends_with(resumed), "{:?}", String::from_utf8_lossy(&after));
        let start = if terminal { 7 } else { 6 };
        assert_eq!(before.len(), start);
        assert_eq!(lost + after.len(), 3_000_000 + resumed.len(), "every byte is read or counted");
        lost_of_both += lost;
    }
    let counted = |scrape: &Scrape| {
        scrape.value("oci_rs_lost_output_bytes_total", &[("stream", "stdout")]) == Some(lost_of_both as f64)
    };
    scrape_until(&address(&plugin).await, "the lost bytes", counted).await;
    node.finish(plugin).await;
}

/// The bytes that fit into the FIFO stay there.
#[tokio::test]
async fn a_short_absence_of_the_reader_loses_nothing() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script =
        format!("{WAIT}; echo start; wait_for go; seq 1 1000; touch /local/written; wait_for end; echo last; exit 5");
    let scene = Scene::new(&node, &mut plugin, &images, &script, false).await;
    let mut first = scene.reader(&node, "first");
    plugin.started(&scene.task).await;
    first.contains("start\n").await;
    first.kill();
    scene.tell("go");
    scene.wait_for_file("written").await;
    // This is long enough for two checks of the plugin.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mut second = scene.reader(&node, "second");
    second.contains("1000\n").await;
    scene.tell("end");
    assert_eq!(plugin.wait(scene.task.id()).await.code, 5);
    plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
    let expected: String = (1..=1000).map(|n| format!("{n}\n")).collect::<String>() + "last\n";
    assert_eq!(String::from_utf8_lossy(&second.all().await), expected);
    let events = plugin.streams.events();
    assert!(!events.iter().any(|event| event.message.contains("lost")), "{events:?}");
    node.finish(plugin).await;
}

/// Readers are started and killed while a task writes at full speed: lines stay complete and in order except where
/// bytes were dropped, and the last reader gets everything up to the end.
#[tokio::test]
async fn killed_readers_lose_only_reported_bytes() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = format!(
        "{WAIT}; wait_for go; n=10000000; while [ ! -e /local/end ]; do seq $n $((n + 99999)); n=$((n + 100000)); \
         done; echo done"
    );
    let scene = Scene::new(&node, &mut plugin, &images, &script, false).await;
    let mut reader = scene.reader(&node, "0");
    plugin.started(&scene.task).await;
    scene.tell("go");
    let mut last = 0u32;
    for round in 1..=3 {
        let grown = || fs::metadata(&reader.file).is_ok_and(|file| file.len() > 0);
        assert!(eventually(seconds(20), grown).await, "nothing arrives");
        reader.kill();
        last = in_order(&reader.read(), last);
        reader = scene.reader(&node, &round.to_string());
    }
    scene.tell("end");
    assert_eq!(plugin.wait(scene.task.id()).await.code, 0);
    plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
    let text = reader.all().await;
    assert!(text.ends_with(b"done\n"));
    in_order(&text[..text.len() - 5], last);
    node.finish(plugin).await;
}

/// Checks that complete lines have rising numbers. Returns the last number.
fn in_order(text: &[u8], mut last: u32) -> u32 {
    let text = std::str::from_utf8(text).must("text");
    // A reader can begin and end within a line.
    for line in text.split('\n').filter(|line| line.len() == 8) {
        let number = line.parse().must("a number");
        assert!(number > last, "{number} after {last}");
        last = number;
    }
    last
}

/// There is never a reader, and the plugin is killed in between.
#[tokio::test]
async fn a_new_plugin_drains_a_fifo_without_a_reader() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = format!("{WAIT}; head -c 500000 /dev/zero; touch /local/one; wait_for go; head -c 700000 /dev/zero");
    let scene = Scene::new(&node, &mut plugin, &images, &script, false).await;
    let handle = plugin.started(&scene.task).await;
    scene.wait_for_file("one").await;
    plugin.process.kill().await;
    scene.tell("go");
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert_eq!(plugin.wait(scene.task.id()).await.code, 0);
    let lost = scene.lost(&plugin).await;
    assert_eq!(lost, 1_200_000, "what the first plugin dropped is not forgotten");
    plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The agent and all its processes are gone for a long time. The monitor drains the FIFO, so that the task does not
/// block.
#[tokio::test]
async fn without_plugin_and_reader_dropped_bytes_are_counted() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for terminal in [false, true] {
        let scene = Scene::new(&node, &mut plugin, &images, &much(400_000), terminal).await;
        let mut first = scene.reader(&node, "first");
        let handle = plugin.started(&scene.task).await;
        first.contains("start").await;
        plugin.process.kill().await;
        first.kill();
        scene.tell("go");
        scene.wait_for_file("written").await;
        let mut second = scene.reader(&node, "second");
        plugin = node.launch().await;
        plugin.recover(&handle).await.must("RecoverTask");
        let lost = scene.lost(&plugin).await;
        scene.tell("end");
        assert_eq!(plugin.wait(scene.task.id()).await.code, 4);
        plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
        let after = second.all().await;
        let resumed: &[u8] = if terminal { b"resumed\r\n" } else { b"resumed\n" };
        assert!(after.ends_with(resumed), "{:?}", String::from_utf8_lossy(&after));
        assert_eq!(lost + after.len(), 400_000 + resumed.len(), "every byte is read or counted");
    }
    node.finish(plugin).await;
}

/// The same, and the task ends before the next plugin starts.
#[tokio::test]
async fn dropped_bytes_of_a_task_that_ended_without_a_plugin_are_reported() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = format!("{WAIT}; wait_for go; head -c 300000 /dev/zero; touch /local/written; exit 6");
    let scene = Scene::new(&node, &mut plugin, &images, &script, false).await;
    let handle = plugin.started(&scene.task).await;
    let init = plugin.init_pid(&scene.task);
    plugin.process.kill().await;
    scene.tell("go");
    scene.wait_for_file("written").await;
    assert!(eventually(seconds(20), || !Path::new(&format!("/proc/{init}")).exists()).await, "it has not ended");
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert_eq!(plugin.wait(scene.task.id()).await.code, 6);
    assert_eq!(scene.lost(&plugin).await, 300_000);
    plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The task ends before the plugin has looked for a reader.
#[tokio::test]
async fn the_output_of_a_short_task_without_a_reader_is_reported() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for terminal in [false, true] {
        let scene = Scene::new(&node, &mut plugin, &images, "echo lost; exit 3", terminal).await;
        plugin.started(&scene.task).await;
        assert_eq!(plugin.wait(scene.task.id()).await.code, 3);
        assert_eq!(scene.lost(&plugin).await, if terminal { 6 } else { 5 });
        plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
    }
    // A reader that has not read yet loses nothing.
    let scene = Scene::new(&node, &mut plugin, &images, "echo read; exit 4", false).await;
    let reader = fs::File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&scene.fifo);
    let mut reader = reader.must("open the log");
    plugin.started(&scene.task).await;
    assert_eq!(plugin.wait(scene.task.id()).await.code, 4);
    plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
    let mut text = String::new();
    reader.read_to_string(&mut text).must("the output");
    assert_eq!(text, "read\n");
    let events = plugin.streams.events();
    assert!(!events.iter().any(|event| scene.tells_a_loss(event)), "{events:?}");
    node.finish(plugin).await;
}

/// The plugin is dead when the task ends, and the next plugin dies before the agent waits for the task.
#[tokio::test]
async fn lost_output_is_reported_once_although_plugins_are_killed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let scene =
        Scene::new(&node, &mut plugin, &images, &format!("{WAIT}; wait_for go; echo lost; exit 6"), false).await;
    let handle = plugin.started(&scene.task).await;
    let init = plugin.init_pid(&scene.task);
    plugin.process.kill().await;
    scene.tell("go");
    assert!(eventually(seconds(20), || !Path::new(&format!("/proc/{init}")).exists()).await, "it has not ended");

    let mut plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    plugin.capabilities().await;
    assert!(plugin.streams.events().is_empty(), "the agent would not show it yet");
    plugin.process.kill().await;

    let mut plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert_eq!(scene.lost(&plugin).await, 5);
    plugin.process.kill().await;

    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert_eq!(plugin.wait(scene.task.id()).await.code, 6);
    plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
    let events = plugin.streams.events();
    assert!(!events.iter().any(|event| scene.tells_a_loss(event)), "reported twice: {events:?}");
    node.finish(plugin).await;
}

/// The monitor is killed, and the task ends before the plugin has looked for a reader. The plugin counts in its place,
/// also one that never saw the monitor.
#[tokio::test]
async fn output_of_a_task_without_monitor_is_reported() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for is_recovered in [false, true] {
        let script = format!("{WAIT}; wait_for go; echo lost; exit 6");
        let scene = Scene::new(&node, &mut plugin, &images, &script, false).await;
        let handle = plugin.started(&scene.task).await;
        if is_recovered {
            plugin.process.kill().await;
            plugin.kill_monitor(&scene.task);
            plugin = node.launch().await;
            plugin.recover(&handle).await.must("RecoverTask");
        } else {
            plugin.kill_monitor(&scene.task);
        }
        // The plugin may have the log open for reading already. In the monitor's place it holds it for writing alone.
        let process = format!("/proc/{}", plugin.process.pid());
        let is_writer = |number: &str| {
            let info = fs::read_to_string(format!("{process}/fdinfo/{number}")).unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim).unwrap_or_default();
            u32::from_str_radix(flags, 8).is_ok_and(|flags| flags & 3 == 1)
        };
        let holds = || {
            let mut files = fs::read_dir(format!("{process}/fd")).must("the plugin's files").flatten();
            files.any(|file| {
                fs::read_link(file.path()).is_ok_and(|target| target == scene.fifo)
                    && is_writer(&file.file_name().to_string_lossy())
            })
        };
        assert!(eventually(seconds(20), holds).await, "the plugin does not hold the log");
        scene.tell("go");
        let exit = plugin.wait(scene.task.id()).await;
        assert!(exit.code == 6 || exit.err.contains("exit status was lost"), "{exit:?}");
        assert_eq!(scene.lost(&plugin).await, 5);
        plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

/// The agent receives no events when the task ends, nor when it is destroyed.
#[tokio::test]
async fn an_event_waits_for_an_agent_that_listens() {
    let node = Node::new();
    let images = Images::start().await;
    for destroyed in [false, true] {
        let mut plugin = PluginCommand::new(node.root()).connect().await;
        let packed = plugin.encode_config(&node.config()).await;
        plugin.set_config(packed, Some(nomad_config())).await.must("SetConfig");
        let scene = Scene::new(&node, &mut plugin, &images, "echo lost; exit 3", false).await;
        plugin.started(&scene.task).await;
        assert_eq!(plugin.wait(scene.task.id()).await.code, 3);
        if destroyed {
            plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
        }
        plugin.watch();
        assert_eq!(scene.lost(&plugin).await, 5);
        plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
        assert!(plugin.shutdown().await.success());
    }
    node.finish_without_plugin().await;
}

/// Plugin, monitor and reader are dead. The task itself holds its FIFO open, so a write does not kill it, and the next
/// reader gets the output.
#[tokio::test]
async fn a_task_survives_the_kill_of_plugin_monitor_and_reader() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = format!(
        "{WAIT}; echo start; wait_for go; seq 1 1000; touch /local/written; seq 10001 50000; wait_for end; echo \
         last; exit 5"
    );
    let scene = Scene::new(&node, &mut plugin, &images, &script, false).await;
    let mut first = scene.reader(&node, "first");
    let handle = plugin.started(&scene.task).await;
    first.contains("start\n").await;
    plugin.process.kill().await;
    plugin.kill_monitor(&scene.task);
    first.kill();
    scene.tell("go");
    scene.wait_for_file("written").await;
    let mut second = scene.reader(&node, "second");
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    second.contains("50000\n").await;
    scene.tell("end");
    let exit = plugin.wait(scene.task.id()).await;
    assert!(exit.code == 5 || exit.err.contains("lost"), "{exit:?}");
    plugin.destroy(scene.task.id(), true).await.must("DestroyTask");
    let numbers = (1..=1000).chain(10_001..=50_000).map(|n| format!("{n}\n"));
    let expected: String = numbers.collect::<String>() + "last\n";
    assert!(second.all().await == expected.as_bytes(), "all of it, in order");
    node.finish(plugin).await;
}
