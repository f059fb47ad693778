//! The log FIFOs when nobody reads them.
//!
//! A task writes straight into Nomad's FIFOs; no process of ours copies its output. Its monitor holds both ends of them, so
//! the death of their reader (Nomad's logmon) does not kill the task. But a FIFO that nobody reads fills up, and a task that
//! writes on would block until there is a reader again, which Nomad starts only with the task or the agent. So the *keeper*,
//! one for all tasks of this process, learns from the kernel that a reader of a FIFO went away, and when there is no other,
//! it keeps the FIFO from staying full until there is one: what fits into the FIFO waits for the reader, what comes after
//! that is dropped, counted, and told in a task event.
//!
//! It belongs to the plugin, not to the monitor, because inotify instances are few (128 for all of root's processes). Monitors do
//! the same in a simpler way for as long as no plugin lives that looks after their FIFOs (`runtime/src/monitor/relief.rs`).
//!
//! Always true: nothing is taken out of a FIFO unless a look at all processes, begun after the last opening or closing of it
//! that we know of, found no reader.

mod drain;
mod stream;
pub mod terminal;

use std::{collections::HashSet, io, mem::MaybeUninit, os::fd::OwnedFd, sync::OnceLock, time::Duration};

use runtime::{
    Runtime,
    fifo::{self, Fifo, FileId},
    plan::ContainerId,
};
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags},
    io::Errno,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};

use self::stream::{Care, Kind, Step, Stream};
use crate::{events::TaskEvents, sys};

/// A reader opens its FIFO beside the task's start, so the first look comes later.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// Looking may take this share of one processor at most, however often a task opens and closes its streams.
const SHARE: u32 = 20;

/// Tells what of the output of a container that has ended was dropped while no plugin was there to tell.
pub fn tell_losses(runtime: &Runtime, container: &ContainerId, events: &TaskEvents) {
    for kind in [Kind::Stdout, Kind::Stderr] {
        kind.tell_old_losses(runtime, container, events);
    }
}

/// A way to the keeper, which is started with the first task.
pub struct Logs {
    runtime: Runtime,
    keeper: OnceLock<Option<mpsc::UnboundedSender<Message>>>,
}

/// The streams of one task are being watched for as long as this lives.
pub struct Watched {
    container: ContainerId,
    keeper: mpsc::UnboundedSender<Message>,
    /// Who waits for its end.
    done: Option<oneshot::Sender<()>>,
}

enum Message {
    Watch {
        container: ContainerId,
        events: TaskEvents,
    },
    /// Told when nothing of the container's directory is open any more.
    Ended {
        container: ContainerId,
        done: Option<oneshot::Sender<()>>,
    },
}

impl Logs {
    /// Starts nothing.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, keeper: OnceLock::new() }
    }

    /// Watches the streams of a container that runs; `None` when that is impossible here, which the log says once. Must be called
    /// on a thread of the async runtime.
    pub fn watch(&self, container: &ContainerId, events: TaskEvents) -> Option<Watched> {
        let keeper = self.keeper.get_or_init(|| match Keeper::start(self.runtime.clone()) {
            Ok(keeper) => Some(keeper),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "a task whose log collector dies will block when its log FIFO is full: no inotify instance \
                     (raise fs.inotify.max_user_instances)"
                );
                None
            }
        });
        let keeper = keeper.clone()?;
        let message = Message::Watch { container: container.clone(), events };
        keeper.send(message).is_ok().then(|| Watched { container: container.clone(), keeper, done: None })
    }
}

impl Watched {
    /// Lets go of the streams; the result is done when nobody counts lost output in the container's directory any more.
    pub fn let_go(mut self) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.done = Some(done);
        is_done
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A keeper that is gone watches nothing.
        drop(self.keeper.send(Message::Ended { container: self.container.clone(), done: self.done.take() }));
    }
}

struct Keeper {
    runtime: Runtime,
    inbox: mpsc::UnboundedReceiver<Message>,
    inotify: AsyncFd<OwnedFd>,
    streams: Vec<Stream>,
    looking: Option<JoinHandle<Looked>>,
    /// When the next look may begin.
    rested: Instant,
}

struct Looked {
    attended: io::Result<HashSet<FileId>>,
    took: Duration,
}

