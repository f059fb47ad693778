//! The log FIFOs of all containers of one process, watched with one inotify instance.
//!
//! Inotify tells when a FIFO is opened or closed; a look at the open files of all processes ([`ReaderCheck`]) tells
//! whether it still has a reader. The caller schedules: it waits for the inotify descriptor and for
//! [`LogWatcher::next_check`], runs the check on a thread that may block, and carries out the [`Action`]s that follow.

use std::{
    collections::HashSet,
    io,
    mem::{self, MaybeUninit},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fs::{
        CWD, FileType, Mode, OFlags, fstat,
        inotify::{self, CreateFlags, ReadFlags, WatchFlags},
        open, openat,
    },
    io::Errno,
};

use super::{
    fifo::{Fifo, FileId, readers_of},
    reader::{Action, ReaderState, decide},
};
use crate::plan::ContainerId;

/// A reader opens its FIFO while the container starts, so the first check comes later.
const FIRST_CHECK: Duration = Duration::from_secs(1);
/// Checks may take this share of one processor at most (one part in so many), however often containers open and close
/// their streams.
const SHARE: u32 = 20;

/// Names a watched stream. No two streams of a watcher ever have the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamKey(u64);

/// The watched FIFOs of this process. Readable ([`AsFd`]) when a FIFO was opened or closed.
#[derive(Debug)]
pub struct LogWatcher {
    inotify: OwnedFd,
    streams: Vec<WatchedStream>,
    /// Number of the next key.
    next: u64,
    /// A check is under way.
    checking: bool,
    /// The next check may begin at this time.
    rested: Instant,
}

#[derive(Debug)]
struct WatchedStream {
    key: StreamKey,
    container: ContainerId,
    /// The number under which inotify reports the FIFO.
    watch: i32,
    state: ReaderState,
    /// The next check of its readers is due at this time.
    check_at: Option<Instant>,
    /// No check has found a reader yet.
    is_new: bool,
    /// A check of it is under way.
    being_checked: bool,
    /// The caller holds the FIFO open.
    held: bool,
    /// An O_PATH handle.
    handle: OwnedFd,
    fifo: Fifo,
}

/// A look at the readers of some FIFOs. It reads the open files of all processes and may take long.
#[derive(Debug)]
pub struct ReaderCheck(Vec<Fifo>);

/// The result of a [`ReaderCheck`].
#[derive(Debug)]
pub struct Checked {
    with_reader: io::Result<HashSet<FileId>>,
    took: Duration,
}

/// A stream that is no longer watched.
#[derive(Debug)]
pub struct RemovedStream {
    /// Its key.
    pub key: StreamKey,
    /// Its FIFO.
    pub fifo: Fifo,
    /// The caller holds the FIFO open.
    pub held: bool,
}

impl ReaderCheck {
    /// Looks at all processes. Blocks.
    pub fn run(self) -> Checked {
        let begun = Instant::now();
        Checked { with_reader: readers_of(&self.0), took: begun.elapsed() }
    }
}

