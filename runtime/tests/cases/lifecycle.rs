//! The lifecycle of a container: start, output, end, killed processes, and leftovers.

use std::{
    fs,
    os::fd::AsFd,
    time::{Duration, SystemTime},
};

use runtime::{
    Runtime, StartErrorKind, StartOptions, Status,
    plan::{ContainerPlan, Hook, HookStage},
};

use crate::common::{Node, control_groups, eventually, kernel_remembers, sys};

pub const CASES: &[(&str, fn())] = &[
    ("measure_start", measure_start),
    ("lifecycle_runs_and_ends", runs_and_ends),
    ("lifecycle_ends_by_a_signal", ends_by_a_signal),
    ("lifecycle_signal_reaches_the_command", signal_reaches_the_command),
    ("lifecycle_very_short_commands", very_short_commands),
    ("lifecycle_unknown_command", unknown_command),
    ("lifecycle_command_that_cannot_be_executed", command_that_cannot_be_executed),
    ("lifecycle_a_second_start_of_the_same_id", a_second_start_of_the_same_id),
    ("lifecycle_survives_its_monitor", survives_its_monitor),
    ("lifecycle_runs_out_of_memory_without_its_monitor", runs_out_of_memory_without_its_monitor),
    ("lifecycle_is_adopted_by_another_runtime", is_adopted_by_another_runtime),
    ("lifecycle_kill_all_leaves_the_record", kill_all_leaves_the_record),
    ("lifecycle_destroy_twice_and_unknown", destroy_twice_and_unknown),
    ("lifecycle_shared_pid_namespace_ends_completely", shared_pid_namespace_ends_completely),
    ("lifecycle_output_survives_its_reader", output_survives_its_reader),
    ("lifecycle_logs_must_be_fifos", logs_must_be_fifos),
    ("lifecycle_plugin_dies_during_the_start", plugin_dies_during_the_start),
    ("lifecycle_bundle_is_complete", bundle_is_complete),
    ("lifecycle_unreadable_plans_of_others", unreadable_plans_of_others),
    ("lifecycle_monitor_is_small", monitor_is_small),
    ("lifecycle_many_at_once", many_at_once),
    ("lifecycle_a_guard_that_ends_during_the_start_has_no_successor", ended_guard_has_no_successor),
    ("lifecycle_sweep_after_a_restart", sweep_after_a_restart),
    ("lifecycle_sweep_goes_on_after_a_layer_that_stays", sweep_goes_on_after_a_layer_that_stays),
    ("lifecycle_destroyed_while_it_starts", destroyed_while_it_starts),
    ("lifecycle_late_destroy_spares_a_later_container", late_destroy_spares_a_later_container),
];

fn runs_and_ends() {
    let node = Node::new();
    let before = SystemTime::now();
    let (exit, out, err) = node.run(node.plan("echo out; echo err >&2; exit 7"));
    assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (7, 0, false));
    assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
    assert!(before <= exit.started_at && exit.started_at <= exit.finished_at);
}

fn ends_by_a_signal() {
    let node = Node::new();
    let container = node.start(node.plan("sleep 100"));
    container.running.signal(libc::SIGKILL).expect("killed");
    let exit = container.wait();
    assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (137, 9, false));
    container.running.signal(libc::SIGTERM).expect("fine after the end");
}

