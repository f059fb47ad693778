//! A task's own network, as in most docker jobs. Each test runs in a test network, so the machine's network stays
//! unchanged.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    thread,
};

use fixtures::{
    busybox::Images,
    must::Must,
    netns::{TestNetwork, cni_path, exchange, in_namespace, namespace_of},
    wait::{all, eventually, patient, seconds},
};
use kit::{calls::recoverable, node::Node, plugin::Plugin, task::Task};
use serde_json::{Value as Json, json};

/// A task that sleeps.
pub const IDLE: &str = "while :; do sleep 1000; done";
/// A task that answers "hello" to each connection.
const SERVER: &str = "nc -ll -p 8080 -e echo hello";

/// The options of the plugin block.
pub fn bridge(further: Json) -> Json {
    let mut network = json!({"cni_path": cni_path()});
    if let (Some(network), Json::Object(further)) = (network.as_object_mut(), further) {
        network.extend(further);
    }
    json!({ "network": network })
}

/// Ends the node. Neither the node nor the test network may have leftovers.
pub async fn finish(netns: TestNetwork, node: Node, plugin: Plugin) {
    node.finish(plugin).await;
    assert_eq!(netns.leftovers(), Vec::<String>::new());
}

fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}

/// The task's address that StartTask returns.
async fn started(plugin: &Plugin, task: &Task) -> IpAddr {
    let answer = plugin.start(task).await.must("StartTask");
    let network = answer.network_override.must("a network in StartTask's answer");
    let inspected = plugin.inspect(task.id()).await.must("InspectTask").network_override;
    assert_eq!(inspected, Some(network.clone()));
    network.addr.parse().must("the task's address")
}

/// Answers datagrams in a task's network until it receives `end`.
fn echo_datagrams(plugin: &Plugin, task: &Task, address: &'static str) -> thread::JoinHandle<()> {
    let namespace = namespace_of(plugin.init_pid(task));
    let socket = in_namespace(&namespace, || UdpSocket::bind(address).must("a socket in the task's network"));
    thread::spawn(move || {
        let mut buffer = [0; 100];
        loop {
            let (count, from) = socket.recv_from(&mut buffer).must("a datagram");
            if &buffer[..count] == b"end" {
                return;
            }
            socket.send_to(&buffer[..count], from).must("an answer");
        }
    })
}

fn datagram(to: SocketAddr, words: &str) -> String {
    let socket = UdpSocket::bind(if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }).must("a socket");
    socket.set_read_timeout(Some(patient(seconds(5)))).must("a timeout");
    socket.send_to(words.as_bytes(), to).must("a datagram");
    if words == "end" {
        return String::new();
    }
    let mut buffer = [0; 100];
    let (count, _) = socket.recv_from(&mut buffer).must(&format!("an answer from {to}"));
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

async fn answers(address: SocketAddr) -> bool {
    eventually(seconds(5), || exchange(address, "").is_ok_and(|answer| answer == "hello\n")).await
}

