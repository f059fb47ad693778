//! A container that another process has created.

use std::{fs, path::Path};

use libcontainer::{container::Container, error::LibcontainerError, signal::Signal};
use serde_json::{Value, json};

use super::trace;
use crate::error::StartError;

/// The link in the engine's bundle directory to the bundle.
pub(crate) const ORIGIN: &str = "origin";

/// A container that was created before, for conformance tests.
pub struct StoredContainer {
    container: Container,
    errors: trace::Errors,
}

impl StoredContainer {
    /// The container of this id, from the directory of all containers' states. One per process.
    pub fn load(root: &Path, id: &str) -> Result<Self, StartError> {
        let errors = trace::capture().map_err(|error| StartError::internal(error.to_string()))?;
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
        fs::remove_dir_all(&self.container.state.bundle)
            .map_err(|error| StartError::internal(format!("removing the engine's bundle directory: {error}")))
    }

    fn explained(&self, action: &str, outcome: Result<(), LibcontainerError>) -> Result<(), StartError> {
        outcome.map_err(|error| self.errors.explain(action, &error))
    }
}
