//! The mounts of a task: Nomad's directories, volumes, the image's own files.

use std::{fs, os::unix::net::UnixDatagram};

use fixtures::{busybox::Images, must::Must, program, wait::seconds};
use kit::node::Node;
use serde_json::json;

#[tokio::test]
async fn nomads_directories_are_mounted() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("while :; do sleep 1000; done").build(&mut plugin).await;
    fs::write(task.dir().join("secrets/token"), "t0ken").must("a secret");
    fs::write(task.dir().join("private/hidden"), "hidden").must("a private file");
    plugin.started(&task).await;
    assert_eq!(plugin.sh(&task, "cat $NOMAD_SECRETS_DIR/token").await, "t0ken");
    plugin.sh(&task, "echo a > $NOMAD_ALLOC_DIR/data/a && echo l > $NOMAD_TASK_DIR/l && echo s > /secrets/s").await;
    assert_eq!(fs::read_to_string(task.alloc.dir.join("alloc/data/a")).must("a shared file"), "a\n");
    assert_eq!(fs::read_to_string(task.dir().join("local/l")).must("a local file"), "l\n");
    assert_eq!(fs::read_to_string(task.dir().join("secrets/s")).must("a secret file"), "s\n");
    // The private directory belongs to the client. Nomad's logs are read-only, so that a task cannot replace its FIFOs.
    assert_eq!(plugin.sh(&task, "find / -xdev -name hidden 2>/dev/null; ls / | grep -c private || true").await, "0");
    for attempt in [
        "touch /alloc/logs/.nomad/x",
        "rm /alloc/logs/.nomad/.main.stdout.fifo",
        "mv /alloc/logs /alloc/gone",
        "echo > /alloc/logs/.nomad/.main.stdout.fifo.x",
    ] {
        let answer = plugin.exec(task.id(), &["/bin/sh", "-c", attempt], seconds(10)).await.must("ExecTask");
        assert_ne!(answer.result.must("a result").exit_code, 0, "{attempt}");
    }
    assert!(task.alloc.dir.join("alloc/logs/.main.stdout.fifo").exists());
    plugin.sh(&task, "touch /alloc/tmp/ok /alloc/data/ok").await;
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The client replaces files in secrets (api.sock at each agent restart), so the directory is mounted, not its files.
#[tokio::test]
async fn secrets_written_later_are_visible() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("while :; do sleep 1000; done").build(&mut plugin).await;
    plugin.started(&task).await;
    fs::write(task.dir().join("secrets/new"), "one").must("a secret");
    assert_eq!(plugin.sh(&task, "cat /secrets/new").await, "one");
    fs::remove_file(task.dir().join("secrets/new")).must("remove the secret");
    fs::write(task.dir().join("secrets/new"), "two").must("another secret");
    assert_eq!(plugin.sh(&task, "cat /secrets/new").await, "two");
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn tasks_of_a_group_share_only_the_alloc_directory() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let idle = "while :; do sleep 1000; done";
    let web = node.task(&images.busybox()).in_alloc(&alloc).name("web").sh(idle).build(&mut plugin).await;
    let side = node.task(&images.busybox()).in_alloc(&alloc).name("side").sh(idle).build(&mut plugin).await;
    plugin.started(&web).await;
    plugin.started(&side).await;
    plugin.sh(&web, "echo shared > /alloc/data/x; echo own > /local/x; echo own > /root-file").await;
    assert_eq!(
        plugin.sh(&side, "cat /alloc/data/x; ls /local; test ! -e /root-file && echo apart").await,
        "shared\napart"
    );
    plugin.end(&web).await;
    assert_eq!(plugin.sh(&side, "cat /alloc/data/x").await, "shared");
    plugin.end(&side).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn host_volumes_are_mounted() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let volume = node.root().join("volume");
    fs::create_dir(&volume).must("a volume");
    fs::write(volume.join("file"), "content").must("a file");
    let task = node
        .task(&images.busybox())
        .sh("while :; do sleep 1000; done")
        .mount(&volume, "/rw", false, "")
        .mount(&volume, "/ro", true, "private")
        .mount(&volume, "/deep/below/slave", false, "host-to-task")
        .mount(&volume.join("file"), "/etc/one-file", true, "")
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    assert_eq!(
        plugin.sh(&task, "cat /rw/file /ro/file /deep/below/slave/file /etc/one-file").await,
        "contentcontentcontentcontent"
    );
    plugin.sh(&task, "echo changed > /rw/file").await;
    assert_eq!(fs::read_to_string(volume.join("file")).must("the file"), "changed\n");
    for path in ["/ro/file", "/etc/one-file"] {
        let answer = plugin
            .exec(task.id(), &["/bin/sh", "-c", &format!("echo no > {path}")], seconds(10))
            .await
            .must("ExecTask");
        assert_ne!(answer.result.must("a result").exit_code, 0, "{path} is read-only");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn relative_volumes_and_mount_blocks_work() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh("while :; do sleep 1000; done")
        .option("volumes", json!(["local/conf:/conf:ro", "../alloc/data:/shared"]))
        .option(
            "mount",
            json!([
                {"type": "bind", "source": "local/data", "target": "/data"},
                {"type": "tmpfs", "target": "/scratch", "tmpfs_options": {"size": 1_048_576, "mode": 448}},
            ]),
        )
        .build(&mut plugin)
        .await;
    for name in ["conf", "data"] {
        fs::create_dir(task.dir().join("local").join(name)).must("a directory of the job");
    }
    fs::write(task.dir().join("local/conf/x"), "configured").must("a file of the job");
    plugin.started(&task).await;
    assert_eq!(plugin.sh(&task, "cat /conf/x").await, "configured");
    plugin.sh(&task, "echo d > /data/d; echo s > /shared/s; ! touch /conf/y 2>/dev/null").await;
    assert!(task.dir().join("local/data/d").exists() && task.alloc.dir.join("alloc/data/s").exists());
    assert_eq!(
        plugin
            .sh(
                &task,
                "stat -c %a /scratch; ! dd if=/dev/zero of=/scratch/big bs=1M count=3 2>/dev/null && echo limited"
            )
            .await,
        "700\nlimited"
    );
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A symbolic link in the task's directory leads out of the allocation. The resolved path decides.
#[tokio::test]
async fn a_relative_volume_cannot_escape_the_allocation() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let local = alloc.task_dir("main").join("local");
    std::os::unix::fs::symlink("/etc", local.join("link")).must("a link");
    std::os::unix::fs::symlink("../../../../../../../../etc", local.join("climb")).must("a link");
    let volumes = ["local/link:/out", "local/climb:/out", "../../../../../../../../../etc:/out"];
    for volume in volumes {
        let task = node
            .task(&images.busybox())
            .in_alloc(&alloc)
            .sh("cat /out/hostname /out/passwd")
            .option("volumes", json!([volume]))
            .without_logs()
            .build(&mut plugin)
            .await;
        let status = plugin.start(&task).await.err().must(&format!("a refusal of {volume}"));
        assert!(status.message().contains("volumes"), "{status}");
    }
    node.finish(plugin).await;
}

