//! Makes all attempts in four containers on one Nomad agent, and compares the results with the recorded ones.
//!
//! Without `OCI_RS_ESCAPES` it is skipped, because it starts a dockerd. `quick` leaves out the hostile images, each of
//! which needs a task of its own. `all` makes all attempts, and `record` writes `results.tsv` and `docs/escapes.md`.

mod images;

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::PermissionsExt,
            net::{SocketAddr, UnixListener},
        },
    },
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use e2e::{Agent, Alloc, Context, Failure, Outcome, Tools, network};
use escapes::{
    attempt::WORKS,
    attempts::{self, OF_THE_NODE},
    document,
    results::{self, CONTAINERS, KERNEL, MISSING, Results, UNPROTECTED},
    sys,
};
use fixtures::registry::DockerRegistry;
use images::{HOSTILE, Hostile};
use parity::dockerd::{self, Dockerd};
use serde_json::{Value, json};
use tempfile::TempDir;

const CLIENT: &str = include_str!("../../client.hcl.in");
/// The job of each container: its driver, and lines of its `config` block.
const JOBS: [(&str, &str); CONTAINERS.len()] = [
    ("docker", ""),
    ("oci-rs", "userns_mode = \"host\""),
    ("oci-rs", ""),
    ("oci-rs", "userns_mode = \"host\"\nprivileged = true"),
];
/// What the program says of an attempt that only the node can make.
const NOT_MADE: &str = "not made";
/// Commands that enter a container while it watches.
const ENTERING: usize = 4;

#[test]
fn containers_hold_what_is_recorded() -> Outcome {
    let Some(mode) = env::var_os("OCI_RS_ESCAPES") else { return Ok(()) };
    let begun = Instant::now();
    let node = Node::start(if mode == "quick" { &[] } else { HOSTILE })?;
    let outcome = catch_unwind(AssertUnwindSafe(|| node.results()));
    let Ok(Ok(observed)) = outcome else {
        let diagnosis = node.agent.diagnose();
        node.agent.take_down();
        node.dockerd.take_down();
        return Err(Failure(format!("{outcome:?}\n{diagnosis}")));
    };
    assert_eq!(node.close()?, Vec::<String>::new(), "left behind");
    if mode == "record" {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("results.tsv");
        fs::write(&file, results::file(&observed)).context(file.display())?;
        return document::check(&observed, true).map_err(Failure);
    }
    let same_kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?.starts_with(KERNEL);
    let exactly = same_kernel && Path::new("/sys/fs/cgroup/memory").exists();
    assert_eq!(results::compare(&results::recorded(), &observed, exactly), Vec::<String>::new());
    println!("{} attempts in {:?}", observed.len() * CONTAINERS.len(), begun.elapsed());
    Ok(())
}

/// The node: both drivers, and what an attempt may look for on it.
struct Node {
    agent: Agent,
    dockerd: Dockerd,
    registry: DockerRegistry,
    /// The images that are tried.
    hostile: &'static [Hostile],
    bait: Bait,
}

/// What belongs to the node, and no container should reach.
struct Bait {
    directory: TempDir,
    port: u16,
    name: String,
    _abstract: UnixListener,
    shared_memory: i64,
}

impl Node {
    fn start(hostile: &'static [Hostile]) -> Outcome<Self> {
        let tools = Tools::find()?;
        let _outside = network::enter()?;
        let dockerd = Dockerd::start(&dockerd::find()?, "{}")?;
        let registry = DockerRegistry::start()
            .ok_or_else(|| Failure("docker-registry is missing (scripts/setup.sh)".to_owned()))?;
        let (base, bait) = (images::base()?, Bait::lay()?);
        registry.push("test/attempts:1.0", &images::attempts(&base));
        for (number, image) in hostile.iter().enumerate() {
            let directory = bait.directory.path().display().to_string();
            registry.push(&format!("test/hostile-{number}:1.0"), &image.build(&base, &directory));
        }
        let agent = Agent::start_configured(
            &tools,
            &CLIENT.replace("@DOCKER_SOCKET@", &dockerd.socket().display().to_string()),
        )?;
        let healthy = |nodes: &Value| (nodes[0]["Drivers"]["docker"]["Healthy"] == true).then_some(());
        agent.api().wait("/v1/nodes?resources=false", "the docker driver", Duration::from_secs(60), healthy)?;
        Ok(Self { agent, dockerd, registry, hostile, bait })
    }

