//! Kills of plugin, agent and monitor: running tasks keep running, and exit statuses are reported correctly.

use std::{fs, time::Duration};

use fixtures::{
    busybox::Images,
    must::Must,
    process,
    wait::{eventually, seconds},
};
use kit::{
    calls::Exit,
    node::Node,
    plugin::{PluginCommand, binary, nomad_config},
    task::Task,
};
use proto::driver::{TaskHandle, TaskState};
use rustix::process::{Pid, Signal, kill_process};

/// A script that exits with this code when a file appears in its directory.
fn until_told(code: i32) -> String {
    format!("echo up; while [ ! -e /local/go ]; do sleep 0.02; done; exit {code}")
}

fn tell(task: &Task) {
    fs::write(task.dir().join("local/go"), "").must("tell the task to end");
}

#[tokio::test]
async fn a_task_survives_a_plugin_kill() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(&until_told(21)).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    task.stdout().contains("up", seconds(10)).await;
    let init = plugin.init_pid(&task);
    plugin.process.kill().await;

    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    plugin.recover(&handle).await.must("RecoverTask of a known task");
    assert_eq!(plugin.init_pid(&task), init, "the same process");
    assert_eq!(plugin.inspect(task.id()).await.must("InspectTask").task.must("a task").state(), TaskState::Running);
    assert_eq!(plugin.sh(&task, "echo exec works").await, "exec works");
    let wait = plugin.wait(task.id());
    tell(&task);
    assert_eq!(wait.await.code, 21);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(task.stdout().all(seconds(5)).await, "up\n");
    node.finish(plugin).await;
}