fn signal_reaches_the_command() {
    let node = Node::new();
    let mut container = node.start(node.plan("trap 'echo got; exit 3' USR1; echo ready; while :; do sleep 0.1; done"));
    let begun = std::time::Instant::now();
    // The shell has to reach its trap; as process 1 it survives the signal until then.
    while !container.running.monitor.ended() && begun.elapsed() < Duration::from_secs(10) {
        container.running.signal(libc::SIGUSR1).expect("sent");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(container.wait().exit_code, 3);
    assert!(container.output().0.contains("got"));
}

fn very_short_commands() {
    let node = Node::new();
    for _ in 0..10 {
        let mut plan = node.plan("");
        plan.args = vec!["true".to_owned()];
        assert_eq!(node.run(plan).0.exit_code, 0);
    }
}

fn unknown_command() {
    let node = Node::new();
    for program in ["no-such-program", "/no/such/program", "", "bin/nothing"] {
        let mut plan = node.plan("");
        plan.args = vec![program.to_owned()];
        let error = node.refuse(&plan);
        assert_eq!(error.kind, StartErrorKind::CommandNotFound, "{error}");
        assert!(error.message.contains(program), "{error}");
    }
}

fn command_that_cannot_be_executed() {
    use std::os::unix::fs::PermissionsExt;
    let node = Node::new();
    let layer = node.directory.path().join("layer");
    let program = |name: &str, content: &str, mode: u32| {
        fs::write(layer.join("bin").join(name), content).expect("written");
        fs::set_permissions(layer.join("bin").join(name), fs::Permissions::from_mode(mode)).expect("set");
    };
    program("plain", "x", 0o644);
    program("no-interpreter", "#!/bin/missing\n", 0o755);
    program("no-shebang", "echo hello\n", 0o755);
    for (name, word) in
        [("plain", "denied"), ("no-interpreter", "interpreter"), ("no-shebang", "#!"), ("/etc", "denied")]
    {
        let mut plan = node.plan("");
        plan.args = vec![name.to_owned()];
        let error = node.refuse(&plan);
        assert_eq!(error.kind, StartErrorKind::CommandNotExecutable, "{error}");
        assert!(error.message.contains(word), "{error}");
    }
    program("only-root", "#!/bin/sh\nexit 4\n", 0o700);
    let mut plan = node.plan("");
    plan.args = vec!["only-root".to_owned()];
    assert_eq!(node.run(plan).0.exit_code, 4);
}

fn a_second_start_of_the_same_id() {
    let node = Node::new();
    let container = node.start(node.plan("sleep 100"));
    let error = node.runtime.start(&container.plan).map(drop).expect_err("refused");
    assert_eq!(error.kind, StartErrorKind::Exists);
    assert!(matches!(node.runtime.status(container.id()), Ok(Status::Running(_))), "the first one is not touched");
}

fn survives_its_monitor() {
    let node = Node::new();
    let mut container = node.start(node.plan("while [ ! -e /stop ]; do sleep 0.05; done; echo done; exit 5"));
    container.running.monitor.signal(libc::SIGKILL).expect("killed");
    assert!(container.running.monitor.wait_for(Some(Duration::from_secs(5))).expect("a poll"));
    let Ok(Status::Running(again)) = node.runtime.status(container.id()) else { panic!("not running") };
    assert_eq!((again.init.pid, again.monitor.pid), (container.running.init.pid, container.running.init.pid));
    container.touch("/stop");
    assert!(again.init.wait_for(Some(Duration::from_secs(5))).expect("a poll"));
    assert!(matches!(node.runtime.status(container.id()), Ok(Status::Lost)));
    assert_eq!(container.output().0, "done\n");
    let Some(exit) = node.runtime.end_without_monitor(container.id(), &again).expect("a look") else {
        return assert!(!kernel_remembers(), "the status is lost");
    };
    assert_eq!((exit.exit_code, exit.signal, exit.oom_killed, exit.started_at), (5, 0, false, again.started_at));
    assert_eq!(container.wait(), exit, "the record stays");
}

/// The groups' counts are compared as the monitor would have done it.
fn runs_out_of_memory_without_its_monitor() {
    let node = Node::new();
    let mut plan = node.plan("while [ ! -e /stop ]; do sleep 0.05; done; exec tail /dev/zero");
    plan.resources.memory_limit = Some(16 << 20);
    let container = node.start(plan);
    container.running.monitor.signal(libc::SIGKILL).expect("killed");
    container.touch("/stop");
    assert!(container.running.init.wait_for(Some(Duration::from_secs(20))).expect("a poll"));
    let Some(exit) = node.runtime.end_without_monitor(container.id(), &container.running).expect("a look") else {
        return assert!(!kernel_remembers(), "the status is lost");
    };
    assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (137, 9, true));
    assert_eq!(exit.out_of_memory.and_then(|memory| memory.limit), Some(16 << 20));
}

fn is_adopted_by_another_runtime() {
    let node = Node::new();
    node.runtime.prepare().expect("prepared");
    let container = node.start(node.plan("sleep 100"));
    let directory = node.directory.path();
    let other = Runtime::open(&directory.join("state"), &directory.join("data")).expect("a runtime");
    assert_eq!(other.list().expect("a list"), [container.id().clone()]);
    let Ok(Status::Running(running)) = other.status(container.id()) else { panic!("not running") };
    assert_eq!(running.init.pid, container.running.init.pid);
    assert_eq!(running.monitor.start_time, container.running.monitor.start_time);
    assert_eq!(running.started_at, container.running.started_at);
    running.signal(libc::SIGKILL).expect("killed");
    assert_eq!(container.wait().exit_code, 137);
}

