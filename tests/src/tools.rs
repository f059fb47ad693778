//! Images for tests, and the registry that serves them.
//!
//! The image is one static busybox with the files that give users and groups names. It is built in memory, once per way of
//! packing its layer; the registry is a thread per connection and speaks what a pull needs.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use crate::must::Must;

mod shelf;

pub use shelf::Access;
use shelf::Shelf;

/// The static busybox of this machine.
pub fn busybox() -> Vec<u8> {
    let candidates = ["/bin/busybox", "/usr/bin/busybox", "/bin/busybox.static"].map(PathBuf::from);
    let found = candidates.into_iter().find(|path| path.is_file());
    let path = found.must("a static busybox (on Debian: apt-get install busybox-static)");
    fs::read(path).must("read busybox")
}

/// Commands that the image offers, each a link to busybox.
const APPLETS: [&str; 49] = [
    "[", "cat", "chmod", "chown", "cp", "cut", "date", "dd", "df", "echo", "env", "false", "find",
    "grep", "head", "hostname", "id", "ip", "kill", "ln", "ls", "mkdir", "mknod", "mktemp",
    "mount", "mv", "nc", "nslookup", "ping", "ps", "pwd", "readlink", "rm", "sed", "seq", "setsid",
    "sh", "sleep", "sort", "stat", "stty", "sync", "tail", "test", "touch", "tr", "true", "umount",
    "yes",
];

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false\nuser:x:1000:1000::/home/user:/bin/sh\n\
                      nobody:x:65534:65534::/:/bin/false\n";
const GROUP: &str =
    "root:x:0:\ndaemon:x:1:\naudio:x:29:user\nstaff:x:50:\nuser:x:1000:\nnogroup:x:65534:\n";

/// How a layer travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Packing {
    /// As it is.
    Plain,
    /// What everybody does.
    Gzip,
    /// What newer tools do.
    Zstd,
}

impl Packing {
    fn media_type(self) -> &'static str {
        match self {
            Self::Plain => "application/vnd.oci.image.layer.v1.tar",
            Self::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Self::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }
}

/// A blob with its digest.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(crate) digest: String,
    pub(crate) bytes: Arc<Vec<u8>>,
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            digest: sha256(&bytes),
            bytes: Arc::new(bytes),
        }
    }
}

/// `sha256:<hex>` of some bytes.
pub fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// A registry of a test's own on a loopback address, with images.
#[derive(Debug)]
pub struct Images {
    shelf: Shelf,
}

impl Images {
    /// Starts it.
    pub async fn start() -> Self {
        Self {
            shelf: Shelf::start(),
        }
    }

    /// `host:port`.
    pub fn host(&self) -> String {
        self.shelf.host()
    }

    /// From now on the registry wants credentials.
    pub fn require(&self, access: Access) {
        self.shelf.require(access);
    }

    /// From now on nobody listens at the registry's address.
    pub fn stop(&self) {
        self.shelf.stop();
    }

    /// Requests so far, as method and path.
    pub fn requests(&self) -> Vec<String> {
        self.shelf.requests()
    }

    /// busybox in a gzip layer, `IMAGE_ENV` and `PATH` set, the shell as its command.
    pub fn busybox(&self) -> String {
        self.packed(Packing::Gzip)
    }

    /// The same image in another packing.
    pub fn packed(&self, packing: Packing) -> String {
        self.shelve(
            &format!("busybox-{packing:?}").to_lowercase(),
            packing,
            json!({}),
        )
    }

    /// busybox by digest instead of tag.
    pub fn by_digest(&self) -> String {
        let reference = self.packed(Packing::Gzip);
        let (name, _) = reference.rsplit_once(':').must("a tag");
        format!("{name}@{}", self.shelf.digest_of(&reference))
    }

    /// An image with a stop signal.
    pub fn with_stop_signal(&self, signal: &str) -> String {
        self.shelve("stop-signal", Packing::Gzip, json!({"StopSignal": signal}))
    }

    /// An image with a user.
    pub fn with_user(&self, user: &str) -> String {
        self.shelve("user", Packing::Gzip, json!({"User": user}))
    }

