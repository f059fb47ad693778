//! A native layer, sources that deliver it, and a service in a temporary directory.

use std::{
    fs::File,
    io,
    ops::{ControlFlow, Range},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, LazyLock, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use fixtures::{
    image::{Entry, Layer, digest},
    random::Random,
};
use layer::{
    Converted, Digest, FirstReads, Limits, Parts,
    digest::Algorithm,
    stream::{BlobReader, Piece},
};
use lazy::{Description, Lazy, LazyEvent, Observer, PartialLayer, ServiceLock, Settings, Source, SourceError, Sources};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

/// Bytes that look random and are the same each time.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    Random::new(seed).bytes(length)
}

/// A native layer and its files.
#[derive(Debug)]
pub struct Native {
    pub image: Vec<u8>,
    pub description: Description,
    pub files: Vec<(String, Vec<u8>)>,
    /// The first byte of the data, and the end of the file system.
    pub data: Range<u64>,
    pub parts: Parts,
}

impl Native {
    /// A layer with files of these lengths. They cannot be compressed.
    pub fn new(lengths: impl IntoIterator<Item = usize>) -> Self {
        let numbered = lengths.into_iter().enumerate();
        Self::of(numbered.map(|(at, length)| noise(at as u64 + 1, length)))
    }

    /// A layer with these files.
    pub fn of(files: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let name = |number| format!("d{}/f{number}", number % 7);
        let files: Vec<_> = files.into_iter().enumerate().map(|(at, bytes)| (name(at), bytes)).collect();
        let directories = (0..7).map(|number| Entry::dir(format!("d{number}")));
        let entries = files.iter().map(|(name, bytes)| Entry::file(name.clone(), bytes.clone()));
        let blob = Layer::of(directories.chain(entries)).blob();
        let (image, converted) = convert(&blob);
        let parts = converted.parts;
        let description = Description {
            digest: converted.image,
            size: parts.total(),
            metadata: parts.metadata,
            hash_root: Digest::from_hex(&hex(&converted.hash_root)).unwrap(),
            first: Vec::new(),
        };
        Self { image, description, files, data: parts.metadata..parts.file_system(), parts }
    }

    /// Where the block of the hash tree begins that has the hashes of a chunk. It may have those of others too.
    pub fn hash_block_of(&self, chunk: u64) -> u64 {
        let block = self.data.start + chunk * lazy::CHUNK;
        self.parts.hash_blocks_of(block..block + 4096).start
    }

    pub fn chunks(&self) -> usize {
        (self.data.end - self.data.start).div_ceil(lazy::CHUNK) as usize
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn convert(blob: &[u8]) -> (Vec<u8>, Converted) {
    let (pieces, receiver) = tokio::sync::mpsc::channel(2);
    pieces.try_send(Piece::Data(bytes::Bytes::copy_from_slice(blob))).unwrap();
    pieces.try_send(Piece::End).unwrap();
    let (scratch, out) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    let reader = BlobReader::new(receiver, Algorithm::Sha256);
    let converted =
        layer::convert(reader, (scratch, &out), Algorithm::Sha256, FirstReads::default(), &Limits::default()).unwrap();
    let mut image = vec![0; converted.parts.total() as usize];
    out.read_exact_at(&mut image, 0).unwrap();
    assert_eq!(digest(&image), converted.image.as_str());
    (image, converted)
}

/// Files of many lengths, 12 MiB together. Made once.
pub fn mixed() -> &'static Native {
    static NATIVE: LazyLock<Native> = LazyLock::new(|| {
        let small = (0..300).map(|number| number * 97 % 20_000);
        Native::new(small.chain([3 << 20, 1 << 20, 130_000, 131_072, 131_073, 4096, 1, 0, 5 << 20]))
    });
    &NATIVE
}

/// A file larger than any read-ahead, of 12 chunks. Made once.
pub fn single() -> &'static Native {
    static NATIVE: LazyLock<Native> = LazyLock::new(|| Native::new([(12 * lazy::CHUNK) as usize - 100]));
    &NATIVE
}

/// What a source does beside delivering.
#[derive(Debug, Default)]
pub struct Faults {
    /// A pause before each piece of 16 KiB.
    pub pause: Mutex<Duration>,
    /// The byte of the image that is wrong.
    pub lie: Mutex<Option<u64>>,
    /// Bytes after which each answer is cut; 0: none.
    pub cut: AtomicUsize,
    /// It does not deliver.
    pub gone: AtomicBool,
    /// It delivers nothing and does not return, until this is false again.
    pub hangs: Mutex<bool>,
    pub released: Condvar,
    /// How often it was asked.
    pub asked: AtomicUsize,
    /// For which bytes.
    pub ranges: Mutex<Vec<Range<u64>>>,
}

/// A source with the bytes in memory.
#[derive(Debug)]
pub struct Memory {
    pub name: &'static str,
    pub image: Vec<u8>,
    pub faults: Faults,
}

impl Memory {
    pub fn new(name: &'static str, native: &Native) -> Arc<Self> {
        Arc::new(Self { name, image: native.image.clone(), faults: Faults::default() })
    }

