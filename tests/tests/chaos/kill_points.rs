//! A kill at each failpoint of a task's lifecycle: the process that reaches the point ends as by SIGKILL.
//!
//! A traced run collects the points, so a new point is tested without a change here. After the kill, the agent does one
//! of the things that Nomad does: it repeats its call to a new plugin, it starts the task under a new id, or it makes
//! no further call. In each case the driver completes or undoes the interrupted start, and nothing is left at the end.
//! Tasks with their own network or with a copied root pass further points. Own networks run in a test network, each
//! with its own bridge.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use fixtures::{
    busybox::Images,
    must::Must,
    netns::{TestNetwork, cni_path},
    process, program,
    wait::{all, eventually, seconds},
};
use kit::{
    node::Node,
    plugin::{Plugin, PluginCommand},
    task::Task,
};
use proto::driver::TaskHandle;
use serde_json::{Value as Json, json};

use crate::lifecycle::is_one_and_up;

/// Environment variables of the crate `failpoint`. Release builds ignore them.
pub const POINT: &str = "OCI_RS_FAILPOINT";
const TRACE: &str = "OCI_RS_FAILPOINT_TRACE";

/// The task's script. It writes its exit code before it exits. The file `/up` says that it is ready for SIGTERM.
const SCRIPT: &str = "trap 'echo 7 >>/local/exit-code; exit 7' TERM; >/up; sleep 1000 & wait; wait";

/// At these points, no file marks the container as unwanted: the mark of the start is removed already, the mark of the
/// removal is not yet written. If Nomad makes no further call, the sweep of dangling containers removes the container.
const UNMARKED: [&str; 4] = ["start-before-answer", "owner-before-remove", "destroy-before-mark", "owner-before-kill"];

/// The prefixes of the plugin's points. The image store has its own tests for its points.
const OF_THE_PLUGIN: [&str; 4] = ["start-", "owner-", "destroy-", "recover-"];
/// The prefixes of the points of a monitor and of its creator.
const OF_A_MONITOR: [&str; 3] = ["monitor-", "creator-", "root-"];

/// The number of concurrent test runs.
const CONCURRENCY: usize = 4;

/// A failpoint, and the number of its arrival.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    name: String,
    arrival: usize,
}

/// The agent's reaction to a call without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// It repeats the call to the new plugin.
    Retry,
    /// The agent died too. It has no handle, and starts the task under a new id.
    NewId,
    /// It makes no further call, because the job was stopped.
    Forget,
}

/// The end of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It exits on SIGTERM.
    Terminated,
    /// SIGKILL.
    Killed,
}

impl Ending {
    fn timeout(self) -> Duration {
        if self == Self::Terminated { seconds(10) } else { Duration::ZERO }
    }

    fn code(self) -> i32 {
        if self == Self::Terminated { 7 } else { 137 }
    }
}

/// One test run.
#[derive(Debug, Clone)]
struct Case {
    point: Point,
    ending: Ending,
    after: After,
    /// Whether the killed plugin has recovered the task instead of starting it.
    recovered: bool,
    setting: Setting,
}

/// The setting of a test run's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// The host's network, and a mounted root where the machine supports it.
    Plain,
    /// An own network, on the driver's bridge with this number.
    OwnNetwork(u16),
    /// An own network that CNI plugins make, with this number.
    CniNetwork(u16),
    /// A copied root, and a new named volume.
    Copied,
    /// Another image as a mount.
    MountedImage,
    /// A writable layer with a limit, which is a file system in a file.
    SizedLayer,
    /// A volume that the driver mounts and unmounts.
    MountedVolume,
    /// crun in place of the built-in runtime.
    Installed,
    /// An interface of the node with this number, in a network that is connected to nothing.
    LentInterface(u16),
}