impl AsFd for LogWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl LogWatcher {
    /// Watches nothing yet. Fails if the kernel has no inotify instance left (`fs.inotify.max_user_instances`).
    pub fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { inotify, streams: Vec::new(), next: 0, checking: false, rested: Instant::now() })
    }

    /// Watches the FIFO at `path` from now on; `None` if the file is not a FIFO.
    pub fn add(&mut self, container: &ContainerId, path: &Path) -> io::Result<Option<StreamKey>> {
        let handle = openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&handle)?.st_mode) != FileType::Fifo {
            return Ok(None);
        }
        let fifo = Fifo::of(&handle, path)?;
        let watch = inotify::add_watch(&self.inotify, magic_link(&handle), WatchFlags::CLOSE_NOWRITE)?;
        let key = StreamKey(self.next);
        self.next += 1;
        self.streams.push(WatchedStream {
            key,
            container: container.clone(),
            watch,
            state: ReaderState::Present,
            check_at: Some(Instant::now() + FIRST_CHECK),
            is_new: true,
            being_checked: false,
            held: false,
            handle,
            fifo,
        });
        Ok(Some(key))
    }

    /// Whether a stream of the container is watched.
    pub fn watches(&self, container: &ContainerId) -> bool {
        self.streams.iter().any(|stream| stream.container == *container)
    }

    /// Watches the container's streams no longer.
    pub fn remove(&mut self, container: &ContainerId) -> Vec<RemovedStream> {
        let (gone, left) = mem::take(&mut self.streams).into_iter().partition(|one| one.container == *container);
        self.streams = left;
        let gone: Vec<WatchedStream> = gone;
        for stream in &gone {
            // A restarted task has the same FIFO.
            if !self.streams.iter().any(|other| other.watch == stream.watch)
                && let Err(error) = inotify::remove_watch(&self.inotify, stream.watch)
            {
                tracing::debug!(%container, %error, "watch of a log FIFO not removed");
            }
        }
        gone.into_iter().map(|one| RemovedStream { key: one.key, fifo: one.fifo, held: one.held }).collect()
    }

    /// Takes in what inotify reports. The returned streams were opened or closed: they must not be drained before the
    /// next check.
    pub fn read_events(&mut self) -> io::Result<Vec<StreamKey>> {
        let touched = read_events(&self.inotify)?;
        let now = Instant::now();
        let mut keys = Vec::new();
        for stream in self.streams.iter_mut().filter(|one| touched.all || touched.watches.contains(&one.watch)) {
            if stream.state == ReaderState::Absent {
                stream.state = ReaderState::Uncertain;
            }
            stream.check_at = Some(now);
            keys.push(stream.key);
        }
        Ok(keys)
    }

    /// The time of the next check; `None` if none is due or one is under way.
    pub fn next_check(&self) -> Option<Instant> {
        let due = self.streams.iter().filter_map(|stream| stream.check_at).min()?;
        (!self.checking).then(|| due.max(self.rested))
    }

    /// Begins a check of all streams that have one due.
    pub fn begin_check(&mut self) -> ReaderCheck {
        let mut wanted = Vec::new();
        for stream in &mut self.streams {
            stream.being_checked = stream.check_at.take().is_some();
            if stream.being_checked {
                wanted.push(stream.fifo.clone());
            }
        }
        self.checking = true;
        ReaderCheck(wanted)
    }

    /// Ends a check that [`LogWatcher::begin_check`] began; what the caller must do. After an error nothing is known,
    /// so nothing is to be done. `None` stands for a check that did not come to its end.
    pub fn end_check(&mut self, checked: Option<Checked>) -> io::Result<Vec<(StreamKey, Action)>> {
        self.checking = false;
        let Some(Checked { with_reader, took }) = checked else { return Ok(Vec::new()) };
        self.rested = Instant::now() + took * SHARE;
        let with_reader = with_reader?;
        let mut actions = Vec::new();
        for stream in &mut self.streams {
            // A FIFO that was opened or closed meanwhile: what was seen may be out of date.
            if !mem::take(&mut stream.being_checked) || stream.check_at.is_some() {
                continue;
            }
            let (state, action) = decide(stream.state, with_reader.contains(&stream.fifo.id));
            stream.state = state;
            // Bytes that another process dropped before this one can only be found by the first check.
            let action = action.or_else(|| mem::take(&mut stream.is_new).then_some(Action::Report));
            actions.extend(action.map(|action| (stream.key, action)));
        }
        Ok(actions)
    }

    /// Opens both ends of a FIFO in non-blocking mode, watches for its opening from now on, and has it checked once
    /// more. `take` takes the descriptor. If a step fails, the stream is as before.
    pub fn hold(&mut self, key: StreamKey, take: impl FnOnce(OwnedFd) -> io::Result<()>) -> io::Result<()> {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.key == key) else { return Ok(()) };
        let open = || -> io::Result<()> {
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let fifo = open(magic_link(&stream.handle), flags, Mode::empty())?;
            // Only now, or inotify would report our own opening.
            let wanted = WatchFlags::CLOSE_NOWRITE | WatchFlags::OPEN;
            inotify::add_watch(&self.inotify, magic_link(&stream.handle), wanted)?;
            take(fifo)
        };
        match open() {
            Ok(()) => {
                stream.held = true;
                stream.check_at = Some(Instant::now());
                Ok(())
            }
            Err(error) => {
                stream.state = ReaderState::Present;
                Err(error)
            }
        }
    }

    /// The caller has closed a FIFO that it held: only its closing is watched for again.
    pub fn released(&mut self, key: StreamKey) -> io::Result<()> {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.key == key) else { return Ok(()) };
        stream.held = false;
        inotify::add_watch(&self.inotify, magic_link(&stream.handle), WatchFlags::CLOSE_NOWRITE)?;
        Ok(())
    }
}

/// What inotify reported.
#[derive(Default)]
struct Touched {
    watches: HashSet<i32>,
    /// The kernel's queue was full: any FIFO may have been opened or closed.
    all: bool,
}

fn read_events(inotify: &OwnedFd) -> io::Result<Touched> {
    let mut touched = Touched::default();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(inotify, &mut buffer);
    loop {
        match events.next() {
            Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => touched.all = true,
            Ok(event) => drop(touched.watches.insert(event.wd())),
            Err(Errno::AGAIN) => return Ok(touched),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A path by which the kernel follows a handle.
fn magic_link(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}