    pub fn lie_at(self: &Arc<Self>, byte: Option<u64>) {
        *self.faults.lie.lock().unwrap() = byte;
    }
}

impl Source for Memory {
    fn name(&self) -> &str {
        self.name
    }

    fn read(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), SourceError> {
        let faults = &self.faults;
        faults.asked.fetch_add(1, Ordering::SeqCst);
        faults.ranges.lock().unwrap().push(range.clone());
        let mut hangs = faults.hangs.lock().unwrap();
        while *hangs {
            hangs = faults.released.wait(hangs).unwrap();
        }
        drop(hangs);
        if range.end > self.image.len() as u64 {
            return Err(SourceError("the range is not in the layer".to_owned()));
        }
        let cut = faults.cut.load(Ordering::SeqCst);
        let mut sent = 0;
        for start in range.clone().step_by(16 << 10) {
            if faults.gone.load(Ordering::SeqCst) || (cut > 0 && sent >= cut) {
                return Err(SourceError("the connection broke".to_owned()));
            }
            let pause = *faults.pause.lock().unwrap();
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let end = (start + (16 << 10)).min(range.end);
            let mut piece = self.image[start as usize..end as usize].to_vec();
            if let Some(lie) = *faults.lie.lock().unwrap()
                && (start..end).contains(&lie)
            {
                piece[(lie - start) as usize] ^= 0x40;
            }
            sent += piece.len();
            if sink(&piece).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }
}

pub fn sources<const N: usize>(sources: [&Arc<Memory>; N]) -> Sources {
    sources.map(|source| Arc::clone(source) as Arc<dyn Source>).into_iter().collect()
}

/// Keeps events.
#[derive(Debug, Default)]
pub struct Recorder {
    events: Mutex<Vec<LazyEvent>>,
    changed: Condvar,
}

impl Observer for Recorder {
    fn report(&self, event: LazyEvent) {
        self.events.lock().unwrap().push(event);
        self.changed.notify_all();
    }
}

impl Recorder {
    pub fn all(&self) -> Vec<LazyEvent> {
        self.events.lock().unwrap().clone()
    }

    /// Waits for an event.
    pub fn wait_for(&self, what: &str, is_it: impl Fn(&LazyEvent) -> bool) -> LazyEvent {
        let events = self.events.lock().unwrap();
        let missing = |events: &mut Vec<LazyEvent>| !events.iter().any(&is_it);
        let (events, timeout) = self.changed.wait_timeout_while(events, Duration::from_secs(60), missing).unwrap();
        assert!(!timeout.timed_out(), "no {what}: {events:?}");
        events.iter().find(|event| is_it(event)).unwrap().clone()
    }

    pub fn wait_complete(&self) {
        self.wait_for("completion", |event| matches!(event, LazyEvent::Complete { .. }));
    }
}

/// A directory in which layers are served.
pub struct Bench {
    pub directory: tempfile::TempDir,
    pub recorder: Arc<Recorder>,
}

impl Bench {
    /// `None`, with a message, if this kernel announces no reads.
    #[allow(clippy::print_stdout, reason = "a skipped test says why")]
    pub fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        if let Err(error) = lazy::probe(directory.path()) {
            println!("skipped: {error}");
            return None;
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the probe left a file");
        std::fs::create_dir(directory.path().join("layer")).unwrap();
        Some(Self { directory, recorder: Arc::default() })
    }

    pub fn layer(&self) -> PathBuf {
        self.directory.path().join("layer")
    }

    pub fn events(&self) -> PathBuf {
        self.directory.path().join("events")
    }

    pub fn start(&self, settings: Settings) -> Lazy {
        Lazy::start(
            ServiceLock::acquire(&self.events()).unwrap(),
            settings,
            Arc::clone(&self.recorder) as Arc<dyn Observer>,
        )
        .unwrap()
    }

    /// Creates the layer and serves it.
    pub fn serve(&self, lazy: &Lazy, native: &Native, sources: &Sources) -> Mounted {
        let limits = Limits::default();
        let (layer, _) = PartialLayer::create(&self.layer(), native.description.clone(), sources, &limits).unwrap();
        lazy.serve(layer, Arc::clone(sources)).unwrap();
        Mounted::of(&self.layer().join("fs.erofs"))
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.layer().join("fs.erofs")).unwrap()
    }
}

/// A mounted image.
pub struct Mounted {
    root: OwnedFd,
}

impl Mounted {
    pub fn of(image: &Path) -> Self {
        let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        fsconfig_set_string(&context, "source", image).unwrap();
        fsconfig_create(&context).unwrap();
        let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
        Self { root }
    }

    /// Where each process of the machine finds a file, by its path in the layer.
    pub fn path(&self, name: &str) -> PathBuf {
        format!("/proc/{}/fd/{}/{name}", std::process::id(), self.root.as_raw_fd()).into()
    }

    /// Opens a file by its path in the layer.
    pub fn open(&self, name: &str) -> File {
        File::open(self.path(name)).unwrap()
    }

    /// Reads a part of a file.
    pub fn read(&self, name: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.open(name).read_exact_at(&mut bytes, range.start).map(|()| bytes)
    }
}
