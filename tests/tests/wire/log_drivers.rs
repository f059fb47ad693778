//! Log drivers: the output reaches a log server and Nomad's log, also while processes of the driver are killed.

use std::{
    fs,
    io::Read,
    net::{TcpListener, UdpSocket},
    os::unix::net::{UnixDatagram, UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fixtures::{
    busybox::Images,
    must::Must,
    wait::{eventually, seconds},
};
use kit::{node::Node, plugin::Plugin, task::Task};
use rustix::{
    net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket},
    process::{Pid, Signal, kill_process},
};
use serde_json::{Value as Json, json};

/// A syslog server that takes datagrams at a unix socket.
struct Server {
    path: PathBuf,
    socket: UnixDatagram,
    seen: Vec<String>,
}

impl Server {
    fn start(node: &Node) -> Self {
        let path = node.root().join("syslog");
        let socket = UnixDatagram::bind(&path).must("a socket");
        socket.set_nonblocking(true).must("set");
        Self { path, socket, seen: Vec::new() }
    }

    fn logging(&self) -> Json {
        syslog(&format!("unixgram://{}", self.path.display()))
    }

    /// The texts of the messages so far.
    fn texts(&mut self) -> &[String] {
        let mut buffer = vec![0; 1 << 17];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let (_, text) = message.split_once("]: ").must("a header");
            self.seen.push(text.trim_end().to_owned());
        }
        &self.seen
    }

    async fn gets(&mut self, text: &str) {
        let found = eventually(seconds(20), || self.texts().iter().any(|seen| seen == text)).await;
        assert!(found, "no {text:?} in {:?}", self.seen);
    }
}

fn syslog(address: &str) -> Json {
    json!({ "type": "syslog", "config": [{ "syslog-address": address }] })
}

/// Makes a file that the script waits for.
/// A plugin whose tasks may name the test's own sockets.
async fn launch(node: &Node) -> Plugin {
    node.launch_with(json!({ "allow_log_paths": [format!("{}/*", node.root().display())] })).await
}

fn tell(task: &Task, name: &str) {
    fs::write(task.dir().join("local").join(name), "").must("tell the task");
}

async fn wait_for_file(task: &Task, name: &str) {
    let path = task.dir().join("local").join(name);
    assert!(eventually(seconds(20), || path.exists()).await, "the task is blocked: no {name}");
}

const WAIT: &str = "wait_for() { while [ ! -e /local/$1 ]; do sleep 0.02; done; }";

/// The pid of the only log relay of a node.
fn relay(node: &Node) -> i32 {
    let running: Vec<i32> = relays(node);
    assert_eq!(running.len(), 1, "{running:?}");
    running[0]
}

fn relays(node: &Node) -> Vec<i32> {
    let is_relay = |(_, command): &(i32, String)| command.split_whitespace().nth(1) == Some("relay");
    node.traces().processes.into_iter().filter(is_relay).map(|(pid, _)| pid).collect()
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).must("a pid"), Signal::KILL).must("kill a process");
}

#[tokio::test]
async fn output_reaches_the_server_and_nomads_log() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let server = UdpSocket::bind("127.0.0.1:0").must("a socket");
    server.set_read_timeout(Some(seconds(20))).must("set");
    let config = json!({ "syslog-address": format!("udp://{}", server.local_addr().must("its address")),
        "syslog-facility": "local3", "syslog-format": "rfc5424", "tag": "{{.Name}}|{{.ImageName}}", "env": "COLOR" });
    let script = "echo out; wait; echo; printf 'no newline' >&2";
    for user in ["root", "1000"] {
        let task = node.task(&images.busybox()).sh(script).user(user);
        let task = task.option("logging", json!({ "driver": "syslog", "config": [config] })).build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(10)).await, "out\n\n");
        assert_eq!(task.stderr().all(seconds(10)).await, "no newline");
        let mut buffer = [0; 2000];
        let mut messages: Vec<String> = (0..2)
            .map(|_| {
                let length = server.recv(&mut buffer).must("a message");
                String::from_utf8_lossy(&buffer[..length]).into_owned()
            })
            .collect();
        messages.sort();
        let tag = format!("main-{}|{}", task.alloc.id, images.busybox());
        for (message, priority, text) in [(&messages[0], 155, "no newline"), (&messages[1], 158, "out")] {
            let expected = format!(" {tag} - {text}\n");
            assert!(message.starts_with(&format!("<{priority}>1 ")) && message.ends_with(&expected), "{messages:?}");
        }
    }
    node.finish(plugin).await;
}