    /// An image whose configuration holds these fields beside the usual ones.
    pub fn with_config(&self, name: &str, fields: Json) -> String {
        self.shelve(name, Packing::Gzip, fields)
    }

    /// An image with neither entrypoint nor command.
    pub fn without_command(&self) -> String {
        self.shelve("no-command", Packing::Gzip, json!({"Cmd": null}))
    }

    /// An image that this registry does not have.
    pub fn missing(&self) -> String {
        format!("{}/missing:1", self.host())
    }

    /// An image whose layer is not what its digest says.
    pub fn corrupt(&self) -> String {
        let reference = self.shelve(
            "corrupt",
            Packing::Plain,
            json!({"Labels": {"corrupt": "yes"}}),
        );
        let layer = layer(Packing::Plain);
        let mut bytes = layer.bytes.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        self.shelf
            .put_blob("corrupt", &layer.digest, Arc::new(bytes));
        reference
    }

    fn shelve(&self, name: &str, packing: Packing, fields: Json) -> String {
        let layer = layer(packing);
        let mut process = json!({
            "Env": ["PATH=/usr/local/bin:/bin:/usr/bin:/sbin", "IMAGE_ENV=from-image"],
            "Cmd": ["/bin/sh"],
        });
        if let (Some(process), Json::Object(fields)) = (process.as_object_mut(), fields) {
            process.extend(fields);
        }
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": process,
            "rootfs": {"type": "layers", "diff_ids": [self::layer(Packing::Plain).digest]},
        });
        let config = Blob::new(config.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config.digest, "size": config.bytes.len()
            },
            "layers": [{"mediaType": packing.media_type(), "digest": layer.digest, "size": layer.bytes.len()}],
        });
        self.shelf.put_blob(name, &config.digest, config.bytes);
        self.shelf.put_blob(name, &layer.digest, layer.bytes);
        self.shelf
            .put_manifest(name, "1", manifest.to_string().into_bytes());
        format!("{}/{name}:1", self.host())
    }
}

/// The layer in one packing, made once.
fn layer(packing: Packing) -> Blob {
    static LAYERS: OnceLock<BTreeMap<Packing, Blob>> = OnceLock::new();
    let layers = LAYERS.get_or_init(|| {
        let plain = layer_tar();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).must("gzip");
        let gzip = gzip.finish().must("gzip");
        let zstd = zstd::encode_all(plain.as_slice(), 1).must("zstd");
        [
            (Packing::Plain, plain),
            (Packing::Gzip, gzip),
            (Packing::Zstd, zstd),
        ]
        .map(|(packing, bytes)| (packing, Blob::new(bytes)))
        .into()
    });
    layers[&packing].clone()
}

fn layer_tar() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut add =
        |path: &str, kind: tar::EntryType, mode: u32, owner: u64, content: &[u8], link: &str| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(owner);
            header.set_gid(owner);
            header.set_mtime(1_700_000_000);
            header.set_size(content.len() as u64);
            if link.is_empty() {
                tar.append_data(&mut header, path, content)
                    .must("a tar entry");
            } else {
                tar.append_link(&mut header, path, link).must("a tar link");
            }
        };
    for folder in ["bin", "etc", "root", "home", "usr", "usr/bin", "var"] {
        add(folder, tar::EntryType::Directory, 0o755, 0, b"", "");
    }
    add("tmp", tar::EntryType::Directory, 0o1777, 0, b"", "");
    add("home/user", tar::EntryType::Directory, 0o755, 1000, b"", "");
    add(
        "bin/busybox",
        tar::EntryType::Regular,
        0o755,
        0,
        &busybox(),
        "",
    );
    for applet in APPLETS {
        add(
            &format!("bin/{applet}"),
            tar::EntryType::Symlink,
            0o777,
            0,
            b"",
            "busybox",
        );
    }
    add(
        "etc/passwd",
        tar::EntryType::Regular,
        0o644,
        0,
        PASSWD.as_bytes(),
        "",
    );
    add(
        "etc/group",
        tar::EntryType::Regular,
        0o644,
        0,
        GROUP.as_bytes(),
        "",
    );
    tar.into_inner().must("a tar")
}
