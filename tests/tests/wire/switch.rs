//! The driver takes docker's name on a node with running tasks of Nomad's docker driver. A stand-in for dockerd notes
//! the calls.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::{calls::recoverable, hcl, node::Node, task::Task};
use proto::driver::{DriverTaskEvent, TaskHandle, TaskState};
use serde_json::{Value as Json, json};

use crate::names::docker;

/// A container of the stand-in.
#[derive(Clone)]
struct Container {
    id: String,
    name: String,
    alloc: String,
    sandbox: PathBuf,
}

/// The containers, and the calls that changed something.
#[derive(Clone, Default)]
struct Dockerd {
    containers: Arc<Mutex<Vec<Container>>>,
    calls: Arc<Mutex<Vec<String>>>,
    /// It fails every call.
    ill: Arc<AtomicBool>,
    /// It answers no call while this is true.
    hangs: Arc<(Mutex<bool>, Condvar)>,
    /// Names and directories of volumes. `share` is a file system, and `plugin` belongs to a volume plugin.
    volumes: Arc<Mutex<Vec<(String, PathBuf)>>>,
    /// The containers that use a volume.
    users: Arc<Mutex<Vec<String>>>,
}

impl Dockerd {
    fn start(socket: &Path) -> Self {
        let (listener, dockerd) = (UnixListener::bind(socket).must("a socket"), Self::default());
        let answering = dockerd.clone();
        // The thread ends with the test's process.
        thread::spawn(move || listener.incoming().flatten().for_each(|stream| answering.answer(stream)));
        dockerd
    }

    /// Adds a container; its id.
    fn add(&self, number: u8, name: &str, alloc: &str, sandbox: &Path) -> String {
        let id = format!("{number:02x}").repeat(32);
        let (name, alloc, sandbox) = (name.to_owned(), alloc.to_owned(), sandbox.to_owned());
        self.containers.lock().must("the containers").push(Container { id: id.clone(), name, alloc, sandbox });
        id
    }

    fn answer(&self, mut stream: UnixStream) {
        let (mut request, mut byte) = (Vec::new(), [0]);
        while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
            request.push(byte[0]);
        }
        let request = String::from_utf8_lossy(&request).into_owned();
        if self.ill.load(Ordering::SeqCst) {
            write!(stream, "HTTP/1.0 500 Internal Server Error\r\n\r\n{{\"message\":\"overloaded\"}}").ok();
            return;
        }
        let (hangs, changed) = &*self.hangs;
        drop(changed.wait_while(hangs.lock().must("whether it hangs"), |hangs| *hangs).must("its end"));
        let [method, path, ..] = request.split(' ').collect::<Vec<_>>()[..] else { return };
        if self.answer_about_volumes(&mut stream, path) {
            return;
        }
        let name = path.split(['/', '?']).nth(2).unwrap_or_default();
        let mut containers = self.containers.lock().must("the containers");
        let Some(index) = containers.iter().position(|one| one.id == name || one.name == name) else {
            write!(stream, "HTTP/1.0 404 Not Found\r\n\r\n{{\"message\":\"No such container\"}}").ok();
            return;
        };
        if method == "GET" {
            let Container { id, alloc, sandbox, .. } = &containers[index];
            let text = json!({
                "Id": id, "State": {"Running": true}, "NetworkSettings": {"SandboxKey": sandbox},
                "Config": {"Labels": {"com.hashicorp.nomad.alloc_id": alloc}},
            });
            write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{text}").ok();
            return;
        }
        self.calls.lock().must("the calls").push(format!("{method} {path}"));
        if method == "DELETE" {
            containers.remove(index);
        }
        write!(stream, "HTTP/1.0 204 No Content\r\n\r\n").ok();
    }

    /// Whether the call was one about volumes or their users.
    fn answer_about_volumes(&self, stream: &mut UnixStream, path: &str) -> bool {
        let mut users = self.users.lock().must("the users");
        let answer = if let Some(name) = path.strip_prefix("/volumes/") {
            let volumes = self.volumes.lock().must("the volumes");
            let Some((_, directory)) = volumes.iter().find(|(known, _)| known == name) else {
                write!(stream, "HTTP/1.0 404 Not Found\r\n\r\n{{\"message\":\"no such volume\"}}").ok();
                return true;
            };
            let options = (name == "share").then(|| json!({"type": "nfs", "device": ":/x", "o": "addr=nas"}));
            let driver = if name == "plugin" { "rexray" } else { "local" };
            json!({"Name": name, "Driver": driver, "Mountpoint": directory, "Options": options})
        } else if path.starts_with("/containers/json?filters=%7B%22volume%22") {
            users.iter().map(|id| json!({"Id": id})).collect()
        } else if path.ends_with("/wait?condition=not-running") {
            self.calls.lock().must("the calls").push(path.to_owned());
            // One that restarts always runs again.
            users.retain(|id| id.starts_with("restarts") || !path.contains(id.as_str()));
            json!({"StatusCode": 0})
        } else {
            return false;
        };
        write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{answer}").ok();
        true
    }

    fn hang(&self, hangs: bool) {
        *self.hangs.0.lock().must("whether it hangs") = hangs;
        self.hangs.1.notify_all();
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().must("the calls").clone()
    }

    fn names(&self) -> Vec<String> {
        self.containers.lock().must("the containers").iter().map(|one| one.name.clone()).collect()
    }
}

