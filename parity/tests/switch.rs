//! The switch on a running node, and the way back: the plugin takes docker's name while Nomad's docker driver has
//! running tasks, and gives it back while it has running tasks itself.
//!
//! Without `OCI_RS_PARITY` it is skipped, because it starts a dockerd. With `OCI_RS_PARITY=all`, twenty allocations are
//! switched at once.

use std::{
    cell::Cell,
    env, fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use e2e::{Agent, Alloc, Context, Failure, Job, Outcome, Tools, api::fetch, leaks, network, ports::free_port, process};
use parity::{
    dockerd,
    node::{Addresses, Node},
};
use rustix::process::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(90);
/// The groups of the job `docker_switch`.
const SERVICES: usize = 7;
/// The client's configuration, in the agent's directory.
const CONFIGURATION: &str = "client.overrides.hcl";

#[test]
fn running_docker_tasks_are_replaced_and_a_rollback_replaces_them_again() -> Outcome {
    let Some(selection) = env::var_os("OCI_RS_PARITY") else { return Ok(()) };
    let node = Node::start(&Tools::find()?, &dockerd::find()?, network::enter()?, Addresses::Four)?;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let switch = Switch::new(&node)?;
        switch.with_a_lost_and_a_hanging_daemon()?;
        switch.of_all_kinds(selection == "all")
    }));
    if !matches!(outcome, Ok(Ok(()))) {
        let diagnosis = node.agent.diagnose();
        node.take_down();
        return Err(Failure(format!("{outcome:?}\n{diagnosis}")));
    }
    let left = node.close()?;
    assert_eq!(left, Vec::<String>::new());
    Ok(())
}

/// A node whose driver `docker` changes.
struct Switch<'a> {
    node: &'a Node,
    agent: &'a Agent,
    /// The client's configuration for Nomad's docker driver.
    original: String,
    /// The names and values of the options `network` of the plugin.
    network: Vec<(String, String)>,
    image: String,
    /// How often the driver has changed.
    changes: Cell<usize>,
}

