//! The actor that keeps the links to Nomad's log files, for all allocations with tasks of this process.
//!
//! It has one inotify instance, which reports the files that Nomad makes and removes. While no plugin runs, new files
//! get no links; the next plugin makes them.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
};

use super::LogDirectory;
use crate::sys;

/// The size of the buffer for events, in bytes. An event is a few bytes longer than its name.
const BUFFER_SIZE: usize = 4096;

/// The way to the actor, which starts with the first task.
#[derive(Default)]
pub struct LogLinks(OnceLock<Option<mpsc::UnboundedSender<Message>>>);

/// The links of an allocation follow Nomad's files until this value is dropped.
pub struct LinkWatch {
    alloc_dir: PathBuf,
    actor: mpsc::UnboundedSender<Message>,
}

enum Message {
    Begin(PathBuf),
    End(PathBuf),
}

impl LogLinks {
    /// Lets the links of an allocation follow Nomad's files; `None` when that is impossible here, which the log says
    /// once. Must be called on a thread of the async runtime.
    pub fn watch(&self, alloc_dir: PathBuf) -> Option<LinkWatch> {
        let actor = self.0.get_or_init(|| match Actor::start() {
            Ok(actor) => Some(actor),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "tasks do not see log files that Nomad makes after their start: no inotify instance (raise \
                     fs.inotify.max_user_instances)"
                );
                None
            }
        });
        let actor = actor.clone()?;
        actor.send(Message::Begin(alloc_dir.clone())).is_ok().then_some(LinkWatch { alloc_dir, actor })
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        // Sending fails if the actor has ended: then it watches nothing.
        drop(self.actor.send(Message::End(std::mem::take(&mut self.alloc_dir))));
    }
}

struct Actor {
    inbox: mpsc::UnboundedReceiver<Message>,
    inotify: AsyncFd<OwnedFd>,
    allocations: HashMap<PathBuf, Allocation>,
}

#[derive(Default)]
struct Allocation {
    /// The tasks of this process in the allocation.
    tasks: usize,
    watched: Option<Watched>,
}

#[derive(Clone)]
struct Watched {
    /// The number under which inotify reports Nomad's directory.
    number: i32,
    directory: Arc<LogDirectory>,
}

/// A change of one of Nomad's directories.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Made(CString),
    Removed(CString),
    /// Any file may have been made or removed.
    Unknown,
    /// The kernel's queue was full: any directory may have changed.
    Lost,
}

impl Actor {
    fn start() -> io::Result<mpsc::UnboundedSender<Message>> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let inotify = sys::watch(inotify, Interest::READABLE)?;
        let (sender, inbox) = mpsc::unbounded_channel();
        tokio::spawn(Self { inbox, inotify, allocations: HashMap::new() }.run());
        Ok(sender)
    }

    async fn run(mut self) {
        loop {
            tokio::select! {
                message = self.inbox.recv() => match message {
                    Some(Message::Begin(alloc_dir)) => self.begin(alloc_dir).await,
                    Some(Message::End(alloc_dir)) => self.end(&alloc_dir),
                    None => return,
                },
                ready = self.inotify.readable() => {
                    let changes = match ready {
                        Ok(mut ready) => {
                            ready.clear_ready();
                            read_changes(self.inotify.get_ref())
                        }
                        Err(error) => Err(error),
                    };
                    match changes {
                        Ok(changes) => self.apply(changes).await,
                        Err(error) => return tracing::error!(%error, "log directories are no longer watched"),
                    }
                }
            }
        }
    }

    async fn begin(&mut self, alloc_dir: PathBuf) {
        let allocation = self.allocations.entry(alloc_dir.clone()).or_default();
        allocation.tasks += 1;
        if allocation.watched.is_some() {
            return;
        }
        let opened = alloc_dir.clone();
        let opened = tokio::task::spawn_blocking(move || LogDirectory::open(&opened)).await;
        let directory = match opened {
            Ok(Ok(Some(directory))) => Arc::new(directory),
            Ok(Ok(None)) | Err(_) => return,
            Ok(Err(error)) => return not_watched(&alloc_dir, &error),
        };
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        let path = format!("/proc/self/fd/{}", directory.nomad().as_raw_fd());
        match inotify::add_watch(self.inotify.get_ref(), path, flags) {
            Ok(number) => {
                allocation.watched = Some(Watched { number, directory });
                // Files that appeared before the watch began.
                self.apply(vec![(number, Change::Unknown)]).await;
            }
            Err(error) => not_watched(&alloc_dir, &error.into()),
        }
    }

    fn end(&mut self, alloc_dir: &Path) {
        let Some(allocation) = self.allocations.get_mut(alloc_dir) else { return };
        allocation.tasks -= 1;
        if allocation.tasks == 0
            && let Some(Allocation { watched: Some(watched), .. }) = self.allocations.remove(alloc_dir)
        {
            // An error means that the directory is gone, and the watch with it.
            inotify::remove_watch(self.inotify.get_ref(), watched.number).ok();
        }
    }

    async fn apply(&self, changes: Vec<(i32, Change)>) {
        let watched: Vec<&Watched> = self.allocations.values().filter_map(|one| one.watched.as_ref()).collect();
        let mut work: Vec<(Arc<LogDirectory>, Change)> = Vec::new();
        for (number, change) in changes {
            if change == Change::Lost {
                work.extend(watched.iter().map(|one| (one.directory.clone(), Change::Unknown)));
            } else if let Some(one) = watched.iter().find(|one| one.number == number) {
                work.push((one.directory.clone(), change));
            }
        }
        let done = tokio::task::spawn_blocking(move || {
            for (directory, change) in work {
                let done = match &change {
                    Change::Made(name) => directory.link(name),
                    Change::Removed(name) => directory.unlink(name),
                    Change::Unknown | Change::Lost => directory.link_all(),
                };
                if let Err(error) = done {
                    tracing::warn!(%error, ?change, "a log file of Nomad's has no correct link for the tasks");
                }
            }
        });
        if let Err(error) = done.await {
            tracing::error!(%error, "links to log files were not updated");
        }
    }
}

fn not_watched(alloc_dir: &Path, error: &io::Error) {
    tracing::warn!(
        alloc_dir = %alloc_dir.display(),
        %error,
        "tasks do not see log files that Nomad makes after their start (fs.inotify.max_user_watches may be too low)"
    );
}

fn read_changes(inotify: &OwnedFd) -> io::Result<Vec<(i32, Change)>> {
    let mut changes = Vec::new();
    let mut buffer = [MaybeUninit::uninit(); BUFFER_SIZE];
    let mut events = inotify::Reader::new(inotify, &mut buffer);
    loop {
        match events.next() {
            Ok(event) => changes.extend(change(event.events(), event.file_name()).map(|change| (event.wd(), change))),
            Err(Errno::AGAIN) => return Ok(changes),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn change(events: ReadFlags, name: Option<&CStr>) -> Option<Change> {
    if events.contains(ReadFlags::QUEUE_OVERFLOW) {
        return Some(Change::Lost);
    }
    let name = name?.to_owned();
    let made = events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
    Some(if made { Change::Made(name) } else { Change::Removed(name) })
}