#[tokio::test]
async fn an_exit_status_without_a_running_plugin_is_kept() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(&until_told(23)).build(&mut plugin).await;
    let killed = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    let handles = [plugin.started(&task).await, plugin.started(&killed).await];
    let init = plugin.init_pid(&killed);
    plugin.process.kill().await;
    tell(&task);
    kill_process(Pid::from_raw(init).must("a pid"), Signal::KILL).must("kill the task");
    let gone = eventually(seconds(5), || task.groups.members().is_empty() && killed.groups.members().is_empty()).await;
    assert!(gone, "the tasks end without the plugin");

    let plugin = node.launch().await;
    for handle in &handles {
        plugin.recover(handle).await.must("RecoverTask of an ended task");
    }
    assert_eq!(plugin.wait(task.id()).await.code, 23);
    assert_eq!(plugin.wait(killed.id()).await.code, 137);
    for task in [&task, &killed] {
        assert_eq!(plugin.inspect(task.id()).await.must("InspectTask").task.must("a task").state(), TaskState::Exited);
        plugin.stop(task.id(), seconds(5), "").await.must("StopTask");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

/// A restarting agent kills the plugin after Shutdown. Its handles no longer contain the driver's configuration.
#[tokio::test]
async fn a_graceful_agent_restart_keeps_tasks() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(&until_told(25)).build(&mut plugin).await;
    let mut handle = plugin.started(&task).await;
    task.stdout().contains("up", seconds(10)).await;
    plugin.shutdown().await;
    assert!(!task.groups.members().is_empty(), "the task lives on");

    handle.config.as_mut().must("a config").msgpack_driver_config.clear();
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask without the driver's configuration");
    tell(&task);
    assert_eq!(plugin.wait(task.id()).await.code, 25);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// After a crash, an agent finds the plugin running: no SetConfig, RecoverTask for known tasks, a new WaitTask.
#[tokio::test]
async fn a_new_agent_reattaches_to_the_running_plugin() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(&until_told(27)).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    drop(tokio::time::timeout(Duration::from_millis(50), plugin.wait_raw(task.id())).await);
    plugin.reattach().await;
    plugin.recover(&handle).await.must("RecoverTask");
    tell(&task);
    assert_eq!(plugin.wait(task.id()).await.code, 27);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn invalid_handles_are_refused() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    let good = plugin.started(&task).await;
    plugin.end(&task).await;
    plugin.recover(&good).await.err().must("a destroyed task cannot be recovered");
    let cases: [(&str, TaskHandle); 4] = [
        ("no state", TaskHandle { driver_state: Vec::new(), ..good.clone() }),
        ("garbage", TaskHandle { driver_state: b"\xff\x00garbage".to_vec(), ..good.clone() }),
        ("a version of the future", TaskHandle { version: 1000, ..good.clone() }),
        ("no config", TaskHandle { config: None, ..good.clone() }),
    ];
    for (what, handle) in cases {
        let status = plugin.recover(&handle).await.err().must(what);
        assert!(!matches!(status.code(), tonic::Code::Unavailable | tonic::Code::Cancelled), "{what}: {status}");
    }
    // An agent's next call for a task that it believes to run.
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// A restarted agent asks for each task with a stored handle, also for tasks that it has destroyed.
#[tokio::test]
async fn recovery_of_a_destroyed_task_is_refused_without_a_warning_in_the_log() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("exit 3").build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 3);
    plugin.end(&task).await;
    plugin.process.kill().await;

    let mut plugin = node.launch().await;
    let refused = plugin.recover(&handle).await.err().must("an error, by which the agent knows that the task is gone");
    assert!(refused.message().contains("not known"), "{refused}");
    plugin.shutdown().await;
    let lines = plugin.process.stderr.all(seconds(20)).await;
    let loud: Vec<_> = lines
        .iter()
        .filter(|line| line.contains(r#""@level":"error""#) || line.contains(r#""@level":"warn""#))
        .collect();
    assert!(loud.is_empty(), "{loud:#?}");
    node.finish_without_plugin().await;
}

/// An ended monitor is reaped at its task's end, not only when the task is destroyed.
#[tokio::test]
async fn an_ended_monitor_is_reaped_at_once() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let ended = node.task(&images.busybox()).sh("exit 3").build(&mut plugin).await;
    let killed = node.task(&images.busybox()).sh(&until_told(0)).build(&mut plugin).await;
    plugin.started(&ended).await;
    plugin.started(&killed).await;
    assert_eq!(plugin.wait(ended.id()).await.code, 3);
    plugin.kill_monitor(&killed);
    let monitors = || process::children(plugin.process.pid());
    assert!(eventually(seconds(10), || monitors().is_empty()).await, "{:?}", monitors());
    tell(&killed);
    plugin.wait(killed.id()).await;
    for task in [ended, killed] {
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    node.finish(plugin).await;
}

/// After a reboot, a process id belongs to another process.
#[tokio::test]
async fn another_process_with_a_recorded_pid_is_not_signalled() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    plugin.process.kill().await;
    let mut other = std::process::Command::new("/bin/sleep").arg("1000").spawn().must("another process");
    // The whole task is killed. Its state now names the other process, with another start time.
    for (pid, _) in node.traces().processes {
        kill_process(Pid::from_raw(pid).must("a pid"), Signal::KILL).ok();
    }
    let text = other.id().to_string();
    rewrite_pids(&node.state_dir().join("tasks"), &text);

    let plugin = node.launch().await;
    if plugin.recover(&handle).await.is_ok() {
        // The driver may report an end with a lost exit status.
        let exit = plugin.wait(task.id()).await;
        assert_ne!((exit.code, exit.err.as_str()), (0, ""), "a lost status is no success");
    }
    plugin.stop(task.id(), Duration::ZERO, "").await.must("StopTask");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert!(matches!(other.try_wait(), Ok(None)), "the other process was killed");
    other.kill().must("kill the other process");
    other.wait().must("reap the other process");
    node.finish(plugin).await;
}

fn rewrite_pids(tasks: &std::path::Path, pid: &str) {
    let mut rewritten = 0;
    for task in fs::read_dir(tasks).must("the tasks' directory").flatten() {
        for name in ["monitor.json", "container.json"] {
            let path = task.path().join(name);
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let mut value: serde_json::Value = serde_json::from_str(&text).must("a state file");
            for key in ["pid", "init_pid"] {
                if let Some(field) = value.get_mut(key) {
                    *field = serde_json::json!(pid.parse::<i64>().must("a pid"));
                    rewritten += 1;
                }
            }
            fs::write(&path, value.to_string()).must("rewrite a state file");
        }
        fs::remove_file(task.path().join("exit.json")).ok();
    }
    assert!(rewritten > 0, "the state names process ids");
}

/// The kernel tells the exit status to a plugin that watches the task. Without such a plugin, the status is lost.
fn told_without_monitor(exit: &Exit, code: i32) {
    let lost = !process::kernel_remembers_ends() && exit.err.contains("lost");
    assert!(exit.code == code || lost, "{exit:?}");
}

