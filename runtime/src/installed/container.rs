//! One container of an installed runtime.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use host::hash::fnv1a;
use rustix::process::getpid;
use serde::Deserialize;

use super::{
    answers::{failure_kind, parse_state},
    command_line::{Caller, RuntimeCommand},
    dialect::Dialect,
    execute::{self, Outcome, Streams},
};
use crate::{
    cgroup::{Version, version},
    error::{Context, RuntimeError, StartError},
    plan::{ContainerPlan, InstalledRuntime, Namespaces, Network},
    state::{PLAN, TaskDir, private_dir},
    sys,
};

/// A command of a runtime may take this long when a container is made.
const CREATION: Duration = Duration::from_secs(60);
/// A command about a container that exists may take this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The part of a plan that names the runtime.
#[derive(Deserialize)]
struct InstalledPlan {
    #[serde(default)]
    runtime: Option<InstalledRuntime>,
    namespaces: Namespaces,
}

/// A container that an installed runtime makes or has made.
#[derive(Debug)]
pub(crate) struct InstalledContainer {
    runtime: InstalledRuntime,
    network: Network,
    version: Version,
    /// The directory of everything that belongs to the runtime.
    directory: PathBuf,
    bundle: PathBuf,
    /// The container's name for the runtime. Some runtimes use it in names that all containers of the node share, and
    /// that are short.
    id: String,
}

impl InstalledContainer {
    /// The container of a plan, before it is created. Makes the directory.
    pub fn prepare(task: &TaskDir, plan: &ContainerPlan, runtime: &InstalledRuntime) -> Result<Self, RuntimeError> {
        let container = Self::new(task, runtime.clone(), plan.namespaces.network.clone())?;
        private_dir(&container.directory).context(|| format!("making {}", container.directory.display()))?;
        Ok(container)
    }

    /// The container of a task. `None` if the task has another one, or if its runtime was never called.
    pub fn find(task: &TaskDir) -> Result<Option<Self>, RuntimeError> {
        if !task.installed().exists() {
            return Ok(None);
        }
        let plan = task.read::<InstalledPlan>(PLAN)?;
        let runtime = plan.and_then(|plan| Some((plan.runtime?, plan.namespaces.network)));
        runtime.map(|(runtime, network)| Self::new(task, runtime, network)).transpose()
    }

    fn new(task: &TaskDir, runtime: InstalledRuntime, network: Network) -> Result<Self, RuntimeError> {
        let id = format!("oci-rs-{:016x}", fnv1a(task.path().as_os_str().as_encoded_bytes()));
        let version = version().context(|| "looking at the control groups".to_owned())?;
        Ok(Self { runtime, network, version, directory: task.installed(), bundle: task.bundle(), id })
    }

    pub fn dialect(&self) -> Dialect {
        Dialect::of(&self.runtime)
    }

    /// The cgroup version of this node.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The runtime's name in jobs.
    pub fn runtime(&self) -> &str {
        &self.runtime.name
    }

    /// The directory of the bundle.
    pub fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// Creates the container from its bundle; the pid of its first process, which waits for [`Self::start`]. The
    /// process is a child of the nearest subreaper.
    pub fn create(&self, stdio: [OwnedFd; 3], console: Option<&Path>) -> Result<i32, StartError> {
        let pid_file = self.directory.join("pid");
        // A runtime whose container has a terminal keeps its own streams open.
        let streams = if console.is_some() { Streams::None } else { Streams::Container(stdio) };
        self.make(RuntimeCommand::Create { bundle: &self.bundle, pid_file: &pid_file, console }, streams)?;
        Ok(read_pid(&pid_file).context(|| format!("reading {}", pid_file.display()))?)
    }

    /// Executes the command.
    pub fn start(&self) -> Result<(), StartError> {
        self.make(RuntimeCommand::Start, Streams::None)
    }

    fn make(&self, command: RuntimeCommand<'_>, streams: Streams) -> Result<(), StartError> {
        match self.call(command, streams, CREATION)? {
            Outcome::Done(_) => Ok(()),
            Outcome::Failed(reason) => {
                let text = format!("runtime {:?}: {}: {reason}", self.runtime.name, command.name());
                Err(StartError::new(failure_kind(&reason), text))
            }
        }
    }

    /// Whether the runtime says that the container has ended.
    pub fn is_stopped(&self) -> bool {
        let answer = self.call(RuntimeCommand::State, Streams::Answer, PATIENCE);
        let Ok(Outcome::Done(answer)) = answer else { return false };
        parse_state(&answer).is_some_and(|state| state.status == "stopped")
    }