/// Nomad cleans a path before it is resolved: after a link, `..` means the task's own directory.
#[tokio::test]
async fn dot_dot_after_a_symbolic_link_does_not_escape() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let local = alloc.task_dir("main").join("local");
    std::os::unix::fs::symlink("/etc", local.join("link")).must("a link");
    let task = node
        .task(&images.busybox())
        .in_alloc(&alloc)
        .sh("test ! -e /out/passwd")
        .option("volumes", json!(["local/link/../../etc:/out"]))
        .build(&mut plugin)
        .await;
    if plugin.start(&task).await.is_ok() {
        assert_eq!(plugin.wait(task.id()).await.code, 0, "the host's directory is in the container");
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn absolute_volumes_need_the_operators_permission() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"volumes": {"enabled": true}})).await;
    let images = Images::start().await;
    let directory = node.root().join("anywhere");
    fs::create_dir(&directory).must("a directory");
    let volume = format!("{}:/out", directory.display());
    let task =
        node.task(&images.busybox()).sh("echo x > /out/x").option("volumes", json!([volume])).build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert!(directory.join("x").exists());
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_read_only_root_leaves_the_directories_writable() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh("while :; do sleep 1000; done")
        .option("readonly_rootfs", json!(true))
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    plugin
        .sh(
            &task,
            "! touch /x 2>/dev/null && ! touch /etc/x 2>/dev/null && touch /local/x /alloc/data/x \
                      /secrets/x /dev/shm/x",
        )
        .await;
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The container's mounts are not visible in the host's mount table.
#[tokio::test]
async fn the_hosts_mount_table_stays_clean() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let count = || {
        fs::read_to_string("/proc/self/mountinfo")
            .must("mounts")
            .lines()
            .filter(|line| line.contains("overlay") && line.contains(&*node.root().to_string_lossy()))
            .count()
    };
    let task = node.task(&images.busybox()).sh("while :; do sleep 1000; done").build(&mut plugin).await;
    let before = count();
    plugin.started(&task).await;
    assert_eq!(node.traces().mounts, Vec::<String>::new());
    assert!(count() <= before);
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn named_volumes_persist_after_the_task() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"volumes": {"enabled": true}})).await;
    let images = Images::start().await;
    let mounts = json!([{"type": "volume", "source": "shared", "target": "/shared"}, {"target": "/etc"}]);
    for (name, script) in [
        ("one", "test -e /etc/passwd && touch /etc/of-one && echo from-one > /shared/file && echo x > /db/x"),
        ("two", "test ! -e /etc/of-one && test $(cat /shared/file) = from-one && test -e /db/x && ! touch /db/y"),
    ] {
        let access = if name == "one" { "" } else { ":ro" };
        let task = node
            .task(&images.busybox())
            .name(name)
            .sh(script)
            .option("readonly_rootfs", json!(true))
            .option("volume_driver", json!("local"))
            .option("volumes", json!([format!("db:/db{access}")]))
            .option("mount", mounts.clone())
            .build(&mut plugin)
            .await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0, "{}", task.stderr().so_far());
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    let volumes = node.data_dir().join("volumes");
    assert_eq!(fs::read_to_string(volumes.join("shared/file")).must("the volume"), "from-one\n");
    let mut names: Vec<_> = fs::read_dir(&volumes).must("volumes").flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["db", "shared"], "the nameless one went with its task");
    node.finish(plugin).await;
}