/// A kill of the monitor must neither end the task nor make it unknown.
#[tokio::test]
async fn a_task_survives_a_monitor_kill() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(&until_told(29)).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("up", seconds(10)).await;
    let init = plugin.init_pid(&task);
    plugin.kill_monitor(&task);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(process::status_field(init, "State").map(|state| state.starts_with('Z')), Some(false), "the task runs");
    assert_eq!(plugin.inspect(task.id()).await.must("InspectTask").task.must("a task").state(), TaskState::Running);
    assert_eq!(plugin.sh(&task, "echo still").await, "still");
    let mut stats = plugin.stats(task.id(), Duration::from_millis(200)).await.must("TaskStats");
    stats.message().await.must("a sample").must("a sample");
    let wait = plugin.wait(task.id());
    tell(&task);
    let exit = wait.await;
    told_without_monitor(&exit, 29);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The monitor copies the output of a terminal. After a kill of the monitor, the plugin copies it.
#[tokio::test]
async fn a_terminal_survives_a_monitor_kill() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "echo up; while [ ! -e /local/go ]; do sleep 0.02; done; test -t 1 && seq 1 20000; exit 41";
    let task = node.task(&images.busybox()).sh(script).option("tty", serde_json::json!(true)).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("up", seconds(10)).await;
    let held = || plugin.descriptors().iter().any(|file| file.ends_with("ptmx"));
    assert!(eventually(seconds(10), held).await, "the plugin does not hold the terminal: {:#?}", plugin.descriptors());
    plugin.kill_monitor(&task);
    let wait = plugin.wait(task.id());
    tell(&task);
    let exit = wait.await;
    told_without_monitor(&exit, 41);
    let expected: String = (1..=20_000).map(|n| format!("{n}\r\n")).collect();
    assert!(task.stdout().all(seconds(10)).await == format!("up\r\n{expected}"), "the whole output");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The plugin learns of the monitor's end and of the task's at once.
#[tokio::test]
async fn the_last_output_of_a_terminal_without_a_monitor_arrives() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let script = "echo up; while [ ! -e /local/go ]; do sleep 0.02; done; echo last words; exit 42";
    let task = node.task(&images.busybox()).sh(script).option("tty", serde_json::json!(true)).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("up", seconds(10)).await;
    let held = || plugin.descriptors().iter().any(|file| file.ends_with("ptmx"));
    assert!(eventually(seconds(10), held).await, "the plugin does not hold the terminal: {:#?}", plugin.descriptors());
    let init = plugin.init_pid(&task);
    plugin.process.signal(Signal::STOP);
    plugin.kill_monitor(&task);
    tell(&task);
    let ended = || process::status_field(init, "State").is_none_or(|state| state.starts_with('Z'));
    assert!(eventually(seconds(10), ended).await, "the task runs");
    plugin.process.signal(Signal::CONT);
    let exit = plugin.wait(task.id()).await;
    assert!(exit.code == 42 || exit.err.contains("lost"), "{exit:?}");
    assert_eq!(task.stdout().all(seconds(10)).await, "up\r\nlast words\r\n");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// Without a monitor, a task can still be stopped by its signal and by SIGKILL.
#[tokio::test]
async fn a_task_without_a_monitor_can_be_stopped() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for (script, grace) in [
        ("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done", seconds(20)),
        ("trap '' TERM; echo up; while :; do sleep 0.05; done", Duration::from_millis(200)),
    ] {
        let task = node.task(&images.busybox()).sh(script).build(&mut plugin).await;
        plugin.started(&task).await;
        task.stdout().contains("up", seconds(10)).await;
        plugin.kill_monitor(&task);
        let wait = plugin.wait(task.id());
        plugin.stop(task.id(), grace, "").await.must("StopTask");
        let exit = wait.await;
        told_without_monitor(&exit, if grace > seconds(1) { 3 } else { 137 });
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await.contains("bye"), grace > seconds(1));
    }
    node.finish(plugin).await;
}

/// The helper of a command is killed: the session fails, the command ends, and the next command works.
#[tokio::test]
async fn a_killed_exec_helper_ends_its_command() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(&until_told(37)).build(&mut plugin).await;
    plugin.started(&task).await;
    for tty in [None, Some((24, 80))] {
        let command = ["/bin/sh", "-c", "echo ready; exec sleep 772"];
        let mut session = plugin.exec_streaming(task.id(), &command, tty).await.must("a session");
        session.until("ready", seconds(5)).await;
        let helpers = process::children(plugin.process.pid());
        // The other child is the monitor, as its second argument says.
        let mut helpers = helpers.iter().filter(|(_, line)| line.split_whitespace().nth(1) == Some("exec-helper"));
        let (helper, _) = helpers.next().must("the helper of the only session");
        kill_process(Pid::from_raw(*helper).must("a pid"), Signal::KILL).must("kill the helper");
        if let Ok(outcome) = session.finish(seconds(10)).await {
            assert_ne!(outcome.code, 0, "{outcome:?}");
        }
        let gone =
            eventually(seconds(10), || !node.traces().processes.iter().any(|(_, line)| line.contains("sleep 772")));
        assert!(gone.await, "{}", node.traces());
        assert_eq!(plugin.sh(&task, "echo the next").await, "the next");
    }
    tell(&task);
    assert_eq!(plugin.wait(task.id()).await.code, 37);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// A plugin that recovers the task also holds its terminal. Without plugin and monitor, the terminal hangs up, and an
