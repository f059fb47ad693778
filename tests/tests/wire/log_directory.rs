//! The allocation's log directory: tasks write their own files in it, and read Nomad's.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use fixtures::{busybox::Images, must::Must, wait::seconds};
use kit::{node::Node, plugin::Plugin, task::Task};
use serde_json::json;

const FOREVER: &str = "while :; do sleep 1000; done";

/// Attempts on a file of Nomad's, by its name in `/alloc/logs` and by its name in Nomad's directory. None may have an
/// effect on the file.
const ATTACKS: [&str; 10] = [
    "rm -f $D/$F",
    "mv $D/$F $D/moved",
    "mv /alloc/logs/own $D/$F",
    "ln $D/$F $D/linked",
    "rm -f $D/$F; ln -s /alloc/data/target $D/$F",
    "echo x >> $D/$F",
    "echo x > $D/$F",
    "truncate -s 0 $D/$F",
    "chmod 666 $D/$F",
    "chown 1000:1000 $D/$F",
];

/// Runs each attack of a task on Nomad's files. The files are as before.
async fn attack(plugin: &Plugin, task: &Task, logs: &Path) {
    let files = [".main.stdout.fifo", ".other.stderr.fifo", "main.stdout.1", "main.stdout.2"];
    let state = |name: &str| {
        let found = fs::symlink_metadata(logs.join(name)).must(name);
        (found.ino(), found.uid(), found.gid(), found.mode(), found.nlink(), found.len())
    };
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(logs).must("the directory").map(|one| one.must("one").file_name()).collect();
        names.sort();
        names
    };
    let (before, had): (Vec<_>, _) = (files.map(state).to_vec(), names());
    let mut script = String::new();
    for directory in ["/alloc/logs", "/alloc/logs/.nomad"] {
        for file in files {
            for attack in ATTACKS {
                script += &format!("D={directory} F={file}; echo own > /alloc/logs/own; {attack}\n");
            }
        }
    }
    script += "mv /alloc/logs /alloc/gone; mv /alloc/logs/.nomad /alloc/logs/gone; rmdir /alloc/logs/.nomad; \
               ln -s /etc/hostname /alloc/logs/other.stdout.0; mkfifo /alloc/logs/other.stderr.0; true";
    let answer = plugin.exec(task.id(), &["/bin/sh", "-c", &script], seconds(10)).await.must("ExecTask");
    assert_eq!(answer.result.must("a result").exit_code, 0);
    assert_eq!(files.map(state).to_vec(), before);
    assert_eq!(names(), had, "no new name in Nomad's directory");
    plugin.sh(task, "cd /alloc/logs; rm -rf * .main.* .other.*").await;
}

/// Waits in the container until a command succeeds.
async fn until(plugin: &Plugin, task: &Task, condition: &str) {
    plugin.sh(task, &format!("until {condition}; do sleep 0.02; done")).await;
}

#[tokio::test]
async fn tasks_write_their_own_files_and_read_nomads() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let main = node.task(&images.busybox()).sh(FOREVER).build(&mut plugin).await;
    let other = node.task(&images.busybox()).name("other").user("1000").in_alloc(&main.alloc).sh(FOREVER);
    // A second way to the same directory.
    let other = other.option("volumes", json!(["../alloc:/again"])).build(&mut plugin).await;
    let logs = main.alloc.dir.join("alloc/logs");
    fs::write(logs.join("main.stdout.0"), "first\n").must("a log file of Nomad's");
    plugin.started(&main).await;
    plugin.started(&other).await;

    // One task's file is the other's, at once and also if the other one asked for it before.
    plugin.sh(&other, "test ! -e /again/logs/app.log").await;
    plugin.sh(&main, "cd /alloc/logs; echo one > app.log; mkdir sub; echo deep > sub/app.log; chmod 666 app.log").await;
    plugin.sh(&other, "cd /again/logs; echo two >> app.log; echo mine > other.log").await;
    plugin.sh(&main, "cd /alloc/logs; mv app.log app.log.1 && ln app.log.1 twin && rm other.log").await;
    assert_eq!(fs::read_to_string(logs.join("tasks/app.log.1")).must("on the host"), "one\ntwo\n");
    assert_eq!(fs::read_to_string(logs.join("tasks/sub/app.log")).must("on the host"), "deep\n");
    assert_eq!(plugin.sh(&other, "stat -c %u:%g:%a /alloc/logs").await, "65534:65534:777");

    // Nomad's files: one that grows, a new one, and one that is removed.
    assert_eq!(plugin.sh(&other, "cat /alloc/logs/main.stdout.*").await, "first");
    plugin.sh(&other, "test ! -e /alloc/logs/main.stdout.1").await;
    fs::write(logs.join("main.stdout.0"), "first\nsecond\n").must("a longer log file");
    fs::write(logs.join("main.stdout.1"), "third\n").must("a rotated log file");
    until(&plugin, &other, "test -e /alloc/logs/main.stdout.1").await;
    assert_eq!(plugin.sh(&other, "cat /again/logs/main.stdout.*").await, "first\nsecond\nthird");
    fs::write(logs.join("main.stdout.2"), "fourth\n").must("a rotated log file");
    fs::remove_file(logs.join("main.stdout.0")).must("Nomad removes old files");
    until(&plugin, &main, "test ! -L /alloc/logs/main.stdout.0").await;
    assert_eq!(plugin.sh(&main, "cat /alloc/logs/main.stdout.*").await, "third\nfourth");

    attack(&plugin, &main, &logs).await;
    attack(&plugin, &other, &logs).await;
    plugin.end(&other).await;
    plugin.end(&main).await;
    node.finish(plugin).await;
}

