//! Images that are pulled before their tasks: the plugin's block `prefetch` with a stand-in for the agent's API.
//!
//! The stand-in exists for its faults. `e2e` has the same with a real agent.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use fixtures::{
    busybox::Images,
    image::{Entry, Layer},
    must::Must,
    registry::{Action, Auth, Fault},
    wait::{eventually, seconds},
};
use kit::{
    node::Node,
    plugin::{Plugin, PluginCommand},
    scrape::{Scrape, address, scrape_until},
    task::Task,
};
use serde_json::{Value as Json, json};

use crate::{operator::run, traces};

/// The HTTP API of an agent: jobs, and the events about them.
#[derive(Clone)]
struct Agent {
    address: String,
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    index: u64,
    jobs: BTreeMap<String, Json>,
    events: Vec<(u64, Json)>,
    /// Streams of an earlier number end.
    cuts: usize,
    /// Every answer has this status.
    refuses: Option<u16>,
    requests: Vec<String>,
}

impl Agent {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").must("a port");
        let address = format!("http://{}", listener.local_addr().must("its address"));
        let agent = Self { address, shared: Arc::default() };
        agent.state().index = 10;
        let server = agent.clone();
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let server = server.clone();
                // A client that is gone ends the answer.
                thread::spawn(move || server.serve(connection).ok());
            }
        });
        agent
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        let result = action(&mut self.state());
        self.shared.1.notify_all();
        result
    }

    /// Registers a job with these images. Sends its event if `tell` is set.
    fn register(&self, id: &str, images: &[&str], more: Json, tell: bool) {
        let task = |(number, image): (usize, &&str)| {
            let config = json!({ "image": image });
            json!({ "Name": format!("t{number}"), "Driver": "oci-rs", "Config": config })
        };
        let tasks: Vec<Json> = images.iter().enumerate().map(task).collect();
        self.change(|state| {
            state.index += 1;
            let mut job = json!({
                "ID": id, "Namespace": "default", "Type": "service", "Priority": 50, "Status": "pending",
                "Datacenters": ["dc*"], "NodePool": "default", "JobModifyIndex": state.index,
                "TaskGroups": [{ "Name": "g", "Count": 0, "Tasks": tasks }],
            });
            job.as_object_mut().must("a job").extend(more.as_object().must("fields").clone());
            state.jobs.insert(id.to_owned(), job.clone());
            if tell {
                let event = json!({ "Topic": "Job", "Type": "JobRegistered", "Payload": { "Job": job } });
                state.events.push((state.index, event));
            }
        });
    }

    fn deregister(&self, id: &str) {
        self.change(|state| {
            state.index += 1;
            let job = state.jobs.remove(id).must("the job");
            let event = json!({ "Topic": "Job", "Type": "JobDeregistered", "Payload": { "Job": job } });
            state.events.push((state.index, event));
        });
    }

    /// Ends all streams.
    fn cut(&self) {
        self.change(|state| state.cuts += 1);
    }

    /// The requests whose path has this part.
    fn requests(&self, part: &str) -> Vec<String> {
        self.state().requests.iter().filter(|path| path.contains(part)).cloned().collect()
    }

    fn serve(&self, mut connection: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(connection.try_clone()?).lines().map_while(Result::ok);
        let first = lines.next().unwrap_or_default();
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        lines.take_while(|line| !line.is_empty()).for_each(drop);
        let refuses = self.change(|state| {
            state.requests.push(path.clone());
            state.refuses
        });
        if let Some(status) = refuses {
            return answer(&mut connection, status, 0, "Permission denied");
        }
        let (name, query) = path.split_once('?').unwrap_or((&path, ""));
        if name == "/v1/event/stream" {
            let from = query.split('&').find_map(|pair| pair.strip_prefix("index=")?.parse().ok()).must("an index");
            return self.stream(&mut connection, from);
        }
        let (index, body) = self.change(|state| {
            let body = match name.strip_prefix("/v1/job/") {
                _ if name == "/v1/agent/self" => {
                    Some(json!({ "config": { "Datacenter": "dc1", "Client": { "Enabled": true, "NodePool": "" } } }))
                }
                _ if name == "/v1/jobs" => Some(state.jobs.values().cloned().collect()),
                Some(id) => state.jobs.get(id).cloned(),
                None => None,
            };
            (state.index, body)
        });
        match body {
            Some(body) => answer(&mut connection, 200, index, &body.to_string()),
            None => answer(&mut connection, 404, index, "not found"),
        }
    }

    /// Sends the events that there are from an index on, as long as the stream is not cut.
    fn stream(&self, connection: &mut TcpStream, from: u64) -> std::io::Result<()> {
        write!(connection, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{{}}\n")?;
        let (mut next, cuts, is_quiet) = {
            let state = self.state();
            (from, state.cuts, state.events.iter().all(|(index, _)| *index < from))
        };
        if is_quiet {
            // A real agent sends its second heartbeat after 30 seconds.
            writeln!(connection, "{{}}")?;
        }
        loop {
            let mut state = self.state();
            let found = loop {
                if state.cuts != cuts {
                    return Ok(());
                }
                if let Some(found) = state.events.iter().find(|(index, _)| *index >= next).cloned() {
                    break found;
                }
                state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            writeln!(connection, "{}", json!({ "Index": found.0, "Events": [found.1] }))?;
            next = found.0 + 1;
        }
    }
}

fn answer(connection: &mut TcpStream, status: u16, index: u64, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\nX-Nomad-Index: {index}\r\nContent-Length: {length}\r\n");
    write!(connection, "{head}Connection: close\r\n\r\n{body}")
}

/// The plugin block with `prefetch` and metrics.
fn block(agent: &Agent, more: Json) -> Json {
    let mut block = json!({ "prefetch": { "address": agent.address }, "metrics": { "address": "127.0.0.1:0" } });
    block.as_object_mut().must("a block").extend(more.as_object().must("options").clone());
    block
}

/// Waits for the number of images that were prefetched with this outcome.
async fn prefetched(metrics: &str, registry: &str, outcome: &str, number: f64) -> Scrape {
    let labels = [("registry", registry), ("outcome", outcome)];
    let reached =
        |scrape: &Scrape| scrape.value("oci_rs_prefetches_total", &labels).is_some_and(|count| count >= number);
    scrape_until(metrics, &format!("{number} images {outcome}"), reached).await
}

/// The image of the shell with a layer of its own.
fn another(images: &Images, name: &str) -> String {
    images.with_layers(name, [Layer::of([Entry::file(format!("home/{name}"), name)])])
}

/// The requests for layers and configs.
fn blobs(images: &Images) -> usize {
    images.requests().iter().filter(|request| request.contains("/blobs/")).count()
}

async fn start(node: &Node, plugin: &mut Plugin, image: &str) -> Task {
    let task = node.task(image).sh("sleep 1000").build(plugin).await;
    plugin.started(&task).await;
    task
}

/// The names of the images of a node.
fn names(node: &Node) -> Vec<String> {
    let directory = node.data_dir().join("images/images");
    let entries = fs::read_dir(directory).map(|entries| entries.map_while(Result::ok).collect::<Vec<_>>());
    let record = |entry: &fs::DirEntry| serde_json::from_slice::<Json>(&fs::read(entry.path()).ok()?).ok();
    let name = |record: Json| record["reference"].as_str().map(str::to_owned);
    entries.unwrap_or_default().iter().filter_map(record).filter_map(name).collect()
}

#[tokio::test]
async fn a_task_finds_its_image_here_and_fetches_nothing() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    let (listed, told, elsewhere) = (images.busybox(), another(&images, "told"), another(&images, "elsewhere"));
    agent.register("listed", &[&listed], json!({}), false);
    let mut plugin = node.launch_with(block(&agent, json!({}))).await;
    let metrics = address(&plugin).await;
    prefetched(&metrics, images.host(), "pulled", 1.0).await;
    agent.register("elsewhere", &[&elsewhere], json!({ "NodePool": "other" }), true);
    agent.register("told", &[&told, &format!("{}/${{attr.cpu.arch}}:1", images.host())], json!({}), true);
    let scrape = prefetched(&metrics, images.host(), "pulled", 2.0).await;
    assert_eq!(scrape.value("oci_rs_prefetch_skips_total", &[("reason", "variables")]), Some(1.0));
    assert!(!images.requests().iter().any(|request| request.contains("elsewhere")), "{:?}", images.requests());
    let before = blobs(&images);
    for image in [&listed, &told] {
        let task = start(&node, &mut plugin, image).await;
        plugin.end(&task).await;
    }
    assert_eq!(blobs(&images), before, "{:?}", images.requests());
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_prefetched_image_is_a_trace() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    let (collector, requests) = traces::collector();
    let image = images.busybox();
    agent.register("job", &[&image], json!({}), false);
    let endpoint = format!("http://{collector}");
    let plugin = node.launch_with(block(&agent, json!({ "traces": { "endpoint": endpoint } }))).await;
    let (_, body) = requests.recv_timeout(seconds(60)).must("a trace");
    let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    let attribute = |name: &str| traces::attribute(span, name);
    assert_eq!((&span["name"], attribute("container.image.name")), (&json!("prefetch image"), Some(image.as_str())));
    assert_eq!(attribute("registry"), Some(images.host()), "{span}");
    assert!(attribute("bytes").and_then(|bytes| bytes.parse::<u64>().ok()) > Some(100_000), "{span}");
    node.finish(plugin).await;
}

