//! A container of an OCI bundle, which libcontainer's builder creates and later processes load.

use std::{
    fs,
    io::{self, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use host::durable::private_file;
use libcontainer::{
    container::{Container, builder::ContainerBuilder},
    error::LibcontainerError,
    oci_spec::runtime::Spec,
    signal::Signal,
    syscall::syscall::SyscallType,
};
use serde_json::{Value, json};

use super::{executor::CommandExecutor, trace};
use crate::{command::ConfinedCommand, error::StartError};

/// The link in the engine's bundle directory to the bundle.
pub(crate) const ORIGIN: &str = "origin";

/// The inputs of a container of a bundle.
pub(crate) struct StoredRequest<'a> {
    pub id: &'a str,
    /// The directory of libcontainer's own state.
    pub state: &'a Path,
    /// The directory to which the spec is written.
    pub bundle: &'a Path,
    pub spec: &'a Spec,
    /// Standard input, output and error.
    pub stdio: [OwnedFd; 3],
    /// The socket to which the terminal is sent, if the spec asks for a terminal.
    pub console_socket: Option<PathBuf>,
    /// The last steps of the container's first process.
    pub command: ConfinedCommand,
}

/// A container that was created before, for conformance tests.
pub struct StoredContainer {
    container: Container,
    errors: trace::Errors,
}

impl StoredContainer {
    /// Creates a container. The result is its first process, which waits for [`StoredContainer::start`]. The calling
    /// process must end soon.
    pub(crate) fn create(request: StoredRequest<'_>) -> Result<i32, StartError> {
        let prepare = || -> io::Result<trace::Errors> {
            fs::create_dir_all(request.state)?;
            let spec = serde_json::to_vec(request.spec)?;
            private_file(&request.bundle.join("config.json"))?.write_all(&spec)?;
            trace::capture(false)
        };
        let errors = prepare().map_err(|error| StartError::internal(format!("preparing the engine: {error}")))?;
        let container = build(request).map_err(|error| errors.explain("making the container", &error))?;
        container.pid().map(|pid| pid.as_raw()).ok_or_else(|| StartError::internal("the container has no process"))
    }

    /// The container of this id, from the directory of all containers' states. One per process.
    pub fn load(root: &Path, id: &str) -> Result<Self, StartError> {
        let errors = trace::capture(false).map_err(|error| StartError::internal(error.to_string()))?;
        if id.is_empty() || id.contains('/') || !root.join(id).is_dir() {
            return Err(StartError::invalid(format!("container {id:?} does not exist")));
        }
        match Container::load(root.join(id)) {
            Ok(container) => Ok(Self { container, errors }),
            Err(error) => Err(errors.explain("loading the container", &error)),
        }
    }

    /// Lets the first process execute the command.
    pub fn start(mut self) -> Result<(), StartError> {
        let outcome = self.container.start();
        self.explained("starting the container", outcome)
    }

    /// The state in the form of the OCI runtime specification.
    pub fn state(&self) -> Value {
        let state = &self.container.state;
        let status = serde_json::to_value(state.status).unwrap_or_default();
        let bundle = fs::read_link(state.bundle.join(ORIGIN)).unwrap_or_else(|_| state.bundle.clone());
        let pid = state.pid.filter(|_| status != "stopped").unwrap_or(0);
        json!({
            "ociVersion": state.oci_version, "id": state.id, "status": status, "pid": pid,
            "bundle": bundle, "annotations": state.annotations,
        })
    }

    /// Sends a signal, by its name or number, to the first process.
    pub fn kill(mut self, signal: &str) -> Result<(), StartError> {
        let signal = Signal::try_from(signal).map_err(|error| StartError::invalid(error.to_string()))?;
        let outcome = self.container.kill(signal, false);
        self.explained("killing the container", outcome)
    }

    /// Removes the container. With `force` it may still run.
    pub fn delete(mut self, force: bool) -> Result<(), StartError> {
        let outcome = self.container.delete(force);
        self.explained("deleting the container", outcome)?;
        host::tree::remove(&self.container.state.bundle)
            .map_err(|error| StartError::internal(format!("removing the engine's bundle directory: {error}")))
    }

    fn explained(&self, action: &str, outcome: Result<(), LibcontainerError>) -> Result<(), StartError> {
        outcome.map_err(|error| self.errors.explain(action, &error))
    }
}

fn build(request: StoredRequest<'_>) -> Result<Container, LibcontainerError> {
    let [stdin, stdout, stderr] = request.stdio;
    ContainerBuilder::new(request.id.to_owned(), SyscallType::default())
        .validate_id()?
        .with_root_path(request.state)?
        .with_executor(CommandExecutor::new(request.command))
        .with_console_socket(request.console_socket)
        .with_stdin(stdin)
        .with_stdout(stdout)
        .with_stderr(stderr)
        .as_init(request.bundle)
        .with_systemd(false)
        .with_detach(true)
        .as_sibling(true)
        .build()
}