impl Setting {
    /// The options of the plugin block.
    fn options(self, node: &Node) -> Json {
        let subnet = |number: u16| format!("10.{}.{}.0/24", 100 + number / 250, number % 250);
        match self {
            Self::Plain | Self::MountedImage | Self::SizedLayer => json!({}),
            Self::Copied => json!({"rootfs": "copy", "volumes": {"enabled": true}}),
            Self::MountedVolume => json!({"volumes": {"enabled": true}}),
            Self::Installed => json!({"allow_runtimes": ["crun"], "runtime": {"crun": {}}}),
            Self::OwnNetwork(number) => {
                json!({ "network": { "bridge": format!("bridge{number}"), "subnet": subnet(number) } })
            }
            Self::CniNetwork(number) => {
                let directory = node.root().join("cni");
                fs::create_dir_all(&directory).must("a directory");
                let network = json!({"cniVersion": "1.0.0", "name": "lan", "plugins": [
                    {"type": "bridge", "bridge": format!("cni{number}"), "isGateway": true, "ipMasq": true,
                        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet(number)}]],
                            "routes": [{"dst": "0.0.0.0/0"}], "dataDir": node.state_dir().join("addresses")}},
                    {"type": "firewall", "backend": "iptables"},
                    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
                ]});
                fs::write(directory.join("lan.conflist"), network.to_string()).must("a network");
                json!({"network": {"cni_path": cni_path(), "cni_config_dir": directory}})
            }
            Self::LentInterface(number) => {
                let directory = node.root().join("cdi");
                fs::create_dir_all(&directory).must("a directory");
                let interface = json!({"hostInterfaceName": lent(number), "name": "fast0"});
                let spec = json!({"cdiVersion": "1.1.0", "kind": "vendor.test/net", "devices": [
                    {"name": "one", "containerEdits": {"netDevices": [interface]}},
                ]});
                fs::write(directory.join("net.json"), spec.to_string()).must("a spec");
                json!({"cdi_spec_dirs": [directory], "allow_devices": ["vendor.test/*"]})
            }
        }
    }

    /// The task of a test run.
    async fn task(self, node: &Node, images: &Images, plugin: &mut Plugin) -> Task {
        let task = node.task(&images.busybox()).sh(SCRIPT);
        let task = match self {
            Self::Plain => task,
            Self::Installed => task.option("runtime", json!("crun")),
            Self::SizedLayer => task.option("storage_opt", json!({"size": "4M"})),
            Self::MountedImage => {
                task.option("mount", json!([{"type": "image", "source": images.without_shell(), "target": "/image"}]))
            }
            Self::Copied => task.option("mount", json!([{"type": "volume", "source": "filled", "target": "/etc"}])),
            Self::MountedVolume => {
                let options = json!({"type": "tmpfs", "device": "tmpfs", "o": "size=1m"});
                let options = json!({"driver_config": {"options": options}});
                task.option("mount", json!([{"source": "memory", "target": "/data", "volume_options": options}]))
            }
            Self::OwnNetwork(number) => task.port("http", &TestNetwork::NODE.to_string(), 20_000 + number, 80),
            Self::CniNetwork(number) => task
                .port("http", &TestNetwork::NODE.to_string(), 20_000 + number, 80)
                .option("network_mode", json!("cni/lan")),
            Self::LentInterface(number) => {
                let (name, peer) = (lent(number), format!("peer{number}"));
                assert!(ip(&["link", "add", &name, "type", "veth", "peer", "name", &peer]), "the interface is made");
                assert!(ip(&["link", "set", &name, "up"]));
                task.option("network_mode", json!("none")).option("devices", json!([{"cdi": "vendor.test/net=one"}]))
            }
        };
        task.build(plugin).await
    }

    /// Removes what the setting made for the task. The node must have it again.
    fn clean(self) {
        if let Self::LentInterface(number) = self {
            assert!(ip(&["link", "delete", &lent(number)]), "the interface is back");
        }
    }
}

/// The name of an interface of the node.
fn lent(number: u16) -> String {
    format!("lent{number}")
}

/// Whether `ip` succeeds in the network of this thread.
fn ip(args: &[&str]) -> bool {
    Command::new("ip").args(args).status().must("ip").success()
}

