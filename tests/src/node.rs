//! One machine under a Nomad client: directories, allocations, and the plugin launched as the agent launches it.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fixtures::{
    must::Must,
    wait::{eventually, seconds},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::{
    cgroup::Hold,
    leak::Traces,
    plugin::{Launch, Plugin, nomad_config},
    task::{Alloc, TaskBuilder},
};

/// A machine with directories of its own for the driver and for allocations.
#[derive(Debug)]
pub struct Node {
    root: TempDir,
    allocs: Mutex<Vec<Arc<Alloc>>>,
    _groups: Hold,
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

impl Node {
    /// Fresh directories.
    pub fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests make containers: run them as root");
        let root = TempDir::with_prefix("oci-rs-kit-").must("a directory for the node");
        for name in ["tmp", "alloc"] {
            std::fs::create_dir(root.path().join(name)).must("a directory of the node");
        }
        Self { root, allocs: Mutex::default(), _groups: Hold::take() }
    }

    /// The directory that holds everything of this node.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// `TMPDIR` of the plugin, where its socket appears.
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

    /// The plugin block of this node's agent. Tasks use the machine's network unless a test has an island.
    pub fn config(&self) -> Json {
        let network = json!({"default_mode": "host"});
        json!({"state_dir": self.state_dir(), "data_dir": self.data_dir(), "network": network})
    }

    /// Launches the plugin for good: configuration with the agent's part, then fingerprint and event streams.
    pub async fn launch(&self) -> Plugin {
        self.launch_with(json!({})).await
    }

    /// Like [`Node::launch`], with further options in the plugin block.
    pub async fn launch_with(&self, options: Json) -> Plugin {
        self.launch_as(Launch::new(self), options).await
    }

    /// Like [`Node::launch_with`], for a process that is started in another way.
    pub async fn launch_as(&self, launch: Launch, options: Json) -> Plugin {
        let mut config = self.config();
        if let (Some(config), Json::Object(options)) = (config.as_object_mut(), options) {
            config.extend(options);
        }
        let mut plugin = launch.connect().await;
        // A build from before it (`OCI_RS_PREVIOUS_BIN`) means the machine's network anyway.
        if let Some(config) = config.as_object_mut()
            && !plugin.config_options().await.contains("network")
        {
            config.remove("network");
        }
        let packed = plugin.encode_config(&config).await;
        plugin.set_config(packed, Some(nomad_config())).await.must("SetConfig");
        plugin.watch();
        plugin.told.fingerprint().await;
        plugin
    }

    /// A task of this node, to be described further.
    pub fn task(&self, image: &str) -> TaskBuilder<'_> {
        TaskBuilder::new(self, image)
    }

    /// A new allocation.
    pub fn alloc(&self) -> Arc<Alloc> {
        let alloc = Arc::new(Alloc::make(&self.alloc_root()));
        self.allocs().push(Arc::clone(&alloc));
        alloc
    }

    fn allocs(&self) -> MutexGuard<'_, Vec<Arc<Alloc>>> {
        self.allocs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of this node is on the machine now.
    pub fn traces(&self) -> Traces {
        let allocs: BTreeSet<String> = self.allocs().iter().map(|alloc| alloc.id.clone()).collect();
        Traces::find(self.root(), &[self.state_dir(), self.data_dir()], &allocs)
    }

    /// Ends the node as a test wants it: the plugin shuts down as told, the client takes its directories and groups away
    /// without resistance, and nothing is left of any task.
    pub async fn finish(self, mut plugin: Plugin) {
        let ended = plugin.told.ended();
        assert!(ended.is_empty(), "streams ended that must stay open: {ended:?}");
        let children = fixtures::process::children(plugin.process.pid());
        assert!(children.is_empty(), "the plugin still has children: {children:?}");
        let status = plugin.shutdown().await;
        assert!(status.success(), "the plugin ended with {status}");
        assert!(!plugin.handshake.socket.exists(), "the socket is left behind");
        self.finish_without_plugin().await;
    }

    /// The same once the plugin has ended.
    pub async fn finish_without_plugin(self) {
        // The kernel tells a parent, not us, when the last processes are gone.
        eventually(seconds(10), || self.traces().processes.is_empty()).await;
        let resistance: Vec<String> = self.allocs().iter().flat_map(|alloc| alloc.take_away()).collect();
        let traces = self.traces();
        assert!(traces.is_clean() && resistance.is_empty(), "left behind:\n{traces}{}", resistance.join("\n"));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Only after a failed test is there anything to do. Twice, because a monitor may have been about to start a process.
        for _ in 0..2 {
            for (pid, _) in self.traces().processes {
                if let Some(pid) = Pid::from_raw(pid) {
                    kill_process(pid, Signal::KILL).ok();
                }
            }
        }
        for alloc in self.allocs().iter() {
            alloc.destroy();
        }
    }
}
