//! Metrics: a scrape of the built binary, compared with the kernel's files, with the registry, and with the agent's
//! calls.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use fixtures::{
    busybox::Images,
    cgroup::{Mode, mode},
    must::Must,
    program,
    registry::{Action, Fault},
    wait::{eventually, seconds},
};
use kit::{
    node::Node,
    plugin::Plugin,
    scrape::{OPENMETRICS, Scrape, address, request, scrape, scrape_until},
    task::Task,
};
use serde_json::json;

/// The labels of a task, with the names of Nomad's own metrics.
pub fn labels(task: &Task) -> [(&str, &str); 5] {
    let config = &task.config;
    [
        ("namespace", &config.namespace),
        ("job", &config.job_name),
        ("task_group", &config.task_group_name),
        ("task", &config.name),
        ("alloc_id", &config.alloc_id),
    ]
}

pub fn tcp() -> serde_json::Value {
    json!({"metrics": {"address": "127.0.0.1:0"}})
}

/// A script that waits for a file, so that its counters stand still.
const WAIT: &str = "while [ ! -e /local/go ]; do sleep 0.05; done";

#[tokio::test]
async fn the_values_of_a_task_are_those_of_its_cgroups() {
    let node = Node::new();
    let mut plugin = node.launch_with(tcp()).await;
    let address = address(&plugin).await;
    let images = Images::start().await;
    let script = "x=$(head -c 8000000 /dev/zero | tr '\\0' x); head -c 300000 /dev/zero > /file; touch /local/ready; \
         sleep 1000; : $x";
    let image = images.busybox();
    let task = node.task(&image).sh(script).resources(100, 64, 0).build(&mut plugin).await;
    plugin.started(&task).await;
    let groups = task.alloc.task_groups(&task.config.name, false);
    let ready = task.dir().join("local/ready");
    // The shell and its `sleep`, each of which is in several hierarchies.
    let processes = || groups.members().into_iter().collect::<BTreeSet<i32>>();
    assert!(eventually(seconds(20), || ready.exists() && processes().len() == 2).await);
    let file = if mode() == Mode::V1 { "memory.usage_in_bytes" } else { "memory.current" };
    let used = || groups.read("memory", file).parse::<f64>().must("a number");
    let labels = labels(&task);
    let layer =
        |scrape: &Scrape| scrape.value("oci_rs_task_writable_layer_bytes", &labels).is_some_and(|n| n > 300_000.0);
    let scrape = scrape_until(&address, "the size of the writable layer", layer).await;
    let value = |name: &str| scrape.value(name, &labels).must(name);
    assert!((value("oci_rs_task_memory_usage_bytes") - used()).abs() < 2_000_000.0, "{}", scrape.text);
    assert!(value("oci_rs_task_memory_anon_bytes") > 4_000_000.0, "{}", scrape.text);
    assert_eq!(value("oci_rs_task_memory_limit_bytes"), f64::from(64 << 20));
    assert_eq!(value("oci_rs_task_pids"), 2.0);
    let cpu = value("oci_rs_task_cpu_seconds_total");
    let parts = value("oci_rs_task_cpu_user_seconds_total") + value("oci_rs_task_cpu_system_seconds_total");
    assert!(cpu > 0.0 && (cpu - parts).abs() < 0.1, "{cpu} is {parts}");
    if mode() == Mode::V1 {
        let usage = kernel_file(*processes().first().must("a process"), "cpuacct", "cpuacct.usage");
        let now = usage.trim().parse::<f64>().must("nanoseconds") / 1e9;
        assert!(cpu <= now && cpu > now / 2.0, "{cpu}, now {now}");
    }
    assert_eq!(
        scrape.matching("oci_rs_task_pressure_cpu_waiting_seconds_total", &labels).is_empty(),
        mode() == Mode::V1
    );
    assert_eq!((value("oci_rs_task_oom_kills_total"), value("oci_rs_task_restarts_total")), (0.0, 0.0));
    let info = scrape.matching("oci_rs_task_info", &labels);
    assert!(info.len() == 1 && info[0].labels["image"] == image && info[0].labels["digest"].starts_with("sha256:"));
    // The task is on the host's network, whose traffic is not its own.
    assert!(scrape.matching("oci_rs_task_network_receive_bytes_total", &[]).is_empty());
    plugin.end(&task).await;
    let gone = |scrape: &Scrape| scrape.matching("oci_rs_task_info", &[]).is_empty();
    let last = scrape_until(&address, "the end of the task's series", gone).await;
    assert!(!last.text.contains(&task.config.alloc_id), "{}", last.text);
    node.finish(plugin).await;
}