impl Keeper {
    fn start(runtime: Runtime) -> io::Result<mpsc::UnboundedSender<Message>> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let inotify = sys::watch(inotify, Interest::READABLE)?;
        let (sender, inbox) = mpsc::unbounded_channel();
        let keeper = Self { runtime, inbox, inotify, streams: Vec::new(), looking: None, rested: Instant::now() };
        tokio::spawn(keeper.run());
        Ok(sender)
    }

    async fn run(mut self) {
        loop {
            let look = self.next_look();
            tokio::select! {
                message = self.inbox.recv() => match message {
                    Some(Message::Watch { container, events }) => self.watch(container, &events).await,
                    Some(Message::Ended { container, done }) => {
                        self.ended(&container).await;
                        if let Some(done) = done {
                            // Who does not wait any more does not mind.
                            done.send(()).ok();
                        }
                    }
                    None => return,
                },
                ready = self.inotify.readable() => {
                    let touched = match ready {
                        Ok(mut ready) => {
                            ready.clear_ready();
                            read_events(ready.get_inner())
                        }
                        Err(error) => Err(error),
                    };
                    match touched {
                        Ok(touched) => self.touched(&touched),
                        Err(error) => {
                            tracing::error!(%error, "log FIFOs are no longer watched");
                            return;
                        }
                    }
                }
                looked = finished(self.looking.as_mut()) => {
                    self.looking = None;
                    self.looked(looked).await;
                }
                () = reached(look) => self.look(),
            }
        }
    }

    async fn watch(&mut self, container: ContainerId, events: &TaskEvents) {
        let (runtime, id) = (self.runtime.clone(), container.clone());
        let output = tokio::task::spawn_blocking(move || runtime.output(&id)).await;
        let output = match output {
            Ok(Ok(Some((output, _)))) => output,
            Ok(Ok(None)) | Err(_) => return,
            Ok(Err(error)) => return tracing::warn!(%container, %error, "log FIFOs are not watched"),
        };
        for (kind, path) in [(Kind::Stdout, output.stdout), (Kind::Stderr, output.stderr)] {
            match Stream::open(
                kind,
                &path,
                (self.runtime.clone(), container.clone()),
                events.clone(),
                self.inotify.get_ref(),
            ) {
                Ok(Some(mut stream)) => {
                    stream.look_at = Some(Instant::now() + FIRST_LOOK);
                    self.streams.push(stream);
                }
                // A log that goes nowhere.
                Ok(None) => {}
                Err(error) => tracing::warn!(%container, path = %path.display(), %error, "log FIFO is not watched"),
            }
        }
        if self.streams.iter().any(|stream| stream.container == container) {
            let (runtime, id) = (self.runtime.clone(), container.clone());
            let told = tokio::task::spawn_blocking(move || runtime.keep_output(&id)).await;
            if let Ok(Err(error)) = told {
                tracing::warn!(%container, %error, "the monitor does not know that its log FIFOs are looked after");
            }
        }
    }

    /// The last look at a container's streams: what still waits in a FIFO that nobody reads is lost.
    async fn ended(&mut self, container: &ContainerId) {
        let (gone, left) = std::mem::take(&mut self.streams).into_iter().partition(|one| one.container == *container);
        self.streams = left;
        let gone: Vec<Stream> = gone;
        let wanted: Vec<Fifo> = gone.iter().filter(|stream| stream.drain.is_some()).map(Stream::fifo).collect();
        let attended = if wanted.is_empty() {
            HashSet::new()
        } else {
            let look = tokio::task::spawn_blocking(move || fifo::attended(&wanted));
            look.await.ok().and_then(Result::ok).unwrap_or_default()
        };
        for mut stream in gone {
            stream.release(!attended.contains(&stream.fifo().id)).await;
            // A restarted task has the same FIFO.
            if !self.streams.iter().any(|other| other.watch == stream.watch)
                && let Err(error) = inotify::remove_watch(self.inotify.get_ref(), stream.watch)
            {
                tracing::debug!(%container, %error, "watch of a log FIFO not removed");
            }
        }
    }

    /// Somebody opened or closed these.
    fn touched(&mut self, touched: &Touched) {
        for stream in &mut self.streams {
            if touched.all || touched.watches.contains(&stream.watch) {
                stream.touched();
                stream.look_at = Some(Instant::now());
            }
        }
    }

    /// When to look at processes next.
    fn next_look(&self) -> Option<Instant> {
        let due = self.streams.iter().filter_map(|stream| stream.look_at).min()?;
        self.looking.is_none().then(|| due.max(self.rested))
    }

    fn look(&mut self) {
        let mut wanted = Vec::new();
        for stream in &mut self.streams {
            stream.being_looked_at = stream.look_at.take().is_some();
            if stream.being_looked_at {
                wanted.push(stream.fifo());
            }
        }
        self.looking = Some(tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let attended = fifo::attended(&wanted);
            Looked { attended, took: begun.elapsed() }
        }));
    }

    async fn looked(&mut self, looked: Option<Looked>) {
        let Some(Looked { attended, took }) = looked else { return };
        self.rested = Instant::now() + took * SHARE;
        let attended = match attended {
            Ok(attended) => attended,
            // Nothing is known, so nothing is taken.
            Err(error) => return tracing::warn!(%error, "cannot see who reads the log FIFOs"),
        };
        for stream in &mut self.streams {
            // Touched meanwhile: what was seen may be out of date.
            if !std::mem::take(&mut stream.being_looked_at) || stream.look_at.is_some() {
                continue;
            }
            let (care, step) = stream::decide(stream.care, attended.contains(&stream.fifo().id));
            stream.care = care;
            match step {
                // Only the first look can find losses that are nobody's.
                Step::Nothing if std::mem::take(&mut stream.is_new) => stream.tell_old_losses(),
                Step::Nothing => {}
                Step::Hold => match stream.hold(self.inotify.get_ref()) {
                    Ok(()) => stream.look_at = Some(Instant::now()),
                    Err(error) => {
                        stream.care = Care::Attended;
                        tracing::warn!(container = %stream.container, %error, "cannot hold a log FIFO that nobody reads");
                    }
                },
                Step::Drain => stream.drain(),
                Step::Release => {
                    stream.release(false).await;
                    if let Err(error) = stream.watch_for_closing(self.inotify.get_ref()) {
                        tracing::warn!(container = %stream.container, %error, "log FIFO is no longer watched");
                    }
                }
            }
        }
    }
}

/// What inotify told.
#[derive(Default)]
struct Touched {
    watches: HashSet<i32>,
    /// The kernel had to leave some out.
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

async fn finished(work: Option<&mut JoinHandle<Looked>>) -> Option<Looked> {
    match work {
        Some(work) => work.await.ok(),
        None => std::future::pending().await,
    }
}

async fn reached(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
