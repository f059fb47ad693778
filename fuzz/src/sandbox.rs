//! Unpacks layers where an escape is seen.
//!
//! A thread unpacks. Its root is a sandbox *around* the layer's directory; it is not confined to that directory as in
//! production. An escape from the directory therefore changes the sandbox, which is checked afterwards. Every error
//! must be fit for a log. Each layer is unpacked twice: into a directory, and into an image that the kernel must mount
//! or that becomes a directory on the way.

use std::{
    cell::OnceCell,
    fs::{self, File},
    io::BufReader,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use bytes::Bytes;
use image_store::fuzzing::mount_image;
use layer::{
    Limits, MemoryCounter, Output, SampleImage, UnpackError,
    digest::Algorithm,
    fuzzing::{confine_thread, write},
    stream::{BlobReader, Decoder, HashingReader, Piece},
};

use crate::{
    entries,
    limits::{assert_loggable, layer_limits},
    model,
    tree::{check_tree, look, xattrs},
};

thread_local! { static SANDBOX: OnceCell<Sandbox> = const { OnceCell::new() } }

/// Unpacks the blob of a layer and checks its surroundings.
pub fn unpack_blob(blob: &[u8]) {
    SANDBOX.with(|sandbox| sandbox.get_or_init(|| Sandbox::new(Path::new("/dev/shm"))).blob(blob));
}

/// Unpacks the archive that `bytes` generate and compares the result with the model.
pub fn unpack_entries(bytes: &[u8]) {
    SANDBOX.with(|sandbox| sandbox.get_or_init(|| Sandbox::new(Path::new("/dev/shm"))).entries(bytes));
}

/// A directory for layers, with a file beside it that must not change.
struct Sandbox {
    directory: PathBuf,
    jobs: mpsc::Sender<Job>,
    /// Where images are mounted from, if the kernel mounts them.
    image: Option<PathBuf>,
    /// Whether files here can have `user.*` attributes; tmpfs has them since Linux 6.6.
    attributes: bool,
}

/// A layer to unpack.
struct Job {
    blob: Vec<u8>,
    /// The file that becomes an image.
    image: Option<File>,
    /// Receives whether the layer became an image.
    done: mpsc::Sender<Result<bool, UnpackError>>,
}

const CANARY: &[u8] = b"canary";

impl Sandbox {
    /// Makes one below `parent`, whose file system must allow devices. Needs root.
    fn new(parent: &Path) -> Sandbox {
        let directory = parent.join(format!("oci-rs-fuzz-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory for the sandbox");
        fs::write(directory.join("canary"), CANARY).expect("a canary");
        let user = rustix::fs::XattrFlags::empty();
        let attributes = rustix::fs::setxattr(directory.join("canary"), "user.a", b"1", user).is_ok();
        if attributes {
            rustix::fs::removexattr(directory.join("canary"), "user.a").expect("an attribute that was just set");
        }
        let (jobs, todo) = mpsc::channel::<Job>();
        let root = File::open(&directory).expect("the sandbox");
        thread::spawn(move || {
            confine_thread(root.as_fd()).expect("a thread of its own (as root)");
            assert!(Path::new("/canary").exists(), "changing the root needs root");
            for Job { blob, image, done } in todo {
                let layer = File::open("/layer").expect("the layer's directory");
                done.send(unpack(&blob, layer.into(), image)).expect("the waiting thread");
            }
        });
        Sandbox { directory, jobs, image: place_for_images(), attributes }
    }

    fn blob(&self, blob: &[u8]) {
        self.unpack(blob, |_, _, _| ());
    }

    fn entries(&self, bytes: &[u8]) {
        let (archive, entries) = entries::decode(bytes);
        let model = model::apply(&entries, layer_limits().entries);
        self.unpack(&archive, |layer, attributes, refused| match (&model, refused) {
            (Ok(model), None) => assert_eq!(look(layer), model.describe(attributes), "{entries:#?}"),
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
        self.jobs.send(Job { blob: blob.to_vec(), image: file, done }).expect("the unpacking thread");
        match result.recv().expect("the unpacking thread survives") {
            Ok(true) => {
                let mounted = mount_image(image.expect("an image was asked for")).expect("an image can be mounted");
                let root = PathBuf::from(format!("/proc/self/fd/{}/.", mounted.as_raw_fd()));
                check_tree(&root, 0);
                judge(&root, true, None);
                assert_eq!(
                    fs::read_dir(&layer).expect("the directory").count(),
                    0,
                    "the directory of a layer that became an image is empty"
                );
            }
            Ok(false) => {
                check_tree(&layer, 0);
                judge(&layer, self.attributes, None);
            }
            Err(UnpackError::Refused { entry, problem }) => {
                judge(&layer, self.attributes, Some(&problem));
                assert_loggable(&problem);
                assert_loggable(&entry.unwrap_or_default());
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

/// Unpacks a blob. Returns whether it became an image.
fn unpack(blob: &[u8], directory: OwnedFd, image: Option<File>) -> Result<bool, UnpackError> {
    let length = blob.len() as u64;
    // Pieces end anywhere.
    let piece = [blob.len().max(1), 700, 13][blob.len() % 3];
    let (pieces, receiver) = tokio::sync::mpsc::channel(blob.len() / piece + 2);
    for part in blob.chunks(piece) {
        pieces.try_send(Piece::Data(Bytes::copy_from_slice(part))).expect("room in the channel");
    }
    pieces.try_send(Piece::End).expect("room in the channel");
    let reader = BlobReader::new(receiver, Algorithm::Sha256);
    let received = reader.received();
    let mut decoder = Decoder::new(reader, &layer_limits())?;
    let hashed = HashingReader::new(BufReader::new(&mut decoder), Algorithm::Sha256, received, layer_limits());
    // Some layers do not fit in the memory that is allowed, and go on in a directory.
    let sum = blob.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    let kept_bytes = if sum % 4 == 1 { 3000 } else { layer_limits().kept_bytes };
    let image = image.map(|file| (file, MemoryCounter::default()));
    let written = write(hashed, Output { directory, image }, &Limits { kept_bytes, ..layer_limits() })?;
    assert!(written.applied.entries <= layer_limits().entries);
    assert!(written.bytes <= layer_limits().layer_bytes);
    let (_, arrived) = decoder.into_blob().finish()?;
    assert_eq!(arrived, length);
    Ok(written.is_image)
}

/// Where images of this process are mounted from. Prints the reason if the kernel mounts none.
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