    /// The results of all attempts in all containers.
    fn results(&self) -> Outcome<Results> {
        let columns = thread::scope(|scope| {
            let running: Vec<_> = (0..JOBS.len()).map(|column| scope.spawn(move || self.column(column))).collect();
            running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(Failure("panic".into())))).collect()
        });
        let columns: Vec<BTreeMap<String, String>> = Result::<Vec<_>, Failure>::from_iter::<Vec<_>>(columns)?;
        let row = |what: &str| {
            std::array::from_fn(|column| columns[column].get(what).map_or(MISSING, String::as_str).to_owned())
        };
        Ok(attempts::all().map(|attempt| (attempt.what.to_owned(), row(attempt.what))).collect())
    }

    /// The results of one container.
    fn column(&self, column: usize) -> Outcome<BTreeMap<String, String>> {
        let alloc = self.submit(column, None)?;
        let hostile: Vec<Alloc<'_>> = (0..self.hostile.len())
            .filter(|_| column != UNPROTECTED)
            .map(|number| self.submit(column, Some(number)))
            .collect::<Outcome<_>>()?;
        let task = alloc.task("main");
        task.wait_running()?;
        let mut results = lines(&said(&task, &["/bin/attempts", "run"])?);
        if column == UNPROTECTED {
            alloc.stop()?;
            return Ok(results);
        }
        let watched = thread::scope(|scope| {
            let watching = scope.spawn(|| said(&task, &["/bin/attempts", "watch"]));
            for command in ["/bin/attempts", "/proc/self/exe"].into_iter().cycle().take(ENTERING) {
                task.exec(&[command, "nothing"])?;
            }
            watching.join().unwrap_or_else(|_| Err(Failure("panic".to_owned())))
        })?;
        results.extend(lines(&watched));
        results.retain(|_, result| result != NOT_MADE);
        for (image, alloc) in self.hostile.iter().zip(&hostile) {
            results.insert(format!("start an image {}", image.what), self.verdict(alloc)?);
        }
        alloc.stop()?;
        Ok(results)
    }

    /// What the task with a hostile image has found, and whether it has changed the node.
    fn verdict(&self, alloc: &Alloc<'_>) -> Outcome<String> {
        alloc.wait_over()?;
        let directory = self.bait.directory.path();
        let intact = fs::read_to_string(directory.join("file")).is_ok_and(|content| content == OF_THE_NODE);
        if !intact || fs::read_dir(directory)?.count() != 1 {
            return Ok(WORKS.to_owned());
        }
        let found = fs::read_to_string(alloc.shared_directory().join("verdict")).unwrap_or_default();
        Ok(if found == WORKS { found } else { "held".to_owned() })
    }

    /// Starts the job of a container, or of a hostile image in it.
    fn submit(&self, column: usize, hostile: Option<usize>) -> Outcome<Alloc<'_>> {
        let api = self.agent.api();
        let id = format!("escapes-{column}-{}", hostile.map_or("attempts".to_owned(), |number| number.to_string()));
        let request = json!({ "JobHCL": self.job(column, hostile), "Canonicalize": true });
        let mut job = api.put("/v1/jobs/parse", &request)?;
        job["ID"] = Value::from(id.as_str());
        job["Name"] = Value::from(id.as_str());
        api.put("/v1/jobs", &json!({ "Job": job }))?;
        Ok(self.agent.placed(&id, 1)?.swap_remove(0))
    }

    fn job(&self, column: usize, hostile: Option<usize>) -> String {
        let (driver, config) = JOBS[column];
        let (kind, image, command) = match hostile {
            Some(number) => ("batch", format!("hostile-{number}"), ""),
            None => ("service", "attempts".to_owned(), "tty = true\ncommand = \"/bin/attempts\"\nargs = [\"wait\"]"),
        };
        let registry = self.registry.host();
        let Bait { directory, port, name, shared_memory, .. } = &self.bait;
        let directory = directory.path().display();
        let agent = self.agent.path().display();
        // Its attempts succeed, so that each gets a mount namespace of its own.
        let apart = if column == UNPROTECTED { "ESCAPE_APART = \"1\"" } else { "" };
        format!(
            "job \"escapes\" {{\ntype = \"{kind}\"\ngroup \"group\" {{\n\
             restart {{\nattempts = 0\nmode = \"fail\"\n}}\nreschedule {{\nattempts = 0\nunlimited = false\n}}\n\
             task \"main\" {{\ndriver = \"{driver}\"\nkill_signal = \"SIGKILL\"\n\
             config {{\nimage = \"{registry}/test/{image}:1.0\"\n{command}\n{config}\n}}\n\
             env {{\nESCAPE_FILE = \"{directory}/file\"\nESCAPE_AGENT = \"{agent}\"\nESCAPE_PID = \"{}\"\n\
             ESCAPE_PORT = \"{port}\"\nESCAPE_ABSTRACT = \"{name}\"\nESCAPE_QUEUE = \"{name}\"\n\
             ESCAPE_SHM = \"{shared_memory}\"\n{apart}\n}}\n\
             resources {{\ncpu = 50\nmemory = 64\n}}\n}}\n}}\n}}\n",
            std::process::id()
        )
    }

    fn close(self) -> Outcome<Vec<String>> {
        let Self { agent, dockerd, .. } = self;
        let mut left = agent.close()?;
        left.extend(dockerd.take_down());
        Ok(left)
    }
}

impl Bait {
    fn lay() -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("oci-rs-escapes.").tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        fs::write(directory.path().join("file"), OF_THE_NODE)?;
        let name = format!("oci-rs-escapes-{}", std::process::id());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let service = TcpListener::bind("0.0.0.0:0")?;
        let port = service.local_addr()?.port();
        // It greets until the process ends.
        thread::spawn(move || service.incoming().flatten().try_for_each(|mut client| client.write_all(b"node")));
        fs::write(Path::new("/dev/shm").join(&name), "of the node")?;
        let key = i64::from(std::process::id());
        sys::shared_memory(key).map_err(|refusal| Failure(format!("shmget: {refusal}")))?;
        sys::queue(&name).map_err(|refusal| Failure(format!("mq_open: {refusal}")))?;
        Ok(Self { directory, port, name, _abstract: listener, shared_memory: key })
    }
}

impl Drop for Bait {
    fn drop(&mut self) {
        drop(fs::remove_file(Path::new("/dev/shm").join(&self.name)));
        sys::remove_shared_memory(self.shared_memory);
        sys::remove_queue(&self.name);
    }
}

/// The output of a command in the container.
fn said(task: &Alloc<'_>, command: &[&str]) -> Outcome<String> {
    let output = task.exec(command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Failure(format!("{command:?}: {output:?}")))
}

fn lines(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|line| line.trim_end().split_once('\t')).map(own).collect()
}

fn own((what, result): (&str, &str)) -> (String, String) {
    (what.to_owned(), result.to_owned())
}