/// Without the block there is no connection.
#[tokio::test]
async fn nothing_is_prefetched_by_default() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    agent.register("job", &[&images.busybox()], json!({}), true);
    let mut plugin = node.launch().await;
    let task = start(&node, &mut plugin, &images.busybox()).await;
    plugin.end(&task).await;
    assert_eq!(agent.requests(""), Vec::<String>::new());
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_cut_stream_goes_on_where_it_ended_and_a_gap_means_one_list() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    let other = |name: &str| another(&images, name);
    let plugin = node.launch_with(block(&agent, json!({}))).await;
    let metrics = address(&plugin).await;
    agent.register("first", &[&other("first")], json!({}), true);
    prefetched(&metrics, images.host(), "pulled", 1.0).await;

    // The first events of the next stream are the last ones of this one.
    let lists = agent.requests("/v1/jobs").len();
    let index = agent.state().index;
    agent.cut();
    agent.register("second", &[&other("second")], json!({}), true);
    prefetched(&metrics, images.host(), "pulled", 2.0).await;
    assert!(agent.requests("/v1/event/stream").last().must("a stream").contains(&format!("index={index}")));
    assert_eq!(agent.requests("/v1/jobs").len(), lists, "{:?}", agent.requests(""));

    // The agent has no events any more. One job is new, one is gone.
    agent.change(|state| {
        state.events.clear();
        state.cuts += 1;
    });
    agent.register("third", &[&other("third")], json!({}), false);
    prefetched(&metrics, images.host(), "pulled", 3.0).await;
    assert_eq!(agent.requests("/v1/jobs").len(), lists + 1, "{:?}", agent.requests(""));
    assert_eq!(agent.requests("/v1/job/"), ["/v1/job/third?namespace=default"], "only what changed is read");
    node.finish(plugin).await;
}