/// A handle of Nomad's docker driver.
fn handle(task: &Task, id: &str) -> TaskHandle {
    let state = json!({"ReattachConfig": {"Pid": 1}, "ContainerID": id, "DriverNetwork": null});
    TaskHandle {
        version: 1,
        config: Some(task.config.clone()),
        state: TaskState::Running.into(),
        driver_state: hcl::plain(&state),
    }
}

fn options(socket: &Path) -> Json {
    json!({"endpoint": format!("unix://{}", socket.display())})
}

#[tokio::test]
async fn a_container_of_nomads_docker_driver_is_removed_before_its_task_starts_again() {
    let node = Node::new();
    let socket = node.root().join("docker.sock");
    let dockerd = Dockerd::start(&socket);
    let images = Images::start().await;
    let mut plugin = node.launch_as(docker(&node), options(&socket)).await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    let (alloc, name) = (&task.config.alloc_id, &task.config.name);
    let own = dockerd.add(1, &format!("{name}-{alloc}"), alloc, Path::new(""));
    let neighbour = dockerd.add(2, &format!("other-{alloc}"), alloc, Path::new(""));

    let status = plugin.recover(&handle(&task, &own)).await.err().must("a refusal");
    assert!(status.message().contains("container 010101010101 still exists, it is stopped and removed"), "{status}");
    plugin.started(&task).await;
    let expected = [format!("POST /containers/{own}/stop?t=10"), format!("DELETE /containers/{own}?force=true&v=true")];
    assert_eq!(dockerd.calls(), expected);
    plugin.end(&task).await;

    // The next plugin was not asked to recover the other task: it finds the container by its name.
    let task = node.task(&images.busybox()).in_alloc(&task.alloc).name("other").sh("true").build(&mut plugin).await;
    // The name says this allocation, and the label another one.
    dockerd.add(3, &format!("stranger-{}", task.alloc.id), "another allocation", Path::new(""));
    plugin.started(&task).await;
    assert_eq!(dockerd.calls()[2..], expected.map(|call| call.replace(&own, &neighbour)));
    plugin.end(&task).await;
    let task = node.task(&images.busybox()).in_alloc(&task.alloc).name("stranger").sh("true").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.end(&task).await;
    assert_eq!(dockerd.names(), [format!("stranger-{}", task.alloc.id)]);

    // Without a daemon and without the container's processes nothing is left to remove.
    fs::remove_file(&socket).must("remove the socket");
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    plugin.recover(&handle(&task, &own)).await.err().must("a refusal");
    plugin.started(&task).await;
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The daemon answers, but does not say whether the old container or the group's pause container exists.
#[tokio::test]
async fn a_failing_daemon_fails_the_calls_that_ask_it() {
    let node = Node::new();
    let socket = node.root().join("docker.sock");
    let dockerd = Dockerd::start(&socket);
    let images = Images::start().await;
    let mut plugin = node.launch_as(docker(&node), options(&socket)).await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    let alloc = &task.config.alloc_id;
    let own = dockerd.add(1, &format!("{}-{alloc}", task.config.name), alloc, Path::new(""));
    let namespace = node.root().join("sandbox");
    fs::write(&namespace, "").must("the file of the namespace");
    dockerd.add(2, &format!("nomad_init_{alloc}"), alloc, &namespace);
    dockerd.ill.store(true, Ordering::SeqCst);
    for known in [false, true] {
        if known {
            plugin.recover(&handle(&task, &own)).await.err().must("a refusal");
        }
        let status = plugin.start(&task).await.err().must("a refusal");
        assert!(status.message().contains("overloaded (status 500)") && recoverable(&status), "{status}");
    }
    let pinned = format!("/var/run/netns/{alloc}");
    let created = plugin.create_network(alloc, "").await.err().must("a refusal");
    assert!(created.message().contains("overloaded") && !Path::new(&pinned).exists(), "{created}");
    let destroyed = plugin.destroy_network(alloc).await.err().must("a refusal");
    assert!(destroyed.message().contains("overloaded"), "{destroyed}");
    assert_eq!(dockerd.names().len(), 2);

    dockerd.ill.store(false, Ordering::SeqCst);
    plugin.started(&task).await;
    plugin.end(&task).await;
    plugin.destroy_network(alloc).await.must("DestroyNetwork");
    assert_eq!(dockerd.names(), Vec::<String>::new());
    node.finish(plugin).await;
}

/// The daemon accepts connections and answers no call.
#[tokio::test]
async fn a_start_that_waits_for_the_daemon_says_so() {
    let node = Node::new();
    let socket = node.root().join("docker.sock");
    let dockerd = Dockerd::start(&socket);
    let images = Images::start().await;
    let mut options = options(&socket);
    options["docker_stop_timeout"] = json!("90s");
    let mut plugin = node.launch_as(docker(&node), options).await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    let alloc = &task.config.alloc_id;
    let own = dockerd.add(1, &format!("{}-{alloc}", task.config.name), alloc, Path::new(""));
    dockerd.hang(true);
    let waits = format!("Waiting for dockerd at {}: it may still run", socket.display());
    let of_task = |event: &DriverTaskEvent| event.task_id == task.id() && event.message.contains(&waits);
    let (_, ()) = tokio::join!(plugin.started(&task), async {
        plugin.streams.event("what the start waits for", of_task).await;
        assert_eq!(dockerd.names().len(), 1);
        dockerd.hang(false);
    });
    assert_eq!(dockerd.calls()[0], format!("POST /containers/{own}/stop?t=90"));
    assert_eq!(dockerd.names(), Vec::<String>::new());
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_named_volume_is_taken_over_once_and_not_while_docker_uses_it() {
    let node = Node::new();
    let socket = node.root().join("docker.sock");
    let dockerd = Dockerd::start(&socket);
    let images = Images::start().await;
    let mut options = options(&socket);
    options["volumes"] = json!({"enabled": true});
    options["migrate_volumes"] = json!(true);
    let mut plugin = node.launch_as(docker(&node), options).await;
    let data = node.root().join("_data");
    fs::create_dir(&data).must("docker's directory");
    fs::write(data.join("value"), "of docker\n").must("docker's data");
    dockerd.volumes.lock().must("the volumes").push(("db".to_owned(), data.clone()));
    let mount = |name: &str| json!([{"type": "volume", "source": name, "target": "/named"}]);
    let script = "cat /named/value; echo changed >/named/value";
    let task = || node.task(&images.busybox()).sh(script).option("mount", mount("db"));
    let ours = node.data_dir().join("volumes/db");

    dockerd.users.lock().must("the users").push("restarts1".to_owned());
    let refused = task().build(&mut plugin).await;
    let status = plugin.start(&refused).await.err().must("a refusal");
    assert!(
        status.message().contains("while docker's container restarts1 uses it") && recoverable(&status),
        "{status}"
    );
    assert!(!ours.exists());

    *dockerd.users.lock().must("the users") = vec!["ends1".to_owned()];
    for expected in ["of docker\n", "changed\n"] {
        let task = task().build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await, expected);
    }
    assert!(dockerd.calls().contains(&"/containers/ends1/wait?condition=not-running".to_owned()));
    assert_eq!(fs::read_to_string(data.join("value")).must("docker's data"), "of docker\n");

    // What is not copied does not become an empty directory.
    for (name, expected) in [
        ("share", "docker's volume share is a file system with options"),
        ("plugin", "docker's volume plugin belongs to docker's volume plugin \"rexray\""),
    ] {
        dockerd.volumes.lock().must("the volumes").push((name.to_owned(), data.clone()));
        let task = node.task(&images.busybox()).sh("true").option("mount", mount(name)).without_logs();
        let task = task.build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("a refusal");
        assert!(status.message().contains(expected), "{status}");
        assert!(!node.data_dir().join("volumes").join(name).exists());
    }

    // Docker has no such volume.
    let task = node.task(&images.busybox()).sh("ls /named").option("mount", mount("new")).build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.end(&task).await;
    // Without a daemon there may be data.
    fs::remove_file(&socket).must("remove the socket");
    let task = node.task(&images.busybox()).sh("true").option("mount", mount("other")).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("unset `migrate_volumes`") && recoverable(&status), "{status}");
    node.finish(plugin).await;
}

