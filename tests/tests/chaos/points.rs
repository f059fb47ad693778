//! Each failpoint of a task's life, visited once: the process that arrives there is killed as by `kill -9`.
//!
//! A traced life tells which points there are, so a new one is visited without being named here. Afterwards the agent does what
//! Nomad does: it starts a new plugin and asks again, starts the task under a new id because it died as well, or never asks again.
//! Whichever it is, a start that was cut is finished or undone, and nothing is left at the end. Lives with a network of the task's
//! own, or with a copied root, pass further points; the former are lived on an netns, each with a bridge of its own.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use fixtures::{
    busybox::Images,
    must::Must,
    netns::{TestNetwork, cni_path},
    process,
    wait::{all, eventually, seconds},
};
use kit::{
    node::Node,
    plugin::{Plugin, PluginCommand},
    task::Task,
};
use proto::driver::TaskHandle;
use serde_json::{Value as Json, json};

use crate::life::is_one_and_up;

/// Variables of the crate `failpoint`, which only dev builds look at.
pub const POINT: &str = "OCI_RS_FAILPOINT";
const TRACE: &str = "OCI_RS_FAILPOINT_TRACE";

/// Tells what it is about to end with. `/up`, in its own root, says that it is ready to be told to end.
const SCRIPT: &str = "trap 'echo 7 >>/local/truth; exit 7' TERM; >/up; sleep 1000 & wait; wait";

/// Points of the plugin from which on, or until which, nothing on disk tells that a container is not wanted: after the start's mark
/// is gone, and before the removal's is there. When Nomad does not ask again, it is removed as one that no task knows.
const NOT_MARKED: [&str; 4] =
    ["start-before-answer", "owner-before-remove", "destroy-before-mark", "owner-before-kill"];

/// Operations whose points a plugin passes. The image store's are visited by its own tests.
const OF_THE_PLUGIN: [&str; 4] = ["start-", "owner-", "destroy-", "recover-"];
/// Those that a monitor or its creator passes.
const OF_A_MONITOR: [&str; 3] = ["monitor-", "creator-", "root-"];

/// Visits that run side by side.
const WIDTH: usize = 4;

/// A place to die at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    name: String,
    arrival: usize,
}

/// What the agent does when its call got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// It makes the same call to the new plugin.
    AskAgain,
    /// It died too, has no handle, and starts the task under a new id.
    NewId,
    /// It never asks again: the job was stopped meanwhile.
    Forget,
}

/// How the task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It is told to, and does.
    Told,
    /// It is killed.
    Killed,
}

impl Ending {
    fn patience(self) -> Duration {
        if self == Self::Told { seconds(10) } else { Duration::ZERO }
    }

    fn code(self) -> i32 {
        if self == Self::Told { 7 } else { 137 }
    }
}

/// One visit.
#[derive(Debug, Clone)]
struct Visit {
    point: Point,
    ending: Ending,
    after: After,
    /// The plugin that dies is not the one that started the task.
    recovered: bool,
    setting: Setting,
}

/// What a visit's task gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// The host's network, and its root mounted where the machine can.
    Plain,
    /// A network of its own, on the bridge of this number.
    OwnNetwork(u16),
    /// A copied root, and a named volume that is made for it.
    Copied,
}

impl Setting {
    /// The plugin block's part.
    fn options(self) -> Json {
        match self {
            Self::Plain => json!({}),
            Self::Copied => json!({"rootfs": "copy", "volumes": {"enabled": true}}),
            Self::OwnNetwork(number) => json!({ "network": {
                "cni_path": cni_path(), "bridge": format!("bridge{number}"),
                "subnet": format!("10.{}.{}.0/24", 100 + number / 250, number % 250),
            }}),
        }
    }

    /// The task of a visit.
    async fn task(self, node: &Node, images: &Images, plugin: &mut Plugin) -> Task {
        let task = node.task(&images.busybox()).sh(SCRIPT);
        let task = match self {
            Self::Plain => task,
            Self::Copied => task.option("mount", json!([{"type": "volume", "source": "filled", "target": "/etc"}])),
            Self::OwnNetwork(number) => task.port("http", &TestNetwork::NODE.to_string(), 20_000 + number, 80),
        };
        task.build(plugin).await
    }
}