impl<'a> Switch<'a> {
    fn new(node: &'a Node) -> Outcome<Self> {
        let agent = &node.agent;
        let original = fs::read_to_string(agent.path().join(CONFIGURATION))?;
        // The tasks of both names use one bridge.
        let own = original.split_once("plugin \"oci-rs\"").map_or("", |(_, own)| own);
        let network =
            own.split_once("network {").and_then(|(_, block)| block.split_once('}')).map_or("", |(block, _)| block);
        let pairs = network.lines().filter_map(|line| line.split_once('='));
        let network = pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().trim_matches('"').to_owned()));
        let network = network.collect();
        let image = node.images.reference("nothing");
        Ok(Self { node, agent, original, network, image, changes: Cell::new(0) })
    }

    /// Restarts the agent with the plugin's file in place. `meanwhile` runs before the agent starts.
    fn to_ours(&self, meanwhile: impl FnOnce() -> Outcome) -> Outcome {
        self.agent.stop()?;
        fs::hard_link(self.agent.driver(), self.agent.path().join("plugins/docker"))?;
        let network: String = self.network.iter().map(|(name, value)| format!("{name} = {value:?}\n")).collect();
        let own = format!(
            "state_dir = \"{0}/state\"\ndata_dir = \"{0}/data\"\nmigrate_volumes = true\nnetwork {{\n{network}}}\n",
            self.agent.path().display()
        );
        let block = "plugin \"docker\" {\n  config {\n";
        assert!(self.original.contains(block), "{}", self.original);
        self.configure(&self.original.replace(block, &format!("{block}{own}")))?;
        meanwhile()?;
        self.changes.set(self.changes.get() + 1);
        self.agent.launch()
    }

    /// The way back: `oci-rs rollback` before the agent starts without the plugin's file.
    fn to_dockers(&self, allocs: &[&str]) -> Outcome {
        self.agent.stop()?;
        let path = self.agent.path();
        let mut command = Command::new(self.agent.driver());
        command.args(["rollback", "--config"]).arg(path.join(CONFIGURATION));
        let output = command.output().context("oci-rs rollback")?;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "{text}");
        assert_eq!(self.left(allocs), Vec::<String>::new(), "after {text}");
        fs::remove_file(path.join("plugins/docker"))?;
        self.configure(&self.original)?;
        self.changes.set(self.changes.get() + 1);
        self.agent.launch()
    }

    /// What a rollback should have removed.
    fn left(&self, allocs: &[&str]) -> Vec<String> {
        let path = self.agent.path();
        let directories = ["state/tasks", "state/networks", "state/groups", "data/containers"];
        let entries = directories.iter().filter_map(|name| fs::read_dir(path.join(name)).ok()).flatten().flatten();
        let mut left: Vec<String> = entries.map(|entry| entry.path().display().to_string()).collect();
        left.extend(leaks::mounts(path).into_iter().filter(|mount| !mount.contains("/client/alloc/")));
        left.extend(allocs.iter().flat_map(|alloc| process::of_alloc(alloc)).map(|process| process.command));
        left
    }

    fn configure(&self, text: &str) -> Outcome {
        Ok(fs::write(self.agent.path().join(CONFIGURATION), text)?)
    }

    /// The names of dockerd's containers that are no pause containers.
    fn containers(&self) -> Outcome<Vec<String>> {
        let mut names = containers(&self.node.dockerd.socket())?;
        names.retain(|name| !name.starts_with("/nomad_init_"));
        Ok(names)
    }

    fn once(&self, kind: &str, count: i64, crons: &[&str]) -> Job {
        Job::new("docker_once").var("image", &self.image).var("type", kind).number("count", count).list("crons", crons)
    }

    /// Waits until each task has been replaced at each change: the old one has ended before the new one began.
    fn replaced(&self, allocs: &[Alloc], changes: usize) -> Outcome {
        let expected = "started\n".to_owned() + &"stopped\nstarted\n".repeat(changes);
        for alloc in allocs {
            let replaced =
                || starts(alloc) == expected && alloc.get().is_ok_and(|state| state["ClientStatus"] == "running");
            patiently(|| replaced().then_some(())).map_err(|failure| {
                let tasks = alloc.tasks().unwrap_or_default();
                let events: Vec<String> = tasks.iter().filter_map(|task| task.events().ok()).flatten().collect();
                Failure(format!("{}: {:?} instead of {expected:?}: {events:#?}", failure.0, starts(alloc)))
            })?;
        }
        Ok(())
    }

    /// A daemon without a socket, whose containers still run; then one that does not answer.
    fn with_a_lost_and_a_hanging_daemon(&self) -> Outcome {
        let alloc = self.agent.run(&self.once("service", 1, &[]))?;
        let allocs = [alloc];
        self.replaced(&allocs, 0)?;
        let (socket, hidden) = (self.node.dockerd.socket(), self.node.dockerd.path().join("hidden"));
        self.to_ours(|| Ok(fs::rename(&socket, &hidden)?))?;
        let said = |text: &str| {
            let has = |events: Vec<String>| events.iter().any(|event| event.contains(text));
            patiently(|| allocs[0].events().is_ok_and(has).then_some(()))
        };
        said("still runs (process ")?;
        said("start dockerd or end the container's processes")?;
        assert_eq!(starts(&allocs[0]), "started\n");
        self.node.dockerd.signal(Signal::STOP);
        fs::rename(&hidden, &socket)?;
        let said = said("Waiting for dockerd at");
        self.node.dockerd.signal(Signal::CONT);
        said?;
        self.replaced(&allocs, 1)?;
        assert_eq!(self.containers()?, Vec::<String>::new());
        self.to_dockers(&[&allocs[0].id])?;
        self.replaced(&allocs, 2)?;
        assert_eq!(self.containers()?.len(), 1);
        allocs[0].stop()
    }

    fn of_all_kinds(&self, all: bool) -> Outcome {
        let (allocs, batches) = self.start(all)?;
        let count = allocs.len() + batches.len();
        self.replaced(&allocs, 0)?;
        self.replaced(&batches, 0)?;
        let inlets = inlets(&allocs);
        assert_eq!(inlets.len(), if all { 5 } else { 4 });
        answer(&inlets)?;
        // The group `lifecycle` has two tasks that run.
        assert_eq!(self.containers()?.len(), count + 1);

        self.to_ours(|| Ok(()))?;
        self.replaced(&allocs, 1)?;
        self.replaced(&batches, 1)?;
        assert_eq!(self.containers()?, Vec::<String>::new());
        answer(&inlets)?;
        self.named_volume_was_copied(&allocs)?;
        let greeting = of_group(&allocs, "template")?;
        let text = fs::read_to_string(greeting.shared_directory().join("data/greeting"))?;
        assert_eq!(text.trim(), format!("hello of {}", greeting.id));
        let lifecycle = of_group(&allocs, "lifecycle")?.shared_directory().join("data");
        assert_eq!(fs::read_to_string(lifecycle.join("before"))?, "before\n", "a task that had ended is not repeated");
        assert_eq!(fs::read_to_string(lifecycle.join("sidecar"))?, "sidecar\n".repeat(2));

        // Groups whose networks this driver made, and a batch that ends under this driver.
        let late = self.agent.run_many(&self.services(1)?, SERVICES)?;
        self.replaced(&late, 0)?;
        let late_inlets = self::inlets(&late);
        answer(&late_inlets)?;
        finish(&batches[0])?;

        self.to_dockers(
            &allocs.iter().chain(&late).chain(&batches).map(|alloc| alloc.id.as_str()).collect::<Vec<_>>(),
        )?;
        self.replaced(&allocs, 2)?;
        self.replaced(&late, 1)?;
        self.replaced(&batches[1..], 2)?;
        answer(&inlets)?;
        answer(&late_inlets)?;
        assert_eq!(starts(&batches[0]), "started\nstopped\nstarted\nfinished\n", "an ended batch is not repeated");
        assert_eq!(self.containers()?.len(), count - 1 + late.len() + 2, "one for each task that runs");
        self.agent.purge()?;
        patiently(|| containers(&self.node.dockerd.socket()).is_ok_and(|left| left.is_empty()).then_some(()))
    }

    /// Starts services, and batches that wait for their end.
    fn start(&self, all: bool) -> Outcome<(Vec<Alloc<'a>>, Vec<Alloc<'a>>)> {
        if !all {
            let allocs = self.agent.run_many(&self.services(1)?, SERVICES)?;
            return Ok((allocs, self.agent.run_many(&self.once("batch", 1, &[]), 1)?));
        }
        // Two groups have two allocations.
        let mut allocs = self.agent.run_many(&self.services(2)?, SERVICES + 2)?;
        let batches = self.agent.run_many(&self.once("batch", 5, &[]), 5)?;
        for (kind, count) in [("service", 3), ("system", 1), ("sysbatch", 1)] {
            allocs.extend(self.agent.run_many(&self.once(kind, count, &[]), count.try_into()?)?);
        }
        allocs.push(self.periodic()?);
        assert_eq!(allocs.len() + batches.len(), 20);
        Ok((allocs, batches))
    }

    fn services(&self, count: i64) -> Outcome<Job> {
        let job = Job::new("docker_switch").var("image", &self.image).number("count", count);
        Ok(job.number("port", free_port()?.into()))
    }

    fn periodic(&self) -> Outcome<Alloc<'a>> {
        let parent = "switch-periodic";
        self.agent.submit(&self.once("batch", 1, &["0 0 1 1 *"]), parent)?;
        self.agent.api().put(&format!("/v1/job/{parent}/periodic/force"), &json!({}))?;
        let child = |jobs: &Value| {
            let ids = jobs.as_array().into_iter().flatten().filter_map(|job| job["ID"].as_str());
            ids.into_iter().find(|id| id.starts_with("switch-periodic/periodic-")).map(str::to_owned)
        };
        let child = self.agent.api().wait("/v1/jobs?prefix=switch-periodic", "the child", LIMIT, child)?;
        let mut allocs = self.agent.placed(&child.replace('/', "%2F"), 1)?;
        Ok(allocs.swap_remove(0))
    }

    /// Both drivers' tasks have added lines to the volume, of which docker's came first.
    fn named_volume_was_copied(&self, allocs: &[Alloc]) -> Outcome {
        let ids = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let ours = fs::read_to_string(self.agent.path().join("data/volumes/switch-data/starts"))?;
        let dockers = fs::read_to_string(self.node.dockerd.path().join("data/volumes/switch-data/_data/starts"))?;
        let users = allocs.iter().filter(|alloc| of(alloc, "volume")).count();
        assert_eq!((ids(&ours).len(), ids(&dockers).len()), (2 * users, users), "{ours:?} {dockers:?}");
        assert_eq!(ids(&ours)[..users], ids(&dockers));
        Ok(())
    }
}

