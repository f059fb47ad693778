//! One node with its plugin, which may be killed at any time and is replaced, and the images that its tasks run.

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

/// See the module's head.
pub struct World {
    /// The machine.
    pub node: Node,
    /// Its network, if tasks have networks of their own.
    netns: Option<TestNetwork>,
    /// The schema of a task's configuration.
    pub schema: Arc<Spec>,
    /// An exec helper was killed, so a command may end by that.
    pub helpers_killed: Cell<bool>,
    registry: Registry,
    common: String,
    current: RefCell<Rc<Connection>>,
    replacing: Mutex<()>,
}

/// A plugin process.
pub struct Connection {
    /// The process and the way to it.
    pub plugin: Plugin,
    /// It was killed: what fails now proves nothing.
    pub dead: Cell<bool>,
    /// Which one it is.
    pub number: usize,
}

impl World {
    /// A node with a plugin, on an netns if tasks are to have networks of their own. That is for the thread's life.
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

    /// The plugin of now; waits while it is being replaced.
    pub async fn connection(&self) -> Rc<Connection> {
        drop(self.replacing.lock().await);
        Rc::clone(&self.current.borrow())
    }

    /// Kills the plugin and starts another one at once, as an agent does.
    pub async fn kill_plugin(&self) {
        let _alone = self.replacing.lock().await;
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

    /// A reference to an image, and what disturbs its download.
    pub fn image(&self, kind: Image, number: usize) -> String {
        if kind == Image::Common {
            return self.common.clone();
        }
        let name = format!("own-{number}");
        let reference = self.registry.push(&format!("{name}:1"), &image(&name));
        let blobs = format!("/{name}/blobs/");
        match kind {
            Image::Cut(bytes) => self.registry.fault(Fault::on(blobs, Action::Cut(bytes)).times(2)),
            Image::Busy => self.registry.fault(Fault::on(blobs, Action::Status(503, Vec::new())).times(1)),
            Image::Common | Image::Own => {}
        }
        reference
    }

    /// Ends the node; nothing of any task may be left.
    pub async fn finish(self) {
        let last = Rc::into_inner(self.current.into_inner()).must("the only hold on the last plugin");
        self.node.finish(last.plugin).await;
        assert_eq!(self.netns.map(|netns| netns.leftovers()).unwrap_or_default(), Vec::<String>::new());
    }
}

/// The plugin block's part about networks.
fn options(own_networks: bool) -> Json {
    if own_networks { json!({"network": {"cni_path": cni_path()}}) } else { json!({}) }
}

/// A process's name.
pub fn process_name(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// `kill -9`; a process that has ended meanwhile is fine.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, Signal::KILL).ok();
    }
}

/// busybox in a layer that no other image has.
fn image(name: &str) -> fixtures::image::Built {
    const APPLETS: [&str; 10] = ["sh", "cat", "echo", "sleep", "setsid", "true", "mv", "ls", "kill", "test"];
    let mut entries: Vec<Entry> = ["bin", "etc", "tmp"].map(Entry::dir).into();
    entries.push(Entry::file("bin/busybox", busybox::program()).mode(0o755));
    entries.extend(APPLETS.map(|applet| Entry::symlink(format!("bin/{applet}"), "busybox")));
    entries.push(Entry::file("etc/name", name));
    let layer = Layer::of(entries).compression(Compression::Plain);
    Content::new().layer(layer).run(json!({"Env": ["PATH=/bin"], "Cmd": ["/bin/sh"]})).build()
}
