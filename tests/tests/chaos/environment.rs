//! The environment of a scenario: a node, a plugin that is replaced after each kill, and a registry with images.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use fixtures::{
    busybox,
    image::{Compression, Entry, Image as Content, Layer},
    must::Must,
    netns::{TestNetwork, cni_path},
    process,
    registry::{Action, Fault, Registry},
};
use kit::{node::Node, plugin::Plugin};
use proto::hclspec::Spec;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use tokio::sync::Mutex;

use crate::scenario::Image;

/// The environment of a scenario.
pub struct Environment {
    /// The node.
    pub node: Node,
    /// The test network, if tasks have their own networks.
    netns: Option<TestNetwork>,
    /// The schema of a task's configuration.
    pub schema: Arc<Spec>,
    /// Whether an exec helper was killed. An exec may fail then.
    pub helpers_killed: Cell<bool>,
    registry: Registry,
    common: String,
    current: RefCell<Rc<Connection>>,
    replacing: Mutex<()>,
}

/// A plugin process.
pub struct Connection {
    /// The process and the connection to it.
    pub plugin: Plugin,
    /// Whether it was killed. A failed call is no error of the driver then.
    pub dead: Cell<bool>,
    /// The number of the plugin process, counted from 0.
    pub number: usize,
}

impl Environment {
    /// A node with a plugin. With `own_networks`, the calling thread moves into a test network.
    pub async fn new(own_networks: bool) -> Self {
        let netns = own_networks.then(TestNetwork::enter);
        let node = Node::new();
        let mut plugin = node.launch_with(options(own_networks)).await;
        let schema = plugin.task_schema().await;
        let registry = Registry::start();
        let common = registry.push("common:1", &image("common"));
        let current = Connection { plugin, dead: Cell::new(false), number: 0 };
        Self {
            node,
            netns,
            schema,
            helpers_killed: Cell::new(false),
            registry,
            common,
            current: RefCell::new(Rc::new(current)),
            replacing: Mutex::new(()),
        }
    }

    /// The current plugin. Waits while the plugin is being replaced.
    pub async fn connection(&self) -> Rc<Connection> {
        drop(self.replacing.lock().await);
        Rc::clone(&self.current.borrow())
    }

    /// Kills the plugin and starts a new one at once, as an agent does.
    pub async fn kill_plugin(&self) {
        let _guard = self.replacing.lock().await;
        let old = Rc::clone(&self.current.borrow());
        old.dead.set(true);
        old.plugin.process.signal(Signal::KILL);
        let plugin = self.node.launch_with(options(self.netns.is_some())).await;
        let next = Connection { plugin, dead: Cell::new(false), number: old.number + 1 };
        self.current.replace(Rc::new(next));
    }

    /// Kills an exec helper of the plugin, if there is one.
    pub async fn kill_helper(&self) {
        let plugin = self.connection().await.plugin.process.pid();
        let is_helper = |pid: &i32| process_name(*pid) == "oci-rs:exec";
        if let Some(pid) = process::children(plugin).into_iter().map(|(pid, _)| pid).find(is_helper) {
            self.helpers_killed.set(true);
            kill(pid);
        }
    }

    /// The reference to an image. The registry gets the faults of its kind.
    pub fn image(&self, kind: Image, number: usize) -> String {
        if kind == Image::Common {
            return self.common.clone();
        }
        let name = format!("own-{number}");
        let reference = self.registry.push(&format!("{name}:1"), &image(&name));
        let blobs = format!("/{name}/blobs/");
        match kind {
            Image::Cut(bytes) => self.registry.fault(Fault::on(blobs, Action::Cut(bytes)).times(2)),
            Image::Overloaded => self.registry.fault(Fault::on(blobs, Action::Status(503, Vec::new())).times(1)),
            Image::Common | Image::Own => {}
        }
        reference
    }

    /// Ends the node. Fails if a task has left a trace.
    pub async fn finish(self) {
        let last = Rc::into_inner(self.current.into_inner()).must("the only reference to the last plugin");
        self.node.finish(last.plugin).await;
        assert_eq!(self.netns.map(|netns| netns.leftovers()).unwrap_or_default(), Vec::<String>::new());
    }
}

/// The plugin block's network options.
fn options(own_networks: bool) -> Json {
    if own_networks { json!({"network": {"cni_path": cni_path()}}) } else { json!({}) }
}

/// The name of a process.
pub fn process_name(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Sends SIGKILL. A process that has ended already is no error.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, Signal::KILL).ok();
    }
}

/// An image with busybox in a layer of its own.
fn image(name: &str) -> fixtures::image::Built {
    const APPLETS: [&str; 10] = ["sh", "cat", "echo", "sleep", "setsid", "true", "mv", "ls", "kill", "test"];
    let mut entries: Vec<Entry> = ["bin", "etc", "tmp"].map(Entry::dir).into();
    entries.push(Entry::file("bin/busybox", busybox::program()).mode(0o755));
    entries.extend(APPLETS.map(|applet| Entry::symlink(format!("bin/{applet}"), "busybox")));
    entries.push(Entry::file("etc/name", name));
    let layer = Layer::of(entries).compression(Compression::Plain);
    Content::new().layer(layer).run(json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]})).build()
}