fn of(alloc: &Alloc, group: &str) -> bool {
    alloc.get().is_ok_and(|alloc| alloc["TaskGroup"] == group)
}

fn of_group<'b, 'a>(allocs: &'b [Alloc<'a>], group: &str) -> Outcome<&'b Alloc<'a>> {
    allocs.iter().find(|alloc| of(alloc, group)).ok_or_else(|| Failure(format!("no group {group}")))
}

/// The addresses of the ports, with the ids of their allocations.
fn inlets<'b>(allocs: &'b [Alloc]) -> Vec<(String, &'b str)> {
    allocs.iter().filter_map(|alloc| Some((alloc.address("http").ok()?, alloc.id.as_str()))).collect()
}

/// Waits until each port leads to its own allocation.
fn answer(inlets: &[(String, &str)]) -> Outcome {
    for (address, alloc) in inlets {
        let url = format!("http://{address}/");
        patiently(|| fetch(&url).is_ok_and(|page| page.trim() == *alloc).then_some(()))
            .map_err(|failure| Failure(format!("{url} of {alloc}: {}: {:?}", failure.0, fetch(&url))))?;
    }
    Ok(())
}

/// Lets a batch end.
fn finish(alloc: &Alloc) -> Outcome {
    fs::write(alloc.shared_directory().join("data/go"), "")?;
    alloc.wait_over().map(drop)
}

fn starts(alloc: &Alloc) -> String {
    fs::read_to_string(alloc.shared_directory().join("data/starts")).unwrap_or_default()
}

fn patiently(ready: impl Fn() -> Option<()>) -> Outcome {
    let deadline = Instant::now() + LIMIT;
    while ready().is_none() {
        if Instant::now() > deadline {
            return Err(Failure("it does not become ready".to_owned()));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The names of dockerd's containers.
fn containers(socket: &Path) -> Outcome<Vec<String>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /containers/json?all=true HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let list: Value = serde_json::from_str(body).map_err(|error| Failure(format!("{error}: {answer}")))?;
    let names = list.as_array().into_iter().flatten().filter_map(|one| one["Names"][0].as_str());
    Ok(names.map(str::to_owned).collect())
}