impl Visit {
    /// The others are passed by a monitor or its creator.
    fn kills_the_plugin(&self) -> bool {
        OF_THE_PLUGIN.iter().any(|operation| self.point.name.starts_with(operation))
    }

    fn is_needless(&self) -> bool {
        match self.after {
            After::AskAgain => false,
            // What else can happen to it once it runs.
            After::NewId => !self.point.name.starts_with("start-"),
            After::Forget => !self.kills_the_plugin(),
        }
    }

    /// Nobody asks again, and nothing says that nobody will.
    fn leaves_no_mark(&self) -> bool {
        self.after == After::Forget && NOT_MARKED.contains(&self.point.name.as_str())
    }
}

/// Says which visit it was that failed.
struct Named<'a>(&'a Visit);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[allow(clippy::print_stderr, reason = "the test's own output is the one place where its reader looks")]
            {
                eprintln!("in {:?}", self.0);
            }
        }
    }
}

/// A plugin that writes a trace and dies at the point.
async fn armed(node: &Node, point: Option<&Point>, setting: Setting) -> Plugin {
    let mut launch = PluginCommand::new(node.root()).env(TRACE, &trace(node).to_string_lossy());
    if let Some(Point { name, arrival }) = point {
        launch = launch.env(POINT, &format!("{name}:{arrival}"));
    }
    node.launch_as(launch, setting.options()).await
}

fn trace(node: &Node) -> PathBuf {
    node.root().join("trace")
}

/// How often each point was arrived at.
fn arrivals(node: &Node) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(trace(node)).unwrap_or_default().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

/// A new plugin that lives, in place of the one that is dead or is killed now.
async fn replace(plugin: &mut Plugin, node: &Node, visit: &Visit) {
    plugin.process.kill().await;
    let mut options = visit.setting.options();
    if visit.leaves_no_mark() {
        options["gc"] = json!({"dangling_containers": {"period": "300ms", "creation_grace": "300ms"}});
    }
    *plugin = node.launch_with(options).await;
}

/// The agent's next task, by which the plugin knows whose agent it is.
async fn another_task(plugin: &mut Plugin, node: &Node, images: &Images) {
    let task = node.task(&images.busybox()).command("/bin/true", &[]).build(plugin).await;
    plugin.started(&task).await;
    plugin.end(&task).await;
}

/// Waits until the task can be told to end.
async fn is_up(task: &Task) {
    let ready = eventually(seconds(10), || is_one_and_up(task)).await;
    assert!(ready, "not one container that is up: {:?}", task.groups.members());
}

/// A life without a death, which tells the points that it passes; with `recovered` those of a plugin that found the task running.
async fn traced(images: &Images, ending: Ending, recovered: bool, setting: Setting) -> Vec<Point> {
    let node = Node::new();
    let mut plugin = if recovered { node.launch().await } else { armed(&node, None, setting).await };
    let task = setting.task(&node, images, &mut plugin).await;
    let handle = plugin.started(&task).await;
    if recovered {
        plugin.process.kill().await;
        plugin = armed(&node, None, setting).await;
        plugin.recover(&handle).await.must("RecoverTask");
    }
    is_up(&task).await;
    plugin.stop(task.id(), ending.patience(), "").await.must("StopTask");
    assert_eq!(plugin.wait(task.id()).await.code, ending.code());
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let points = arrivals(&node)
        .into_iter()
        .filter(|(name, _)| OF_THE_PLUGIN.iter().chain(&OF_A_MONITOR).any(|operation| name.starts_with(operation)))
        .flat_map(|(name, count)| (1..=count).map(move |arrival| Point { name: name.clone(), arrival }));
    let points = points.collect();
    node.finish(plugin).await;
    points
}