/// What the other drivers send, beside Nomad's log.
#[tokio::test]
async fn every_driver_delivers() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let gelf = UdpSocket::bind("127.0.0.1:0").must("a socket");
    let fluentd = TcpListener::bind("127.0.0.1:0").must("a socket");
    let journal = node.root().join("journal");
    let journald = UnixDatagram::bind(&journal).must("a socket");
    let gelf_address = format!("udp://{}", gelf.local_addr().must("its address"));
    let fluentd_address = fluentd.local_addr().must("its address").to_string();
    for (driver, config) in [
        ("gelf", json!({ "gelf-address": gelf_address, "gelf-compression-type": "none" })),
        ("fluentd", json!({ "fluentd-address": fluentd_address })),
        ("journald", json!({ "journald-socket": journal })),
    ] {
        let logging = json!({ "type": driver, "config": [config] });
        let task = node.task(&images.busybox()).sh("echo delivered").option("logging", logging);
        let task = task.build(&mut plugin).await;
        plugin.started(&task).await;
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(10)).await, "delivered\n");
        let mut buffer = vec![0; 4000];
        let length = match driver {
            "gelf" => gelf.recv(&mut buffer).must("a message"),
            "fluentd" => fluentd.accept().must("a connection").0.read(&mut buffer).must("a message"),
            _ => journald.recv(&mut buffer).must("an entry"),
        };
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let name = format!("main-{}", task.alloc.id);
        let parts = match driver {
            "gelf" => ["\"short_message\":\"delivered\"".to_owned(), format!("\"_container_name\":\"{name}\"")],
            "fluentd" => ["source\u{fffd}stdout".to_owned(), format!("/{name}")],
            _ => ["MESSAGE=delivered\n".to_owned(), format!("CONTAINER_NAME={name}\n")],
        };
        assert!(parts.iter().all(|part| text.contains(part)), "{driver}: {parts:?} in {text}");
    }
    node.finish(plugin).await;
}

/// A real journald, in a mount namespace in which a directory of the test is /run and /var/log.
struct Journald {
    process: Child,
    root: PathBuf,
}

impl Journald {
    const PROGRAM: &str = "/lib/systemd/systemd-journald";

    /// `None` on a machine without it.
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    fn start(node: &Node) -> Option<Self> {
        if !Path::new(Self::PROGRAM).exists() || !Path::new("/etc/machine-id").exists() {
            println!("skipped: this machine has no journald, or no id");
            return None;
        }
        let root = node.root().join("journald");
        for directory in ["run/systemd", "log/journal"] {
            fs::create_dir_all(root.join(directory)).must("a directory");
        }
        let script = "mount --make-rprivate / && mount --bind run /run && mount --bind log /var/log && exec $0 kit";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, Self::PROGRAM]).current_dir(&root).stdin(Stdio::null());
        Some(Self { process: command.spawn().must("unshare"), root })
    }

    fn socket(&self) -> PathBuf {
        self.root.join("run/systemd/journal.kit/socket")
    }

    /// The entries of a container.
    fn entries(&self, container: &str) -> Vec<Json> {
        let directories = fs::read_dir(self.root.join("log/journal")).must("the journal").flatten();
        let Some(directory) = directories.map(|entry| entry.path()).next() else { return Vec::new() };
        let mut journalctl = Command::new("journalctl");
        journalctl.arg("--directory").arg(directory).args(["--output=json", "--all"]);
        let output = journalctl.arg(format!("CONTAINER_NAME={container}")).output().must("journalctl");
        String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).must("JSON")).collect()
    }
}