#[tokio::test]
async fn a_refusal_is_one_line_and_ends_by_itself() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    agent.register("job", &[&images.busybox()], json!({}), false);
    agent.change(|state| state.refuses = Some(403));
    let token = node.root().join("token");
    fs::write(&token, "s3cret\n").must("write the token");
    let prefetch =
        json!({ "address": agent.address, "token_file": token, "datacenter": "dc1", "node_pool": "default" });
    let plugin = node.launch_with(block(&agent, json!({ "prefetch": prefetch }))).await;
    let metrics = address(&plugin).await;
    let refused = |line: &str| line.contains("jobs are not followed, so");
    let line = plugin.process.stderr.find(seconds(30), "the refusal", refused).await;
    assert!(line.contains(r#""@level":"warn""#) && line.contains("`list-jobs` and `read-job`"), "{line}");
    assert!(eventually(seconds(30), || agent.requests("/v1/jobs").len() > 2).await);
    assert_eq!(plugin.process.stderr.so_far().iter().filter(|line| refused(line)).count(), 1);
    agent.change(|state| state.refuses = None);
    prefetched(&metrics, images.host(), "pulled", 1.0).await;
    assert!(agent.requests("/v1/agent/self").is_empty(), "the operator names the place of the node");
    assert!(!plugin.process.stderr.so_far().iter().any(|line| line.contains("s3cret")));
    node.finish(plugin).await;
}

/// A prefetch whose registry is silent keeps no task from starting.
#[tokio::test]
async fn a_task_does_not_wait_for_other_prefetches() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    let slow: Vec<String> = (0..4).map(|number| another(&images, &format!("slow{number}"))).collect();
    for number in 0..4 {
        let fault = Fault::on(format!("/slow{number}/blobs/"), Action::Delay(Duration::from_secs(20)));
        images.with(|registry| registry.fault(fault));
    }
    let slow: Vec<&str> = slow.iter().map(String::as_str).collect();
    agent.register("slow", &slow, json!({}), false);
    let mut plugin = node.launch_with(block(&agent, json!({}))).await;
    assert!(eventually(seconds(20), || images.requests().iter().any(|request| request.contains("/slow"))).await);
    let begun = std::time::Instant::now();
    let task = start(&node, &mut plugin, &images.busybox()).await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    plugin.end(&task).await;
    images.with(fixtures::registry::Registry::heal);
    node.finish(plugin).await;
}