/// Links follow Nomad's files again as soon as a plugin runs.
#[tokio::test]
async fn a_new_plugin_makes_the_missing_links() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(FOREVER).build(&mut plugin).await;
    let logs = task.alloc.dir.join("alloc/logs");
    fs::write(logs.join("main.stdout.0"), "").must("a log file of Nomad's");
    let handle = plugin.started(&task).await;
    plugin.process.kill().await;
    fs::rename(logs.join("main.stdout.0"), logs.join("main.stdout.1")).must("while no plugin runs");
    let plugin = node.launch().await;
    plugin.recover(&handle).await.must("RecoverTask");
    until(&plugin, &task, "test -L /alloc/logs/main.stdout.1").await;
    until(&plugin, &task, "test ! -L /alloc/logs/main.stdout.0").await;
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The mode of the directory is that of Nomad's until a task changes it. A link in its place is not followed.
#[tokio::test]
async fn a_restarted_task_finds_the_directory_as_it_was() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("chmod 750 /alloc/logs; echo kept > /alloc/logs/app.log");
    let task = task.build(&mut plugin).await;
    let tasks = task.alloc.dir.join("alloc/logs/tasks");
    for _ in 0..2 {
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0, "{}", task.stderr().so_far());
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(fs::metadata(&tasks).must("the directory").permissions().mode() & 0o7777, 0o750);
        assert_eq!(fs::read_to_string(tasks.join("app.log")).must("a file of the task's"), "kept\n");
    }
    let victim = node.root().join("victim");
    fs::create_dir(&victim).must("a directory");
    fs::remove_dir_all(&tasks).must("remove the directory");
    std::os::unix::fs::symlink(&victim, &tasks).must("a link");
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("the log directory of the allocation's tasks"), "{status}");
    assert_eq!(fs::read_dir(&victim).must("the directory").count(), 0);
    node.finish(plugin).await;
}

/// In a bind of the whole allocation, the path of the log directory stays what it is. Mounts over it do not appear on
/// the node.
#[tokio::test]
async fn a_bind_of_the_allocation_cannot_move_the_logs() {
    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = |name: &str| node.task(&images.busybox()).name(name).sh(FOREVER);
    let main = task("main").option("volumes", json!(["..:/x"])).build(&mut plugin).await;
    let slave = task("slave").in_alloc(&main.alloc).option("volumes", json!(["../alloc:/x/alloc:rslave"]));
    let slave = slave.build(&mut plugin).await;
    let (alloc, logs) = (&main.alloc.dir, main.alloc.dir.join("alloc/logs"));
    mount_bind(alloc, alloc).must("a mount of its own");
    mount_change(alloc, MountPropagationFlags::SHARED).must("shared");
    let mounts = || fs::read_to_string("/proc/self/mountinfo").must("mounts").matches("/alloc/logs").count();
    let before = mounts();
    for task in [&main, &slave] {
        plugin.started(task).await;
        assert_eq!(mounts(), before, "a mount of the container is on the node");
        for attempt in ["mv /x/alloc /x/gone", "mv /x/alloc/logs /x/alloc/gone", "touch /x/alloc/logs/.nomad/made"] {
            let answer = plugin.exec(task.id(), &["/bin/sh", "-c", attempt], seconds(10)).await.must("ExecTask");
            assert_ne!(answer.result.must("a result").exit_code, 0, "{attempt}");
        }
        plugin.sh(task, "echo own > /x/alloc/logs/own; echo shared > /x/alloc/data/shared").await;
        assert!(logs.join("tasks/own").exists() && !logs.join("own").exists());
    }
    plugin.end(&slave).await;
    plugin.end(&main).await;
    unmount(alloc, UnmountFlags::DETACH).must("unmounted");
    node.finish(plugin).await;
}