#[tokio::test]
async fn published_ports_reach_the_task_and_the_task_reaches_the_outside() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let mut plugin = node.launch_with(bridge(json!({}))).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(SERVER);
    // The second form is that of Nomad's -dev mode.
    let task = task.port("http", "192.0.2.1", 20080, 8080).port("dev", "127.0.0.1", 20081, 8080);
    let task = task.build(&mut plugin).await;
    let address = started(&plugin, &task).await;
    assert!(address.to_string().starts_with("172.26.80."), "{address}");

    // From the node by its own address, from the outside machine, and from the task itself.
    let published = at(TestNetwork::NODE, 20080);
    assert!(answers(published).await);
    assert_eq!(netns.outside(|| exchange(published, "")).must("an answer outside"), "hello\n");
    assert_eq!(plugin.sh(&task, "nc 192.0.2.1 20080 </dev/null").await, "hello");
    let loopback = |port| at(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    assert!(answers(loopback(20081)).await);
    // Another address of the node does not work, and neither does the task's own port on the node.
    for other in [loopback(20080), at(TestNetwork::NODE, 20081), at(TestNetwork::NODE, 8080)] {
        assert!(exchange(other, "").is_err(), "{other}");
    }
    let udp = echo_datagrams(&plugin, &task, "0.0.0.0:8080");
    assert_eq!(netns.outside(|| datagram(published, "ping")), "ping");
    datagram(published, "end");
    udp.join().ok().must("the echo's end");

    // The outside machine sees the node's address, because it has no route to the task.
    let listener = netns.outside(|| TcpListener::bind((TestNetwork::OUTSIDE, 7000)).must("a listener outside"));
    let seen = thread::spawn(move || listener.accept().must("a connection from the task").1.ip());
    plugin.sh(&task, "nc 192.0.2.2 7000 </dev/null || true").await;
    assert_eq!(seen.join().ok().must("the listener"), TestNetwork::NODE);

    // The task has its own loopback.
    assert!(exchange(loopback(8080), "").is_err());
    assert_eq!(plugin.sh(&task, "nc 127.0.0.1 8080 </dev/null").await, "hello");
    plugin.end(&task).await;
    assert!(exchange(published, "").is_err(), "the port is free again");
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn a_task_has_its_host_name_and_addresses() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let mut plugin = node.launch_with(bridge(json!({}))).await;
    let fingerprint = plugin.streams.fingerprint().await;
    let attribute = &fingerprint.attributes["driver.oci-rs.network.bridge"];
    assert_eq!(attribute.value, Some(proto::structs::attribute::Value::BoolVal(true)));
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh(IDLE)
        .option("hostname", json!("web1"))
        .option("extra_hosts", json!(["up:host-gateway", "db:10.0.0.5"]))
        .option("dns_servers", json!(["10.0.0.2"]))
        .port("http", "192.0.2.1", 20080, 80)
        .port("same", "192.0.2.1", 20081, 0)
        .build(&mut plugin)
        .await;
    let answer = plugin.start(&task).await.must("StartTask").network_override.must("a network");
    let event = plugin.streams.event("the start", |event| event.message.starts_with("Started container")).await;
    assert!(event.annotations.contains_key("network_ms"), "{event:?}");
    assert!(!answer.auto_advertise);
    let ports: Vec<_> = ["http", "same"].map(|label| answer.port_map.get(label).copied()).into();
    assert_eq!(ports, [Some(80), Some(20081)]);
    assert_eq!(plugin.sh(&task, "hostname").await, "web1");
    assert_eq!(plugin.sh(&task, "grep web1 /etc/hosts").await, format!("{}\tweb1", answer.addr));
    assert_eq!(plugin.sh(&task, "grep -e up$ -e db$ /etc/hosts").await, "172.26.80.1\tup\n10.0.0.5\tdb");
    assert!(plugin.sh(&task, "cat /etc/resolv.conf").await.contains("nameserver 10.0.0.2"));
    assert!(plugin.sh(&task, "ip -4 -o addr show eth0").await.contains(&answer.addr));
    assert_eq!(
        plugin.sh(&task, "ip -6 -o addr show eth0").await,
        "",
        "without `subnet_ipv6` not even a link-local one"
    );
    assert!(plugin.sh(&task, "ip -6 -o addr show lo").await.contains("::1/128"));
    let lowest = plugin.sh(&task, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start").await;
    assert_eq!(lowest, "0", "images that run as another user listen on port 80 with docker");
    plugin.end(&task).await;

    // A mount of the task has priority. Changes of the files are gone after the task.
    let own = node.task(&images.busybox()).sh(IDLE).option("volumes", json!(["local/hosts:/etc/hosts"]));
    let own = own.build(&mut plugin).await;
    fs::write(own.dir().join("local/hosts"), "mine\n").must("a hosts file");
    plugin.started(&own).await;
    assert_eq!(plugin.sh(&own, "cat /etc/hosts").await, "mine");
    plugin.sh(&own, "echo edited >>/etc/resolv.conf").await;
    plugin.end(&own).await;
    let again = own.restarted();
    plugin.started(&again).await;
    assert_eq!(plugin.sh(&again, "grep -c edited /etc/resolv.conf || true").await, "0");
    plugin.end(&again).await;
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn fixed_addresses_and_ipv6_work() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let mut plugin = node.launch_with(bridge(json!({"subnet_ipv6": "fd00:26:80::/64"}))).await;
    let images = Images::start().await;
    let task = node
        .task(&images.busybox())
        .sh(IDLE)
        .option("mac_address", json!("02:42:ac:11:00:63"))
        .option("ipv4_address", json!("172.26.80.99"))
        .option("ipv6_address", json!("fd00:26:80::99"))
        .option("advertise_ipv6_address", json!(true))
        .port("web", &TestNetwork::NODE_V6.to_string(), 20080, 8080)
        .build(&mut plugin)
        .await;
    let answer = plugin.start(&task).await.must("StartTask").network_override.must("a network");
    assert_eq!((answer.addr.as_str(), answer.auto_advertise), ("fd00:26:80::99", true));
    let seen = plugin.sh(&task, "ip addr show eth0").await;
    for part in ["02:42:ac:11:00:63", "172.26.80.99/20", "fd00:26:80::99/64"] {
        assert!(seen.contains(part), "{part} in {seen}");
    }
    let hosts = plugin.sh(&task, "cat /etc/hosts").await;
    assert!(hosts.contains("172.26.80.99\t") && hosts.contains("fd00:26:80::99\t"), "{hosts}");

    let namespace = namespace_of(plugin.init_pid(&task));
    let listener = in_namespace(&namespace, || TcpListener::bind("[::]:8080").must("a listener in the task's network"));
    let server = thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            std::io::Write::write_all(&mut stream.must("a connection"), b"six").must("an answer");
        }
    });
    let published = at(TestNetwork::NODE_V6, 20080);
    assert_eq!(exchange(published, "").must("an answer on the node"), "six");
    assert_eq!(netns.outside(|| exchange(published, "")).must("an answer outside"), "six");
    server.join().ok().must("the server's end");
    let udp = echo_datagrams(&plugin, &task, "[::]:8080");
    assert_eq!(netns.outside(|| datagram(published, "ping")), "ping");
    datagram(published, "end");
    udp.join().ok().must("the echo's end");

    // The address is in use now.
    let second = node.task(&images.busybox()).sh(IDLE).option("ipv4_address", json!("172.26.80.99"));
    let second = second.build(&mut plugin).await;
    let status = plugin.start(&second).await.err().must("a refusal");
    assert!(status.message().contains("172.26.80.99") && recoverable(&status), "{status}");
    plugin.end(&task).await;
    plugin.started(&second).await;
    plugin.end(&second).await;
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn concurrent_tasks_get_distinct_addresses_until_the_subnet_is_full() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    // The subnet has six addresses. The bridge uses one.
    let mut plugin = node.launch_with(bridge(json!({"subnet": "10.77.0.0/29"}))).await;
    let images = Images::start().await;
    let image = images.busybox();
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(node.task(&image).sh(IDLE).build(&mut plugin).await);
    }
    let addresses = std::cell::RefCell::new(std::collections::BTreeSet::new());
    all(tasks.iter().map(|task| async {
        let address = started(&plugin, task).await;
        addresses.borrow_mut().insert(address);
    }))
    .await;
    assert_eq!(addresses.borrow().len(), 5, "{addresses:?}");
    let late = node.task(&image).sh(IDLE).build(&mut plugin).await;
    let status = plugin.start(&late).await.err().must("a refusal");
    assert!(status.message().contains("network oci-rs has no free address left"), "{status}");
    assert!(recoverable(&status), "a task may end and free its address");
    // One task does not reach the other by loopback, but by address.
    let [first, second, ..] = tasks.as_slice() else { panic!("tasks") };
    plugin
        .exec(first.id(), &["/bin/sh", "-c", &format!("({SERVER}) >/dev/null 2>&1 &")], seconds(5))
        .await
        .must("exec");
    let address = plugin.inspect(first.id()).await.must("InspectTask").network_override.must("a network").addr;
    assert!(answers(at(address.parse().must("an address"), 8080)).await);
    assert_eq!(plugin.sh(second, &format!("nc {address} 8080 </dev/null")).await, "hello");
    assert_eq!(plugin.sh(second, "nc -w 1 127.0.0.1 8080 </dev/null 2>/dev/null || echo nobody").await, "nobody");
    plugin.end(first).await;
    plugin.started(&late).await;
    all(tasks[1..].iter().chain([&late]).map(|task| plugin.end(task))).await;
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn the_network_survives_a_plugin_kill() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let mut plugin = node.launch_with(bridge(json!({}))).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(SERVER).port("http", "192.0.2.1", 20080, 8080).build(&mut plugin).await;
    let handle = plugin.started(&task).await;
    let told = plugin.inspect(task.id()).await.must("InspectTask").network_override;
    assert!(answers(at(TestNetwork::NODE, 20080)).await);
    plugin.process.kill().await;
    assert!(answers(at(TestNetwork::NODE, 20080)).await, "nothing of it needs the plugin");
    // After a change of the block, the network is removed with the configuration that made it.
    let plugin = node.launch_with(bridge(json!({"bridge": "other", "subnet": "10.78.0.0/24"}))).await;
    plugin.recover(&handle).await.must("RecoverTask");
    assert_eq!(plugin.inspect(task.id()).await.must("InspectTask").network_override, told);
    assert!(answers(at(TestNetwork::NODE, 20080)).await);
    plugin.end(&task).await;
    finish(netns, node, plugin).await;
}

