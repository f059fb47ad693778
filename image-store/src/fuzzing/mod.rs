//! What the targets of `fuzz/` call: any bytes in, a panic if they fooled somebody.
//!
//! Layers are unpacked in a thread whose root is a sandbox *around* the layer's directory, and not confined to that directory as in
//! life: whoever gets out of the directory changes the sandbox and is seen. Every error must be fit for a log. Each layer is unpacked twice, into
//! a directory, and into an image that the kernel has to mount, or that becomes a directory on the way.

mod entries;
mod model;

use std::{
    fs::{self, File},
    io::{BufReader, Cursor},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
};

use bytes::Bytes;
use layer::{
    Digest, MemoryCounter, Output, SampleImage, UnpackError,
    digest::Algorithm,
    fuzzing::{confine_thread, pax, write},
    stream::{BlobReader, Decoder, HashingReader, Piece},
};

use crate::{
    Platform, Reference, archive,
    credentials::docker,
    limits::Limits,
    manifest::{self, Document},
    registry::{address, auth, challenge},
    store::{mount_image, open_directory},
};

/// Small, so that reaching them takes few bytes.
fn limits() -> Limits {
    Limits {
        layer_bytes: 4 << 20,
        ratio_grace: 1 << 20,
        entries: 500,
        document_bytes: 64 << 10,
        xattr_total_bytes: 64 << 10,
        ..Limits::default()
    }
}

fn layer_limits() -> layer::Limits {
    limits().of_a_layer()
}

fn fit_for_a_log(text: &str) {
    assert!(!text.contains(char::is_control), "{text:?}");
}

/// A directory for layers, and what must not change beside it.
pub struct Sandbox {
    directory: PathBuf,
    work: mpsc::Sender<Job>,
    /// Where images are mounted from, if the kernel can do so.
    image: Option<PathBuf>,
    /// Whether files can have `user.*` attributes here: tmpfs has known them since Linux 6.6.
    attributes: bool,
}

/// A layer's blob, the file that is to become an image, and who waits to hear whether it has.
type Job = (Vec<u8>, Option<File>, mpsc::Sender<Result<bool, UnpackError>>);

const CANARY: &[u8] = b"canary";

impl Sandbox {
    /// Makes one below `parent`, which must be on a file system that may hold devices. Needs root.
    pub fn new(parent: &Path) -> Sandbox {
        let directory = parent.join(format!("oci-rs-fuzz-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory for the sandbox");
        fs::write(directory.join("canary"), CANARY).expect("a canary");
        let user = rustix::fs::XattrFlags::empty();
        let attributes = rustix::fs::setxattr(directory.join("canary"), "user.a", b"1", user).is_ok();
        if attributes {
            rustix::fs::removexattr(directory.join("canary"), "user.a").expect("an attribute that was just set");
        }
        let (work, todo) = mpsc::channel::<Job>();
        let root = open_directory(&directory).expect("the sandbox");
        thread::spawn(move || {
            confine_thread(root.as_fd()).expect("a thread of its own (as root)");
            assert!(Path::new("/canary").exists(), "changing the root needs root");
            for (bytes, image, done) in todo {
                let layer = open_directory(Path::new("/layer")).expect("the layer's directory");
                done.send(stream(bytes, layer, image)).expect("somebody who waits");
            }
        });
        Sandbox { directory, work, image: place_for_images(), attributes }
    }

    /// Unpacks a layer's blob and looks around.
    pub fn blob(&self, blob: &[u8]) {
        self.unpack(blob, |_, _, _| ());
    }

    /// Unpacks entries that bytes stand for, and compares what comes out with what a model in memory says.
    pub fn entries(&self, bytes: &[u8]) {
        let (archive, entries) = entries::decode(bytes);
        let model = model::apply(&entries, limits().entries);
        self.unpack(&archive, |layer, attributes, refused| match (&model, refused) {
            (Ok(model), None) => assert_eq!(model::look(layer), model.describe(attributes), "{entries:#?}"),
            (Err(_), Some(_)) => {}
            (Ok(_), Some(problem)) => panic!("refused: {problem}: {entries:#?}"),
            (Err(problem), None) => panic!("not refused: {problem}: {entries:#?}"),
        });
    }

    fn unpack(&self, blob: &[u8], judge: impl Fn(&Path, bool, Option<&str>)) {
        self.unpack_into(None, blob, &judge);
        if let Some(path) = &self.image {
            self.unpack_into(Some(path), blob, &judge);
            fs::remove_file(path).expect("the image can be removed");
        }
    }

    fn unpack_into(&self, image: Option<&Path>, blob: &[u8], judge: impl Fn(&Path, bool, Option<&str>)) {
        let layer = self.directory.join("layer");
        fs::create_dir(&layer).expect("an empty directory");
        let make = |path: &Path| File::options().read(true).write(true).create_new(true).open(path);
        let file = image.map(|path| make(path).expect("a file for the image"));
        let (done, result) = mpsc::channel();
        self.work.send((blob.to_vec(), file, done)).expect("the working thread");
        match result.recv().expect("the working thread survives") {
            Ok(true) => {
                let mounted = mount_image(image.expect("an image was asked for")).expect("an image can be mounted");
                let root = PathBuf::from(format!("/proc/self/fd/{}/.", mounted.as_raw_fd()));
                check_tree(&root, 0);
                judge(&root, true, None);
                assert_eq!(fs::read_dir(&layer).expect("the directory").count(), 0, "what went to an image");
            }
            Ok(false) => {
                check_tree(&layer, 0);
                judge(&layer, self.attributes, None);
            }
            Err(UnpackError::Refused { entry, problem }) => {
                judge(&layer, self.attributes, Some(&problem));
                fit_for_a_log(&problem);
                fit_for_a_log(&entry.unwrap_or_default());
            }
            Err(error) => panic!("neither unpacked nor refused: {error:?}"),
        }
        self.check_outside();
        fs::remove_dir_all(&layer).expect("the layer can be removed");
    }

    fn check_outside(&self) {
        let names = fs::read_dir(&self.directory).expect("the sandbox");
        let mut names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["canary", "layer"]);
        let canary = self.directory.join("canary");
        let meta = fs::symlink_metadata(&canary).expect("the canary");
        assert!(meta.is_file() && meta.nlink() == 1 && meta.mode() & 0o7777 == 0o644 && meta.uid() == 0);
        assert_eq!(fs::read(&canary).expect("the canary"), CANARY);
        assert_eq!(xattrs(&canary), Vec::<String>::new());
        let meta = fs::metadata(&self.directory).expect("the sandbox");
        assert!(meta.uid() == 0 && xattrs(&self.directory).is_empty());
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.directory));
    }
}