impl Drop for Journald {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[tokio::test]
async fn journald_takes_what_the_driver_sends() {
    let node = Node::new();
    let Some(journald) = Journald::start(&node) else { return };
    assert!(eventually(seconds(10), || journald.socket().exists()).await, "journald does not listen");
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let config = json!({ "journald-socket": journald.socket(), "tag": "kit", "env": "COLOR" });
    let script = "printf 'tab\\tand \\303\\274\\n'; head -c 20000 /dev/zero | tr '\\0' x; echo; \
                  printf 'raw\\377\\n' >&2";
    let task = node.task(&images.busybox()).sh(script).env("COLOR", "red");
    let task = task.option("logging", json!({ "type": "journald", "config": [config] })).build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let name = format!("main-{}", task.alloc.id);
    assert!(eventually(seconds(10), || journald.entries(&name).len() == 4).await, "{:?}", journald.entries(&name));
    let entries = journald.entries(&name);
    let with = |field: &str, value: Json| entries.iter().filter(|entry| entry[field] == value).collect::<Vec<_>>();
    let [line] = with("MESSAGE", json!("tab\tand \u{fc}"))[..] else { panic!("{entries:?}") };
    for (field, value) in [("PRIORITY", "6"), ("SYSLOG_IDENTIFIER", "kit"), ("COLOR", "red")] {
        assert_eq!(line[field], value, "{line}");
    }
    // journalctl shows what is no text as bytes.
    assert_eq!(with("MESSAGE", json!([114, 97, 119, 255])).first().map(|entry| &entry["PRIORITY"]), Some(&json!("3")));
    let lengths = ["1", "2"].map(|ordinal| {
        let [part] = with("CONTAINER_PARTIAL_ORDINAL", json!(ordinal))[..] else { panic!("{entries:?}") };
        part["MESSAGE"].as_str().map(str::len)
    });
    assert_eq!(lengths, [Some(16 << 10), Some(20_000 - (16 << 10))]);
    assert_eq!(with("CONTAINER_PARTIAL_LAST", json!("true")).len(), 1);
    drop(journald);
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_fails_the_start() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let free = TcpListener::bind("127.0.0.1:0").must("a socket").local_addr().must("its address");
    let missing = format!("unix://{}", node.root().join("missing").display());
    for address in [format!("tcp://{free}"), missing] {
        let task = node.task(&images.busybox()).sh("echo lost").option("logging", syslog(&address));
        let task = task.build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("a refusal");
        let expected = format!("logging: cannot connect to syslog at {address}: ");
        assert!(status.message().contains(&expected), "{status}");
    }
    let full = node.root().join("full");
    let server = socket(AddressFamily::UNIX, SocketType::STREAM, None).must("a socket");
    bind(&server, &SocketAddrUnix::new(&full).must("an address")).must("bind");
    listen(&server, 0).must("listen");
    let waiting = UnixStream::connect(&full).must("the only place in the backlog");
    let address = format!("unix://{}", full.display());
    let task =
        node.task(&images.busybox()).sh("echo lost").option("logging", syslog(&address)).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("logging: cannot connect to syslog at unix://"), "{status}");
    drop((waiting, server));
    let mut logging = syslog("udp://127.0.0.1:9");
    logging["config"][0]["tag"] = json!(format!("{{{{{}", "(".repeat(1_000_000)));
    let task = node.task(&images.busybox()).sh("true").option("logging", logging).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("logging.config.tag: has 1000002 bytes; 4096 are allowed"), "{status}");
    let task = node.task(&images.busybox()).sh("true").option("logging", syslog("foo://x")).build(&mut plugin).await;
    let status = plugin.start(&task).await.err().must("a refusal");
    assert!(status.message().contains("logging.config.syslog-address: \"foo://x\" is no address"), "{status}");
    node.finish(plugin).await;
}

/// The server reads nothing until the task has written more than all buffers hold. No line is lost.
#[tokio::test]
async fn a_slow_server_makes_the_task_wait() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let server = TcpListener::bind("127.0.0.1:0").must("a socket");
    let address = format!("tcp://{}", server.local_addr().must("its address"));
    let script = "seq 1000001 1800000; echo end";
    let task = node.task(&images.busybox()).sh(script).option("logging", syslog(&address)).build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("1000001\n", seconds(20)).await;
    let received = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        server.accept().must("a connection").0.read_to_end(&mut bytes).must("the messages");
        bytes
    });
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let received = String::from_utf8(received.await.must("the server")).must("text");
    let texts = received.lines().map(|line| line.split_once("]: ").must("a header").1);
    let expected = (1_000_001..=1_800_000).map(|number| number.to_string()).chain(["end".to_owned()]);
    assert!(texts.eq(expected), "every line, in order");
    assert_eq!(task.stdout().all_bytes(seconds(20)).await.len(), 800_000 * 8 + 4);
    node.finish(plugin).await;
}