async fn make(images: &Images, visit: Visit) {
    let _named = Named(&visit);
    let node = Node::new();
    let setting = visit.setting;
    let mut plugin = if visit.recovered {
        node.launch_with(setting.options()).await
    } else {
        armed(&node, Some(&visit.point), setting).await
    };
    let task = setting.task(&node, images, &mut plugin).await;
    if let Some((task, handle)) = start(&node, &mut plugin, task, &visit).await {
        if visit.recovered {
            plugin.process.kill().await;
            plugin = armed(&node, Some(&visit.point), setting).await;
            if plugin.recover(&handle).await.is_err() {
                replace(&mut plugin, &node, &visit).await;
                plugin.recover(&handle).await.must("RecoverTask after a plugin that died in it");
            }
        }
        end(&node, &mut plugin, &task, &handle, &visit).await;
    }
    if visit.leaves_no_mark() {
        another_task(&mut plugin, &node, images).await;
    }
    // And perhaps once more, by who does the dead one's work.
    let passed = arrivals(&node).get(&visit.point.name).copied().unwrap_or_default();
    assert!(passed >= visit.point.arrival, "the point was passed {passed} times");
    let own = plugin.process.pid();
    let clean = eventually(seconds(15), || {
        let traces = node.traces();
        traces.files.is_empty() && traces.processes.iter().all(|(pid, _)| *pid == own)
    });
    assert!(clean.await, "left behind:\n{}", node.traces());
    node.finish(plugin).await;
}

/// Starts the task until it runs, or until nobody wants it any more.
async fn start(node: &Node, plugin: &mut Plugin, mut task: Task, visit: &Visit) -> Option<(Task, TaskHandle)> {
    let handle = match plugin.start(&task).await {
        Ok(answer) => answer.handle.must("a handle"),
        Err(status) => {
            if !visit.kills_the_plugin() {
                assert!(status.message().contains("monitor") || status.message().contains("creator"), "{status}");
                assert_eq!(task.groups.members(), Vec::<i32>::new(), "a failed start leaves no process");
                assert!(node.traces().files.is_empty(), "{}", node.traces());
            }
            replace(plugin, node, visit).await;
            match visit.after {
                After::Forget => return None,
                // A start that was answered, if only by an error, is never asked for again under its id.
                After::AskAgain if visit.kills_the_plugin() => {}
                After::AskAgain | After::NewId => task = task.restarted(),
            }
            plugin.started(&task).await
        }
    };
    is_up(&task).await;
    Some((task, handle))
}

/// Stops and destroys a running task.
async fn end(node: &Node, plugin: &mut Plugin, task: &Task, handle: &TaskHandle, visit: &Visit) {
    let patience = visit.ending.patience();
    if plugin.stop(task.id(), patience, "").await.is_err() {
        replace(plugin, node, visit).await;
        plugin.recover(handle).await.must("RecoverTask");
        plugin.stop(task.id(), patience, "").await.must("StopTask");
    }
    let exit = plugin.wait(task.id()).await;
    // The plugin sees what a monitor did not live to write down, where the kernel tells it; at the last point it dies as well, by
    // writing in the monitor's place.
    let unseen = ["monitor-before-wait", "monitor-before-exit", "monitor-before-exit-rename"];
    let unseen = if process::kernel_remembers_ends() { &unseen[2..] } else { &unseen[..] };
    if unseen.contains(&visit.point.name.as_str()) {
        assert!(exit.code != 0 && exit.err.contains("lost"), "{exit:?}");
    } else {
        assert_eq!(exit.code, visit.ending.code(), "{exit:?}");
    }
    if visit.ending == Ending::Told {
        assert_eq!(fs::read_to_string(task.dir().join("local/truth")).must("the task's own account"), "7\n");
    }
    if plugin.destroy(task.id(), true).await.is_err() {
        replace(plugin, node, visit).await;
        if visit.after != After::Forget {
            plugin.destroy(task.id(), true).await.must("DestroyTask");
        }
    }
}

