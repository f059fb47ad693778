//! A Nomad agent of our own, server and client in one, that can be stopped, killed and started again with its state.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom},
    net::Ipv4Addr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Alloc, Context, Failure, Job, Outcome, Tools, api::Api, leaks, process, registry::free_port,
};

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(30);

/// The agent: its process, its folder and its network.
#[derive(Debug)]
pub struct Agent {
    tools: Tools,
    folder: Option<TempDir>,
    path: PathBuf,
    api: Api,
    bridge: String,
    subnet: String,
    child: Mutex<Option<Child>>,
    allocs: Mutex<Vec<String>>,
    jobs: AtomicUsize,
    log_mark: Mutex<u64>,
}

impl Agent {
    /// Starts an agent with the driver in its plugin folder and waits until both are ready.
    ///
    /// # Errors
    /// With the end of the agent's log.
    pub fn start(tools: &Tools) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("oci-rs-e2e.").tempdir()?;
        let path = folder.path().to_owned();
        let http = free_port()?;
        let number = free_subnet();
        let agent = Self {
            tools: tools.clone(),
            api: Api::new(http),
            bridge: format!("oci-rs-{number}"),
            subnet: format!("172.27.{number}.0/24"),
            folder: Some(folder),
            path,
            child: Mutex::default(),
            allocs: Mutex::default(),
            jobs: AtomicUsize::new(0),
            log_mark: Mutex::default(),
        };
        fs::create_dir(agent.path.join("plugins"))?;
        fs::copy(&tools.driver, agent.driver())?;
        agent.configure(http)?;
        agent.launch()?;
        Ok(agent)
    }

    /// Starts the process, with whatever state there is, and waits until the node is ready.
    ///
    /// # Errors
    /// With the end of the agent's log.
    pub fn launch(&self) -> Outcome {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())?;
        let mut command = Command::new(&self.tools.nomad);
        command
            .args(["agent", "-config"])
            .arg(self.path.join("agent.hcl"))
            .stdin(Stdio::null());
        // Its own group, so that Ctrl-C reaches only us, and we stop its jobs first.
        command
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        *lock(&self.child) = Some(command.spawn().context("nomad agent")?);
        let deadline = Instant::now() + START;
        loop {
            let slice = Duration::from_secs(2);
            let ready = self
                .api
                .wait("/v1/nodes?resources=false", "the node", slice, |nodes| {
                    node_ready(nodes).then_some(())
                });
            let Err(failure) = ready else { return Ok(()) };
            let ended = lock(&self.child)
                .as_mut()
                .map_or(Ok(None), Child::try_wait)?;
            if ended.is_some() || Instant::now() > deadline {
                return Err(Failure(format!(
                    "agent not ready ({ended:?}): {}\n{}",
                    failure.0,
                    self.log_tail(60)
                )));
            }
        }
    }

    /// Stops the agent as an operator does; its tasks go on.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&self) -> Outcome {
        self.end(Signal::INT)
    }

    /// Kills the agent with SIGKILL; plugin and tasks go on.
    ///
    /// # Errors
    /// When it does not end.
    pub fn kill(&self) -> Outcome {
        self.end(Signal::KILL)
    }

    /// The pid of the plugin instance that serves the agent.
    ///
    /// # Errors
    /// When there is none, or no single one after the short-lived ones have had time to end.
    pub fn plugin_pid(&self) -> Outcome<i32> {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let found = process::running(&self.driver());
            if let [plugin] = found.as_slice() {
                return Ok(plugin.pid);
            }
            if Instant::now() > deadline {
                return Err(Failure(format!(
                    "expected one plugin process, found {found:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The driver's file in the plugin folder.
    #[must_use]
    pub fn driver(&self) -> PathBuf {
        self.path.join("plugins/oci-rs")
    }

    /// Runs a job and waits until it is placed.
    ///
    /// # Errors
    /// When Nomad refuses or cannot place it.
    pub fn run(&self, job: &Job) -> Outcome<Alloc<'_>> {
        let id = format!("job-{}", self.jobs.fetch_add(1, Ordering::Relaxed));
        let evaluation = job.register(&self.api, &self.tools.home, &id)?;
        let path = format!("/v1/evaluation/{evaluation}");
        let unplaced = self
            .api
            .wait(&path, "the evaluation", START, |evaluation| {
                (evaluation["Status"] == "complete").then(|| evaluation["FailedTGAllocs"].clone())
            })?;
        if !unplaced.is_null() {
            return Err(Failure(format!("the job cannot be placed: {unplaced}")));
        }
        let path = format!("/v1/job/{id}/allocations");
        let alloc = self.api.wait(&path, "an allocation", START, |allocs| {
            Some(allocs[0]["ID"].as_str()?.to_owned())
        })?;
        lock(&self.allocs).push(alloc.clone());
        Ok(Alloc::new(self, alloc, id))
    }

    /// Runs the `nomad` command line tool against this agent.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn nomad(&self, args: &[&str]) -> Outcome<Output> {
        let mut command = self.command("timeout");
        command
            .arg("60")
            .arg(&self.tools.nomad)
            .args(args)
            .stdin(Stdio::null());
        command.output().context("nomad")
    }

    /// A program with the environment that makes `nomad` talk to this agent.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("NOMAD_ADDR", self.api.address())
            .env("NOMAD_CLI_NO_COLOR", "1")
            .env("NOMAD", &self.tools.nomad);
        command
    }

    /// Its HTTP API.
    #[must_use]
    pub const fn api(&self) -> &Api {
        &self.api
    }

    /// Its folder: `nomad/`, `state/`, `data/`, `plugins/`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stops and forgets all jobs and waits until their tasks have ended.
    ///
    /// # Errors
    /// When one does not.
    pub fn purge(&self) -> Outcome {
        for job in self.api.get("/v1/jobs")?.as_array().into_iter().flatten() {
            let id = job["ID"].as_str().unwrap_or_default();
            self.api.delete(&format!("/v1/job/{id}?purge=true"))?;
        }
        let all_over = |allocs: &Value| {
            let mut allocs = allocs.as_array().into_iter().flatten();
            allocs
                .all(|alloc| {
                    ["complete", "failed", "lost"]
                        .iter()
                        .any(|over| alloc["ClientStatus"] == *over)
                })
                .then_some(())
        };
        self.api.wait(
            "/v1/allocations?task_states=false",
            "all jobs to end",
            START,
            all_over,
        )
    }

    /// What is left of jobs that are over. Their allocations' folders stay until collection, and are not looked at.
    #[must_use]
    pub fn leaks(&self) -> Vec<String> {
        let allocs = lock(&self.allocs).clone();
        leaks::settle(|| leaks::of_jobs(&self.path, &allocs))
    }

    /// Takes everything down in order; what is left afterwards comes back.
    ///
    /// # Errors
    /// When a step of it fails; the drop guard then cleans up by force.
    pub fn close(self) -> Outcome<Vec<String>> {
        self.purge()?;
        self.collect()?;
        self.stop()?;
        let allocs = lock(&self.allocs).clone();
        Ok(leaks::settle(|| leaks::of_agent(&self.path, &allocs)))
    }

    /// What a person needs to understand a failure: the allocations' events and output and the agent's log since the last call
    /// of [`Agent::mark_log`].
    #[must_use]
    pub fn diagnose(&self) -> String {
        let mut text = String::new();
        for id in lock(&self.allocs).iter().rev().take(3) {
            let alloc = Alloc::new(self, id.clone(), String::new());
            // Those of earlier cases are collected by now.
            let Ok(events) = alloc.events() else { continue };
            text.push_str(&format!(
                "--- allocation {id}\n    {}\n",
                events.join("\n    ")
            ));
            for stream in ["stdout", "stderr"] {
                let log = alloc.log(stream).unwrap_or_default();
                let log =
                    String::from_utf8_lossy(&log[log.len().saturating_sub(1000)..]).into_owned();
                text.push_str(&format!("    {stream}: {log:?}\n"));
            }
        }
        text + "--- the agent's log (driver's lines, warnings and errors)\n" + &self.log_tail(40)
    }

    /// [`Agent::diagnose`] is to show the log from here on.
    pub fn mark_log(&self) {
        *lock(&self.log_mark) = fs::metadata(self.log()).map_or(0, |log| log.len());
    }

    /// Ends everything, in order where that is possible, else by force. For drop guards and interrupted runs.
    pub fn take_down(&self) {
        if lock(&self.child).is_some() {
            for step in [Self::purge, Self::collect, Self::stop] {
                if let Err(failure) = step(self) {
                    report(&failure.0);
                }
            }
        }
        for trouble in leaks::remove_by_force(&self.path, &lock(&self.allocs)) {
            report(&trouble);
        }
        // Nomad leaves its bridge and its firewall rule; nothing else on the machine uses these names.
        quietly(Command::new("ip").args(["link", "delete", &self.bridge]));
        let rule = [
            "-w",
            "-D",
            "NOMAD-ADMIN",
            "-d",
            &self.subnet,
            "-o",
            &self.bridge,
            "-j",
            "ACCEPT",
        ];
        quietly(Command::new("iptables").args(rule));
        // Never delete through a mount.
        if !leaks::mounts(&self.path).is_empty() {
            report(&format!(
                "{} is not removed: something is mounted there",
                self.path.display()
            ));
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            report(&format!("{}: {error}", self.path.display()));
        }
    }

    fn collect(&self) -> Outcome {
        // Only collection makes the client unmount and remove an allocation's folder.
        self.api.put("/v1/system/gc", &json!({}))?;
        let mounts = leaks::settle(|| leaks::mounts(&self.path));
        if mounts.is_empty() {
            Ok(())
        } else {
            Err(Failure(format!(
                "still mounted after collection: {mounts:?}"
            )))
        }
    }

    fn end(&self, signal: Signal) -> Outcome {
        let Some(mut child) = lock(&self.child).take() else {
            return Ok(());
        };
        let pid = child.id().cast_signed();
        process::signal(pid, signal);
        let gone = process::wait_gone(pid, STOP)?;
        if !gone {
            child.kill()?;
        }
        child.wait()?;
        if gone {
            Ok(())
        } else {
            Err(Failure(format!(
                "the agent did not end within {STOP:?} after {signal:?}"
            )))
        }
    }

    fn configure(&self, http: u16) -> Outcome {
        let low = 20_000 + (http % 100) * 100;
        let values = [
            ("NAME", "e2e".to_owned()),
            ("DIR", self.path.display().to_string()),
            ("LOG_LEVEL", "DEBUG".to_owned()),
            ("RAW_EXEC", "true".to_owned()),
            ("CNI_PATH", self.tools.cni.display().to_string()),
            ("HTTP_PORT", http.to_string()),
            ("RPC_PORT", free_port()?.to_string()),
            ("SERF_PORT", free_port()?.to_string()),
            ("MIN_PORT", low.to_string()),
            ("MAX_PORT", (low + 99).to_string()),
            ("BRIDGE", self.bridge.clone()),
            ("SUBNET", self.subnet.clone()),
        ];
        let mut text = fs::read_to_string(self.tools.home.join("agent.hcl.in"))?;
        for (name, value) in values {
            text = text.replace(&format!("@{name}@"), &value);
        }
        Ok(fs::write(self.path.join("agent.hcl"), text)?)
    }

    fn log(&self) -> PathBuf {
        self.path.join("agent.log")
    }

    fn log_tail(&self, lines: usize) -> String {
        let text = read_from(&self.log(), *lock(&self.log_mark)).unwrap_or_default();
        let telling = |line: &&str| {
            [
                "[WARN]",
                "[ERROR]",
                "panic",
                "==> Error",
                "driver_mgr.oci-rs",
            ]
            .iter()
            .any(|word| line.contains(word))
        };
        let mut kept: Vec<&str> = text.lines().rev().filter(telling).take(lines).collect();
        kept.reverse();
        kept.iter()
            .map(|line| format!("    {}\n", line.chars().take(600).collect::<String>()))
            .collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.take_down();
        // Removed by now, or kept on purpose.
        if let Some(folder) = self.folder.take() {
            drop(folder.keep());
        }
    }
}

fn node_ready(nodes: &Value) -> bool {
    nodes[0]["Status"] == "ready" && nodes[0]["Drivers"]["oci-rs"]["Healthy"] == true
}

/// N of a 172.27.N.0/24 that no interface has.
fn free_subnet() -> u8 {
    let taken = Command::new("ip")
        .args(["-brief", "address"])
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    let taken = String::from_utf8_lossy(&taken).into_owned();
    let first = std::process::id() as u8;
    let free = |number: &u8| !taken.contains(&format!(" {}/", Ipv4Addr::new(172, 27, *number, 1)));
    (0..=u8::MAX)
        .map(|offset| first.wrapping_add(offset))
        .find(free)
        .unwrap_or(first)
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

/// A drop guard has nobody to give an error to.
#[allow(clippy::print_stderr)]
fn report(trouble: &str) {
    eprintln!("while cleaning up: {trouble}");
}

/// A case that panicked has not broken what the lock guards.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