fn kill_all_leaves_the_record() {
    let node = Node::new();
    let container = node.start(node.plan("sleep 100 & sleep 100 & wait"));
    node.runtime.kill_all(container.id()).expect("killed");
    assert_eq!(container.wait().exit_code, 137);
    node.runtime.kill_all(container.id()).expect("fine once more");
}

fn destroy_twice_and_unknown() {
    let node = Node::new();
    let container = node.start(node.plan("sleep 100"));
    node.runtime.destroy(container.id()).expect("destroyed");
    assert!(matches!(node.runtime.status(container.id()), Ok(Status::Unknown)));
    node.runtime.destroy(container.id()).expect("fine once more");
    node.runtime.destroy(&"never-was".parse().expect("an id")).expect("fine");
}

fn shared_pid_namespace_ends_completely() {
    let node = Node::new();
    let mut plan = node.plan("(trap '' TERM HUP; exec sleep 333) & exec sleep 334");
    plan.namespaces.private_pid = false;
    let container = node.start(plan);
    let children = || container.proc(&format!("task/{0}/children", container.running.init.pid));
    eventually("the second process", || !children().trim().is_empty());
    let child: i32 = children().trim().parse().expect("one child");
    node.runtime.destroy(container.id()).expect("destroyed");
    let gone = || fs::read_to_string(format!("/proc/{child}/cmdline")).map_or(true, |line| line.is_empty());
    assert!(gone(), "a process outlived its container");
}

fn output_survives_its_reader() {
    let node = Node::new();
    let mut plan = node.plan("while [ ! -e /go ]; do sleep 0.05; done; echo again; exit 6");
    // This test makes the file as the node's root.
    plan.user_namespace = None;
    let fifo = node.directory.path().join("log");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).expect("a FIFO");
    plan.output.stdout.clone_from(&fifo);
    // The FIFO has no reader at the start, and its first reader goes away.
    let running = node.runtime.start(&plan).expect("started");
    drop(fs::OpenOptions::new().read(true).write(true).open(&fifo).expect("a reader"));
    fs::write(format!("/proc/{}/root/go", running.init.pid), "").expect("written");
    let text = fs::read_to_string(&fifo).expect("read to the end");
    assert_eq!(text, "again\n");
    assert!(running.monitor.wait_for(Some(Duration::from_secs(5))).expect("a poll"));
    let Ok(Status::Exited(exit)) = node.runtime.status(&plan.id) else { panic!("no record") };
    assert_eq!(exit.exit_code, 6);
    node.runtime.destroy(&plan.id).expect("destroyed");
    node.assert_clean(&plan);
}

fn logs_must_be_fifos() {
    let node = Node::new();
    let directory = node.directory.path();
    fs::write(directory.join("file"), "precious").expect("written");
    rustix::fs::mkfifoat(rustix::fs::CWD, directory.join("fifo"), rustix::fs::Mode::from_raw_mode(0o600))
        .expect("a FIFO");
    std::os::unix::fs::symlink("fifo", directory.join("link")).expect("a link");
    for name in ["file", "link", "missing"] {
        let mut plan = node.plan("true");
        plan.output.stderr = directory.join(name);
        let error = node.refuse(&plan);
        assert_eq!(error.kind, StartErrorKind::Invalid);
        assert!(error.message.contains(name), "{error}");
    }
    assert_eq!(fs::read_to_string(directory.join("file")).expect("read"), "precious");
}

/// The plugin dies while a container starts. No caller has a handle to the container, so it must not stay.
fn plugin_dies_during_the_start() {
    use std::process::{Command, Stdio};
    let node = Node::new();
    let plan = node.plan("sleep 100");
    let task = node.directory.path().join("state/tasks").join(plan.id.as_str());
    fs::create_dir(&task).expect("made");
    fs::write(task.join("plan.json"), serde_json::to_vec(&plan).expect("JSON")).expect("written");
    let mut monitor = Command::new("/proc/self/exe")
        .args(node.runtime.monitor_role(&plan, None).expect("a role").to_args().expect("arguments"))
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a monitor");
    drop(monitor.stdout.take());
    monitor.wait().expect("it ends");
    let Ok(Status::Exited(exit)) = node.runtime.status(&plan.id) else { panic!("it runs") };
    assert_eq!(exit.signal, libc::SIGKILL);
    node.runtime.destroy(&plan.id).expect("destroyed");
    node.assert_clean(&plan);
}

