//! The images of the suite: one with the program of the attempts, and hostile ones on top of it.

use std::fs;

use e2e::Outcome;
use fixtures::image::{Built, Entry, Image, Layer};
use serde_json::{Value, json};

/// A hostile image, by the words after `start an image ` in the attempt's name.
pub struct Hostile {
    /// What is hostile.
    pub what: &'static str,
    /// Its entries, on top of the program.
    entries: fn(&str) -> Vec<Entry>,
    /// Fields of its configuration.
    fields: fn(&str) -> Value,
}

const NODES_FILE: &str = "file";

/// A link from the image's root to a path of the node.
fn link(name: &str, target: &str) -> Vec<Entry> {
    vec![Entry::symlink(name, target)]
}

/// An image with one hostile entry.
const fn entry(what: &'static str, entries: fn(&str) -> Vec<Entry>) -> Hostile {
    Hostile { what, entries, fields: |_| json!({}) }
}

/// An image with a hostile configuration.
const fn configured(what: &'static str, fields: fn(&str) -> Value) -> Hostile {
    Hostile { what, entries: |_| Vec::new(), fields }
}

/// All hostile images. The functions get the node's directory.
pub const HOSTILE: &[Hostile] = &[
    entry("with /proc as a link to the node's directory", |directory| link("proc", directory)),
    entry("with /sys as a link to the node's directory", |directory| link("sys", directory)),
    entry("with /dev as a link to the node's directory", |directory| link("dev", directory)),
    entry("with /etc as a link to the node's directory", |directory| link("etc", directory)),
    entry("with /tmp as a link to the node's directory", |directory| link("tmp", directory)),
    entry("with /alloc as a link to the node's directory", |directory| link("alloc", directory)),
    entry("with /local as a link to /proc", |_| link("local", "/proc")),
    entry("with /secrets as a link to /sys/kernel", |_| link("secrets", "/sys/kernel")),
    entry("with /dev/null as a link to the node's file", |directory| {
        below("dev", Entry::symlink("dev/null", format!("{directory}/{NODES_FILE}")))
    }),
    entry("with /dev/console as a link to /proc/sysrq-trigger", |_| {
        below("dev", Entry::symlink("dev/console", "/proc/sysrq-trigger"))
    }),
    entry("with /etc/hosts as a link to the node's file", |directory| {
        link("etc/hosts", &format!("{directory}/{NODES_FILE}"))
    }),
    entry("with /etc/resolv.conf as a link to /proc/sys/kernel/core_pattern", |_| {
        link("etc/resolv.conf", "/proc/sys/kernel/core_pattern")
    }),
    entry("with /etc/passwd as a link to the node's file", |directory| {
        link("etc/passwd", &format!("{directory}/{NODES_FILE}"))
    }),
    Hostile {
        what: "with a volume behind a link to the node's directory",
        entries: |directory| link("data", directory),
        fields: |_| json!({"Volumes": {"/data/volume": {}}}),
    },
    entry("with a file above its root (..)", |directory| {
        vec![Entry::file(format!("../../../../../..{directory}/made"), "x")]
    }),
    entry("with a hard link to the node's file", |directory| {
        vec![Entry::hard_link("etc/stolen", format!("../../../../../..{directory}/{NODES_FILE}"))]
    }),
    entry("with a file behind its own link to the node's directory", |directory| {
        vec![Entry::symlink("behind", directory), Entry::file("behind/made", "x")]
    }),
    entry("with a node of the disk, and open it", |_| vec![Entry::block_device("disk", 7, 0).mode(0o666)]),
    configured("in the directory /proc/self/fd/7 (CVE-2024-21626)", |_| json!({"WorkingDir": "/proc/self/fd/7"})),
    configured("in the directory /proc/self/fd/8 (CVE-2024-21626)", |_| json!({"WorkingDir": "/proc/self/fd/8"})),
    configured("with the user 4294967295", |_| json!({"User": "4294967295"})),
    configured("with the command /proc/self/exe (CVE-2019-5736)", |_| json!({"Cmd": ["/proc/self/exe", "image"]})),
];

/// The directory and its entry.
fn below(directory: &str, entry: Entry) -> Vec<Entry> {
    vec![Entry::dir(directory), entry]
}

impl Hostile {
    /// The image.
    ///
    /// # Errors
    /// When the program cannot be read.
    pub fn build(&self, base: &Layer, directory: &str) -> Built {
        let mut run = json!({"Cmd": ["/bin/attempts", "image"]});
        if let (Some(run), Value::Object(fields)) = (run.as_object_mut(), (self.fields)(directory)) {
            run.extend(fields);
        }
        Image::new().layer(base.clone()).layer(Layer::of((self.entries)(directory))).run(run).build()
    }
}

/// The layer with the program of the attempts.
///
/// # Errors
/// When the program cannot be read.
pub fn base() -> Outcome<Layer> {
    let program = fs::read(env!("CARGO_BIN_EXE_attempts"))?;
    let mut entries: Vec<Entry> = ["bin", "etc", "root"].map(Entry::dir).into();
    entries.push(Entry::dir("tmp").mode(0o1777));
    entries.push(Entry::file("bin/attempts", program.clone()).mode(0o755));
    entries.push(Entry::file("bin/set-user-id", program).mode(0o4755));
    entries.push(Entry::file("etc/passwd", "root:x:0:0:root:/root:/bin/attempts\nuser:x:1000:1000::/:/bin/attempts\n"));
    entries.push(Entry::file("etc/group", "root:x:0:\nuser:x:1000:\n"));
    Ok(Layer::of(entries))
}

/// The image of the attempts.
#[must_use]
pub fn attempts(base: &Layer) -> Built {
    Image::new().layer(base.clone()).run(json!({"Cmd": ["/bin/attempts", "wait"]})).build()
}
