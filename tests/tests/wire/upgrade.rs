//! Builds follow one another while tasks run: this build reads the state of older builds.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use fixtures::{
    busybox::Images,
    must::Must,
    netns::{TestNetwork, cni_path, exchange},
    wait::{eventually, seconds},
};
use kit::{
    node::Node,
    plugin::{PluginCommand, binary},
};
use proto::driver::{TaskHandle, TaskState};
use serde_json::json;

/// State records of every version, as real builds wrote them: `v<version>/<case>/`, with the driver's part of the
/// handle in `handle.json`.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/state")
}

/// The version of the records of this build.
const CURRENT: u32 = 1;

/// A placeholder for the directory of the recording test.
const NOWHERE: &str = "/nowhere";

/// With `OCI_RS_WRITE_FIXTURES` set, this records the state of this build. It is run once for each new version of
/// records.
#[tokio::test]
async fn record_fixtures() {
    if std::env::var_os("OCI_RS_WRITE_FIXTURES").is_none() {
        return;
    }
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for (case, script) in [("ended", "exit 21"), ("running", "sleep 1000")] {
        let task = node.task(&images.busybox()).sh(script).dns(&["192.0.2.53"], &[], &[]).build(&mut plugin).await;
        let handle = plugin.started(&task).await;
        if case == "ended" {
            plugin.wait(task.id()).await;
        }
        let directory = fixtures().join(format!("v{CURRENT}")).join(case);
        fs::create_dir_all(&directory).must("a directory for the records");
        let mut records = records(&node.state_dir());
        records.push(("handle.json".to_owned(), String::from_utf8(handle.driver_state).must("text")));
        for (name, text) in records {
            // No data of the machine, and a boot id that never matches.
            let text = text.replace(&*node.root().to_string_lossy(), NOWHERE);
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").must("a boot id");
            let text = text.replace(boot.trim(), "00000000-0000-4000-8000-000000000000");
            fs::write(directory.join(name), text + "\n").must("write a record");
        }
        plugin.end(&task).await;
    }
    node.finish(plugin).await;
}

/// The JSON files in the directory of the only task.
fn records(state_dir: &Path) -> Vec<(String, String)> {
    let task = fs::read_dir(state_dir.join("tasks")).must("the tasks").flatten().next().must("a task").path();
    let files = fs::read_dir(task).must("the task's directory").flatten();
    let names = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "json"));
    names
        .map(|file| (file.file_name().to_string_lossy().into_owned(), fs::read_to_string(file.path()).must("a record")))
        .collect()
}

#[tokio::test]
async fn state_of_every_version_is_read() {
    let mut versions = 0;
    for version in fs::read_dir(fixtures()).must("recorded versions").flatten() {
        versions += 1;
        for case in ["ended", "running"] {
            recovered(&version.path().join(case), case == "ended").await;
        }
    }
    assert_eq!(versions, CURRENT, "every version up to this build's is recorded");
}

async fn recovered(directory: &Path, ended: bool) {
    let what = directory.display();
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let state = fs::read_to_string(directory.join("handle.json")).must("the handle");
    let parsed: serde_json::Value = serde_json::from_str(&state).must("JSON");
    let container = parsed["container"].as_str().must("the container's name");
    let tasks = node.state_dir().join("tasks");
    let place = tasks.join(container);
    fs::create_dir_all(&place).must("the task's directory");
    for file in fs::read_dir(directory).must("the records").flatten().filter(|file| file.file_name() != "handle.json") {
        fs::copy(file.path(), place.join(file.file_name())).must("copy a record");
    }
    let task = node.task(&images.busybox()).sh("exit 0").build(&mut plugin).await;
    let handle = TaskHandle {
        version: 1,
        config: Some(task.config.clone()),
        state: TaskState::Running.into(),
        driver_state: state.trim().as_bytes().to_vec(),
    };
    plugin.recover(&handle).await.must(&format!("RecoverTask of {what}"));
    let exit = plugin.wait(task.id()).await;
    if ended {
        assert_eq!(exit.code, 21, "{what}: {exit:?}");
    } else {
        // The task's boot is over. Its process id may belong to another process now.
        assert!(exit.err.contains("lost"), "{what}: {exit:?}");
    }
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert!(!place.exists(), "{what}");
    node.finish(plugin).await;
}

