//! A Nomad agent for tests: a server, and a client with the driver. A test can stop, kill and restart the client with
//! its state.
//!
//! Server and client are two processes, so that the client can be killed alone. A restarted server would need up to a
//! minute before it trusts its clients again.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Consul, Context, Failure, Outcome, Tools, Version, acl,
    api::Api,
    config::{self, Endpoint, Subnets},
    leaks,
    nomad::{Nomad, RUN_DIR},
    ports::free_port,
    process,
    versions::NAMESPACE_REMOVAL,
    watch::patient,
};

const START: Duration = Duration::from_secs(60);
/// The rights that the driver needs to prefetch images.
const PREFETCH_RULES: &str = r#"
namespace "*" { capabilities = ["list-jobs", "read-job"] }
agent { policy = "read" }
"#;

/// Server and client, their directory and their subnets. In the methods, "agent" means the client.
#[derive(Debug)]
pub struct Agent {
    tools: Tools,
    directory: Option<TempDir>,
    path: PathBuf,
    server: Nomad,
    client: Nomad,
    api: Api,
    client_api: Api,
    subnets: Subnets,
    allocs: Mutex<Vec<String>>,
    jobs: AtomicUsize,
    log_mark: Mutex<u64>,
    /// The driver is also there under docker's name.
    stands_in: bool,
    /// The ACL token; empty without access control.
    token: &'static str,
}

/// What differs between agents.
#[derive(Default)]
struct Setup<'a> {
    consul: Option<&'a Consul>,
    overrides: Option<&'a str>,
    acl: bool,
}

impl Agent {
    /// Starts an agent with the driver in its plugin directory, also under docker's name, and waits until both are
    /// ready.
    ///
    /// # Errors
    /// With the end of the agent's log.
    pub fn start(tools: &Tools) -> Outcome<Self> {
        Self::start_with(tools, None)
    }

    /// The same without the driver's second name. The client's configuration is completed by `overrides`, which may
    /// contain the placeholders of `client.hcl.in`. A `plugin` block in it replaces the whole block of the same name.
    ///
    /// # Errors
    /// With the end of the agent's log.
    pub fn start_configured(tools: &Tools, overrides: &str) -> Outcome<Self> {
        Self::make(tools, Setup { overrides: Some(overrides), ..Setup::default() })
    }

    /// The same, with Consul for services and templates.
    ///
    /// # Errors
    /// With the end of the agent's log.
    pub fn start_with(tools: &Tools, consul: Option<&Consul>) -> Outcome<Self> {
        Self::make(tools, Setup { consul, ..Setup::default() })
    }

    /// The same with access control, and a driver that prefetches images (`prefetch.hcl.in`). The driver has no second
    /// name.
    ///
    /// # Errors
    /// With the end of the agent's log.
    pub fn start_prefetching(tools: &Tools) -> Outcome<Self> {
        let overrides = fs::read_to_string(tools.home.join("prefetch.hcl.in")).context("prefetch.hcl.in")?;
        Self::make(tools, Setup { overrides: Some(&overrides), acl: true, ..Setup::default() })
    }

    fn make(tools: &Tools, setup: Setup) -> Outcome<Self> {
        let Setup { consul, overrides, acl } = setup;
        let token = if acl { acl::MANAGEMENT } else { "" };
        let directory = tempfile::Builder::new().prefix("oci-rs-e2e.").tempdir()?;
        let path = directory.path().to_owned();
        let (http, client_http) = (free_port()?, free_port()?);
        let agent = Self {
            tools: tools.clone(),
            server: Nomad::new(&tools.nomad, path.join("server.hcl")),
            client: Nomad::new(&tools.nomad, path.join("client.hcl")),
            api: Api::new(http).with_token(token),
            client_api: Api::new(client_http).with_token(token),
            token,
            subnets: Subnets::free(),
            directory: Some(directory),
            path,
            allocs: Mutex::default(),
            jobs: AtomicUsize::new(0),
            log_mark: Mutex::default(),
            stands_in: overrides.is_none(),
        };
        for inside in ["plugins", "tmp", "cni", "bin"] {
            fs::create_dir(agent.path.join(inside))?;
        }
        std::os::unix::fs::symlink(&tools.consul, agent.path.join("bin/consul"))?;
        fs::copy(&tools.driver, agent.driver())?;
        if agent.stands_in {
            // A hard link and not a symbolic one: the path of a process's executable tells the two apart.
            fs::hard_link(agent.driver(), agent.docker_driver())?;
        }
        // Where the client looks for plugins of host volumes.
        let volume_plugins = agent.path.join("client/host_volume_plugins");
        fs::create_dir_all(&volume_plugins)?;
        std::os::unix::fs::symlink(agent.driver(), volume_plugins.join("oci-rs-volume"))?;
        let server = Endpoint { http_port: http, config: agent.server.config() };
        let client = Endpoint { http_port: client_http, config: agent.client.config() };
        let overrides = overrides.map(|text| (agent.client.overrides(), text));
        config::write(tools, &agent.path, &agent.subnets, &server, &client, consul, (overrides, acl))?;
        // Nomad gives no variable of the agent to plugins of host volumes.
        fs::copy(agent.client.config(), volume_plugins.join("oci-rs-volume.hcl"))?;
        agent.server.start()?;
        agent.wait_leader()?;
        if acl {
            acl::bootstrap(&agent.api)?;
            let token = acl::token(&agent.api, "prefetch", PREFETCH_RULES)?;
            fs::write(agent.path.join("prefetch.token"), token)?;
        }
        agent.launch()?;
        Ok(agent)
    }