/// CNI networks of the operator: a plain bridge, and one with published ports.
const LAN: &str = r#"{"cniVersion": "0.4.0", "name": "lan",
    "plugins": [{"type": "bridge", "bridge": "lan0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.79.0.0/24"}]], "dataDir": "DATA"},
    "dns": {"nameservers": ["10.79.0.1"], "search": ["lan.example"]}}]}"#;
const DMZ: &str = r#"{"cniVersion": "1.0.0", "name": "dmz",
    "plugins": [{"type": "bridge", "bridge": "dmz0", "isGateway": true,
    "capabilities": {"mac": true}, 
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.80.0.0/24"}]], "dataDir": "DATA",
    "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;

#[tokio::test]
async fn cni_networks_of_the_operator_work() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let directory = node.root().join("cni");
    fs::create_dir(&directory).must("a directory");
    let leases = node.state_dir().join("addresses");
    for (name, network) in [("lan", LAN), ("dmz", DMZ)] {
        let text = network.replace("DATA", &leases.to_string_lossy());
        fs::write(directory.join(format!("{name}.conflist")), text).must("a network");
    }
    let mut plugin = node.launch_with(bridge(json!({"cni_config_dir": directory}))).await;
    let images = Images::start().await;
    let image = images.busybox();
    let task = node.task(&image).sh(IDLE).option("network_mode", json!("cni/lan")).build(&mut plugin).await;
    let answer = plugin.start(&task).await.must("StartTask").network_override.must("a network");
    assert!(answer.auto_advertise && answer.addr.starts_with("10.79.0."), "{answer:?}");
    let resolv = plugin.sh(&task, "cat /etc/resolv.conf").await;
    assert!(resolv.contains("nameserver 10.79.0.1") && resolv.contains("search lan.example"), "{resolv}");
    plugin.end(&task).await;

    let task = node.task(&image).sh(SERVER).option("network_mode", json!("cni/dmz"));
    let task = task.option("mac_address", json!("02:42:ac:11:00:63")).port("http", "192.0.2.1", 20080, 8080);
    let task = task.build(&mut plugin).await;
    plugin.started(&task).await;
    assert!(answers(at(TestNetwork::NODE, 20080)).await);
    assert_eq!(netns.outside(|| exchange(at(TestNetwork::NODE, 20080), "")).must("an answer outside"), "hello\n");
    assert!(plugin.sh(&task, "ip link show eth0").await.contains("02:42:ac:11:00:63"));
    plugin.end(&task).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask once more");

    let with_port = node.task(&image).sh(IDLE).option("network_mode", json!("cni/lan")).port("http", "", 20080, 80);
    let elsewhere = node.task(&image).sh(IDLE).option("network_mode", json!("cni/wan"));
    for (builder, expected) in
        [(with_port, "CNI network lan cannot publish ports"), (elsewhere, "there is no CNI network \"wan\" in")]
    {
        let task = builder.build(&mut plugin).await;
        let status = plugin.start(&task).await.err().must("a refusal");
        assert!(status.message().contains(expected) && !recoverable(&status), "{status}");
    }
    assert!(node.traces().files.is_empty(), "{}", node.traces());
    finish(netns, node, plugin).await;
}

/// Runs `ip` in the network namespace of the test's thread.
fn ip(args: &str) -> String {
    let output = std::process::Command::new("ip").args(args.split(' ')).output().must("ip");
    assert!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn a_task_has_the_uplinks_mtu_and_its_addresses_are_of_use_at_once() {
    let netns = TestNetwork::enter();
    ip("link set wire0 mtu 1380");
    ip("route add default via 192.0.2.2");
    let node = Node::new();
    let mut plugin = node.launch_with(bridge(json!({"subnet_ipv6": "fd00:26:80::/64"}))).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    let address = started(&plugin, &task).await;
    let seen = plugin.sh(&task, "ip addr show eth0").await;
    // The hardware address contains the IPv4 address, so neighbours need no new entry when an address is used again.
    assert_eq!(address.to_string(), "172.26.80.2");
    for part in ["mtu 1380", "02:42:ac:1a:50:02", "172.26.80.2/20", "fd00:26:80::2/64", "brd 172.26.95.255"] {
        assert!(seen.contains(part), "{part} in {seen}");
    }
    assert!(!seen.contains("tentative"), "no address waits for an answer of its other owners: {seen}");
    let routes = plugin.sh(&task, "ip route; ip -6 route").await;
    for part in ["default via 172.26.80.1 dev eth0", "default via fd00:26:80::1 dev eth0"] {
        assert!(routes.contains(part), "{part} in {routes}");
    }
    assert!(plugin.sh(&task, "ip link show lo").await.contains("UP"));
    let bridge = ip("-details link show oci-rs");
    for part in ["mtu 1380", "02:42:ac:1a:50:01", "stp_state 0", "forward_delay 0"] {
        assert!(bridge.contains(part), "{part} in {bridge}");
    }
    assert!(ip("-details link show veth-ac1a5002").contains("hairpin on"));
    assert_eq!(fs::read_to_string("/proc/sys/net/ipv4/ip_forward").must("a kernel parameter"), "1\n");
    assert_eq!(fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding").must("a kernel parameter"), "1\n");
    plugin.end(&task).await;
    finish(netns, node, plugin).await;
}

#[tokio::test]
async fn a_bridge_that_was_deleted_is_made_again() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let mut plugin = node.launch_with(bridge(json!({}))).await;
    let images = Images::start().await;
    let first = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    plugin.started(&first).await;
    ip("link delete oci-rs");
    let second = node.task(&images.busybox()).sh(SERVER).port("http", "192.0.2.1", 20080, 8080);
    let second = second.build(&mut plugin).await;
    plugin.started(&second).await;
    assert!(answers(at(TestNetwork::NODE, 20080)).await);
    // A link of another kind is not taken for the bridge.
    ip("link delete oci-rs");
    ip("link add oci-rs type veth peer name other");
    let third = node.task(&images.busybox()).sh(IDLE).build(&mut plugin).await;
    let status = plugin.start(&third).await.err().must("a refusal");
    assert!(status.message().contains("the interface oci-rs of this node is no bridge"), "{status}");
    ip("link delete oci-rs");
    plugin.end(&first).await;
    plugin.end(&second).await;
    finish(netns, node, plugin).await;
}

/// Nomad replaces a plugin while the old one may still start tasks.
#[tokio::test]
async fn plugins_that_overlap_never_give_two_tasks_the_same_address() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let mut plugin = node.launch_with(bridge(json!({}))).await;
    let mut other = node.launch_with(bridge(json!({}))).await;
    // A plugin's first sweep takes the start of another plugin of its name for one that a dead plugin has left.
    for plugin in [&plugin, &other] {
        let swept = || plugin.process.stderr.so_far().iter().any(|line| line.contains("leftovers swept"));
        assert!(eventually(seconds(20), swept).await);
    }
    let images = Images::start().await;
    let image = images.busybox();
    let (mut tasks, mut others) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        tasks.push(node.task(&image).sh(IDLE).build(&mut plugin).await);
        others.push(node.task(&image).sh(IDLE).build(&mut other).await);
    }
    let addresses = std::cell::RefCell::new(std::collections::BTreeSet::new());
    let all_tasks = tasks.iter().map(|task| (&plugin, task)).chain(others.iter().map(|task| (&other, task)));
    all(all_tasks.clone().map(|(plugin, task)| {
        let addresses = &addresses;
        async move {
            let address = started(plugin, task).await;
            addresses.borrow_mut().insert(address);
        }
    }))
    .await;
    assert_eq!(addresses.borrow().len(), 8, "{addresses:?}");
    all(all_tasks.map(|(plugin, task)| plugin.end(task))).await;
    other.shutdown().await;
    finish(netns, node, plugin).await;
}