/// The next process goes on, and nothing of the killed one is left.
#[tokio::test]
async fn a_plugin_killed_in_a_prefetch_leaves_nothing() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    let image = images.busybox();
    images.with(|registry| registry.fault(Fault::on("/blobs/", Action::Stall(1000)).after(1)));
    agent.register("job", &[&image], json!({}), false);
    let mut plugin = node.launch_with(block(&agent, json!({}))).await;
    let leases = node.data_dir().join("images/leases");
    let is_leased = || fs::read_dir(&leases).is_ok_and(|entries| entries.count() == 1);
    assert!(eventually(seconds(20), || blobs(&images) > 1 && is_leased()).await, "{:?}", images.requests());
    plugin.process.kill().await;
    images.with(fixtures::registry::Registry::heal);
    let plugin = node.launch_with(block(&agent, json!({}))).await;
    prefetched(&address(&plugin).await, images.host(), "pulled", 1.0).await;
    let left = |name: &str| fs::read_dir(node.data_dir().join("images").join(name)).map_or(0, Iterator::count);
    // Its own staging directory, and none of the killed process.
    assert!(eventually(seconds(20), || left("leases") == 0 && left("staging") <= 1).await);
    let found = run(&node, &["image", "fsck", "--data-dir", &node.data_dir().display().to_string()]).await;
    assert_eq!(found.code, 0, "{} {}", found.out, found.err);
    node.finish(plugin).await;
}

/// The process is killed before the pull, and when the image is here and its lease not yet released.
#[tokio::test]
async fn a_lease_of_a_killed_prefetch_holds_nothing() {
    for point in ["prefetch-before-pull", "prefetch-before-release"] {
        let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
        let command = PluginCommand::new(node.root()).env("OCI_RS_FAILPOINT", point);
        let mut plugin = node.launch_as(command, block(&agent, json!({}))).await;
        agent.register("job", &[&images.busybox()], json!({}), true);
        plugin.process.ended(seconds(30)).await;
        agent.deregister("job");
        let plugin = node.launch_with(block(&agent, json!({ "gc": { "image_delay": "1s" } }))).await;
        assert!(eventually(seconds(20), || names(&node).is_empty()).await, "{point}: {:?}", names(&node));
        let leases = fs::read_dir(node.data_dir().join("images/leases")).must("the leases").count();
        assert_eq!(leases, 0, "{point}");
        node.finish(plugin).await;
    }
}