/// The server reads nothing at all.
#[tokio::test]
async fn a_stuck_server_blocks_neither_a_stop_nor_a_task_that_does_not_wait() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let server = TcpListener::bind("127.0.0.1:0").must("a socket");
    let address = format!("tcp://{}", server.local_addr().must("its address"));
    // The buffer of this socket holds a few hundred messages.
    let path = node.root().join("stuck");
    let stuck = UnixListener::bind(&path).must("a socket");
    let logging = syslog(&format!("unix://{}", path.display()));
    let task = node.task(&images.busybox()).sh("seq 1000001 9999999").option("logging", logging);
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    task.stdout().contains("1001000\n", seconds(20)).await;
    plugin.stop(task.id(), seconds(0), "").await.must("StopTask");
    assert_eq!(plugin.wait(task.id()).await.code, 137);
    let told = |event: &proto::driver::DriverTaskEvent| {
        event.task_id == task.id() && event.message.contains("not taken in time after the end of the task")
    };
    plugin.streams.event("the lines that the stuck server did not take", told).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert!(relays(&node).is_empty(), "the removal ends the relay");

    let mut logging = syslog(&address);
    logging["config"][0]["mode"] = json!("non-blocking");
    let script = "head -c 20000000 /dev/zero | tr '\\0' x | fold -w 1000; echo; echo end";
    let task = node.task(&images.busybox()).sh(script).option("logging", logging).build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    task.stdout().contains("\nend\n", seconds(20)).await;
    let lost = |event: &proto::driver::DriverTaskEvent| {
        event.task_id == task.id() && event.message.contains("were not delivered")
    };
    let event = plugin.streams.event("the loss", lost).await;
    assert!(
        event.annotations.contains_key("undelivered_lines")
            && event.message.contains("lines of output were not delivered"),
        "{event:?}"
    );
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    drop((server, stuck));
    node.finish(plugin).await;
}

#[tokio::test]
async fn output_is_delivered_while_plugin_and_monitor_are_killed() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let mut server = Server::start(&node);
    for terminal in [false, true] {
        let script =
            format!("{WAIT}; echo one; wait_for two; echo two; wait_for three; echo three; wait_for end; exit 3");
        let task = node.task(&images.busybox()).sh(&script).option("logging", server.logging());
        let task = task.option("tty", json!(terminal)).build(&mut plugin).await;
        let handle = plugin.started(&task).await;
        server.gets("one").await;
        plugin.process.kill().await;
        tell(&task, "two");
        server.gets("two").await;
        plugin = launch(&node).await;
        plugin.recover(&handle).await.must("RecoverTask");
        let held = || !terminal || plugin.descriptors().iter().any(|file| file.ends_with("ptmx"));
        assert!(eventually(seconds(5), held).await, "the plugin does not hold the terminal");
        plugin.kill_monitor(&task);
        tell(&task, "three");
        server.gets("three").await;
        tell(&task, "end");
        let exit = plugin.wait(task.id()).await;
        assert!(exit.code == 3 || exit.err.contains("lost"), "{exit:?}");
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        assert_eq!(task.stdout().all(seconds(20)).await.replace('\r', ""), "one\ntwo\nthree\n");
        server.seen.clear();
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_killed_relay_is_started_again() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let mut server = Server::start(&node);
    for terminal in [false, true] {
        let script = format!("{WAIT}; echo one; wait_for two; seq 1 100; touch /local/written; wait_for end; echo end");
        let task = node.task(&images.busybox()).sh(&script).option("logging", server.logging());
        let task = task.option("tty", json!(terminal)).build(&mut plugin).await;
        plugin.started(&task).await;
        server.gets("one").await;
        task.stdout().contains("one", seconds(20)).await;
        let first = relay(&node);
        kill(first);
        tell(&task, "two");
        wait_for_file(&task, "written").await;
        server.gets("100").await;
        assert_ne!(relay(&node), first);
        tell(&task, "end");
        assert_eq!(plugin.wait(task.id()).await.code, 0);
        plugin.destroy(task.id(), true).await.must("DestroyTask");
        let expected: Vec<String> = ["one".to_owned()].into_iter().chain((1..=100).map(|n| n.to_string())).collect();
        let expected = [expected, vec!["end".to_owned()]].concat();
        assert_eq!(server.texts(), expected);
        assert_eq!(task.stdout().all(seconds(20)).await.replace('\r', ""), expected.join("\n") + "\n");
        let told = |event: &proto::driver::DriverTaskEvent| {
            event.task_id == task.id() && event.message.contains("that delivers output to the log server was killed")
        };
        plugin.streams.event("the kill", told).await;
        server.seen.clear();
    }
    node.finish(plugin).await;
}