/// A file of a process's cgroup.
pub fn kernel_file(pid: i32, controller: &str, file: &str) -> String {
    fs::read_to_string(cgroup_of(pid, controller).join(file)).must(file)
}

/// The directory of a process's cgroup.
pub fn cgroup_of(pid: i32, controller: &str) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).must("the cgroups of a process");
    let path = |of: &str| groups.lines().find_map(|line| line.split_once(of)).must("a cgroup").1;
    PathBuf::from(match mode() {
        Mode::V1 => format!("/sys/fs/cgroup/{controller}{}", path(&format!(":{controller}:"))),
        Mode::V2 => format!("/sys/fs/cgroup{}", path("0::")),
    })
}

/// Makes a link in a network namespace. Both of its ends are there, and the address of one is 192.0.2.1.
pub fn add_link(namespace: &Path) {
    let name = namespace.file_name().must("a name");
    for args in
        ["link add v0 type veth peer name v1", "address add 192.0.2.1/24 dev v0", "link set v0 up", "link set v1 up"]
    {
        let done = Command::new("ip").arg("-n").arg(name).args(args.split(' ')).status().must("run ip");
        assert!(done.success(), "ip {args}");
    }
}

/// The sum of the numbers after a word, such as `nr_throttled 3`, `8:0 Read 4096` or `rbytes=4096`.
pub fn sum_after(text: &str, word: &str) -> f64 {
    let numbers = text.split(word).skip(1).filter_map(|rest| rest.split_ascii_whitespace().next()?.parse::<f64>().ok());
    numbers.sum()
}