/// The number of concurrent starts; `OCI_RS_NETWORKS=200` for a scale test.
fn parallel_tasks() -> u16 {
    std::env::var("OCI_RS_NETWORKS").ok().and_then(|text| text.parse().ok()).unwrap_or(12)
}

#[tokio::test]
async fn many_tasks_start_and_end_concurrently() {
    let netns = TestNetwork::enter();
    let node = Node::new();
    let mut plugin = node.launch_with(bridge(json!({}))).await;
    let images = Images::start().await;
    let image = images.busybox();
    let mut tasks = Vec::new();
    for number in 0..parallel_tasks() {
        let task = node.task(&image).sh(SERVER).port("http", "192.0.2.1", 20_000 + number, 8080);
        tasks.push(task.build(&mut plugin).await);
    }
    let addresses = std::cell::RefCell::new(std::collections::BTreeSet::new());
    let begun = std::time::Instant::now();
    all(tasks.iter().map(|task| async {
        let network = start_patiently(&plugin, task).await;
        addresses.borrow_mut().insert(network);
    }))
    .await;
    assert_eq!(addresses.borrow().len(), tasks.len());
    for number in 0..parallel_tasks() {
        assert!(answers(at(TestNetwork::NODE, 20_000 + number)).await, "port {}", 20_000 + number);
    }
    let up = begun.elapsed();
    all(tasks.iter().map(|task| plugin.end(task))).await;
    #[allow(clippy::print_stderr, reason = "the test's own output is the one place where its reader looks")]
    {
        eprintln!("{} tasks: all answer after {up:?}, gone after {:?}", tasks.len(), begun.elapsed());
    }
    finish(netns, node, plugin).await;
}

/// StartTask without the usual time limit, which many concurrent starts exceed.
async fn start_patiently(plugin: &Plugin, task: &Task) -> String {
    let request = proto::driver::StartTaskRequest { task: Some(task.config.clone()) };
    let answer = plugin.driver().start_task(request).await.must("StartTask").into_inner();
    answer.network_override.must("a network").addr
}