/// The image's volumes are filled from the image, kept over a recovery, and new for a new task.
#[tokio::test]
async fn volumes_of_the_image_live_as_long_as_their_task() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let image = images.with_config("volumes", json!({"Volumes": {"/etc": {}, "/missing/directory": {}}}));
    for _ in 0..2 {
        let task = node.task(&image).sh("while :; do sleep 1000; done").option("readonly_rootfs", json!(true));
        let task = task.build(&mut plugin).await;
        let handle = plugin.started(&task).await;
        plugin.sh(&task, "test -e /etc/passwd && test ! -e /etc/y && test ! -e /missing/directory/x").await;
        plugin.sh(&task, "echo x > /missing/directory/x && echo y > /etc/y && grep localhost /etc/hosts").await;
        plugin.sh(&task, "grep '/volumes/1 /missing/directory ' /proc/self/mountinfo").await;
        plugin.process.kill().await;
        plugin = node.launch().await;
        plugin.recover(&handle).await.must("RecoverTask");
        assert_eq!(plugin.sh(&task, "cat /missing/directory/x /etc/y").await, "x\ny");
        plugin.end(&task).await;
    }
    node.finish(plugin).await;
}

/// The links of the standard streams in `/proc` show no path of the node, and users can open the streams again by them.
#[tokio::test]
async fn the_standard_streams_show_no_path() {
    let node = Node::new();
    let socket = node.root().join("syslog");
    let _server = UnixDatagram::bind(&socket).must("a socket");
    let allowed = json!({ "allow_log_paths": [socket], "allow_runtimes": ["runc"], "runtime": { "runc": {} },
        "allowed_modes": { "userns": ["host"] } });
    let mut plugin = node.launch_with(allowed).await;
    let images = Images::start().await;
    let script = "test -p /proc/self/fd/1 && readlink /proc/self/fd/1 && readlink /proc/self/fd/2 && \
                  echo again > /dev/stdout && echo more >> /proc/self/fd/1 && echo err > /dev/stderr && \
                  chmod 666 /dev/stdout && echo done";
    // With a log driver, the FIFOs are ours.
    let logging =
        json!({ "type": "syslog", "config": { "syslog-address": format!("unixgram://{}", socket.display()) } });
    let mut options = vec![("init", json!(false)), ("userns_mode", json!("host")), ("logging", logging)];
    if program::find("runc").is_some() {
        options.push(("runtime", json!("runc")));
    }
    for (user, (name, value)) in options.iter().flat_map(|option| [("0", option), ("1000", option)]) {
        let task = node.task(&images.busybox()).user(user).sh(script).option(name, value.clone());
        let task = task.resources(100, 128, 0).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0, "{}", task.stderr().so_far());
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await, "/\n/\nagain\nmore\ndone\n", "{name} {user}");
    }
    node.finish(plugin).await;
}