/// The counters of the kernel that need a cause: a quota that is reached, and reads of a device.
#[tokio::test]
async fn throttling_block_devices_and_stalls_are_those_of_the_cgroup() {
    const BYTES: usize = 4 << 20;
    let node = Node::new();
    let mut plugin = node.launch_with(tcp()).await;
    let address = address(&plugin).await;
    let images = Images::start().await;
    // Without the last command, the shell would be replaced by `sleep` just when its environment is read.
    let script =
        "timeout 1 sh -c 'while :; do :; done'; cat /local/data > /dev/null; touch /local/ready; sleep 1000; :";
    // A twentieth of two cores: the loop reaches this quota on the busiest machine.
    let task = node.task(&images.busybox()).sh(script).resources(200, 64, 0);
    let task = task.option("cpu_hard_limit", json!(true)).build(&mut plugin).await;
    let data = fs::File::create(task.dir().join("local/data")).must("a file");
    (&data).write_all(&vec![7; BYTES]).must("data");
    data.sync_all().must("data on the disk");
    // The task reads the file from the disk.
    rustix::fs::fadvise(&data, 0, None, rustix::fs::Advice::DontNeed).must("no cached pages");
    plugin.started(&task).await;
    let ready = task.dir().join("local/ready");
    assert!(eventually(seconds(20), || ready.exists()).await);
    let pid = plugin.init_pid(&task);
    let labels = labels(&task);
    // Pairs of a metric and its value in the kernel's files. The task sleeps, so they stand still.
    let expected = || {
        let throttling = kernel_file(pid, "cpu", "cpu.stat");
        let periods = ("oci_rs_task_cpu_throttled_periods_total", sum_after(&throttling, "nr_throttled "));
        let seconds = "oci_rs_task_cpu_throttled_seconds_total";
        let mut expected = vec![periods];
        if mode() == Mode::V1 {
            let bytes = kernel_file(pid, "blkio", "blkio.throttle.io_service_bytes_recursive");
            let requests = kernel_file(pid, "blkio", "blkio.throttle.io_serviced_recursive");
            expected.extend([
                (seconds, sum_after(&throttling, "throttled_time ") / 1e9),
                ("oci_rs_task_block_read_bytes_total", sum_after(&bytes, " Read ")),
                ("oci_rs_task_block_written_bytes_total", sum_after(&bytes, " Write ")),
                ("oci_rs_task_block_reads_total", sum_after(&requests, " Read ")),
                ("oci_rs_task_block_writes_total", sum_after(&requests, " Write ")),
            ]);
        } else {
            let devices = kernel_file(pid, "io", "io.stat");
            let stalls = |resource: &str, kind: usize| {
                let text = kernel_file(pid, resource, &format!("{resource}.pressure"));
                sum_after(text.lines().nth(kind).unwrap_or_default(), "total=") / 1e6
            };
            expected.extend([
                (seconds, sum_after(&throttling, "throttled_usec ") / 1e6),
                ("oci_rs_task_block_read_bytes_total", sum_after(&devices, "rbytes=")),
                ("oci_rs_task_block_written_bytes_total", sum_after(&devices, "wbytes=")),
                ("oci_rs_task_block_reads_total", sum_after(&devices, "rios=")),
                ("oci_rs_task_block_writes_total", sum_after(&devices, "wios=")),
                ("oci_rs_task_pressure_cpu_waiting_seconds_total", stalls("cpu", 0)),
                ("oci_rs_task_pressure_memory_waiting_seconds_total", stalls("memory", 0)),
                ("oci_rs_task_pressure_memory_stalled_seconds_total", stalls("memory", 1)),
                ("oci_rs_task_pressure_io_waiting_seconds_total", stalls("io", 0)),
                ("oci_rs_task_pressure_io_stalled_seconds_total", stalls("io", 1)),
            ]);
        }
        expected
    };
    let equal = |scrape: &Scrape| {
        let same = |(name, value): &(&str, f64)| {
            scrape.value(name, &labels).is_some_and(|shown| (shown - value).abs() < 1e-6 * value.max(1.0))
        };
        expected().iter().all(same)
    };
    let scrape = scrape_until(&address, "the values of the kernel's files", equal).await;
    let value = |name: &str| scrape.value(name, &labels).must(name);
    assert!(value("oci_rs_task_cpu_throttled_periods_total") > 0.0, "{:?}", expected());
    assert!(value("oci_rs_task_cpu_throttled_seconds_total") > 0.0, "{:?}", expected());
    // Some kernels count requests on v1 only for devices with a limit.
    if mode() == Mode::V2 {
        assert!(value("oci_rs_task_block_read_bytes_total") >= BYTES as f64, "{:?}", expected());
        assert!(value("oci_rs_task_pressure_cpu_waiting_seconds_total") > 0.0, "{:?}", expected());
    }
    plugin.end(&task).await;
    node.finish(plugin).await;
}

