//! A second Nomad client at the server of an agent, for cases that move allocations between nodes.

use std::{fs, path::PathBuf, time::Duration};

use rustix::process::Signal;
use serde_json::json;

use crate::{Agent, Outcome, leaks, nomad::Nomad, ports::free_port};

const START: Duration = Duration::from_secs(60);

/// A client with the node name "second". Its directories are inside the agent's directory.
#[derive(Debug)]
pub struct SecondClient<'a> {
    agent: &'a Agent,
    client: Nomad,
}

impl<'a> SecondClient<'a> {
    /// Starts the client with the configuration of the agent's client, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not register, or when its driver is not healthy.
    pub fn start(agent: &'a Agent) -> Outcome<Self> {
        let text = fs::read_to_string(agent.path().join("client.hcl"))?;
        let directory = agent.path().display().to_string();
        let mut config = text.replace("name       = \"client\"", "name       = \"second\"");
        for inside in ["client", "state", "data"] {
            config = config.replace(&format!("\"{directory}/{inside}\""), &format!("\"{directory}/second/{inside}\""));
        }
        let ports = config.lines().filter(|line| {
            ["  http = ", "  rpc  = ", "  serf = "].iter().any(|name| line.starts_with(name)) && !line.contains('"')
        });
        let ports: Vec<String> = ports.map(str::to_owned).collect();
        for line in ports {
            let (name, _) = line.split_once('=').unwrap_or_default();
            config = config.replace(&line, &format!("{name}= {}", free_port()?));
        }
        let file = agent.path().join("second.hcl");
        fs::write(&file, config)?;
        let second = Self { agent, client: agent.another(file) };
        second.client.start()?;
        second.agent.api().wait("/v1/nodes?resources=false", "the second node", START, |nodes| {
            let second = nodes.as_array()?.iter().find(|node| node["Name"] == "second")?;
            (second["Status"] == "ready" && second["Drivers"]["oci-rs"]["Healthy"] == true).then_some(())
        })?;
        Ok(second)
    }

    /// The directory with its allocations.
    #[must_use]
    pub fn allocations(&self) -> PathBuf {
        self.agent.path().join("second/client/alloc")
    }

    /// Stops the client after its jobs have ended. It must not leave a mount.
    ///
    /// # Errors
    /// When it does not end, or with the mounts.
    pub fn close(self) -> Outcome {
        self.agent.api().put("/v1/system/gc", &json!({}))?;
        let mounts = leaks::settle(|| leaks::mounts(&self.agent.path().join("second")));
        assert!(mounts.is_empty(), "still mounted after collection: {mounts:?}");
        self.client.end(Signal::INT)
    }
}

impl Drop for SecondClient<'_> {
    fn drop(&mut self) {
        // Only after a failure. The agent's own cleaning unmounts and removes the directory.
        if self.client.runs() {
            drop(self.client.end(Signal::KILL));
        }
    }
}