/// Whether it became an image.
fn stream(blob: Vec<u8>, directory: OwnedFd, image: Option<File>) -> Result<bool, UnpackError> {
    let length = blob.len() as u64;
    // Pieces end anywhere.
    let piece = [blob.len().max(1), 700, 13][blob.len() % 3];
    let (pieces, receiver) = tokio::sync::mpsc::channel(blob.len() / piece + 2);
    for part in blob.chunks(piece) {
        pieces.try_send(Piece::Data(Bytes::copy_from_slice(part))).expect("room");
    }
    pieces.try_send(Piece::End).expect("room");
    let feed = BlobReader::new(receiver, Algorithm::Sha256);
    let seen = feed.received();
    let mut decoder = Decoder::new(feed, &layer_limits())?;
    let hashed = HashingReader::new(BufReader::new(&mut decoder), Algorithm::Sha256, seen, layer_limits());
    // Some find no room in memory, and become directories halfway.
    let sum = blob.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    let kept_bytes = if sum % 4 == 1 { 3000 } else { limits().kept_bytes };
    let image = image.map(|file| (file, MemoryCounter::default()));
    let written = write(hashed, Output { directory, image }, &layer::Limits { kept_bytes, ..layer_limits() })?;
    assert!(written.applied.entries <= limits().entries);
    assert!(written.bytes <= limits().layer_bytes);
    let (_, arrived) = decoder.into_blob().finish()?;
    assert_eq!(arrived, length);
    Ok(written.is_image)
}

/// Where images of this process can be mounted from. Says why there are none.
#[allow(clippy::print_stderr, reason = "a skipped test says why")]
fn place_for_images() -> Option<PathBuf> {
    let path = std::env::temp_dir().join(format!("oci-rs-fuzz-{}.erofs", std::process::id()));
    fs::write(&path, SampleImage::new().expect("an image").bytes).expect("a file for the image");
    let mounted = mount_image(&path);
    fs::remove_file(&path).expect("the image can be removed");
    match mounted {
        Ok(_) => Some(path),
        Err(error) => {
            eprintln!("images are not tried: {error}");
            None
        }
    }
}

fn xattrs(path: &Path) -> Vec<String> {
    let mut names = vec![0u8; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names[..]).expect("a list of attributes");
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// What no layer may look like, whatever it was made of.
fn check_tree(path: &Path, depth: usize) {
    assert!(depth <= 600);
    let meta = fs::symlink_metadata(path).expect("what a directory lists");
    assert!(meta.uid() != u32::MAX && meta.gid() != u32::MAX);
    for name in xattrs(path) {
        let known = ["security.capability", "system.posix_acl_access", "system.posix_acl_default"];
        let ours = name == "trusted.overlay.opaque" && meta.is_dir() && depth > 0;
        let theirs = name.starts_with("user.") && !name.starts_with("user.overlay.");
        assert!(ours || theirs || known.contains(&name.as_str()), "{name} on {}", path.display());
    }
    if meta.is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            let entry = entry.expect("an entry");
            assert!(!entry.file_name().as_encoded_bytes().starts_with(b".wh."), "{:?}", entry.path());
            check_tree(&entry.path(), depth + 1);
        }
    }
}