/// A wanted image stays for longer than the delay of garbage collection, and no longer than its job.
#[tokio::test]
async fn a_wanted_image_stays_as_long_as_its_job() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    let (wanted, other) = (images.busybox(), another(&images, "other"));
    let options = block(&agent, json!({ "gc": { "image_delay": "3s", "disk_high_percent": 100 } }));
    let mut plugin = node.launch_with(options).await;
    let metrics = address(&plugin).await;
    agent.register("job", &[&wanted], json!({}), true);
    prefetched(&metrics, images.host(), "pulled", 1.0).await;
    // The image of a task that ended after the prefetch, and that no job wants.
    let task = start(&node, &mut plugin, &other).await;
    plugin.end(&task).await;
    assert!(eventually(seconds(30), || names(&node) == [wanted.clone()]).await, "{:?}", names(&node));
    agent.deregister("job");
    assert!(eventually(seconds(30), || names(&node).is_empty()).await, "{:?}", names(&node));
    node.finish(plugin).await;
}

/// With these watermarks every disk counts as full.
#[tokio::test]
async fn nothing_is_prefetched_on_a_full_disk() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    agent.register("job", &[&images.busybox()], json!({}), false);
    let options =
        block(&agent, json!({ "gc": { "image_delay": "1h", "disk_high_percent": 100, "disk_low_percent": 1 } }));
    let plugin = node.launch_with(options).await;
    let skipped = |scrape: &Scrape| scrape.value("oci_rs_prefetch_skips_total", &[("reason", "disk")]) == Some(1.0);
    scrape_until(&address(&plugin).await, "a skipped image", skipped).await;
    plugin.process.stderr.find(seconds(10), "the reason", |line| line.contains("prefetched below 1 %")).await;
    assert!(images.requests().is_empty() && names(&node).is_empty());
    node.finish(plugin).await;
}

/// The node's credentials give the node the image. A task with other credentials still needs the registry's consent.
#[tokio::test]
async fn a_private_image_is_only_for_those_who_may_pull_it() {
    let (node, agent, images) = (Node::new(), Agent::start(), Images::start().await);
    let image = images.busybox();
    let own = images.with_config("own", json!({ "Labels": { "a": "b" } }));
    images.require(Auth::Basic { user: "node".to_owned(), password: "secret".to_owned() });
    agent.register("job", &[&image], json!({}), false);
    let auth = json!([{ "username": "node", "password": "secret" }]);
    let task = json!({ "Name": "own", "Driver": "oci-rs", "Config": { "image": own, "auth": auth } });
    agent.register("own", &[], json!({ "TaskGroups": [{ "Name": "g", "Tasks": [task] }] }), false);
    let registry = json!({ (images.host()): { "auth": { "username": "node", "password": "secret" } } });
    let mut plugin = node.launch_with(block(&agent, json!({ "registry": registry }))).await;
    let scrape = prefetched(&address(&plugin).await, images.host(), "pulled", 1.0).await;
    assert_eq!(scrape.value("oci_rs_prefetch_skips_total", &[("reason", "credentials")]), Some(1.0));
    let stranger = json!([{ "username": "stranger", "password": "guess" }]);
    let stranger = node.task(&image).sh("true").option("auth", stranger).build(&mut plugin).await;
    let refused = plugin.start(&stranger).await.err().must("a refusal");
    assert!(refused.message().contains("credentials"), "{refused}");
    let task = start(&node, &mut plugin, &image).await;
    plugin.end(&task).await;
    assert_eq!(names(&node), [image]);
    node.finish(plugin).await;
}