/// A volume is copied whole or not at all, and the next start copies it.
#[tokio::test]
async fn a_plugin_that_is_killed_while_it_copies_a_volume_leaves_no_part_of_it() {
    let node = Node::new();
    let socket = node.root().join("docker.sock");
    let dockerd = Dockerd::start(&socket);
    let images = Images::start().await;
    let mut options = options(&socket);
    options["volumes"] = json!({"enabled": true});
    options["migrate_volumes"] = json!(true);
    let data = node.root().join("_data");
    fs::create_dir_all(data.join("deep")).must("docker's directory");
    for name in ["one", "deep/two", "three"] {
        fs::write(data.join(name), name).must("docker's data");
    }
    for (point, complete) in [
        ("import-before-copy", false),
        ("import-before-sync", false),
        ("import-before-rename", false),
        ("import-before-cleanup", true),
    ] {
        dockerd.volumes.lock().must("the volumes").push((point.to_owned(), data.clone()));
        let mount = json!([{"type": "volume", "source": point, "target": "/named"}]);
        let ours = node.data_dir().join("volumes").join(point);
        let mut plugin = node.launch_as(docker(&node).env("OCI_RS_FAILPOINT", point), options.clone()).await;
        let script = "cat /named/one /named/deep/two /named/three";
        let task = || node.task(&images.busybox()).sh(script).option("mount", mount.clone());
        let killed = task().without_logs().build(&mut plugin).await;
        plugin.start(&killed).await.err().must("the plugin was killed");
        plugin.process.ended(seconds(10)).await;
        assert_eq!(ours.exists(), complete, "{point}");

        let mut plugin = node.launch_as(docker(&node), options.clone()).await;
        let task = task().build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0, "{point}");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(5)).await, "onedeep/twothree", "{point}");
        plugin.process.kill().await;
    }
    let volumes = fs::read_dir(node.data_dir().join("volumes")).must("the volumes").flatten();
    let staged: Vec<_> = volumes.map(|entry| entry.file_name()).collect();
    assert!(!staged.iter().any(|name| name.to_string_lossy().starts_with(".import.")), "{staged:?}");
    node.finish_without_plugin().await;
}

