//! One machine under a Nomad client: directories, allocations, and the plugin launched as the agent launches it.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use fixtures::{
    must::Must,
    wait::{eventually, seconds},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::{
    alloc::{Alloc, Allocs},
    cgroup::ClientGroups,
    leak::Traces,
    leftovers,
    plugin::{Plugin, PluginCommand, nomad_config},
    task::TaskBuilder,
};

/// A machine with its own directories for the driver and for allocations.
#[derive(Debug)]
pub struct Node {
    root: TempDir,
    allocs: Allocs,
    _groups: ClientGroups,
    /// The lock of the directory.
    _owner: File,
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Node {
    /// Makes the directories.
    pub fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests make containers: run them as root");
        leftovers::remove_once();
        let root = TempDir::with_prefix(leftovers::PREFIX).must("a directory for the node");
        let owner = leftovers::claim(root.path());
        for name in ["tmp", "alloc"] {
            std::fs::create_dir(root.path().join(name)).must("a directory of the node");
        }
        let allocs = Allocs::new(root.path().join("alloc"));
        Self { root, allocs, _groups: ClientGroups::acquire(), _owner: owner }
    }

    /// The directory that contains all directories of this node.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The plugin's `TMPDIR`, in which it makes its socket.
    pub fn temp_dir(&self) -> PathBuf {
        self.root().join("tmp")
    }

    /// The driver's `state_dir`.
    pub fn state_dir(&self) -> PathBuf {
        self.root().join("state")
    }

    /// The driver's `data_dir`.
    pub fn data_dir(&self) -> PathBuf {
        self.root().join("data")
    }

    /// The client's `alloc_dir`.
    pub fn alloc_root(&self) -> PathBuf {
        self.root().join("alloc")
    }

    /// The plugin block of this node's agent. The default network is the machine's; a test with a test network changes
    /// it.
    pub fn config(&self) -> Json {
        let network = json!({"default_mode": "host"});
        json!({"state_dir": self.state_dir(), "data_dir": self.data_dir(), "network": network})
    }

    /// Launches the plugin as the agent does for the instance that it keeps: configuration with the agent's part, then
    /// the streams of fingerprints and events.
    pub async fn launch(&self) -> Plugin {
        self.launch_with(json!({})).await
    }

    /// Like [`Node::launch`], with further options in the plugin block.
    pub async fn launch_with(&self, options: Json) -> Plugin {
        self.launch_as(PluginCommand::new(self.root()), options).await
    }

    /// Like [`Node::launch_with`], with another command.
    pub async fn launch_as(&self, command: PluginCommand, options: Json) -> Plugin {
        let mut config = self.config();
        if let (Some(config), Json::Object(options)) = (config.as_object_mut(), options) {
            config.extend(options);
        }
        let mut plugin = command.connect().await;
        // A build without that option (`OCI_RS_PREVIOUS_BIN`) always uses the machine's network.
        if let Some(config) = config.as_object_mut()
            && !plugin.config_options().await.contains("network")
        {
            config.remove("network");
        }
        // A run of all tests in another mode than the default.
        if let (Some(config), Ok(mode)) = (config.as_object_mut(), std::env::var("OCI_RS_USERNS"))
            && !config.contains_key("userns")
            && plugin.config_options().await.contains("userns")
        {
            config.insert("userns".to_owned(), json!({"mode": mode}));
        }
        let packed = plugin.encode_config(&config).await;
        plugin.set_config(packed, Some(nomad_config())).await.must("SetConfig");
        plugin.watch();
        plugin.streams.fingerprint().await;
        plugin
    }

    /// Describes a task of this node.
    pub fn task(&self, image: &str) -> TaskBuilder<'_> {
        TaskBuilder::new(&self.allocs, image)
    }

    /// A new allocation.
    pub fn alloc(&self) -> Arc<Alloc> {
        self.allocs.make()
    }

    /// The traces of this node on the machine now.
    pub fn traces(&self) -> Traces {
        let allocs: BTreeSet<String> = self.allocs.list().iter().map(|alloc| alloc.id.clone()).collect();
        Traces::find(self.root(), &[self.state_dir(), self.data_dir()], &allocs)
    }

    /// Ends the node and checks that nothing is left: the plugin shuts down, the client's directories and cgroups can
    /// be removed, and no task has left a trace.
    pub async fn finish(self, mut plugin: Plugin) {
        let ended = plugin.streams.ended();
        assert!(ended.is_empty(), "streams ended that must stay open: {ended:?}");
        // A command's helper may end after the answer to its call. Only its parent is notified, so this polls.
        let children = || fixtures::process::children(plugin.process.pid());
        assert!(
            eventually(seconds(10), || children().is_empty()).await,
            "the plugin still has children: {:?}",
            children()
        );
        let status = plugin.shutdown().await;
        assert!(status.success(), "the plugin ended with {status}");
        assert!(!plugin.handshake.socket.exists(), "the socket is left behind");
        self.finish_without_plugin().await;
    }

    /// The same for a plugin that has ended already.
    pub async fn finish_without_plugin(self) {
        // Only a parent is notified of a process's end, so this polls.
        eventually(seconds(10), || self.traces().processes.is_empty()).await;
        let failures: Vec<String> = self.allocs.list().iter().flat_map(|alloc| alloc.release()).collect();
        let traces = self.traces();
        assert!(traces.is_clean() && failures.is_empty(), "left behind:\n{traces}{}", failures.join("\n"));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // After a failed test, processes may be left. A monitor may start one more process, so this runs twice.
        for _ in 0..2 {
            for (pid, _) in self.traces().processes {
                if let Some(pid) = Pid::from_raw(pid) {
                    kill_process(pid, Signal::KILL).ok();
                }
            }
        }
        for alloc in self.allocs.list().iter() {
            alloc.force_release();
        }
    }
}