impl Case {
    /// Whether the point belongs to the plugin, not to a monitor or its creator.
    fn kills_the_plugin(&self) -> bool {
        OF_THE_PLUGIN.iter().any(|operation| self.point.name.starts_with(operation))
    }

    fn is_redundant(&self) -> bool {
        match self.after {
            After::Retry => false,
            After::NewId => !self.point.name.starts_with("start-"),
            After::Forget => !self.kills_the_plugin(),
        }
    }

    /// Whether the agent makes no further call, and no file marks the container as unwanted.
    fn leaves_no_mark(&self) -> bool {
        self.after == After::Forget && UNMARKED.contains(&self.point.name.as_str())
    }
}

/// Prints the test run when it fails.
struct PrintOnPanic<'a>(&'a Case);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[allow(clippy::print_stderr, reason = "the reader of a failed test looks at its output")]
            {
                eprintln!("in {:?}", self.0);
            }
        }
    }
}

/// A plugin that writes a trace and is killed at the point.
async fn armed(node: &Node, point: Option<&Point>, setting: Setting) -> Plugin {
    let mut command = PluginCommand::new(node.root()).env(TRACE, &trace(node).to_string_lossy());
    if let Some(Point { name, arrival }) = point {
        command = command.env(POINT, &format!("{name}:{arrival}"));
    }
    node.launch_as(command, setting.options(node)).await
}

fn trace(node: &Node) -> PathBuf {
    node.root().join("trace")
}

/// The number of arrivals at each point.
fn arrivals(node: &Node) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in fs::read_to_string(trace(node)).unwrap_or_default().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    counts
}

/// Replaces the plugin by a new one without a failpoint. The old plugin is killed if it still runs.
async fn replace(plugin: &mut Plugin, node: &Node, case: &Case) {
    plugin.process.kill().await;
    let mut options = case.setting.options(node);
    if case.leaves_no_mark() {
        options["gc"] = json!({"dangling_containers": {"period": "300ms", "creation_grace": "300ms"}});
    }
    *plugin = node.launch_with(options).await;
}

/// Runs the agent's next task. The plugin recognizes the agent by it.
async fn another_task(plugin: &mut Plugin, node: &Node, images: &Images) {
    let task = node.task(&images.busybox()).command("/bin/true", &[]).build(plugin).await;
    plugin.started(&task).await;
    plugin.end(&task).await;
}

/// Waits until the task is ready for SIGTERM.
async fn is_up(task: &Task) {
    let ready = eventually(seconds(10), || is_one_and_up(task)).await;
    assert!(ready, "not one container that is up: {:?}", task.groups.members());
}

/// Runs a task without a kill, and returns the points that it passes. With `recovered`: the points of a plugin that
/// recovers the running task.
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
    plugin.stop(task.id(), ending.timeout(), "").await.must("StopTask");
    assert_eq!(plugin.wait(task.id()).await.code, ending.code());
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let points = arrivals(&node)
        .into_iter()
        .filter(|(name, _)| OF_THE_PLUGIN.iter().chain(&OF_A_MONITOR).any(|operation| name.starts_with(operation)))
        .flat_map(|(name, count)| (1..=count).map(move |arrival| Point { name: name.clone(), arrival }));
    let points = points.collect();
    node.finish(plugin).await;
    setting.clean();
    points
}

