//! The log FIFOs of the plugin's tasks: schedules `runtime::logs` on the async runtime and reports dropped output.
//!
//! `runtime::logs` explains why a FIFO without a reader is drained, and when. One actor, [`Watcher`], watches the FIFOs
//! of all tasks of this process. It belongs to the plugin, not to the monitor, because inotify instances are few (128
//! for all of root's processes). While no plugin lives, each monitor drains its own FIFOs.

mod drain;
mod dropped;
pub mod terminal;

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::OnceLock,
};

use runtime::{
    Runtime,
    logs::{self, Action, Checked, Fifo, LogWatcher, OutputStream, RemovedStream, StreamKey},
    plan::ContainerId,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};

use self::drain::Drain;
use crate::{events::TaskEvents, sys};

/// Tells how much output of a container that has ended was dropped while no plugin was there to tell it.
pub fn tell_dropped(runtime: &Runtime, container: &ContainerId, events: &TaskEvents) {
    for stream in OutputStream::ALL {
        dropped::tell_earlier(stream, runtime, container, events);
    }
}

/// Sends messages to the watcher, which is started with the first task.
pub struct Logs {
    runtime: Runtime,
    watcher: OnceLock<Option<mpsc::UnboundedSender<Message>>>,
}

/// The streams of one task are watched for as long as this lives.
pub struct Watched {
    container: ContainerId,
    watcher: mpsc::UnboundedSender<Message>,
    /// Answered when the watching has ended.
    done: Option<oneshot::Sender<()>>,
}

enum Message {
    Watch {
        container: ContainerId,
        events: TaskEvents,
    },
    /// `done` is answered when no file of the container's directory is open any more.
    Ended {
        container: ContainerId,
        done: Option<oneshot::Sender<()>>,
    },
}

impl Logs {
    /// Starts nothing.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, watcher: OnceLock::new() }
    }

    /// Watches the streams of a running container; `None` when that is impossible here, which the log says once. Must
    /// be called on a thread of the async runtime.
    pub fn watch(&self, container: &ContainerId, events: TaskEvents) -> Option<Watched> {
        let watcher = self.watcher.get_or_init(|| match Watcher::start(self.runtime.clone()) {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "a task whose log collector dies will block when its log FIFO is full: no inotify instance \
                     (raise fs.inotify.max_user_instances)"
                );
                None
            }
        });
        let watcher = watcher.clone()?;
        let message = Message::Watch { container: container.clone(), events };
        watcher.send(message).is_ok().then(|| Watched { container: container.clone(), watcher, done: None })
    }
}

impl Watched {
    /// Ends the watching. The result is ready when no file of the container's directory is open any more.
    pub fn let_go(mut self) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.done = Some(done);
        is_done
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Sending fails if the watcher has ended: then it watches nothing.
        drop(self.watcher.send(Message::Ended { container: self.container.clone(), done: self.done.take() }));
    }
}

/// The actor.
struct Watcher {
    runtime: Runtime,
    inbox: mpsc::UnboundedReceiver<Message>,
    fifos: LogWatcher,
    /// A copy of the descriptor of `fifos`.
    touched: AsyncFd<OwnedFd>,
    streams: HashMap<StreamKey, Stream>,
    check: Option<JoinHandle<Checked>>,
}

/// A watched stream of a task.
struct Stream {
    container: ContainerId,
    stream: OutputStream,
    events: TaskEvents,
    /// The FIFO, if it is held.
    drain: Option<Drain>,
}