    /// Sends a signal to the container's first process. It is no error if that has ended.
    pub fn kill(&self, signal: i32) -> Result<(), RuntimeError> {
        match self.call(RuntimeCommand::Kill(signal), Streams::None, PATIENCE)? {
            Outcome::Failed(reason) if !self.is_stopped() => Err(self.failed("kill", &reason)),
            _ => Ok(()),
        }
    }

    /// Sends a signal to a process of a sandbox.
    pub fn kill_in_sandbox(&self, pid: i32, signal: i32) -> Result<(), RuntimeError> {
        match self.call(RuntimeCommand::KillInSandbox { pid, signal }, Streams::None, PATIENCE)? {
            Outcome::Failed(reason) => Err(self.failed("kill", &reason)),
            Outcome::Done(_) => Ok(()),
        }
    }

    /// Lets the runtime remove what it made.
    pub fn delete(&self) -> Result<(), RuntimeError> {
        match self.call(RuntimeCommand::Delete, Streams::None, PATIENCE)? {
            Outcome::Failed(reason) => Err(self.failed("delete", &reason)),
            Outcome::Done(_) => Ok(()),
        }
    }

    /// The command of the runtime that makes a process in the container and ends. The process is then a child of the
    /// nearest subreaper.
    pub fn exec_command(&self, files: &ExecFiles, console: Option<&Path>) -> Command {
        let args = self.caller().args(
            RuntimeCommand::Exec {
                process: &files.process(),
                pid_file: &files.pid_file(),
                sandbox_pid_file: &files.sandbox_pid_file(),
                console,
            },
            &files.log(),
        );
        execute::command(&self.runtime.path, &args)
    }

    fn call(&self, command: RuntimeCommand<'_>, streams: Streams, limit: Duration) -> Result<Outcome, RuntimeError> {
        let log = self.directory.join(format!("{}.log", command.name()));
        let args = self.caller().args(command, &log);
        let mut program = execute::command(&self.runtime.path, &args);
        // On version 2 the runtime is in no cgroup of the task, where the removal of the container would find it.
        if matches!(command, RuntimeCommand::Create { .. } | RuntimeCommand::Start) {
            sys::end_with_parent(&mut program);
        }
        let called = execute::run(program, streams, &log, limit);
        called.context(|| format!("executing the runtime {:?}, {}", self.runtime.name, self.runtime.path.display()))
    }

    fn caller(&self) -> Caller<'_> {
        let Self { runtime, network, version, directory, id, .. } = self;
        Caller { runtime, version: *version, network, directory, id }
    }

    fn failed(&self, action: &str, reason: &str) -> RuntimeError {
        RuntimeError::Installed(format!("runtime {:?}: {action}: {reason}", self.runtime.name))
    }
}

/// The files of one command in a container. They are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct ExecFiles(PathBuf);

impl ExecFiles {
    /// Makes a directory for the command of this process.
    pub fn make(container: &InstalledContainer) -> io::Result<Self> {
        let path = container.directory.join(format!("exec-{}", getpid().as_raw_nonzero()));
        // A helper of the same pid may have been killed.
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => private_dir(&path)?,
        }
        Ok(Self(path))
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// The description of the process.
    pub fn process(&self) -> PathBuf {
        self.0.join("process.json")
    }

    fn pid_file(&self) -> PathBuf {
        self.0.join("pid")
    }

    fn sandbox_pid_file(&self) -> PathBuf {
        self.0.join("sandbox-pid")
    }

    fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The pid of the process.
    pub fn pid(&self) -> io::Result<i32> {
        read_pid(&self.pid_file())
    }

    /// The pid of the process in the sandbox.
    pub fn sandbox_pid(&self) -> io::Result<i32> {
        read_pid(&self.sandbox_pid_file())
    }

    /// The runtime's error.
    pub fn error(&self) -> String {
        execute::error_of(&self.log(), "no reason was given")
    }
}

impl Drop for ExecFiles {
    fn drop(&mut self) {
        // The directory is removed with the container at the latest.
        drop(fs::remove_dir_all(&self.0));
    }
}

fn read_pid(path: &Path) -> io::Result<i32> {
    let pid = fs::read_to_string(path)?.trim().parse::<i32>().ok().filter(|pid| *pid > 0);
    pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no pid"))
}