#[tokio::test]
async fn restarts_execs_and_kills_are_counted() {
    let node = Node::new();
    let mut plugin = node.launch_with(tcp()).await;
    let address = address(&plugin).await;
    let images = Images::start().await;
    let script = format!("{WAIT}; x=$(head -c 200000000 /dev/zero | tr '\\0' x); sleep 1000");
    let first = node.task(&images.busybox()).sh(&script).resources(100, 32, 0).build(&mut plugin).await;
    plugin.started(&first).await;
    plugin.exec(first.id(), &["true"], seconds(20)).await.must("ExecTask");
    plugin.end(&first).await;
    let task = first.restarted();
    plugin.started(&task).await;
    for _ in 0..3 {
        plugin.exec(task.id(), &["true"], seconds(20)).await.must("ExecTask");
    }
    let labels = labels(&task);
    let now = scrape(&address).await;
    assert_eq!(now.value("oci_rs_task_restarts_total", &labels), Some(1.0));
    assert_eq!(now.value("oci_rs_task_execs_total", &labels), Some(3.0));
    assert_eq!(now.value("oci_rs_task_execs_running", &labels), Some(0.0));
    // The kernel kills a process of the pipe, and the shell goes on.
    fs::write(task.dir().join("local/go"), "").must("the sign to go on");
    let killed = |scrape: &Scrape| {
        let ended = scrape.value("oci_rs_tasks", &[("state", "ended")]) == Some(1.0);
        ended || scrape.value("oci_rs_task_oom_kills_total", &labels).is_some_and(|kills| kills > 0.0)
    };
    scrape_until(&address, "a kill for lack of memory", killed).await;
    plugin.end(&task).await;
    node.finish(plugin).await;
}

/// A scrape reads the files that are open for the agent's statistics. The first one opens those beside them that only
/// metrics show, and later ones open none.
#[tokio::test]
async fn a_scrape_beside_the_agents_statistics_shows_the_container_of_now() {
    let node = Node::new();
    let mut plugin = node.launch_with(tcp()).await;
    let address = address(&plugin).await;
    let images = Images::start().await;
    let first = node.task(&images.busybox()).sh("sleep 1000 & wait").build(&mut plugin).await;
    let again = first.restarted();
    let labels = labels(&again);
    for task in [&first, &again] {
        plugin.started(task).await;
        let mut statistics = plugin.stats(task.id(), Duration::from_secs(3600)).await.must("TaskStats");
        statistics.message().await.must("TaskStats").must("statistics");
        let open = || {
            let mut files = plugin.descriptors();
            files.retain(|file| file.contains("/sys/fs/cgroup/"));
            files
        };
        let before = open();
        // A reading is used for a second, so the first answer may be of the container before.
        let mut last = scrape(&address).await;
        let mut after = Vec::new();
        for _ in 0..2 {
            let is_new =
                |scrape: &Scrape| scrape.text != last.text && scrape.value("oci_rs_task_pids", &labels) == Some(2.0);
            last = scrape_until(&address, "a reading with the shell and its child", is_new).await;
            assert!(last.value("oci_rs_task_memory_usage_bytes", &labels) > Some(0.0), "{}", last.text);
            after.push(open());
        }
        let more = if mode() == Mode::V1 { 1 } else { 5 };
        assert!(before.len() > 3 && after[0].len() <= before.len() + more, "{before:?} {after:?}");
        assert_eq!(after[0], after[1]);
        // The stream of the first container is still open when the second one starts.
        plugin.end(task).await;
        drop(statistics);
    }
    node.finish(plugin).await;
}