async fn run(images: &Images, case: Case) {
    let _print = PrintOnPanic(&case);
    let node = Node::new();
    let setting = case.setting;
    let mut plugin = if case.recovered {
        node.launch_with(setting.options(&node)).await
    } else {
        armed(&node, Some(&case.point), setting).await
    };
    let task = setting.task(&node, images, &mut plugin).await;
    if let Some((task, handle)) = start(&node, &mut plugin, task, &case).await {
        if case.recovered {
            plugin.process.kill().await;
            plugin = armed(&node, Some(&case.point), setting).await;
            if plugin.recover(&handle).await.is_err() {
                replace(&mut plugin, &node, &case).await;
                plugin.recover(&handle).await.must("RecoverTask after a kill during RecoverTask");
            }
        }
        end(&node, &mut plugin, &task, &handle, &case).await;
    }
    if case.leaves_no_mark() {
        another_task(&mut plugin, &node, images).await;
    }
    // The process that replaces the killed one may pass the point again.
    let passed = arrivals(&node).get(&case.point.name).copied().unwrap_or_default();
    assert!(passed >= case.point.arrival, "the point was passed {passed} times");
    let own = plugin.process.pid();
    let clean = eventually(seconds(15), || {
        let traces = node.traces();
        // A plugin that unmounts a volume has already removed its last user's file. The order matters: the process that
        // unmounts may live after the mount is gone.
        let idle = || process::children(own).is_empty();
        traces.files.is_empty()
            && traces.mounts.is_empty()
            && traces.processes.iter().all(|(pid, _)| *pid == own)
            && idle()
    });
    assert!(clean.await, "left behind:\n{}", node.traces());
    node.finish(plugin).await;
    setting.clean();
}

/// Starts the task. Returns `None` if the agent makes no further call after a failed start.
async fn start(node: &Node, plugin: &mut Plugin, mut task: Task, case: &Case) -> Option<(Task, TaskHandle)> {
    let handle = match plugin.start(&task).await {
        Ok(answer) => answer.handle.must("a handle"),
        Err(status) => {
            if !case.kills_the_plugin() {
                assert!(status.message().contains("monitor") || status.message().contains("creator"), "{status}");
                assert_eq!(task.groups.members(), Vec::<i32>::new(), "a failed start leaves no process");
                assert!(node.traces().files.is_empty(), "{}", node.traces());
            }
            replace(plugin, node, case).await;
            match case.after {
                After::Forget => return None,
                // An agent never repeats a start under the same id after an answer, even an error.
                After::Retry if case.kills_the_plugin() => {}
                After::Retry | After::NewId => task = task.restarted(),
            }
            plugin.started(&task).await
        }
    };
    is_up(&task).await;
    Some((task, handle))
}

/// Stops and destroys a running task.
async fn end(node: &Node, plugin: &mut Plugin, task: &Task, handle: &TaskHandle, case: &Case) {
    let timeout = case.ending.timeout();
    if plugin.stop(task.id(), timeout, "").await.is_err() {
        replace(plugin, node, case).await;
        plugin.recover(handle).await.must("RecoverTask");
        plugin.stop(task.id(), timeout, "").await.must("StopTask");
    }
    let exit = plugin.wait(task.id()).await;
    // A monitor that was killed at these points has not written the exit status. From kernel 6.15 on, the plugin gets
    // it from the kernel, except at the last point: there the plugin writes the record itself and is killed too.
    let unseen = ["monitor-before-wait", "monitor-before-exit", "monitor-before-exit-rename"];
    let unseen = if process::kernel_remembers_ends() { &unseen[2..] } else { &unseen[..] };
    if unseen.contains(&case.point.name.as_str()) {
        assert!(exit.code != 0 && exit.err.contains("lost"), "{exit:?}");
    } else {
        assert_eq!(exit.code, case.ending.code(), "{exit:?}");
    }
    if case.ending == Ending::Terminated {
        assert_eq!(
            fs::read_to_string(task.dir().join("local/exit-code")).must("the exit code that the task wrote"),
            "7\n"
        );
    }
    if plugin.destroy(task.id(), true).await.is_err() {
        replace(plugin, node, case).await;
        if case.after != After::Forget {
            plugin.destroy(task.id(), true).await.must("DestroyTask");
        }
    }
}

async fn run_all(cases: Vec<Case>, images: &Images) {
    let queue = RefCell::new(cases);
    let worker = || async {
        loop {
            let next = queue.borrow_mut().pop();
            let Some(case) = next else { return };
            run(images, case).await;
        }
    };
    all((0..CONCURRENCY).map(|_| worker())).await;
}

