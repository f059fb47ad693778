//! The node of a run: dockerd, a registry with the images, and a Nomad agent with both drivers.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
    time::Duration,
};

use e2e::{Agent, Outcome, Tools, network::Namespace};
use serde_json::{Value, json};

use crate::{dockerd::Dockerd, images::Images, log_servers::LogServers};

/// The client's configuration beside that of the end-to-end tests.
const CLIENT: &str = include_str!("../client.hcl.in");

/// The addresses of containers on the default bridges of both drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4, as both drivers are by default.
    Four,
    /// IPv4 and IPv6.
    Both,
}

/// dockerd's configuration with IPv6 on its default bridge. Later versions translate IPv6 addresses by default.
const DAEMON_IPV6: &str =
    r#"{"ipv6": true, "fixed-cidr-v6": "fd29:0:0:1::/64", "experimental": true, "ip6tables": true}"#;

/// All parts, in the order in which they end.
pub struct Node {
    /// The agent.
    pub agent: Agent,
    /// dockerd.
    pub dockerd: Dockerd,
    /// The registry.
    pub images: Images,
    /// The log servers.
    pub log_servers: LogServers,
    /// The network namespace of a client outside of the node.
    pub outside: Namespace,
}

impl Node {
    /// Starts all parts in the network namespace of the calling thread.
    ///
    /// # Errors
    /// When a part does not start, with its log.
    pub fn start(tools: &Tools, docker: &std::path::Path, outside: Namespace, addresses: Addresses) -> Outcome<Self> {
        let (daemon, subnet_ipv6) = match addresses {
            Addresses::Four => ("{}", ""),
            Addresses::Both => (DAEMON_IPV6, "subnet_ipv6 = \"@OWN_SUBNET6@\""),
        };
        let dockerd = Dockerd::start(docker, daemon)?;
        let images = Images::start()?;
        let log_servers = LogServers::start()?;
        let scratch = dockerd.path().join("scratch");
        for (name, owner, mode) in [
            ("shared", 0, 0o755),
            ("readable", 0, 0o755),
            ("of-app", 1000, 0o700),
            ("empty", 0, 0o755),
            ("bare", 0, 0o755),
        ] {
            fs::create_dir_all(scratch.join(name))?;
            if !matches!(name, "empty" | "bare") {
                fs::write(scratch.join(name).join("file"), format!("{name} of the host\n"))?;
            }
            chown(scratch.join(name), Some(owner), Some(owner))?;
            fs::set_permissions(scratch.join(name), fs::Permissions::from_mode(mode))?;
        }
        fs::write(scratch.join("seccomp.json"), SECCOMP)?;
        fs::set_permissions(scratch.join("seccomp.json"), fs::Permissions::from_mode(0o644))?;
        let client = CLIENT
            .replace("@SUBNET_IPV6@", subnet_ipv6)
            .replace("@DOCKER_SOCKET@", &dockerd.socket().display().to_string())
            .replace("@PAUSE@", &images.reference("pause"))
            .replace("@SCRATCH@", &scratch.display().to_string());
        let agent = Agent::start_configured(tools, &client)?;
        let healthy = |nodes: &Value| (nodes[0]["Drivers"]["docker"]["Healthy"] == true).then_some(());
        agent.api().wait("/v1/nodes?resources=false", "the docker driver", Duration::from_secs(60), healthy)?;
        let scheduler = json!({ "SchedulerAlgorithm": "binpack", "MemoryOversubscriptionEnabled": true });
        agent.api().put("/v1/operator/scheduler/configuration", &scheduler)?;
        Ok(Self { agent, dockerd, images, log_servers, outside })
    }

    /// A directory of the host, which jobs may bind.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        self.dockerd.path().join("scratch")
    }

    /// Replaces the placeholders in a case's HCL.
    #[must_use]
    pub fn fill_in(&self, text: &str) -> String {
        let mut text = text.replace("@SCRATCH@", &self.scratch().display().to_string());
        text = self.log_servers.fill_in(&text.replace("@REGISTRY@", &self.images.host()));
        while let Some((before, rest)) = text.split_once("@IMAGE:") {
            let (name, after) = rest.split_once('@').unwrap_or((rest, ""));
            text = format!("{before}{}{after}", self.images.reference(name));
        }
        text
    }

    /// Ends all parts in order, and returns what they left behind.
    ///
    /// # Errors
    /// When the agent does not end.
    pub fn close(self) -> Outcome<Vec<String>> {
        let Self { agent, dockerd, images, .. } = self;
        let mut left = agent.close()?;
        left.extend(dockerd.take_down());
        drop(images);
        Ok(left)
    }

    /// Ends everything by force, for an interrupted run.
    pub fn take_down(&self) {
        self.agent.take_down();
        self.dockerd.take_down();
    }
}

/// A profile that refuses one system call and allows all others.
const SECCOMP: &str = r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
 "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}"#;