/// A group's network has one set of series, and a task's own network names the task.
#[tokio::test]
async fn the_traffic_of_a_groups_network_is_counted_once() {
    let node = Node::new();
    let mut plugin = node.launch_with(tcp()).await;
    let address = address(&plugin).await;
    let images = Images::start().await;
    let alloc = node.alloc();
    let group = alloc.network();
    add_link(Path::new(&group.path));
    let mut tasks = Vec::new();
    for name in ["one", "two"] {
        let builder = node.task(&images.busybox()).in_alloc(&alloc).name(name).network(group.clone());
        let task = builder.sh("ping -c 3 -i 0.1 -W 1 192.0.2.9; sleep 1000").build(&mut plugin).await;
        plugin.started(&task).await;
        tasks.push(task);
    }
    let of_group = [("alloc_id", tasks[0].config.alloc_id.as_str()), ("task", "")];
    let sent = |scrape: &Scrape| scrape.value("oci_rs_task_network_transmit_packets_total", &of_group);
    let found = scrape_until(&address, "packets", |scrape| sent(scrape).is_some_and(|sent| sent > 0.0)).await;
    assert_eq!(found.matching("oci_rs_task_network_transmit_packets_total", &[]).len(), 1, "{}", found.text);
    for task in &tasks {
        plugin.end(task).await;
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn pulls_are_counted_as_the_registry_served_them() {
    let node = Node::new();
    // The image stays, however full the disk of the test is.
    let options = json!({"metrics": {"address": "127.0.0.1:0"}, "gc": {"disk_high_percent": 100}});
    let mut plugin = node.launch_with(options).await;
    let address = address(&plugin).await;
    let images = Images::start().await;
    let image = images.busybox();
    images.with(|registry| registry.fault(Fault::on("/manifests/", Action::Status(503, Vec::new())).times(1)));
    for _ in 0..2 {
        let task = node.task(&image).sh("true").build(&mut plugin).await;
        plugin.started(&task).await;
        plugin.destroy(task.id(), true).await.must("DestroyTask");
    }
    let missing = node.task(&images.missing()).sh("true").build(&mut plugin).await;
    plugin.start(&missing).await.err().must("an image that does not exist");
    let served = images.requests();
    let found = scrape(&address).await;
    let registry = ("registry", images.host());
    let pulls = |outcome| found.value("oci_rs_pulls_total", &[registry, ("outcome", outcome)]);
    assert_eq!((pulls("pulled"), pulls("cached"), pulls("not_found")), (Some(1.0), Some(1.0), Some(1.0)));
    assert_eq!(found.value("oci_rs_pull_seconds_count", &[registry]), Some(3.0));
    assert_eq!(found.value("oci_rs_registry_requests_total", &[registry]), Some(served.len() as f64), "{served:?}");
    assert_eq!(found.value("oci_rs_registry_retries_total", &[registry]), Some(1.0));
    // The bytes of everything that was fetched, as the registry serves it again.
    let mut bytes = 0;
    let paths = served.iter().filter_map(|request| request.strip_prefix("GET "));
    let fetched: BTreeSet<&str> = paths.filter(|path| path.contains("/busybox-gzip/")).collect();
    for path in &fetched {
        bytes += served_bytes(images.host(), path);
    }
    assert_eq!(found.value("oci_rs_registry_received_bytes_total", &[registry]), Some(bytes as f64), "{fetched:?}");
    let starts = |outcome| found.value("oci_rs_starts_total", &[("outcome", outcome)]);
    assert_eq!((starts("started"), starts("failed"), starts("node_failed")), (Some(2.0), Some(1.0), Some(0.0)));
    assert_eq!(found.value("oci_rs_start_seconds_count", &[]), Some(2.0));
    let phase = |phase| found.value("oci_rs_start_phase_seconds_count", &[("phase", phase)]);
    assert_eq!((phase("image"), phase("container")), (Some(3.0), Some(2.0)));
    let rpcs = |method, code| found.value("oci_rs_rpcs_total", &[("method", method), ("code", code)]);
    assert_eq!(rpcs("StartTask", "OK"), Some(2.0));
    assert_eq!(found.value("oci_rs_rpcs_total", &[("method", "StartTask")]), Some(3.0));
    assert_eq!(rpcs("DestroyTask", "OK"), Some(2.0));
    assert_eq!(found.value("oci_rs_node_healthy", &[]), Some(1.0));
    let files = fs::read_dir(format!("/proc/{}/fd", plugin.process.pid())).must("descriptors").count() as f64;
    let open = found.value("process_open_fds", &[]).must("descriptors");
    assert!((open - files).abs() <= 8.0, "{open}, now {files}");
    let stored = |scrape: &Scrape| scrape.value("oci_rs_images", &[]) == Some(1.0);
    let later = scrape_until(&address, "the size of the store", stored).await;
    assert!(later.value("oci_rs_image_bytes", &[]).is_some_and(|bytes| bytes > 500_000.0), "{}", later.text);
    node.finish(plugin).await;
}

/// The length of the body with which the registry answers.
fn served_bytes(host: &str, path: &str) -> u64 {
    let mut connection = TcpStream::connect(host).must("a connection to the registry");
    write!(connection, "GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n").must("send a request");
    let head = BufReader::new(connection).lines().map_while(|line| line.ok().filter(|line| !line.is_empty()));
    let length = head.filter_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    length.last().must("the length of the answer")
}

#[tokio::test]
async fn the_formats_and_the_page_are_those_of_prometheus() {
    let node = Node::new();
    let socket = node.root().join("metrics.sock");
    // The socket of a killed process is in the way.
    drop(UnixListener::bind(&socket).must("a socket"));
    let address = format!("unix://{}", socket.display());
    let mut plugin = node.launch_with(json!({"metrics": {"address": address}})).await;
    kit::scrape::address(&plugin).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    plugin.started(&task).await;
    let mode = fs::metadata(&socket).must("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only root can connect");
    let openmetrics = scrape(&address).await;
    assert!(openmetrics.content_type.starts_with("application/openmetrics-text; version=1.0.0"), "{openmetrics:?}");
    let classic = request(&address, "GET", "/metrics", "*/*").await.must("an answer");
    assert!(classic.content_type.starts_with("text/plain; version=0.0.4"), "{}", classic.content_type);
    assert_eq!(classic.samples(), openmetrics.samples(), "two formats of one reading");
    for (method, path, status) in [("GET", "/", 404), ("POST", "/metrics", 405), ("GET", "/metrics/x", 404)] {
        assert_eq!(
            request(&address, method, path, OPENMETRICS).await.must("an answer").status,
            status,
            "{method} {path}"
        );
    }
    check_with_promtool(&classic);
    plugin.end(&task).await;
    node.finish(plugin).await;
    assert!(!socket.exists(), "the socket is left behind");
}

/// The dashboard and the alert rules ask for no metric that does not exist.
#[tokio::test]
async fn the_metrics_of_the_examples_are_in_a_scrape() {
    let node = Node::new();
    let mut plugin = node.launch_with(tcp()).await;
    let address = address(&plugin).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.end(&task).await;
    let found = scrape(&address).await;
    let mut offered = BTreeSet::new();
    for (name, kind) in found.text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')) {
        let suffixes: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        offered.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/observability");
    let mut used = BTreeSet::new();
    for file in ["alerts.yml", "dashboard.json"] {
        let text = fs::read_to_string(examples.join(file)).must(file);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        used.extend(
            words.filter(|word| word.starts_with("oci_rs_") || word.starts_with("process_")).map(str::to_owned),
        );
    }
    let unknown: Vec<_> = used.difference(&offered).collect();
    assert!(used.len() > 30 && unknown.is_empty(), "{unknown:?}");
    let dashboard = fs::read(examples.join("dashboard.json")).must("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).must("JSON");
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 20));
    if let Some(promtool) = program::find("promtool") {
        let said = Command::new(promtool).args(["check", "config", "prometheus.yml"]).current_dir(&examples).output();
        let said = said.must("start promtool");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }
    node.finish(plugin).await;
}

/// `promtool check metrics`, if the program is there (`make setup` unpacks it).
fn check_with_promtool(classic: &Scrape) {
    let Some(promtool) = program::find("promtool") else { return };
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .must("start promtool");
    let mut input = child.stdin.take().must("its input");
    input.write_all(classic.text.as_bytes()).must("write the metrics");
    drop(input);
    let said = child.wait_with_output().must("promtool");
    let text = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success() && text.trim().is_empty(), "{text}");
}