/// The plugin's file is replaced while tasks run. `OCI_RS_PREVIOUS_BIN` names the older build (`make upgrade` makes
/// one). Without it, the same build is used twice.
#[tokio::test]
async fn tasks_of_an_older_build_are_taken_over() {
    let node = Node::new();
    let installed = node.root().join("oci-rs");
    let previous = std::env::var_os("OCI_RS_PREVIOUS_BIN").map_or_else(binary, PathBuf::from);
    install(&previous, &installed);
    let mut plugin = node.launch_as(PluginCommand::new(node.root()).binary(&installed), json!({})).await;
    let images = Images::start().await;
    let script = "trap 'exit 35' TERM; echo up; while [ ! -e /local/go ]; do sleep 0.05; done; exit 36";
    let mut tasks = Vec::new();
    for terminal in [false, true, false] {
        let task = node.task(&images.busybox()).sh(script).option("tty", json!(terminal)).build(&mut plugin).await;
        let handle = plugin.started(&task).await;
        task.stdout().contains("up", seconds(10)).await;
        let init = plugin.init_pid(&task);
        tasks.push((task, handle, init));
    }

    install(&binary(), &installed);
    plugin.shutdown().await;
    // One task ends while no plugin runs.
    let (ended, ended_handle, _) = tasks.pop().must("three tasks");
    fs::write(ended.dir().join("local/go"), "").must("tell the task to end");
    let gone = || ended.groups.members().is_empty();
    assert!(eventually(seconds(10), gone).await, "it runs on: {:?}", ended.groups.members());
    let plugin = node.launch_as(PluginCommand::new(node.root()).binary(&installed), json!({})).await;
    plugin.recover(&ended_handle).await.must("RecoverTask of a task that has ended");
    assert_eq!(plugin.wait(ended.id()).await.code, 36);
    plugin.destroy(ended.id(), true).await.must("DestroyTask");
    for (task, handle, init) in tasks {
        plugin.recover(&handle).await.must("RecoverTask");
        assert_eq!(plugin.init_pid(&task), init, "the same process");
        assert_eq!(plugin.sh(&task, "echo exec works").await, "exec works");
        let mut stats = plugin.stats(task.id(), Duration::from_millis(200)).await.must("TaskStats");
        stats.message().await.must("a sample").must("a sample");
        drop(stats);
        plugin.stop(task.id(), seconds(10), "").await.must("StopTask");
        assert_eq!(plugin.wait(task.id()).await.code, 35);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await.trim_end(), "up");
    }
    node.finish(plugin).await;
}

/// A task that an older build connected keeps its network, and this build takes the network down. Nothing of it depends
/// on the way in which the older build made it.
#[tokio::test]
async fn networks_of_tasks_of_an_older_build_are_taken_over() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let installed = node.root().join("oci-rs");
    let previous = std::env::var_os("OCI_RS_PREVIOUS_BIN").map_or_else(binary, PathBuf::from);
    install(&previous, &installed);
    let options = json!({"network": {"cni_path": cni_path(), "subnet": "10.77.0.0/29"}});
    let mut plugin = node.launch_as(PluginCommand::new(node.root()).binary(&installed), options.clone()).await;
    let images = Images::start().await;
    let server = "nc -ll -p 8080 -e echo hello";
    let mut tasks = Vec::new();
    for number in 0..2 {
        let task = node.task(&images.busybox()).sh(server).port("http", "192.0.2.1", 20080 + number, 8080);
        let task = task.build(&mut plugin).await;
        let answer = plugin.start(&task).await.must("StartTask");
        tasks.push((task, answer.handle.must("a handle"), answer.network_override.must("a network").addr));
    }

    install(&binary(), &installed);
    plugin.shutdown().await;
    let mut plugin = node.launch_as(PluginCommand::new(node.root()).binary(&installed), options).await;
    let published = |number: u16| SocketAddr::new(TestNetwork::NODE, 20080 + number);
    for (task, handle, _) in &tasks {
        plugin.recover(handle).await.must("RecoverTask");
        assert_eq!(plugin.sh(task, "nc 127.0.0.1 8080 </dev/null").await, "hello");
    }
    // The subnet has five addresses for tasks.
    let mut addresses: BTreeSet<String> = tasks.iter().map(|(.., address)| address.clone()).collect();
    let mut further = Vec::new();
    for number in 2..5 {
        let task = node.task(&images.busybox()).sh(server).port("http", "192.0.2.1", 20080 + number, 8080);
        let task = task.build(&mut plugin).await;
        let network = plugin.start(&task).await.must("StartTask").network_override;
        addresses.insert(network.must("a network").addr);
        further.push(task);
    }
    assert_eq!(addresses.len(), 5, "{addresses:?}");
    for number in 0..5 {
        let answers = || exchange(published(number), "").is_ok_and(|answer| answer == "hello\n");
        assert!(eventually(seconds(5), answers).await, "port {number}");
        assert_eq!(netns.outside(|| exchange(published(number), "")).must("an answer outside"), "hello\n");
    }
    // Tasks of both builds reach each other.
    let (_, _, old) = &tasks[0];
    assert_eq!(plugin.sh(&further[0], &format!("nc {old} 8080 </dev/null")).await, "hello");
    for task in tasks.iter().map(|(task, ..)| task).chain(&further) {
        plugin.end(task).await;
    }
    assert!(exchange(published(0), "").is_err(), "the port is free again");
    node.finish(plugin).await;
    assert_eq!(netns.leftovers(), Vec::<String>::new());
}

/// Replaces a file as a package manager does: it writes a new file and renames it. Another process writes it, because a
/// file that this process has open for writing cannot be executed.
pub fn install(build: &Path, place: &Path) {
    let status = std::process::Command::new("install").arg("-m755").arg(build).arg(place).status();
    assert!(status.must("install (coreutils)").success(), "cannot install {}", build.display());
}

/// A killed plugin leaves its socket behind. The next plugin removes the socket when it is old enough.
#[tokio::test]
async fn sockets_of_killed_plugins_are_removed() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let socket = plugin.handshake.socket.clone();
    plugin.process.kill().await;
    assert!(socket.exists());
    let aged = std::process::Command::new("touch").args(["-d", "2 minutes ago"]).arg(&socket).status();
    assert!(aged.must("touch (coreutils)").success());
    let plugin = node.launch().await;
    assert!(eventually(seconds(10), || !socket.exists()).await, "the socket is left");
    node.finish(plugin).await;
}
