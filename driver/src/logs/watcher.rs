//! The actor that watches the log FIFOs of all tasks of this process.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::{AsFd, OwnedFd},
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

use super::{drain::Drain, dropped, watched_stream::WatchedStream};
use crate::{events::TaskEvents, sys};

/// A message to the watcher.
pub enum Message {
    /// Watch the streams of a container.
    Watch { container: ContainerId, events: TaskEvents },
    /// End the watch. `done` is answered when no file of the container's directory is open any more.
    Ended { container: ContainerId, done: Option<oneshot::Sender<()>> },
}

/// The watcher.
pub struct Watcher {
    runtime: Runtime,
    inbox: mpsc::UnboundedReceiver<Message>,
    fifos: LogWatcher,
    /// A copy of the descriptor of `fifos`.
    touched: AsyncFd<OwnedFd>,
    streams: HashMap<StreamKey, WatchedStream>,
    check: Option<JoinHandle<Checked>>,
}

impl Watcher {
    /// Starts the watcher. It ends when all senders are dropped.
    pub fn start(runtime: Runtime) -> io::Result<mpsc::UnboundedSender<Message>> {
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
        let logs = match output {
            Ok(Ok(Some(logs))) => logs,
            Ok(Ok(None)) | Err(_) => return,
            Ok(Err(error)) => return tracing::warn!(%container, %error, "log FIFOs are not watched"),
        };
        // With a log relay: the FIFOs from which it reads, and those into which it writes.
        let fifos = [Some(logs.output), logs.relayed].into_iter().flatten();
        let fifos =
            fifos.flat_map(|output| [(OutputStream::Stdout, output.stdout), (OutputStream::Stderr, output.stderr)]);
        for (stream, path) in fifos {
            match self.fifos.add(&container, &path) {
                Ok(Some(key)) => {
                    let watched =
                        WatchedStream { container: container.clone(), stream, events: events.clone(), drain: None };
                    self.streams.insert(key, watched);
                }
                // The log is /dev/null.
                Ok(None) => {}
                Err(error) => tracing::warn!(%container, path = %path.display(), %error, "log FIFO is not watched"),
            }
        }
        if self.fifos.watches(&container) {
            let (runtime, id) = (self.runtime.clone(), container.clone());
            let announced = tokio::task::spawn_blocking(move || runtime.announce_log_watcher(&id)).await;
            if let Ok(Err(error)) = announced {
                tracing::warn!(%container, %error, "the monitor does not know that its log FIFOs are watched");
            }
        }
    }

    /// Ends the watching of a container's streams. The content of a FIFO without a reader is lost.
    async fn ended(&mut self, container: &ContainerId) {
        let removed = self.fifos.remove(container);
        if let Some(stream) = removed.first().and_then(|removed| self.streams.get(&removed.key)) {
            dropped::report_undelivered(&self.runtime, container, &stream.events);
        }
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
                Action::Report => stream.report(&self.runtime),
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