/// event reports this. The task may keep running. Its exit status is then correct or lost.
#[tokio::test]
async fn a_terminal_hangs_up_without_monitor_and_plugin() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(&until_told(43)).option("tty", serde_json::json!(true));
    let task = task.build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    task.stdout().contains("up", seconds(10)).await;
    plugin.process.kill().await;
    let mut plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    let held = || plugin.descriptors().iter().any(|file| file.ends_with("ptmx"));
    assert!(eventually(seconds(10), held).await, "the plugin does not hold the terminal: {:#?}", plugin.descriptors());
    plugin.kill_monitor(&task);
    assert_eq!(plugin.sh(&task, "echo still").await, "still");
    plugin.process.kill().await;

    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask of a task that was hung up");
    let hang_up = plugin.streams.event("the hang-up", |event| event.message.contains("terminal was hung up"));
    tokio::select! {
        _ = hang_up => {}
        ended = plugin.wait_raw(task.id()) => panic!("the task ended: {ended:?}"),
    }

    // The next plugin does not report it again.
    let mut plugin = plugin;
    plugin.process.kill().await;
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    tell(&task);
    let exit = plugin.wait(task.id()).await;
    assert!(exit.code == 43 || exit.err.contains("lost"), "{exit:?}");
    let events = plugin.streams.events();
    assert!(!events.iter().any(|event| event.message.contains("terminal")), "{events:?}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_monitor_kill_without_a_plugin_is_recovered() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(&until_told(31)).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    task.stdout().contains("up", seconds(10)).await;
    plugin.process.kill().await;
    plugin.kill_monitor(&task);

    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask of a running task without its monitor");
    tell(&task);
    let exit = plugin.wait(task.id()).await;
    assert!(exit.code == 31 || !exit.err.is_empty(), "{exit:?}");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The plugin's file is replaced while tasks run, as in an upgrade.
#[tokio::test]
async fn tasks_survive_the_removal_of_the_plugins_file() {
    let node = Node::new();
    let copy = node.root().join("oci-rs");
    crate::upgrade::install(&binary(), &copy);
    let mut plugin = PluginCommand::new(node.root()).binary(&copy).connect().await;
    let packed = plugin.encode_config(&node.config()).await;
    plugin.set_config(packed, Some(nomad_config())).await.must("SetConfig");
    plugin.watch();
    plugin.streams.fingerprint().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(&until_told(33)).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    fs::remove_file(&copy).must("remove the plugin's file");
    assert_eq!(plugin.sh(&task, "echo exec without the file").await, "exec without the file");
    plugin.process.kill().await;
    // No process of the task uses the file on disk, so it can be replaced.
    fs::write(&copy, "another build").must("write the new file");

    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    tell(&task);
    assert_eq!(plugin.wait(task.id()).await.code, 33);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// The plugin is killed during a start. The leftovers do not affect the next plugin.
#[tokio::test]
async fn a_task_can_start_again_after_a_plugin_kill_during_start() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    for patience in [1, 4, 8, 16, 32, 64] {
        let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
        let request = proto::driver::StartTaskRequest { task: Some(task.config.clone()) };
        let mut driver = plugin.driver();
        let started = tokio::time::timeout(Duration::from_millis(patience), driver.start_task(request)).await;
        plugin.process.kill().await;
        plugin = node.launch().await;
        // The agent has no handle. It starts the task with a new id, and the cgroup must be empty.
        let again = task.restarted();
        plugin.started(&again).await;
        plugin.end(&again).await;
        if let Ok(Ok(answer)) = started {
            let handle = answer.into_inner().handle.must("a handle");
            plugin.recover(&handle).await.ok();
        }
        plugin.end(&task).await;
    }
    let gone = eventually(seconds(10), || node.traces().processes.len() <= 1).await;
    assert!(gone, "{}", node.traces());
    node.finish(plugin).await;
}