fn bundle_is_complete() {
    let node = Node::new();
    let mut plan = node.plan("sleep 100");
    plan.annotations.insert("who".to_owned(), "me".to_owned());
    let container = node.start(plan);
    let path = node.directory.path().join("state/tasks").join(container.id().as_str()).join("bundle/config.json");
    let spec: serde_json::Value = serde_json::from_slice(&fs::read(path).expect("a bundle")).expect("JSON");
    assert_eq!(spec["process"]["args"][2], "sleep 100");
    assert_eq!(spec["process"]["noNewPrivileges"], true);
    assert_eq!(spec["process"]["capabilities"]["bounding"].as_array().map(Vec::len), Some(4));
    assert_eq!(spec["annotations"]["who"], "me");
    assert!(!control_groups(&container.plan.cgroup.path).is_empty());
}

fn monitor_is_small() {
    let node = Node::new();
    let mut plan = node.plan("sleep 100");
    plan.env.push(("BIG".to_owned(), "x".repeat(100_000)));
    let container = node.start(plan);
    let status = fs::read_to_string(format!("/proc/{}/status", container.running.monitor.pid)).expect("a status");
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    println!("monitor: {} kB private, {} kB in all", field("RssAnon:"), field("VmRSS:"));
    assert!(field("RssAnon:") < 700, "{status}");
    assert_eq!(field("Threads:"), 1);
}

/// The plugin has many threads and starts what it is asked to, all at once.
fn many_at_once() {
    let node = Node::new();
    std::thread::scope(|scope| {
        for number in 0..12 {
            let node = &node;
            scope.spawn(move || {
                let (exit, out, err) = node.run(node.plan(&format!("echo {number}; exit {number}")));
                assert_eq!((exit.exit_code, out.trim()), (number, number.to_string().as_str()), "{err}");
            });
        }
    });
}

/// The layers can be complete before the monitor begins to look after its helpers. A hook holds the start up.
fn ended_guard_has_no_successor() {
    let node = Node::new();
    let (group, go_on) = (sys::fanotify_group(), node.directory.path().join("go-on"));
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", go_on.display());
    let hook = Hook {
        stage: HookStage::Poststart,
        path: "/bin/sh".into(),
        args: ["sh", "-c", &wait].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        timeout_s: None,
    };
    // Hooks run with the ids of the node.
    let plan = ContainerPlan { hooks: vec![hook], user_namespace: None, ..node.plan("sleep 100") };
    let guard = || {
        let record = fs::read(node.directory.path().join("state/tasks").join(plan.id.as_str()).join("guard.json"));
        let record: Option<serde_json::Value> = record.ok().and_then(|record| serde_json::from_slice(&record).ok());
        record.and_then(|record| record["pid"].as_u64())
    };
    let is_there = |pid: u64| fs::exists(format!("/proc/{pid}")).expect("a look");
    std::thread::scope(|scope| {
        let start = scope.spawn(|| {
            let options = StartOptions { layer_group: Some(group.as_fd()), ..StartOptions::default() };
            node.runtime.start_with(&plan, options).expect("a start")
        });
        eventually("a guard", || guard().is_some());
        let first = guard().expect("a guard");
        node.runtime.end_guard(&plan.id).expect("ended");
        let state = || fs::read_to_string(format!("/proc/{first}/stat")).expect("a zombie of the monitor");
        eventually("the guard ends", || state().contains(") Z "));
        fs::write(&go_on, "").expect("written");
        start.join().expect("no panic");
        eventually("the guard is reaped", || !is_there(first));
        assert!(guard().is_some_and(|guard| !is_there(guard)), "there is another guard");
    });
    node.runtime.destroy(&plan.id).expect("destroyed");
    node.assert_clean(&plan);
}

fn sweep_after_a_restart() {
    let node = Node::new();
    let container = node.start(node.plan("sleep 100"));
    assert!(node.runtime.sweep().expect("swept").is_empty(), "what runs stays");
    let other =
        Runtime::open(&node.directory.path().join("other"), &node.directory.path().join("data")).expect("a runtime");
    assert!(other.sweep().expect("swept").is_empty(), "what others run stays");
    container.running.signal(libc::SIGKILL).expect("killed");
    container.wait();
    let monitor = rustix::process::Pid::from_raw(container.running.monitor.pid);
    rustix::process::waitpid(monitor, rustix::process::WaitOptions::empty()).expect("our child");
    fs::remove_dir_all(node.directory.path().join("state/tasks").join(container.id().as_str())).expect("removed");
    assert_eq!(node.runtime.sweep().expect("swept"), [container.id().to_string()]);
    for group in control_groups(&container.plan.cgroup.path) {
        fs::remove_dir(group).expect("empty");
    }
}