/// Killed relays are reaped, and output goes on.
#[tokio::test]
async fn a_relay_may_be_killed_again_and_again() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let mut server = Server::start(&node);
    let script = format!("{WAIT}; for n in 0 1 2 end; do wait_for $n; echo $n; done");
    let task = node.task(&images.busybox()).sh(&script).option("logging", server.logging()).build(&mut plugin).await;
    plugin.started(&task).await;
    for name in ["0", "1", "2"] {
        tell(&task, name);
        server.gets(name).await;
        let killed = relay(&node);
        kill(killed);
        let started = || relays(&node).iter().any(|pid| *pid != killed);
        assert!(eventually(seconds(20), started).await, "not started again");
        assert!(!PathBuf::from(format!("/proc/{killed}")).exists(), "a zombie");
    }
    tell(&task, "end");
    server.gets("end").await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    assert_eq!(task.stdout().all(seconds(20)).await, "0\n1\n2\nend\n");
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    node.finish(plugin).await;
}

/// Monitor and relay are killed: the task does not block, and nothing is left after its removal.
#[tokio::test]
async fn a_task_survives_its_monitor_and_its_relay() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let mut server = Server::start(&node);
    let script = format!("{WAIT}; echo one; wait_for go; seq 1 100000; touch /local/written; sleep 1000");
    let task = node.task(&images.busybox()).sh(&script).option("logging", server.logging()).build(&mut plugin).await;
    plugin.started(&task).await;
    server.gets("one").await;
    plugin.kill_monitor(&task);
    kill(relay(&node));
    tell(&task, "go");
    wait_for_file(&task, "written").await;
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// The server ends, and comes back.
#[tokio::test]
async fn lines_that_no_server_took_are_reported() {
    let node = Node::new();
    let mut plugin = launch(&node).await;
    let images = Images::start().await;
    let mut server = Server::start(&node);
    let script = format!("{WAIT}; echo one; wait_for two; echo two; wait_for three; echo three");
    let task = node.task(&images.busybox()).sh(&script).option("logging", server.logging()).build(&mut plugin).await;
    plugin.started(&task).await;
    server.gets("one").await;
    fs::remove_file(&server.path).must("remove the socket");
    drop(std::mem::replace(&mut server.socket, UnixDatagram::unbound().must("a socket")));
    tell(&task, "two");
    task.stdout().contains("two\n", seconds(20)).await;
    let count = || fs::read_dir(node.state_dir().join("tasks")).must("tasks").flatten().next();
    let counted = || {
        let file = count().map(|task| task.path().join("undelivered"));
        file.and_then(|file| fs::read_to_string(file).ok()).is_some_and(|text| text.trim_end().ends_with('1'))
    };
    assert!(eventually(seconds(20), counted).await, "not counted");
    let seen = std::mem::take(&mut server.seen);
    let mut server = Server { seen, ..Server::start(&node) };
    tell(&task, "three");
    server.gets("three").await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    let event = plugin.streams.event("the loss", |event| event.annotations.contains_key("undelivered_lines")).await;
    assert!(
        event.message.starts_with("1 lines of output were not delivered to the log server (syslog at "),
        "{event:?}"
    );
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(server.texts(), ["one", "three"]);
    assert_eq!(task.stdout().all(seconds(20)).await, "one\ntwo\nthree\n");
    node.finish(plugin).await;
}

/// The operator's log driver, and output that Nomad does not collect.
#[tokio::test]
async fn the_operators_log_driver_is_that_of_tasks_that_name_none() {
    let node = Node::new();
    let mut server = Server::start(&node);
    let address = format!("unixgram://{}", server.path.display());
    let logging = json!({ "type": "syslog", "config": { "syslog-address": address } });
    let mut plugin = node.launch_with(json!({ "logging": logging, "disable_log_collection": true })).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("echo delivered; echo also >&2").without_logs().build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    server.gets("delivered").await;
    server.gets("also").await;
    let task = node.task(&images.busybox()).sh("echo kept").option("logging", json!({ "type": "local" }));
    let task = task.without_logs().build(&mut plugin).await;
    plugin.started(&task).await;
    assert_eq!(plugin.wait(task.id()).await.code, 0);
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    assert_eq!(server.texts().len(), 2);
    node.finish(plugin).await;
}