async fn make_all(visits: Vec<Visit>, images: &Images) {
    let queue = RefCell::new(visits);
    let worker = || async {
        loop {
            let next = queue.borrow_mut().pop();
            let Some(visit) = next else { return };
            make(images, visit).await;
        }
    };
    all((0..WIDTH).map(|_| worker())).await;
}

#[tokio::test]
async fn a_death_at_any_point_of_a_life() {
    let images = Images::start().await;
    let told = traced(&images, Ending::Told, false, Setting::Plain).await;
    let killed = traced(&images, Ending::Killed, false, Setting::Plain).await;
    let names: BTreeSet<&str> = told.iter().map(|point| point.name.as_str()).collect();
    for operation in OF_THE_PLUGIN[..3].iter().chain(&OF_A_MONITOR) {
        assert!(names.iter().any(|name| name.starts_with(operation)), "no point of {operation} in {names:?}");
    }
    let only_killed = killed.iter().filter(|point| !told.contains(point)).map(|point| (point, Ending::Killed));
    let mut visits = Vec::new();
    for (point, ending) in told.iter().map(|point| (point, Ending::Told)).chain(only_killed) {
        for after in [After::AskAgain, After::NewId, After::Forget] {
            let visit = Visit { point: point.clone(), ending, after, recovered: false, setting: Setting::Plain };
            if !visit.is_needless() {
                visits.push(visit);
            }
        }
    }
    make_all(visits, &images).await;
}

#[tokio::test]
async fn a_death_at_any_point_of_a_recovery() {
    let images = Images::start().await;
    let mut visits = Vec::new();
    for ending in [Ending::Told, Ending::Killed] {
        for point in traced(&images, ending, true, Setting::Plain).await {
            for after in [After::AskAgain, After::Forget] {
                visits.push(Visit { point: point.clone(), ending, after, recovered: true, setting: Setting::Plain });
            }
        }
    }
    assert!(visits.iter().any(|visit| visit.point.name.starts_with("recover-")), "{visits:?}");
    make_all(visits, &images).await;
}

#[tokio::test]
async fn a_death_at_any_point_of_a_network_of_its_own() {
    let netns = TestNetwork::enter();
    let images = Images::start().await;
    let plain = traced(&images, Ending::Told, false, Setting::Plain).await;
    let own = traced(&images, Ending::Told, false, Setting::OwnNetwork(0)).await;
    let further: Vec<&Point> = own.iter().filter(|point| !plain.contains(point)).collect();
    for operation in ["start-", "destroy-"] {
        let count = further.iter().filter(|point| point.name.starts_with(operation)).count();
        assert!(count >= 4, "{count} points of {operation} in {further:?}");
    }
    let mut visits = Vec::new();
    for point in further {
        for after in [After::AskAgain, After::NewId, After::Forget] {
            let setting = Setting::OwnNetwork(visits.len() as u16 + 1);
            let visit = Visit { point: point.clone(), ending: Ending::Told, after, recovered: false, setting };
            if !visit.is_needless() {
                visits.push(visit);
            }
        }
    }
    make_all(visits, &images).await;
    assert_eq!(netns.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn a_death_at_any_point_of_a_copied_root() {
    let images = Images::start().await;
    let plain = traced(&images, Ending::Told, false, Setting::Plain).await;
    let copied = traced(&images, Ending::Told, false, Setting::Copied).await;
    let mut visits = Vec::new();
    for point in copied.iter().filter(|point| point.name.starts_with("root-") || !plain.contains(point)) {
        for after in [After::AskAgain, After::NewId, After::Forget] {
            let (ending, recovered, setting) = (Ending::Told, false, Setting::Copied);
            let visit = Visit { point: point.clone(), ending, after, recovered, setting };
            if !visit.is_needless() {
                visits.push(visit);
            }
        }
    }
    for point in ["root-before-copy", "root-before-rename", "root-before-volume-copy", "root-before-volume-rename"] {
        assert!(visits.iter().any(|visit| visit.point.name == point), "{point} is not passed: {visits:?}");
    }
    make_all(visits, &images).await;
}
