//! What the driver calls.

use std::{io, path::{Path, PathBuf}, sync::Arc, time::SystemTime};

use crate::{
    error::{ExecError, RuntimeError, StartError},
    exec_stub::{ExecProcess, ExecRequest},
    plan::{ContainerId, ContainerPlan},
    process::ProcessRef,
    state::ExitRecord,
    Stats,
};

/// Containers of one state folder. Cheap to clone, safe to share between threads.
#[derive(Debug, Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state_dir: PathBuf,
    #[expect(dead_code)]
    data_dir: PathBuf,
}

/// What is known of a container.
#[derive(Debug)]
pub enum Status {
    /// No such container.
    Unknown,
    /// It runs.
    Running(Running),
    /// It has ended.
    Exited(ExitRecord),
    /// It has ended and nobody wrote down how.
    Lost,
}

/// A running container.
#[derive(Debug)]
pub struct Running {
    /// The monitor, or, when it was killed, the container's first process once more.
    pub monitor: ProcessRef,
    /// The container's first process.
    pub init: ProcessRef,
    /// When the command was started.
    pub started_at: SystemTime,
}

impl Running {
    /// Sends a signal to the container's first process; fine when that has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.init.signal(signal)
    }
}

impl Runtime {
    /// Opens the folders, making them when they are missing.
    pub fn open(state_dir: &Path, data_dir: &Path) -> Result<Self, RuntimeError> {
        Ok(Self { inner: Arc::new(Inner { state_dir: state_dir.to_owned(), data_dir: data_dir.to_owned() }) })
    }

    /// Makes and starts a container.
    pub fn start(&self, _plan: &ContainerPlan) -> Result<Running, StartError> {
        Err(StartError::internal(format!("not yet: {}", self.inner.state_dir.display())))
    }

    /// What the state folder says of a container.
    pub fn status(&self, _id: &ContainerId) -> Result<Status, RuntimeError> {
        Ok(Status::Unknown)
    }

    /// All containers of the state folder.
    pub fn list(&self) -> Result<Vec<ContainerId>, RuntimeError> {
        Ok(Vec::new())
    }

    /// Kills and removes whatever is left of a container. Unknown is fine.
    pub fn destroy(&self, _id: &ContainerId) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Kills everything in the container, removes nothing.
    pub fn kill_all(&self, _id: &ContainerId) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Reads the container's use of resources.
    pub fn stats(&self, id: &ContainerId) -> Result<Stats, RuntimeError> {
        Err(RuntimeError::NotRunning(id.clone()))
    }

    /// Runs a command in the running container.
    pub fn exec(&self, id: &ContainerId, _request: ExecRequest) -> Result<ExecProcess, ExecError> {
        Err(ExecError::NotRunning(id.clone()))
    }
}
