//! oci-rs itself: the built plugin over gRPC, with tasks that are prepared as by a Nomad client.

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

/// The programs that are compared.
#[derive(Debug)]
pub struct Contenders {
    /// Another build of oci-rs, for example the build before a change.
    pub against: Option<PathBuf>,
    /// Whether the same build is measured without user namespaces too.
    pub without_userns: bool,
    /// Whether other programs are compared.
    pub peers: bool,
}

impl Contenders {
    /// Launches oci-rs, and the other build if there is one. Ratios relate to the first.
    pub async fn launch(&self, data: &Fresh) -> Vec<Ours> {
        let options = || json!({"default_mode": "host"});
        let mut all = vec![Ours::launch(&binary(), "oci-rs", data, options()).await];
        if let Some(other) = &self.against {
            all.push(Ours::launch(other, "other oci-rs", data, options()).await);
        }
        if self.without_userns {
            let block = json!({"network": options(), "userns": {"mode": "off"}});
            all.push(Ours::launch_with(&binary(), "without userns", data, block).await);
        }
        all
    }
}

/// A node whose driver keeps its data on the given file system.
#[derive(Debug)]
pub struct Ours {
    /// The name of the build.
    pub name: &'static str,
    /// The node.
    pub node: Node,
    /// The plugin.
    pub plugin: Plugin,
}

impl Ours {
    /// Launches the plugin; `network` is that block of its configuration.
    pub async fn launch(binary: &Path, name: &'static str, data: &Fresh, network: Json) -> Self {
        Self::launch_with(binary, name, data, json!({"network": network})).await
    }

    /// The same with any options of the plugin block.
    pub async fn launch_with(binary: &Path, name: &'static str, data: &Fresh, options: Json) -> Self {
        let node = Node::new();
        let mut plugin = PluginCommand::new(node.root()).binary(binary).connect().await;
        let directory = name.replace(' ', "-");
        let mut config = json!({"data_dir": data.path().join(&directory), "state_dir": data.memory().join(&directory)});
        // A build without the option `network` always uses the host's network.
        let known = plugin.config_options().await;
        for (option, value) in
            options.as_object().into_iter().flatten().filter(|(option, _)| known.contains(option.as_str()))
        {
            config[option] = value.clone();
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

    /// Starts a task, timed from the call of StartTask to the command's first output.
    pub async fn start(&mut self, image: &str) -> Duration {
        let task = self.task(image, &SAY_READY).await;
        self.time(task).await
    }

    /// The same for a prepared task that prints the ready line and ends.
    pub async fn time(&self, task: Task) -> Duration {
        let begun = Instant::now();
        let (_, _) = tokio::join!(self.plugin.started(&task), task.stdout().contains(READY, seconds(60)));
        // The later of both: the answer to StartTask and the line in the log.
        let took = begun.elapsed();
        self.plugin.wait(task.id()).await;
        self.remove(&task).await;
        took
    }

    /// Runs a command, timed from the call of ExecTask to its answer.
    pub async fn exec(&self, task: &Task, command: &[&str]) -> Duration {
        let begun = Instant::now();
        let answer = self.plugin.exec(task.id(), command, seconds(10)).await.must("ExecTask");
        let took = begun.elapsed();
        assert_eq!(answer.result.must("a result").exit_code, 0, "{command:?}");
        took
    }

    /// Ends a task and removes the client's part of it.
    pub async fn remove(&self, task: &Task) {
        self.plugin.end(task).await;
        let failures = task.alloc.release();
        assert!(failures.is_empty(), "{failures:?}");
    }

    /// Ends the node. Nothing may be left.
    pub async fn finish(self) {
        self.node.finish(self.plugin).await;
    }
}