#[tokio::test]
async fn a_kill_at_any_failpoint_of_a_task_leaves_nothing() {
    let images = Images::start().await;
    let terminated = traced(&images, Ending::Terminated, false, Setting::Plain).await;
    let killed = traced(&images, Ending::Killed, false, Setting::Plain).await;
    let names: BTreeSet<&str> = terminated.iter().map(|point| point.name.as_str()).collect();
    for operation in OF_THE_PLUGIN[..3].iter().chain(&OF_A_MONITOR) {
        assert!(names.iter().any(|name| name.starts_with(operation)), "no point of {operation} in {names:?}");
    }
    let only_killed = killed.iter().filter(|point| !terminated.contains(point)).map(|point| (point, Ending::Killed));
    let mut cases = Vec::new();
    for (point, ending) in terminated.iter().map(|point| (point, Ending::Terminated)).chain(only_killed) {
        for after in [After::Retry, After::NewId, After::Forget] {
            let case = Case { point: point.clone(), ending, after, recovered: false, setting: Setting::Plain };
            if !case.is_redundant() {
                cases.push(case);
            }
        }
    }
    run_all(cases, &images).await;
}

#[tokio::test]
async fn a_kill_at_any_failpoint_of_a_recovery_leaves_nothing() {
    let images = Images::start().await;
    let mut cases = Vec::new();
    for ending in [Ending::Terminated, Ending::Killed] {
        for point in traced(&images, ending, true, Setting::Plain).await {
            for after in [After::Retry, After::Forget] {
                cases.push(Case { point: point.clone(), ending, after, recovered: true, setting: Setting::Plain });
            }
        }
    }
    assert!(cases.iter().any(|case| case.point.name.starts_with("recover-")), "{cases:?}");
    run_all(cases, &images).await;
}

#[tokio::test]
async fn a_kill_at_any_failpoint_of_an_own_network_leaves_nothing() {
    kill_at_points_of_a_network(Setting::OwnNetwork).await;
}

#[tokio::test]
async fn a_kill_at_any_failpoint_of_a_cni_network_leaves_nothing() {
    kill_at_points_of_a_network(Setting::CniNetwork).await;
}

#[tokio::test]
async fn a_kill_at_any_failpoint_of_a_lent_interface_brings_it_back() {
    kill_at_points_of_a_network(Setting::LentInterface).await;
}