impl Watcher {
    fn start(runtime: Runtime) -> io::Result<mpsc::UnboundedSender<Message>> {
        let fifos = LogWatcher::new()?;
        let touched = sys::watch(fifos.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        let (sender, inbox) = mpsc::unbounded_channel();
        let watcher = Self { runtime, inbox, fifos, touched, streams: HashMap::new(), check: None };
        tokio::spawn(watcher.run());
        Ok(sender)
    }

    async fn run(mut self) {
        loop {
            let next = self.fifos.next_check();
            tokio::select! {
                message = self.inbox.recv() => match message {
                    Some(Message::Watch { container, events }) => self.watch(container, &events).await,
                    Some(Message::Ended { container, done }) => {
                        self.ended(&container).await;
                        if let Some(done) = done {
                            // The receiver may be gone.
                            done.send(()).ok();
                        }
                    }
                    None => return,
                },
                ready = self.touched.readable() => {
                    let keys = match ready {
                        Ok(mut ready) => {
                            ready.clear_ready();
                            self.fifos.read_events()
                        }
                        Err(error) => Err(error),
                    };
                    match keys {
                        Ok(keys) => self.pause(&keys),
                        Err(error) => {
                            tracing::error!(%error, "log FIFOs are no longer watched");
                            return;
                        }
                    }
                }
                checked = finished(self.check.as_mut()) => {
                    self.check = None;
                    self.checked(checked).await;
                }
                () = reached(next) => {
                    let check = self.fifos.begin_check();
                    self.check = Some(tokio::task::spawn_blocking(move || check.run()));
                }
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
        for (stream, path) in [(OutputStream::Stdout, output.stdout), (OutputStream::Stderr, output.stderr)] {
            match self.fifos.add(&container, &path) {
                Ok(Some(key)) => {
                    let watched = Stream { container: container.clone(), stream, events: events.clone(), drain: None };
                    self.streams.insert(key, watched);
                }
                // The log is /dev/null.
                Ok(None) => {}
                Err(error) => tracing::warn!(%container, path = %path.display(), %error, "log FIFO is not watched"),
            }
        }
        if self.fifos.watches(&container) {
            let (runtime, id) = (self.runtime.clone(), container.clone());
            let told = tokio::task::spawn_blocking(move || runtime.announce_log_watcher(&id)).await;
            if let Ok(Err(error)) = told {
                tracing::warn!(%container, %error, "the monitor does not know that its log FIFOs are watched");
            }
        }
    }

    /// Ends the watching of a container's streams. The content of a FIFO without a reader is lost.
    async fn ended(&mut self, container: &ContainerId) {
        let removed = self.fifos.remove(container);
        let held: Vec<Fifo> = removed.iter().filter(|stream| stream.held).map(|stream| stream.fifo.clone()).collect();
        let with_reader = if held.is_empty() {
            HashSet::new()
        } else {
            let look = tokio::task::spawn_blocking(move || logs::readers_of(&held));
            look.await.ok().and_then(Result::ok).unwrap_or_default()
        };
        for RemovedStream { key, fifo, .. } in removed {
            if let Some(mut stream) = self.streams.remove(&key) {
                stream.release(&self.runtime, !with_reader.contains(&fifo.id)).await;
            }
        }
    }

    /// Pauses the draining of streams that were opened or closed.
    fn pause(&self, keys: &[StreamKey]) {
        for drain in keys.iter().filter_map(|key| self.streams.get(key)?.drain.as_ref()) {
            drain.pause();
        }
    }

    async fn checked(&mut self, checked: Option<Checked>) {
        let actions = match self.fifos.end_check(checked) {
            Ok(actions) => actions,
            Err(error) => return tracing::warn!(%error, "cannot see the readers of the log FIFOs"),
        };
        for (key, action) in actions {
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            match action {
                Action::Report => stream.tell_earlier(&self.runtime),
                Action::Hold => {
                    let held = self.fifos.hold(key, |fifo| stream.hold(&self.runtime, fifo));
                    if let Err(error) = held {
                        let container = &stream.container;
                        tracing::warn!(%container, %error, "cannot hold a log FIFO without a reader");
                    }
                }
                Action::Drain => stream.drain.iter().for_each(Drain::go),
                Action::Release => {
                    stream.release(&self.runtime, false).await;
                    if let Err(error) = self.fifos.released(key) {
                        tracing::warn!(container = %stream.container, %error, "log FIFO is no longer watched");
                    }
                }
            }
        }
    }
}

impl Stream {
    /// Takes the FIFO, to drain it when told to.
    fn hold(&mut self, runtime: &Runtime, fifo: OwnedFd) -> io::Result<()> {
        let (events, container, stream) = (self.events.clone(), self.container.clone(), self.stream);
        let begins = move || dropped::tell_beginning(stream, &container, &events);
        let count = runtime.dropped_bytes(&self.container, self.stream).map_err(io::Error::other)?;
        self.drain = Some(Drain::hold(fifo, count, begins)?);
        Ok(())
    }

    /// Closes the FIFO if it is held, and tells the number of dropped bytes. `abandoned`: the FIFO has no reader.
    async fn release(&mut self, runtime: &Runtime, abandoned: bool) {
        let Some(drain) = self.drain.take() else { return self.tell_earlier(runtime) };
        match drain.stop(abandoned).await {
            Ok(count) => dropped::tell(self.stream, count, &self.container, &self.events),
            Err(error) => tracing::warn!(container = %self.container, %error, "lost output was not counted"),
        }
    }

    fn tell_earlier(&self, runtime: &Runtime) {
        dropped::tell_earlier(self.stream, runtime, &self.container, &self.events);
    }
}

async fn finished(check: Option<&mut JoinHandle<Checked>>) -> Option<Checked> {
    match check {
        Some(check) => check.await.ok(),
        None => std::future::pending().await,
    }
}

async fn reached(time: Option<std::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(Instant::from_std(time)).await,
        None => std::future::pending().await,
    }
}