/// PAX records.
pub fn pax(bytes: &[u8]) {
    match pax::parse(bytes) {
        Ok(read) => {
            for name in [&read.path, &read.link, &read.sparse.name].into_iter().flatten() {
                assert!(!name.is_empty() && !name.contains(&0));
            }
            assert!(read.mtime.is_none_or(|(_, nanos)| nanos < 1_000_000_000));
            let mut keys: Vec<_> = read.xattrs.iter().map(|(key, _)| key).collect();
            keys.sort();
            let count = keys.len();
            keys.dedup();
            assert!(count == keys.len() && count <= 1024);
        }
        Err(problem) => fit_for_a_log(&problem),
    }
}

/// A manifest or an index, and a config.
pub fn documents(bytes: &[u8]) {
    let machine = Platform { os: "linux".into(), architecture: "amd64".into(), variant: String::new() };
    let reference: Reference = "team/app:1".parse().expect("a reference");
    match manifest::parse_document("document", bytes) {
        Ok(Document::Index(entries)) => match manifest::choose(&reference, &entries, &machine) {
            Ok(chosen) => assert!(entries.contains(&chosen)),
            Err(error) => fit_for_a_log(&error.to_string()),
        },
        Ok(Document::Manifest(manifest)) => {
            for layer in manifest.layers.iter().chain([&manifest.config]) {
                digest(&layer.digest);
            }
        }
        Err(error) => fit_for_a_log(&error.to_string()),
    }
    match manifest::parse_config("config", bytes) {
        Ok(document) => {
            document.diff_ids.iter().for_each(digest);
            assert!(document.config.env.iter().all(|(key, _)| !key.is_empty() && !key.contains('=')));
            fit_for_a_log(&document.platform.to_string());
            let text = serde_json::to_vec(&document.config).expect("it can be written down");
            assert_eq!(serde_json::from_slice::<crate::ImageConfig>(&text).expect("and read again"), document.config);
        }
        Err(error) => fit_for_a_log(&error.to_string()),
    }
}

fn digest(digest: &Digest) {
    assert!(matches!(digest.hex().len(), 64 | 128) && digest.hex().bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(digest.as_str().parse::<Digest>().as_ref(), Ok(digest));
}

/// An image's name.
pub fn reference(text: &str) {
    match text.parse::<Reference>() {
        Ok(reference) => {
            let shown = reference.to_string();
            assert_eq!(shown.parse::<Reference>().as_ref(), Ok(&reference), "{shown}");
            assert!(shown.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%\\\"".contains(&byte)), "{shown}");
            assert!(reference.repository().split('/').all(|part| !matches!(part, "" | "." | "..")));
            assert!(reference.tag().is_some() || reference.digest().is_some());
        }
        Err(error) => fit_for_a_log(&error.to_string()),
    }
}

/// `WWW-Authenticate`, and the token server that it leads to.
pub fn challenges(header: &str) {
    let registry = "https://registry.example/".parse().expect("a URL");
    match auth::plan(&challenge::parse(header), &registry, "team/app", true) {
        Ok(Some(auth::Plan::Bearer { realm, .. })) => {
            assert_eq!(realm.scheme(), "https");
            assert!(realm.username().is_empty() && realm.password().is_none());
            assert!(!address::is_internal(&realm), "{realm}");
        }
        Ok(_) => {}
        Err(problem) => fit_for_a_log(&problem),
    }
}

/// An image archive.
pub fn archive(bytes: &[u8]) {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("archive", flags).expect("a file in memory");
    let mut file = fs::File::from(file);
    std::io::copy(&mut Cursor::new(bytes), &mut file).expect("room in memory");
    let machine = Platform { os: "linux".into(), architecture: "amd64".into(), variant: String::new() };
    let reference: Reference = "team/app:1".parse().expect("a reference");
    let opened = archive::Source::open("archive".into(), file.into(), &limits(), &std::env::temp_dir(), Arc::default());
    let chosen = opened.and_then(|source| {
        let found = archive::choose(&source, &reference, &machine, &limits())?;
        for layer in &found.layers {
            assert!(!layer.member.split('/').any(|part| matches!(part, "" | "." | "..")));
            if let Some(part) = source.member(&layer.member)? {
                // Sizes and places of members are the archive's own word.
                assert!(part.size() <= limits().layer_bytes.max(bytes.len() as u64));
            }
        }
        Ok(())
    });
    if let Err(error) = chosen {
        fit_for_a_log(&error.to_string());
    }
}

/// Docker's `config.json`.
pub fn docker_config(bytes: &[u8]) {
    match docker::Config::parse(bytes) {
        Ok(config) => {
            for image in ["nginx", "registry.example/team/app", "registry.example:5000/app"] {
                let image: Reference = image.parse().expect("a reference");
                match config.stored(&image) {
                    Ok(Some(found)) => assert!(!found.username.is_empty() && !found.password.expose().is_empty()),
                    Ok(None) => {}
                    Err(problem) => fit_for_a_log(&problem),
                }
                assert!(config.helper(&image).is_none_or(|name| !name.is_empty()));
            }
        }
        Err(problem) => fit_for_a_log(&problem),
    }
}