/// Nomad adds the host's /dev and a directory for the plugin's socket to a task with a `csi_plugin` block.
#[tokio::test]
async fn a_csi_plugin_sees_the_hosts_devices() {
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"allow_privileged": true})).await;
    let images = Images::start().await;
    let directory = node.root().join("csi");
    fs::create_dir(&directory).must("a directory");
    let task = node
        .task(&images.busybox())
        .sh("while :; do sleep 1000; done")
        .option("privileged", json!(true))
        .mount(&directory, "/csi", false, "bidirectional")
        .mount(std::path::Path::new("/dev"), "/dev", false, "")
        .build(&mut plugin)
        .await;
    plugin.started(&task).await;
    plugin.sh(&task, "test -c /dev/kmsg && : < /dev/kmsg && echo x > /dev/null && touch /csi/csi.sock").await;
    let shown = plugin.sh(&task, "stat -c %d:%i /dev/null").await;
    let metadata = fs::metadata("/dev/null").must("a device");
    use std::os::unix::fs::MetadataExt;
    assert_eq!(shown, format!("{}:{}", metadata.dev(), metadata.ino()), "the host's own file");
    assert!(directory.join("csi.sock").exists());
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn shared_propagation_needs_the_operators_permission() {
    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
    let (node, images) = (Node::new(), Images::start().await);
    let volumes = json!(["local/a:/a:rshared", "local:/a/in"]);
    let plugin = node.launch().await;
    let mut plugin = plugin;
    let task = node.task(&images.busybox()).sh("true").option("volumes", volumes.clone()).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("volumes { allow_shared = true }"), "{status}");
    plugin.shutdown().await;
    // The allocation is on a shared mount, as on most machines. The nested bind must not appear there.
    let mut plugin = node.launch_with(json!({"volumes": {"allow_shared": true}})).await;
    let task = node.task(&images.busybox()).sh("while :; do sleep 1000; done").option("volumes", volumes);
    let task = task.build(&mut plugin).await;
    let alloc = &task.alloc.dir;
    mount_bind(alloc, alloc).must("a mount of its own");
    mount_change(alloc, MountPropagationFlags::SHARED).must("shared");
    let mounts =
        || fs::read_to_string("/proc/self/mountinfo").must("mounts").matches(&*alloc.to_string_lossy()).count();
    let before = mounts();
    plugin.started(&task).await;
    plugin.sh(&task, "touch /a/in/file").await;
    assert_eq!(mounts(), before, "a mount of the task is on the node");
    plugin.end(&task).await;
    assert_eq!(mounts(), before, "a mount of the task stayed on the node");
    unmount(alloc, UnmountFlags::DETACH).must("unmounted");
    node.finish(plugin).await;
}

