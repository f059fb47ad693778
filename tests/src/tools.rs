//! What tests run: one static busybox with the files that give users and groups names, served by a registry of the test's own.

use std::{
    fs,
    path::PathBuf,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

use serde_json::{Value as Json, json};

use crate::{
    image::{Built, Compression, Entry, Image, Layer},
    must::Must,
    registry::{Action, Auth, Fault, Registry},
};

/// The static busybox of this machine.
pub fn busybox() -> Vec<u8> {
    let candidates = ["/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"].map(PathBuf::from);
    let found = candidates.into_iter().find(|path| path.is_file());
    let path = found.must("a static busybox (on Debian: apt-get install busybox-static)");
    fs::read(path).must("read busybox")
}

/// Commands that the image offers, each a link to busybox.
const APPLETS: [&str; 50] = [
    "[", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "df", "echo", "env", "false", "find", "grep", "head",
    "hostname", "id", "ip", "kill", "ln", "ls", "mkdir", "mknod", "mktemp", "mount", "mv", "nc", "nslookup", "ping",
    "ps", "pwd", "readlink", "rm", "sed", "seq", "setsid", "sh", "sleep", "sort", "stat", "stty", "sync", "tail",
    "test", "touch", "tr", "true", "umount", "wc", "yes",
];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false\nuser:x:1000:1000::/home/user:/bin/sh\n\
                      nobody:x:65534:65534::/:/bin/false\n";
const GROUP: &str = "root:x:0:\ndaemon:x:1:\naudio:x:29:user\nstaff:x:50:\nuser:x:1000:\nnogroup:x:65534:\n";

/// A registry of a test's own with images to run.
pub struct Images {
    host: String,
    registry: Mutex<Option<Registry>>,
}

impl Images {
    /// Starts the registry.
    pub async fn start() -> Self {
        let registry = Registry::start();
        Self { host: registry.host(), registry: Mutex::new(Some(registry)) }
    }

    /// `host:port`.
    pub fn host(&self) -> &str {
        &self.host
    }

    fn lock(&self) -> MutexGuard<'_, Option<Registry>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the registry, while it runs.
    pub fn with<T>(&self, action: impl FnOnce(&Registry) -> T) -> T {
        action(self.lock().as_ref().must("a running registry"))
    }

    /// From now on the registry wants credentials.
    pub fn require(&self, auth: Auth) {
        self.with(|registry| registry.auth(auth));
    }

    /// From now on every request fails with this status.
    pub fn fail(&self, status: u16) {
        self.with(|registry| registry.fault(Fault::on("", Action::Status(status, Vec::new()))));
    }

    /// From now on nobody listens at the registry's address.
    pub fn stop(&self) {
        drop(self.lock().take());
    }

    /// Requests so far, as method and path; none once the registry has stopped.
    pub fn requests(&self) -> Vec<String> {
        let lock = self.lock();
        let all = lock.as_ref().map(Registry::requests).unwrap_or_default();
        all.iter().map(|request| format!("{} {}", request.method, request.path)).collect()
    }

    /// busybox in a gzip layer, `IMAGE_ENV` and `PATH` set, the shell as its command.
    pub fn busybox(&self) -> String {
        self.packed(Compression::Gzip)
    }

    /// The same image in another packing.
    pub fn packed(&self, compression: Compression) -> String {
        let name = format!("busybox-{compression:?}").to_lowercase();
        self.push(&name, &build(compression, json!({})))
    }

    /// busybox by digest instead of tag.
    pub fn by_digest(&self) -> String {
        let built = build(Compression::Gzip, json!({}));
        let reference = self.push("by-digest", &built);
        let (name, _) = reference.rsplit_once(':').must("a tag");
        format!("{name}@{}", built.digest())
    }

    /// An image with a stop signal.
    pub fn with_stop_signal(&self, signal: &str) -> String {
        self.with_config("stop-signal", json!({"StopSignal": signal}))
    }

    /// An image with a user.
    pub fn with_user(&self, user: &str) -> String {
        self.with_config("user", json!({"User": user}))
    }

    /// An image whose configuration holds these fields beside the usual ones.
    pub fn with_config(&self, name: &str, fields: Json) -> String {
        self.push(name, &build(Compression::Gzip, fields))
    }

    /// The image with further layers over its one.
    pub fn with_layers(&self, name: &str, layers: impl IntoIterator<Item = Layer>) -> String {
        let image = image(Compression::Gzip, json!({}));
        self.push(name, &layers.into_iter().fold(image, Image::layer).build())
    }

    /// An image with one program, `/sleep`, and nothing else: no shell, no users, no directories.
    pub fn without_shell(&self) -> String {
        let program = Layer::of([Entry::file("sleep", busybox()).mode(0o755)]);
        let run = json!({"Entrypoint": ["/sleep"], "Cmd": ["1000"]});
        self.push("without-shell", &Image::new().layer(program).run(run).build())
    }

    /// An image with neither entrypoint nor command.
    pub fn without_command(&self) -> String {
        self.with_config("no-command", json!({"Cmd": null}))
    }

    /// An image that this registry does not have.
    pub fn missing(&self) -> String {
        format!("{}/missing:1", self.host)
    }

    /// An image whose layer is not what its digest says.
    pub fn corrupt(&self) -> String {
        let built = build(Compression::Plain, json!({}));
        let (digest, mut bytes) = built.blobs.first().cloned().must("a layer");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        let path = format!("/corrupt/blobs/{digest}");
        self.with(|registry| registry.fault(Fault::on(path, Action::Body(bytes))));
        self.push("corrupt", &built)
    }

    fn push(&self, name: &str, built: &Built) -> String {
        // A reference to a registry that is down is a reference all the same.
        match self.lock().as_ref() {
            Some(registry) => registry.push(&format!("{name}:1"), built),
            None => format!("{}/{name}:1", self.host),
        }
    }
}

/// The image of [`Images::busybox`], for those that no registry serves.
pub fn built(compression: Compression) -> Built {
    build(compression, json!({}))
}

fn build(compression: Compression, fields: Json) -> Built {
    image(compression, fields).build()
}

fn image(compression: Compression, fields: Json) -> Image {
    let mut run = json!({
        "Env": ["PATH=/usr/local/bin:/bin:/usr/bin:/sbin", "IMAGE_ENV=from-image"],
        "Cmd": ["/bin/sh"],
    });
    if let (Some(run), Json::Object(fields)) = (run.as_object_mut(), fields) {
        run.extend(fields);
    }
    Image::new().layer(layer().compression(compression)).run(run)
}

/// The layer, made once.
fn layer() -> Layer {
    static LAYER: OnceLock<Layer> = OnceLock::new();
    let make = || {
        let mut entries: Vec<Entry> = ["bin", "etc", "root", "home", "usr", "usr/bin", "var"].map(Entry::dir).into();
        entries.push(Entry::dir("tmp").mode(0o1777));
        entries.push(Entry::dir("home/user").owner(1000, 1000));
        entries.push(Entry::file("bin/busybox", busybox()).mode(0o755));
        entries.extend(APPLETS.map(|applet| Entry::symlink(format!("bin/{applet}"), "busybox")));
        entries.push(Entry::file("etc/passwd", PASSWD));
        entries.push(Entry::file("etc/group", GROUP));
        Layer::of(entries)
    };
    LAYER.get_or_init(make).clone()
}