/// A layer that cannot be removed, here because something is mounted in it, keeps its place and no other layer.
fn sweep_goes_on_after_a_layer_that_stays() {
    let node = Node::new();
    let (state, layers) = (node.directory.path().join("state"), node.directory.path().join("data/containers"));
    let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
    for name in &names {
        fs::create_dir_all(layers.join(name).join("upper/place")).expect("a layer");
        std::os::unix::fs::symlink(&state, layers.join(name).join("owner")).expect("its owner");
    }
    let place = layers.join("c/upper/place");
    rustix::mount::mount_bind(node.directory.path().join("layer"), &place).expect("mounted");
    let swept = node.runtime.sweep();
    let kept = place.join("bin").exists();
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).expect("unmounted");
    let mut swept = swept.expect("swept");
    swept.sort();
    assert_eq!(swept, ["a", "b", "d", "e"]);
    assert!(kept, "the mount was not entered");
    assert_eq!(node.runtime.sweep().expect("swept"), ["c"], "it still belongs to this runtime");
    assert_eq!(fs::read_dir(&layers).expect("listed").count(), 0);
}

/// Another process destroys what is being started: the start fails or its container goes, and nothing stays either way.
fn destroyed_while_it_starts() {
    let node = Node::new();
    for delay in [0, 2, 5, 8, 12, 16] {
        let plan = node.plan("sleep 100");
        std::thread::scope(|scope| {
            let start = scope.spawn(|| node.runtime.start(&plan).map(drop));
            std::thread::sleep(Duration::from_millis(delay));
            // The start cleans up as well; the two may meet.
            drop(node.runtime.destroy(&plan.id));
            drop(start.join().expect("no panic"));
        });
        node.runtime.destroy(&plan.id).expect("destroyed");
        node.assert_clean(&plan);
    }
}

/// Nomad gives a restarted task the same control groups. Cleaning up after the first one must not end the second.
fn late_destroy_spares_a_later_container() {
    let node = Node::new();
    let first = node.plan("true");
    let running = node.runtime.start(&first).expect("started");
    assert!(running.monitor.wait_for(Some(Duration::from_secs(5))).expect("a poll"));
    let mut second = node.plan("sleep 100");
    second.cgroup = first.cgroup.clone();
    let running = node.runtime.start(&second).expect("started");
    node.runtime.destroy(&first.id).expect("destroyed");
    assert!(!running.init.ended());
    node.runtime.destroy(&second.id).expect("destroyed");
    for group in control_groups(&first.cgroup.path) {
        fs::remove_dir(group).expect("empty");
    }
}

/// From the call of `start` to its return, after a pause and without one.
fn measure_start() {
    let mut node = Node::new();
    // Where it is on a real node: in memory.
    let state = tempfile::tempdir_in("/dev/shm").expect("a directory");
    node.runtime = Runtime::open(state.path(), &node.directory.path().join("data")).expect("a runtime");
    for (name, pause) in [("cold", 300), ("warm", 0)] {
        let (mut starts, mut destroys) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(pause));
            let mut plan = node.plan("");
            plan.args = ["sleep", "100"].map(str::to_owned).to_vec();
            let begun = std::time::Instant::now();
            node.runtime.start(&plan).expect("started");
            starts.push(begun.elapsed().as_micros());
            let begun = std::time::Instant::now();
            node.runtime.destroy(&plan.id).expect("destroyed");
            destroys.push(begun.elapsed().as_micros());
        }
        starts.sort_unstable();
        destroys.sort_unstable();
        println!("{name}: start {} µs (least {}), destroy {} µs", starts[10], starts[0], destroys[10]);
    }
}

fn unreadable_plans_of_others() {
    let node = Node::new();
    let tasks = node.directory.path().join("state/tasks");
    let spoil = |name: &str| {
        fs::create_dir(tasks.join(name)).expect("a directory");
        fs::write(tasks.join(name).join("plan.json"), "{").expect("a spoiled plan");
    };
    let mut plan = node.plan("true");
    plan.id = "alloc.web.2".parse().expect("an id");
    spoil("alloc.other.1");
    assert_eq!(node.runtime.sharing_group(&plan, "alloc.").expect("the other task is skipped"), []);
    assert!(!node.runtime.add_names(&mut plan, "alloc.").expect("the other task is skipped"));
    spoil("alloc.web.1");
    let error = node.runtime.sharing_group(&plan, "alloc.").expect_err("it may be in the same cgroup");
    assert!(error.to_string().contains("alloc.web.1"), "{error}");
}