/// A volume with bidirectional propagation, as CSI node plugins need it.
#[tokio::test]
async fn bidirectional_propagation_works() {
    use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
    let node = Node::new();
    let mut plugin = node.launch_with(json!({"allow_privileged": true})).await;
    let images = Images::start().await;
    let volume = node.root().join("volume");
    fs::create_dir(&volume).must("a volume");
    let tmpfs = |path: &std::path::Path| mount("tmpfs", path, "tmpfs", MountFlags::empty(), None::<&std::ffi::CStr>);
    tmpfs(&volume).must("a mount of its own");
    mount_change(&volume, MountPropagationFlags::SHARED).must("shared");
    for name in ["by-host", "by-task"] {
        fs::create_dir(volume.join(name)).must("a directory");
    }
    let start = |name: &str, propagation: &str| {
        let task = node.task(&images.busybox()).name(name).sh("while :; do sleep 1000; done");
        task.option("privileged", json!(true)).mount(&volume, "/volume", false, propagation)
    };
    let both = start("both", "bidirectional").build(&mut plugin).await;
    let own = start("own", "private").build(&mut plugin).await;
    plugin.started(&both).await;
    plugin.started(&own).await;
    plugin.sh(&both, "mount -t tmpfs none /volume/by-task && echo in > /volume/by-task/file").await;
    plugin.sh(&own, "mount -t tmpfs none /volume/by-task && echo own > /volume/by-task/own").await;
    tmpfs(&volume.join("by-host")).must("a mount of the host's");
    fs::write(volume.join("by-host/late"), "late").must("a file");
    assert_eq!(fs::read_to_string(volume.join("by-task/file")).must("the task's mount"), "in\n");
    assert!(!volume.join("by-task/own").exists(), "a private mount reached the host");
    assert_eq!(plugin.sh(&both, "cat /volume/by-host/late").await, "late");
    assert_eq!(plugin.sh(&own, "ls /volume/by-host | wc -l").await, "0");
    plugin.sh(&both, "umount /volume/by-task").await;
    assert!(!volume.join("by-task/file").exists(), "the end of the mount arrives as well");
    plugin.end(&both).await;
    plugin.end(&own).await;
    unmount(volume.join("by-host"), UnmountFlags::DETACH).must("unmounted");
    unmount(&volume, UnmountFlags::DETACH).must("unmounted");
    node.finish(plugin).await;
}

/// Mounts are made from the outside to the inside, in any order of the job. Missing targets are made, and links of the
/// image are resolved inside the image.
#[tokio::test]
async fn nested_mounts_work() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh("while :; do sleep 1000; done")
        .option("readonly_rootfs", json!(true))
        .option(
            "mount",
            json!([
                {"type": "bind", "source": "local/file", "target": "/a/b/c/file", "readonly": true},
                {"type": "tmpfs", "target": "/a/b"},
                {"type": "bind", "source": "local/outer", "target": "/a"},
                {"type": "bind", "source": "local/inner", "target": "/a/b/c"},
                {"type": "bind", "source": "local/inner", "target": "/var/run/app"},
            ]),
        )
        .build(&mut plugin)
        .await;
    for name in ["outer", "inner"] {
        fs::create_dir(task.dir().join("local").join(name)).must("a directory");
        fs::write(task.dir().join("local").join(name).join("name"), name).must("a file");
    }
    fs::write(task.dir().join("local/file"), "single").must("a file");
    plugin.started(&task).await;
    assert_eq!(
        plugin.sh(&task, "cat /a/name /a/b/c/name /a/b/c/file /var/run/app/name").await,
        "outerinnersingleinner"
    );
    plugin.sh(&task, "touch /a/b/on-tmpfs /a/b/c/on-inner; ! echo x > /a/b/c/file; ! touch /var/x").await;
    assert!(task.dir().join("local/inner/on-inner").exists() && !task.dir().join("local/outer/b/on-tmpfs").exists());
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A restart must not write to a file that replaced a log FIFO. A task or another writer of the allocation may have
/// replaced it.
#[tokio::test]
async fn exchanged_log_fifos_are_refused() {
    let node = Node::new();
    let mut plugin = node.launch().await;
    let images = Images::start().await;
    let victim = node.root().join("victim");
    for kind in ["link", "file"] {
        fs::write(&victim, "untouched").must("a file");
        let task = node.task(&images.busybox()).sh("echo written").build(&mut plugin).await;
        let fifo = task.alloc.dir.join("alloc/logs/.main.stdout.fifo");
        let kept = fifo.with_extension("kept");
        fs::rename(&fifo, &kept).must("moved away");
        match kind {
            "link" => std::os::unix::fs::symlink(&victim, &fifo).must("a link"),
            _ => fs::copy(&victim, &fifo).map(drop).must("a file"),
        }
        let status = plugin.start(&task).await.err().must(kind);
        assert!(status.message().contains("fifo"), "{status}");
        assert_eq!(fs::read_to_string(&victim).must("the file"), "untouched");
        fs::rename(&kept, &fifo).must("moved back");
    }
    node.finish(plugin).await;
}
