//! A real Consul agent on free loopback ports.

use std::{
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{Context, Failure, Outcome, Tools, api::Api, ports::free_port};

const START: Duration = Duration::from_secs(60);

/// The agent's process. It stores nothing on disk.
#[derive(Debug)]
pub struct Consul {
    directory: TempDir,
    api: Api,
    grpc: u16,
    child: Mutex<Option<Child>>,
}

impl Consul {
    /// Starts an agent in development mode, and waits until it is the leader.
    ///
    /// # Errors
    /// With the end of its log.
    pub fn start(tools: &Tools) -> Outcome<Self> {
        if let Some(missing) = tools.missing_for_consul() {
            return Err(Failure(missing));
        }
        let directory = tempfile::Builder::new().prefix("oci-rs-e2e-consul.").tempdir()?;
        let (http, grpc) = (free_port()?, free_port()?);
        let log = std::fs::File::create(directory.path().join("consul.log"))?;
        let mut command = Command::new(&tools.consul);
        command.args(["agent", "-dev", "-node=e2e", "-bind=127.0.0.1", "-client=127.0.0.1", "-log-level=warn"]);
        command.args(["-dns-port=-1", "-grpc-tls-port=-1", "-serf-wan-port=-1"]);
        command.arg(format!("-http-port={http}")).arg(format!("-grpc-port={grpc}"));
        for option in ["server-port", "serf-lan-port"] {
            command.arg(format!("-{option}={}", free_port()?));
        }
        // It must not contact the update service.
        command.args(["-hcl", "disable_update_check = true"]);
        // Without this, a check's new output is visible only after five minutes if its status stays the same.
        command.args(["-hcl", "check_update_interval = \"0s\""]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().context("consul agent")?;
        let consul = Self { directory, api: Api::new(http), grpc, child: Mutex::new(Some(child)) };
        let leads = |services: &Value| services["consul"].is_array().then_some(());
        consul.api.wait("/v1/catalog/services", "Consul", START, leads).map_err(|Failure(text)| {
            let log = std::fs::read_to_string(consul.directory.path().join("consul.log")).unwrap_or_default();
            Failure(format!("{text}\n{log}"))
        })?;
        Ok(consul)
    }

    /// The `host:port` of its gRPC API, for the proxies of the service mesh.
    #[must_use]
    pub fn grpc(&self) -> String {
        format!("127.0.0.1:{}", self.grpc)
    }

    /// The HTTP API.
    #[must_use]
    pub const fn api(&self) -> &Api {
        &self.api
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn put(&self, key: &str, value: &str) -> Outcome {
        self.api.put_text(&format!("/v1/kv/{key}"), value).map(drop)
    }

    /// Waits until a service's check has this status and its output contains this text. Returns the output.
    ///
    /// # Errors
    /// After the time limit, with the last state of the check.
    pub fn wait_check(&self, service: &str, name: &str, status: &str, output: &str) -> Outcome<String> {
        let path = format!("/v1/health/checks/{service}");
        let what = format!("check {name:?} to be {status} with {output:?}");
        self.api.wait(&path, &what, START, |checks| {
            let check = checks.as_array()?.iter().find(|check| check["Name"] == name)?;
            let said = check["Output"].as_str().unwrap_or_default();
            (check["Status"] == status && said.contains(output)).then(|| said.to_owned())
        })
    }

    /// Ends the process.
    pub fn take_down(&self) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut child) = child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        self.take_down();
    }
}