    /// Starts the client with its existing state, and waits until client and driver are ready.
    ///
    /// # Errors
    /// With the end of the logs.
    pub fn launch(&self) -> Outcome {
        self.client.start()?;
        let deadline = Instant::now() + patient(START);
        // The server still reports a dead client as ready, so this asks the client itself.
        while let Err(failure) = self.client_ready() {
            if !self.client.runs() || !self.server.runs() || Instant::now() > deadline {
                return Err(Failure(format!("the agent is not ready: {}\n{}", failure.0, self.log_tail(60))));
            }
            thread::sleep(Duration::from_millis(100));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let ready =
            self.api.wait("/v1/nodes?resources=false", "the node", left, |nodes| self.node_ready(nodes).then_some(()));
        ready.map_err(|Failure(text)| Failure(format!("{text}\n{}", self.log_tail(60))))
    }

    fn node_ready(&self, nodes: &Value) -> bool {
        let healthy = |driver: &str| nodes[0]["Drivers"][driver]["Healthy"] == true;
        nodes[0]["Status"] == "ready" && healthy("oci-rs") && (!self.stands_in || healthy("docker"))
    }

    /// Waits for the server's leader. A client that finds no leader retries only after fifteen seconds.
    fn wait_leader(&self) -> Outcome {
        let deadline = Instant::now() + patient(START);
        while !self
            .api
            .get("/v1/status/leader")
            .is_ok_and(|leader| leader.as_str().is_some_and(|leader| !leader.is_empty()))
        {
            if !self.server.runs() || Instant::now() > deadline {
                let log = fs::read_to_string(self.server.log()).unwrap_or_default();
                return Err(Failure(format!("the server has no leader:\n{log}")));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Succeeds when the client is registered and has an answer to a heartbeat.
    fn client_ready(&self) -> Outcome {
        let info = self.client_api.get("/v1/agent/self")?;
        let client = &info["stats"]["client"];
        let beats = client["heartbeat_ttl"].as_str().is_some_and(|ttl| ttl != "0s");
        if beats { Ok(()) } else { Err(Failure(format!("no heartbeat: {client}"))) }
    }

    /// Stops the agent as an operator does. Its tasks keep running.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&self) -> Outcome {
        self.client.end(Signal::INT)
    }

    /// Kills the agent with SIGKILL. Plugin and tasks keep running.
    ///
    /// # Errors
    /// When it does not end.
    pub fn kill(&self) -> Outcome {
        self.client.end(Signal::KILL)
    }

    /// The pid of the plugin instance that serves the agent.
    ///
    /// # Errors
    /// When there is not exactly one after the short-lived instances have ended.
    pub fn plugin_pid(&self) -> Outcome<i32> {
        let deadline = Instant::now() + patient(Duration::from_secs(15));
        loop {
            let found = process::running(&self.driver());
            if let [plugin] = found.as_slice() {
                return Ok(plugin.pid);
            }
            if Instant::now() > deadline {
                return Err(Failure(format!("expected one plugin process, found {found:?}")));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The driver's file in the plugin directory.
    #[must_use]
    pub fn driver(&self) -> PathBuf {
        self.path.join("plugins/oci-rs")
    }

    /// The driver's file under the name of Nomad's docker driver.
    fn docker_driver(&self) -> PathBuf {
        self.path.join("plugins/docker")
    }

    /// Kills the plugins of both names.
    ///
    /// # Errors
    /// When one does not end.
    pub fn kill_plugins(&self) -> Outcome {
        for file in [self.driver(), self.docker_driver()] {
            for plugin in process::running(&file) {
                process::signal(plugin.pid, Signal::KILL);
                if !process::wait_gone(plugin.pid, START)? {
                    return Err(Failure(format!("{plugin:?} does not end")));
                }
            }
        }
        Ok(())
    }

    /// Sets metadata of the node.
    ///
    /// # Errors
    /// With Nomad's error.
    pub fn set_metadata(&self, meta: &Value) -> Outcome {
        self.client_api.post("/v1/client/metadata", &json!({ "Meta": meta })).map(drop)
    }

    /// A new job id.
    pub(crate) fn new_job_id(&self) -> String {
        format!("job-{}", self.jobs.fetch_add(1, Ordering::Relaxed))
    }

    /// Records the id of an allocation of this agent, so that [`Agent::leaks`] searches for its leftovers.
    pub(crate) fn record_alloc(&self, id: &str) {
        let mut allocs = lock(&self.allocs);
        if !allocs.iter().any(|known| known == id) {
            allocs.push(id.to_owned());
        }
    }

    /// The ids of all allocations of this agent, the oldest first.
    pub(crate) fn allocs(&self) -> Vec<String> {
        lock(&self.allocs).clone()
    }

    /// `e2e/` in the checkout.
    pub(crate) fn home(&self) -> &Path {
        &self.tools.home
    }

    /// Runs the `nomad` command line tool against this agent.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn nomad(&self, args: &[&str]) -> Outcome<Output> {
        let mut command = self.command("timeout");
        command.arg("60").arg(&self.tools.nomad).args(args).stdin(Stdio::null());
        command.output().context("nomad")
    }

    /// The `nomad` executable.
    #[must_use]
    pub fn nomad_program(&self) -> &Path {
        &self.tools.nomad
    }

    /// The version of Nomad.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.tools.version
    }

    /// Another process of the same Nomad, with a configuration file of its own.
    pub(crate) fn another(&self, config: PathBuf) -> Nomad {
        Nomad::new(&self.tools.nomad, config)
    }

    /// A program with the environment in which `nomad` uses this agent.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("NOMAD_ADDR", self.client_api.address())
            .env("NOMAD_TOKEN", self.token)
            .env("NOMAD_CLI_NO_COLOR", "1")
            .env("NOMAD_CLI_SHOW_HINTS", "0")
            .env("NOMAD", &self.tools.nomad);
        command
    }

    /// A command of the driver's executable, as an operator types it on this agent's node.
    #[must_use]
    pub fn operator(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.driver());
        command.args(args).env(RUN_DIR, self.path.join("run"));
        command
    }

    /// The server's HTTP API. It works while the client does not run.
    #[must_use]
    pub const fn api(&self) -> &Api {
        &self.api
    }

    /// The agent's directory: `client/` and `server/` with Nomad's data, `state/` and `data/` of the driver,
    /// `plugins/`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stops and purges all jobs, and waits until their tasks have ended.
    ///
    /// # Errors
    /// When a task does not end.
    pub fn purge(&self) -> Outcome {
        for job in self.api.get("/v1/jobs")?.as_array().into_iter().flatten() {
            let id = job["ID"].as_str().unwrap_or_default();
            self.api.delete(&format!("/v1/job/{id}?purge=true"))?;
        }
        let all_over = |allocs: &Value| {
            let mut allocs = allocs.as_array().into_iter().flatten();
            allocs
                .all(|alloc| ["complete", "failed", "lost"].iter().any(|over| alloc["ClientStatus"] == *over))
                .then_some(())
        };
        self.api.wait("/v1/allocations?task_states=false", "all jobs to end", START, all_over)
    }

    /// The leftovers of ended jobs. The allocations' directories stay until garbage collection and do not count.
    #[must_use]
    pub fn leaks(&self) -> Vec<String> {
        let allocs = self.allocs();
        let removes = self.version().has(&NAMESPACE_REMOVAL);
        leaks::settle(|| {
            let mut found = leaks::of_jobs(&self.path, &allocs);
            found.retain(|leak| removes || !leak.starts_with(leaks::NAMESPACE));
            found
        })
    }

    /// The network resources of the tasks: those that [`Agent::leaks`] reports when they exist after the end of the
    /// jobs.
    #[must_use]
    pub fn networks(&self) -> Vec<String> {
        leaks::of_networks(&self.path, &lock(&self.allocs))
    }

    /// Stops everything in order, and returns the leftovers.
    ///
    /// # Errors
    /// When a step fails. The drop guard then cleans up by force.
    pub fn close(self) -> Outcome<Vec<String>> {
        self.purge()?;
        self.collect()?;
        self.stop()?;
        self.server.end(Signal::INT)?;
        let allocs = self.allocs();
        if !self.version().has(&NAMESPACE_REMOVAL) {
            leaks::remove_namespaces(&allocs);
        }
        Ok(leaks::settle(|| leaks::of_agent(&self.path, &allocs)))
    }

    /// [`Agent::diagnose`] shows the log from here on.
    pub fn mark_log(&self) {
        *lock(&self.log_mark) = fs::metadata(self.client.log()).map_or(0, |log| log.len());
    }

    /// Ends everything, in order if possible, otherwise by force. For drop guards and interrupted runs.
    pub fn take_down(&self) {
        if self.server.runs() {
            // Only the client can remove the network of its allocations.
            let back = if self.client.runs() { Ok(()) } else { self.launch() };
            for outcome in [back, self.purge(), self.collect(), self.stop(), self.server.end(Signal::INT)] {
                if let Err(failure) = outcome {
                    report(&failure.0);
                }
            }
        }
        for trouble in leaks::remove_by_force(&self.path, &lock(&self.allocs)) {
            report(&trouble);
        }
        // Nomad and the driver each leave a bridge and a firewall rule. They would disturb the next agent of the run.
        let Subnets { bridge, subnet, own_bridge, own_subnet, own_subnet6, .. } = &self.subnets;
        for (program, chain, subnet, bridge) in [
            ("iptables", "NOMAD-ADMIN", subnet, bridge),
            ("iptables", "OCI-RS-ADMIN", own_subnet, own_bridge),
            ("ip6tables", "OCI-RS-ADMIN", own_subnet6, own_bridge),
        ] {
            quietly(Command::new("ip").args(["link", "delete", bridge]));
            quietly(Command::new(program).args(["-w", "-D", chain, "-d", subnet, "-o", bridge, "-j", "ACCEPT"]));
        }
        // The directory is not removed while something is mounted below it.
        if !leaks::mounts(&self.path).is_empty() {
            report(&format!("{} is not removed: something is mounted there", self.path.display()));
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            report(&format!("{}: {error}", self.path.display()));
        }
    }

    fn collect(&self) -> Outcome {
        // The client unmounts and removes an allocation's directory only at garbage collection.
        self.api.put("/v1/system/gc", &json!({}))?;
        let mounts = leaks::settle(|| leaks::mounts(&self.path));
        if mounts.is_empty() { Ok(()) } else { Err(Failure(format!("still mounted after collection: {mounts:?}"))) }
    }

    /// The lines that the driver logged as errors since [`Agent::mark_log`]. Faults of a job are not among them.
    ///
    /// # Errors
    /// When the client's log cannot be read.
    pub fn driver_errors(&self) -> Outcome<Vec<String>> {
        let text = read_from(self.client.log(), *lock(&self.log_mark)).context("the client's log")?;
        let is_error = |line: &&str| line.contains("[ERROR]") && line.contains("driver_mgr.oci-rs");
        Ok(text.lines().filter(is_error).map(str::to_owned).collect())
    }

    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let text = read_from(self.client.log(), *lock(&self.log_mark)).unwrap_or_default();
        let telling = |line: &&str| {
            ["[WARN]", "[ERROR]", "panic", "==> Error", "driver_mgr.oci-rs"].iter().any(|word| line.contains(word))
        };
        let mut kept: Vec<&str> = text.lines().rev().filter(telling).take(lines).collect();
        kept.reverse();
        kept.iter().map(|line| format!("    {}\n", line.chars().take(600).collect::<String>())).collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.take_down();
        // The directory is removed already, or it stays because something is mounted below it.
        if let Some(directory) = self.directory.take() {
            drop(directory.keep());
        }
    }
}

fn read_from(path: &Path, offset: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn quietly(command: &mut Command) {
    drop(command.stdout(Stdio::null()).stderr(Stdio::null()).status());
}

/// A drop guard cannot return an error, so it prints the error.
#[allow(clippy::print_stderr)]
fn report(trouble: &str) {
    eprintln!("while cleaning up: {trouble}");
}

/// A poisoned lock is usable here: a case that panicked has not left its data half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