/// A task makes a link to Nomad's directory, or to one that contains it, and another task binds the link.
#[tokio::test]
async fn no_link_leads_a_bind_to_nomads_logs() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let shared = alloc.dir.join("alloc");
    fs::create_dir(shared.join("data/real")).must("a directory");
    let links =
        [("to-logs", "logs"), ("parent", "../alloc"), ("all", ".."), ("tasks", "logs/tasks"), ("fine", "data/real")];
    for (name, target) in links {
        std::os::unix::fs::symlink(target, shared.join(name)).must("a link");
    }
    for propagation in ["", ":rslave"] {
        for (name, _) in links {
            let volume = format!("../alloc/{name}:/y{propagation}");
            let task = node.task(&images.busybox()).in_alloc(&alloc).sh("echo made > /y/made");
            let task = task.option("volumes", json!([volume])).build(&mut plugin).await;
            if name == "fine" {
                plugin.started(&task).await;
                assert_eq!(plugin.wait(task.id()).await.code, 0, "{}", task.stderr().so_far());
                plugin.destroy(task.id(), true).await.must("DestroyTask");
                continue;
            }
            let status = plugin.start(&task).await.err().must("a refusal");
            assert!(status.message().contains("leads through a link to"), "{volume}: {status}");
        }
    }
    assert!(shared.join("data/real/made").exists() && !shared.join("logs/made").exists());
    node.finish(plugin).await;
}

/// Nomad mounts `alloc` again in the directory of each task of a driver with a chroot, such as `exec`. There the driver
/// has no mounts over the log directory, so no container sees it.
#[tokio::test]
async fn a_second_mount_of_alloc_is_hidden() {
    use rustix::mount::{UnmountFlags, mount_bind, unmount};
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let second = alloc.dir.join("an exec task/alloc");
    fs::create_dir_all(&second).must("the task's directory");
    fs::write(alloc.dir.join("an exec task/beside"), "beside\n").must("a file of the task's");
    std::os::unix::fs::symlink("../an exec task/alloc", alloc.dir.join("alloc/link")).must("a link");
    mount_bind(alloc.dir.join("alloc"), &second).must("as Nomad does");
    let task = |volume: &str, script: &str| {
        let task = node.task(&images.busybox()).in_alloc(&alloc).sh(script);
        task.option("volumes", json!([volume]))
    };
    for (volume, inside) in [("..:/y", "/y/an exec task"), ("../an exec task:/y", "/y")] {
        let script = format!("cat '{inside}/beside'; ls '{inside}/alloc'; ls -d /alloc/logs");
        let task = task(volume, &script).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0, "{}", task.stderr().so_far());
        assert_eq!(task.stdout().all(seconds(10)).await, "beside\n/alloc/logs\n", "{volume}");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    for (volume, reason) in [
        ("../an exec task/alloc:/y", "is in a second mount"),
        ("../an exec task/alloc/logs:/y", "is in a second mount"),
        ("../an exec task/alloc/data:/y", "is in a second mount"),
        ("../alloc/link/data:/y", "is in a second mount"),
        ("../an exec task:/y:rslave", "cannot have the propagation"),
        ("..:/y:rslave", "cannot have the propagation"),
    ] {
        let task = task(volume, "true").build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("a refusal");
        assert!(status.message().contains(reason), "{volume}: {status}");
    }
    assert!(second.join("logs").is_dir(), "the node's mount stays");
    unmount(&second, UnmountFlags::DETACH).must("unmounted");
    node.finish(plugin).await;
}