/// A process in a cgroup with a container's id in its name, as dockerd's containers have them.
struct Orphan {
    group: PathBuf,
    process: Child,
}

impl Orphan {
    fn start(id: &str) -> Self {
        let roots = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(PathBuf::from);
        let root = roots.into_iter().find(|root| root.join("cgroup.procs").exists()).must("a hierarchy of cgroups");
        let group = root.join(id);
        fs::create_dir(&group).must("a cgroup");
        let process = Command::new("sleep").arg("1000").spawn().must("a process");
        fs::write(group.join("cgroup.procs"), process.id().to_string()).must("move the process");
        Self { group, process }
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        fs::remove_dir(&self.group).ok();
    }
}

/// No daemon listens, and the kernel still has the container's process.
#[tokio::test]
async fn containers_without_their_daemon_fail_the_start_and_the_groups_network() {
    let node = Node::new();
    let socket = node.root().join("docker.sock");
    let images = Images::start().await;
    let mut plugin = node.launch_as(docker(&node), options(&socket)).await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    let id = format!("{}{}", task.config.alloc_id.replace('-', ""), "0".repeat(32));
    let orphan = Orphan::start(&id);
    plugin.recover(&handle(&task, &id)).await.err().must("a refusal");
    let expected = format!("still runs (process {}), and dockerd does not answer", orphan.process.id());
    let started = plugin.start(&task).await.err().must("a refusal");
    assert!(started.message().contains(&expected) && recoverable(&started), "{started}");
    assert!(started.message().contains("start dockerd or end the container's processes"), "{started}");
    let network = plugin.create_network(&task.config.alloc_id, "").await.err().must("a refusal");
    assert!(network.message().contains(&expected), "{network}");
    drop(orphan);
    plugin.started(&task).await;
    plugin.end(&task).await;
    assert!(plugin.create_network(&task.config.alloc_id, "").await.must("CreateNetwork").created);
    plugin.destroy_network(&task.config.alloc_id).await.must("DestroyNetwork");
    node.finish(plugin).await;
}

