//! libcontainer. No other module uses it.
//!
//! Building a container runs ordinary Rust code in forked processes and changes the state of the calling process
//! (working directory, dumpable flag). So the caller must be a process that ends right afterwards: the monitor's
//! creator. The container's first process becomes the monitor's child (`as_sibling`). The last steps before the command
//! are ours ([`ConfinedCommand`]): libcontainer does not make all of them, or not in the right order.

mod executor;
#[cfg(feature = "bundle")]
mod stored;
mod trace;

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
    syscall::syscall::SyscallType,
};

#[cfg(feature = "bundle")]
pub(crate) use stored::ORIGIN;
#[cfg(feature = "bundle")]
pub use stored::StoredContainer;

use crate::{command::ConfinedCommand, error::StartError, plan::ContainerId};
use executor::CommandExecutor;

/// The inputs of a container.
pub(crate) struct BuildRequest<'a> {
    pub id: &'a ContainerId,
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

/// A built container. Its first process waits for [`BuiltContainer::start`].
pub(crate) struct BuiltContainer {
    container: Container,
    errors: trace::Errors,
}

/// Builds a container. The calling process must end soon.
pub(crate) fn build(request: BuildRequest<'_>) -> Result<BuiltContainer, StartError> {
    let prepare = || -> io::Result<trace::Errors> {
        fs::create_dir_all(request.bundle)?;
        fs::create_dir_all(request.state)?;
        let spec = serde_json::to_vec(request.spec)?;
        private_file(&request.bundle.join("config.json"))?.write_all(&spec)?;
        trace::capture()
    };
    let errors = prepare().map_err(|error| StartError::internal(format!("preparing the engine: {error}")))?;
    match create(request) {
        Ok(container) => Ok(BuiltContainer { container, errors }),
        Err(error) => Err(errors.explain("making the container", &error)),
    }
}

fn create(request: BuildRequest<'_>) -> Result<Container, LibcontainerError> {
    let [stdin, stdout, stderr] = request.stdio;
    ContainerBuilder::new(request.id.to_string(), SyscallType::default())
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

impl BuiltContainer {
    /// The container's first process.
    pub fn pid(&self) -> Result<i32, StartError> {
        self.container.pid().map(|pid| pid.as_raw()).ok_or_else(|| StartError::internal("the container has no process"))
    }

    /// Lets the first process execute the command. A failure of that is written to [`ConfinedCommand::report`].
    pub fn start(&mut self) -> Result<(), StartError> {
        self.container.start().map_err(|error| self.errors.explain("starting the container", &error))
    }
}
