//! Our side: the built plugin over its own wire, tasks prepared as a Nomad client prepares them.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use fixtures::{must::Must, wait::seconds};
use kit::{
    node::Node,
    plugin::{Plugin, PluginCommand, binary, nomad_config},
    task::Task,
};
use serde_json::{Value as Json, json};

use crate::{
    process::{READY, SAY_READY},
    workdir::Fresh,
};

/// Who takes part.
#[derive(Debug)]
pub struct Contenders {
    /// Another build of ours, e.g. that before a change.
    pub against: Option<PathBuf>,
    /// Whether peers take part.
    pub peers: bool,
}

impl Contenders {
    /// Launches ours, and the other build where there is one; the first is the measure of all.
    pub async fn launch(&self, data: &Fresh) -> Vec<Ours> {
        let options = || json!({"default_mode": "host"});
        let mut all = vec![Ours::launch(&binary(), "oci-rs", data, options()).await];
        if let Some(other) = &self.against {
            all.push(Ours::launch(other, "other oci-rs", data, options()).await);
        }
        all
    }
}

/// A node whose driver keeps its data on the given file system.
#[derive(Debug)]
pub struct Ours {
    /// Which build.
    pub name: &'static str,
    /// The node.
    pub node: Node,
    /// The plugin.
    pub plugin: Plugin,
}

impl Ours {
    /// Launches the plugin; `network` is that block of its configuration.
    pub async fn launch(binary: &Path, name: &'static str, data: &Fresh, network: Json) -> Self {
        let node = Node::new();
        let mut plugin = PluginCommand::new(node.root()).binary(binary).connect().await;
        let directory = name.replace(' ', "-");
        let mut config = json!({"data_dir": data.path().join(&directory), "state_dir": data.memory().join(&directory)});
        // Another build may not know the block, and then means the host's network anyway.
        if plugin.config_options().await.contains("network") {
            config["network"] = network;
        }
        let packed = plugin.encode_config(&config).await;
        plugin.set_config(packed, Some(nomad_config())).await.must("SetConfig");
        plugin.watch();
        plugin.streams.fingerprint().await;
        Self { name, node, plugin }
    }

    /// A task with the command, prepared but not started.
    pub async fn task(&mut self, image: &str, command: &[&str]) -> Task {
        let (program, args) = command.split_first().must("a command");
        self.node.task(image).command(program, args).build(&mut self.plugin).await
    }

    /// From the call of StartTask to the command's first output.
    pub async fn start(&mut self, image: &str) -> Duration {
        let task = self.task(image, &SAY_READY).await;
        self.time(task).await
    }

    /// The same of a task that says that it is ready and ends.
    pub async fn time(&self, task: Task) -> Duration {
        let begun = Instant::now();
        let (_, _) = tokio::join!(self.plugin.started(&task), task.stdout().contains(READY, seconds(60)));
        // The later of the two: both the agent and the reader of the log have heard.
        let took = begun.elapsed();
        self.plugin.wait(task.id()).await;
        self.remove(&task).await;
        took
    }

    /// From the call of ExecTask to its answer.
    pub async fn exec(&self, task: &Task, command: &[&str]) -> Duration {
        let begun = Instant::now();
        let answer = self.plugin.exec(task.id(), command, seconds(10)).await.must("ExecTask");
        let took = begun.elapsed();
        assert_eq!(answer.result.must("a result").exit_code, 0, "{command:?}");
        took
    }

    /// Ends a task and takes away what the client made for it.
    pub async fn remove(&self, task: &Task) {
        self.plugin.end(task).await;
        let failures = task.alloc.release();
        assert!(failures.is_empty(), "{failures:?}");
    }

    /// Ends the node; nothing may be left.
    pub async fn finish(self) {
        self.node.finish(self.plugin).await;
    }
}