#[tokio::test]
async fn the_own_name_removes_nothing_of_docker() {
    let node = Node::new();
    let socket = node.root().join("docker.sock");
    let dockerd = Dockerd::start(&socket);
    let images = Images::start().await;
    let mut plugin = node.launch_with(options(&socket)).await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    let id = dockerd.add(1, &format!("{}-{}", task.config.name, task.alloc.id), &task.alloc.id, Path::new(""));
    let status = plugin.recover(&handle(&task, &id)).await.err().must("a refusal");
    assert!(status.message().contains("remove it with `docker rm --force 010101010101`"), "{status}");
    plugin.started(&task).await;
    plugin.end(&task).await;
    assert_eq!(dockerd.calls(), Vec::<String>::new());
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_group_keeps_its_pause_container_until_its_end() {
    let node = Node::new();
    let socket = node.root().join("docker.sock");
    let dockerd = Dockerd::start(&socket);
    let plugin = node.launch_as(docker(&node), options(&socket)).await;
    let alloc = node.alloc();
    let namespace = node.root().join("sandbox");
    fs::write(&namespace, "").must("the file of the namespace");
    let id = dockerd.add(7, &format!("nomad_init_{}", alloc.id), &alloc.id, &namespace);
    let answer = plugin.create_network(&alloc.id, "").await.must("CreateNetwork");
    let spec = answer.isolation_spec.must("a network");
    assert!(!answer.created && Path::new(&spec.path) == namespace, "Nomad has connected it: {spec:?}");
    assert_eq!(spec.labels.get("docker_sandbox_container_id"), Some(&id));
    plugin.destroy_network(&alloc.id).await.must("DestroyNetwork");
    assert!(eventually(seconds(5), || dockerd.names().is_empty()).await);
    // A group of this driver has none.
    plugin.destroy_network(&alloc.id).await.must("DestroyNetwork");
    assert!(plugin.create_network(&alloc.id, "").await.must("CreateNetwork").created);
    plugin.destroy_network(&alloc.id).await.must("DestroyNetwork");
    node.finish(plugin).await;
}
