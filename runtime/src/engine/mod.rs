//! libcontainer, and nothing of it anywhere else.
//!
//! Building a container runs ordinary Rust in forked processes and changes the state of its caller (working directory,
//! dumpable flag), so it is done by a process that ends right afterwards: the monitor's creator. The container's first
//! process becomes the monitor's child (`as_sibling`). What libcontainer does not do, or not in the right order, our
//! executor does as the last thing before the command (`launch`).

mod executor;
mod init;
mod launch;
mod trace;

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use libcontainer::{
    container::{Container, builder::ContainerBuilder},
    error::LibcontainerError,
    oci_spec::runtime::Spec,
    syscall::syscall::SyscallType,
};

pub(crate) use launch::{Launch, rlimit_resource};
/// The spec's types, in the one version that the library takes.
pub(crate) use libcontainer::oci_spec;

use crate::{error::StartError, plan::ContainerId};
use executor::LaunchExecutor;

/// What a container is built from.
pub(crate) struct Parts<'a> {
    pub id: &'a ContainerId,
    /// Directory of libcontainer's own state.
    pub state: &'a Path,
    /// Directory that the spec is written to.
    pub bundle: &'a Path,
    pub spec: &'a Spec,
    /// Standard input, output and error; a terminal's socket instead when the spec asks for a terminal.
    pub stdio: [OwnedFd; 3],
    pub console_socket: Option<PathBuf>,
    pub launch: Launch,
}

/// A container whose first process waits for [`Built::start`].
pub(crate) struct Built {
    container: Container,
    errors: trace::Errors,
}

/// Builds a container. To be called in a process that ends soon.
pub(crate) fn build(parts: Parts<'_>) -> Result<Built, StartError> {
    let prepare = || -> io::Result<trace::Errors> {
        fs::create_dir_all(parts.bundle)?;
        fs::create_dir_all(parts.state)?;
        let spec = serde_json::to_vec(parts.spec)?;
        io::Write::write_all(&mut crate::state::private_file(&parts.bundle.join("config.json"))?, &spec)?;
        trace::capture()
    };
    let errors = prepare().map_err(|error| StartError::internal(format!("preparing the engine: {error}")))?;
    match create(parts) {
        Ok(container) => Ok(Built { container, errors }),
        Err(error) => Err(errors.explain("making the container", &error)),
    }
}

fn create(parts: Parts<'_>) -> Result<Container, LibcontainerError> {
    let [stdin, stdout, stderr] = parts.stdio;
    ContainerBuilder::new(parts.id.to_string(), SyscallType::default())
        .validate_id()?
        .with_root_path(parts.state)?
        .with_executor(LaunchExecutor::new(parts.launch))
        .with_console_socket(parts.console_socket)
        .with_stdin(stdin)
        .with_stdout(stdout)
        .with_stderr(stderr)
        .as_init(parts.bundle)
        .with_systemd(false)
        .with_detach(true)
        .as_sibling(true)
        .build()
}

impl Built {
    /// The container's first process.
    pub fn pid(&self) -> Result<i32, StartError> {
        self.container.pid().map(|pid| pid.as_raw()).ok_or_else(|| StartError::internal("the container has no process"))
    }

    /// Lets the first process go on to the command. Whether that could be executed is told on the launch's report pipe.
    pub fn start(&mut self) -> Result<(), StartError> {
        self.container.start().map_err(|error| self.errors.explain("starting the container", &error))
    }
}