/// The driver goes on without metrics, says so once, and serves them when the address is free.
#[tokio::test]
async fn an_address_in_use_does_not_affect_the_driver() {
    let node = Node::new();
    let occupied = TcpListener::bind("127.0.0.1:0").must("a port");
    let address = occupied.local_addr().must("its address").to_string();
    let mut plugin = node.launch_with(json!({"metrics": {"address": address}})).await;
    let images = Images::start().await;
    let task = node.task(&images.busybox()).sh("true").build(&mut plugin).await;
    plugin.started(&task).await;
    plugin.destroy(task.id(), true).await.must("DestroyTask");
    let lines = plugin.process.stderr.so_far();
    let about: Vec<_> = lines.iter().filter(|line| line.contains("metrics.address")).collect();
    assert!(about.len() == 1 && about[0].contains(&address) && about[0].contains(r#""@level":"warn""#), "{about:#?}");
    node.finish(plugin).await;
}

/// The free space is that of the moment of the scrape, and not that of the last measurement of the store.
#[tokio::test]
async fn the_first_scrape_tells_the_free_space() {
    let node = Node::new();
    let plugin = node.launch_with(tcp()).await;
    let scraped = scrape(&address(&plugin).await).await;
    for name in ["oci_rs_data_dir_used_bytes", "oci_rs_data_dir_available_bytes"] {
        assert!(scraped.value(name, &[]) > Some(0.0), "{name}: {}", scraped.text);
    }
    node.finish(plugin).await;
}

#[tokio::test]
async fn without_the_option_no_port_is_open() {
    let node = Node::new();
    let plugin = node.launch().await;
    let pid = plugin.process.pid();
    let tables =
        ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default());
    let listening: Vec<String> = tables
        .iter()
        .flat_map(|table| table.lines())
        .filter_map(|line| {
            line.split_whitespace().nth(3).filter(|state| *state == "0A").and(line.split_whitespace().nth(9))
        })
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let own = plugin.descriptors();
    assert!(!own.iter().any(|file| listening.contains(file)), "{own:?}");
    node.finish(plugin).await;
}

/// Tasks begin and end, and the plugin is killed, while scrapes go on.
#[tokio::test]
async fn scrapes_are_whole_while_tasks_come_and_go() {
    let node = Node::new();
    let mut plugin = node.launch_with(tcp()).await;
    let images = Images::start().await;
    let stays = node.task(&images.busybox()).sh("sleep 1000").build(&mut plugin).await;
    let handle = plugin.started(&stays).await;
    let first = address(&plugin).await;
    coming_and_going(&node, &mut plugin, &images.busybox(), &first).await;
    plugin.process.kill().await;
    assert!(request(&first, "GET", "/metrics", OPENMETRICS).await.is_err());
    let mut plugin = node.launch_with(tcp()).await;
    plugin.recover(&handle).await.must("RecoverTask");
    let second = address(&plugin).await;
    let found = scrape(&second).await;
    assert!(found.value("oci_rs_task_memory_usage_bytes", &labels(&stays)).is_some(), "{}", found.text);
    coming_and_going(&node, &mut plugin, &images.busybox(), &second).await;
    plugin.end(&stays).await;
    node.finish(plugin).await;
}

async fn coming_and_going(node: &Node, plugin: &mut Plugin, image: &str, address: &str) {
    let scraping = {
        let address = address.to_owned();
        tokio::spawn(async move {
            let mut starts = 0.0;
            for _ in 0..20 {
                let now = scrape(&address).await;
                // Every line is a sample, and a counter does not fall.
                assert!(!now.samples().is_empty());
                let counted = now.value("oci_rs_starts_total", &[]).must("starts");
                assert!(counted >= starts, "{counted} after {starts}");
                starts = counted;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    };
    for _ in 0..8 {
        let task = node.task(image).sh("sleep 1000").build(plugin).await;
        plugin.started(&task).await;
        plugin.end(&task).await;
    }
    scraping.await.must("the scrapes");
}