/// Kills at each point that a task with its own network passes and other tasks do not.
async fn kill_at_points_of_a_network(numbered: fn(u16) -> Setting) {
    let netns = TestNetwork::enter();
    let images = Images::start().await;
    let plain = traced(&images, Ending::Terminated, false, Setting::Plain).await;
    let own = traced(&images, Ending::Terminated, false, numbered(0)).await;
    let further: Vec<&Point> = own.iter().filter(|point| !plain.contains(point)).collect();
    for operation in ["start-", "destroy-"] {
        let count = further.iter().filter(|point| point.name.starts_with(operation)).count();
        assert!(count >= 4, "{count} points of {operation} in {further:?}");
    }
    let mut cases = Vec::new();
    for point in further {
        for after in [After::Retry, After::NewId, After::Forget] {
            let setting = numbered(cases.len() as u16 + 1);
            let case = Case { point: point.clone(), ending: Ending::Terminated, after, recovered: false, setting };
            if !case.is_redundant() {
                cases.push(case);
            }
        }
    }
    run_all(cases, &images).await;
    assert_eq!(netns.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn a_kill_at_any_failpoint_of_a_copied_root_leaves_nothing() {
    let images = Images::start().await;
    let plain = traced(&images, Ending::Terminated, false, Setting::Plain).await;
    let copied = traced(&images, Ending::Terminated, false, Setting::Copied).await;
    let mut cases = Vec::new();
    for point in copied.iter().filter(|point| point.name.starts_with("root-") || !plain.contains(point)) {
        for after in [After::Retry, After::NewId, After::Forget] {
            let (ending, recovered, setting) = (Ending::Terminated, false, Setting::Copied);
            let case = Case { point: point.clone(), ending, after, recovered, setting };
            if !case.is_redundant() {
                cases.push(case);
            }
        }
    }
    for point in ["root-before-copy", "root-before-rename", "root-before-volume-copy", "root-before-volume-rename"] {
        assert!(cases.iter().any(|case| case.point.name == point), "{point} is not passed: {cases:?}");
    }
    run_all(cases, &images).await;
}

#[tokio::test]
async fn a_kill_at_any_failpoint_of_a_mounted_volume_leaves_nothing() {
    let images = Images::start().await;
    let of_volumes = |point: &Point| point.name.contains("-before-volume-") && !point.name.starts_with("root-");
    let points = traced(&images, Ending::Terminated, false, Setting::MountedVolume).await;
    let points: Vec<Point> = points.into_iter().filter(of_volumes).collect();
    for name in ["user", "mount", "attach", "options"].map(|step| format!("start-before-volume-{step}")) {
        assert!(points.iter().any(|point| point.name == name), "{name} is not passed: {points:?}");
    }
    for name in ["unmount", "removal"].map(|step| format!("destroy-before-volume-{step}")) {
        assert!(points.iter().any(|point| point.name == name), "{name} is not passed: {points:?}");
    }
    let mut cases = Vec::new();
    for point in points {
        for after in [After::Retry, After::NewId, After::Forget] {
            let (ending, recovered, setting) = (Ending::Terminated, false, Setting::MountedVolume);
            let case = Case { point: point.clone(), ending, after, recovered, setting };
            if !case.is_redundant() {
                cases.push(case);
            }
        }
    }
    run_all(cases, &images).await;
}

/// The points between which a runtime of the node works, and some of the removal. Without crun the test is skipped.
#[tokio::test]
async fn a_kill_at_the_failpoints_of_an_installed_runtime_leaves_nothing() {
    if program::find("crun").is_none() {
        return;
    }
    let images = Images::start().await;
    let wanted = [
        "creator-before-build",
        "creator-before-start",
        "creator-before-answer",
        "monitor-before-container",
        "monitor-before-exit",
        "destroy-before-kill",
        "destroy-before-groups",
    ];
    let mut points = traced(&images, Ending::Terminated, false, Setting::Installed).await;
    points.retain(|point| wanted.contains(&point.name.as_str()) && point.arrival == 1);
    assert_eq!(points.len(), wanted.len(), "{points:?}");
    let mut cases = Vec::new();
    for point in points {
        let (ending, after, setting) = (Ending::Terminated, After::Retry, Setting::Installed);
        cases.push(Case { point, ending, after, recovered: false, setting });
    }
    run_all(cases, &images).await;
}

#[tokio::test]
async fn a_kill_at_any_failpoint_of_a_mounted_image_leaves_nothing() {
    let images = Images::start().await;
    let points = traced(&images, Ending::Terminated, false, Setting::MountedImage).await;
    let own =
        ["start-before-mounted-lease", "start-before-directory", "creator-before-image", "destroy-before-release"];
    run_all(cases_at(&own, &points, Setting::MountedImage), &images).await;
}

/// The cases of a kill at these points.
fn cases_at(names: &[&str], points: &[Point], setting: Setting) -> Vec<Case> {
    let mut cases = Vec::new();
    for name in names {
        let point = points.iter().find(|point| point.name == *name).must("a point that is passed").clone();
        for after in [After::Retry, After::NewId, After::Forget] {
            let case = Case { point: point.clone(), ending: Ending::Terminated, after, recovered: false, setting };
            if !case.is_redundant() {
                cases.push(case);
            }
        }
    }
    cases
}

/// A leak of a loop device is one of the traces of a node.
#[tokio::test]
async fn a_kill_at_any_failpoint_of_a_limited_layer_leaves_no_device() {
    let images = Images::start().await;
    let points = traced(&images, Ending::Terminated, false, Setting::SizedLayer).await;
    let own = [
        "start-before-outcome",
        "root-before-owner",
        "creator-before-format",
        "creator-before-loop",
        "creator-before-root",
        "creator-before-start",
        "monitor-before-exit",
        "destroy-before-layer",
    ];
    run_all(cases_at(&own, &points, Setting::SizedLayer), &images).await;
}
