//! Drains one held log FIFO on the async runtime.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use runtime::logs::{Drained, DroppedBytes, FifoDrainer, waiting_bytes};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    task::JoinHandle,
};

use crate::sys;

/// The kernel does not report that a FIFO became full. Until it was full for the first time, it is examined this
/// often while it has content. This is the longest time for which the death of a reader blocks a task.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Pause,
    Go,
    Stop,
}

/// A FIFO that is held open, and drained on demand.
pub struct Drain {
    orders: watch::Sender<Order>,
    dropped: Arc<DroppedBytes>,
    work: JoinHandle<io::Result<OwnedFd>>,
}

impl Drain {
    /// Holds a FIFO, open for reading and writing in non-blocking mode. It is not drained yet. `dropped` will count
    /// the dropped bytes. `begins` is called before the first bytes are dropped.
    pub fn hold(fifo: OwnedFd, dropped: DroppedBytes, begins: impl Fn() + Send + 'static) -> io::Result<Self> {
        let drainer = FifoDrainer::new()?;
        let fifo = sys::watch(fifo, Interest::READABLE)?;
        let (orders, receiver) = watch::channel(Order::Pause);
        let dropped = Arc::new(dropped);
        let worker = Worker { fifo, drainer, orders: receiver, dropped: Arc::clone(&dropped) };
        Ok(Self { orders, dropped, work: tokio::spawn(worker.run(begins)) })
    }

    /// From now on the FIFO must not stay full.
    pub fn go(&self) {
        self.orders.send_replace(Order::Go);
    }

    /// From now on nothing may be dropped.
    pub fn pause(&self) {
        self.orders.send_replace(Order::Pause);
    }

    /// Closes the FIFO. If it is `abandoned`, its content is counted as dropped.
    pub async fn stop(self, abandoned: bool) -> io::Result<()> {
        self.orders.send_replace(Order::Stop);
        let waiting = match self.work.await {
            Ok(Ok(fifo)) if abandoned => waiting_bytes(&fifo).unwrap_or(0),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a log FIFO could not be kept from filling up");
                0
            }
            _ => 0,
        };
        if waiting > 0 { self.dropped.add(waiting) } else { Ok(()) }
    }
}

struct Worker {
    fifo: AsyncFd<OwnedFd>,
    drainer: FifoDrainer,
    orders: watch::Receiver<Order>,
    dropped: Arc<DroppedBytes>,
}

impl Worker {
    async fn run(mut self, begins: impl Fn()) -> io::Result<OwnedFd> {
        loop {
            let order = *self.orders.borrow_and_update();
            match order {
                Order::Stop => return Ok(self.fifo.into_inner()),
                Order::Pause => {
                    if self.orders.changed().await.is_err() {
                        return Ok(self.fifo.into_inner());
                    }
                    continue;
                }
                Order::Go => {}
            }
            tokio::select! {
                biased;
                changed = self.orders.changed() => match changed {
                    Ok(()) => continue,
                    // No sender is left: the plugin ends.
                    Err(_) => return Ok(self.fifo.into_inner()),
                },
                ready = self.fifo.readable() => {
                    let mut ready = ready?;
                    match self.drainer.step(ready.get_inner(), &self.dropped, &begins)? {
                        Drained::Empty => {
                            ready.clear_ready();
                            continue;
                        }
                        Drained::Discarded => continue,
                        Drained::Kept => {}
                    }
                }
            }
            tokio::select! {
                changed = self.orders.changed() => if changed.is_err() {
                    return Ok(self.fifo.into_inner());
                },
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, OpenOptions},
        io::{Read, Write},
        os::unix::fs::OpenOptionsExt,
        path::PathBuf,
        sync::mpsc,
    };

    use runtime::logs::OutputStream;

    use super::*;

    fn fifo(directory: &tempfile::TempDir) -> (PathBuf, OwnedFd) {
        let path = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let held = OpenOptions::new().read(true).write(true).custom_flags(nonblock).open(&path).unwrap();
        (path, held.into())
    }

    fn count(directory: &tempfile::TempDir) -> DroppedBytes {
        let runtime = runtime::Runtime::open(&directory.path().join("state"), &directory.path().join("data")).unwrap();
        fs::create_dir_all(directory.path().join("state/tasks/one")).unwrap();
        runtime.dropped_bytes(&"one".parse().unwrap(), OutputStream::Stdout).unwrap()
    }

    #[tokio::test]
    async fn content_that_fits_waits_for_the_next_reader() {
        let directory = tempfile::tempdir().unwrap();
        let (path, held) = fifo(&directory);
        let mut reader = OpenOptions::new().read(true).open(&path).unwrap();
        let drain = Drain::hold(held, count(&directory), || panic!("nothing is dropped")).unwrap();
        drain.go();
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(b"kept\n").unwrap();
        drain.stop(false).await.unwrap();
        assert_eq!(count(&directory).take().unwrap(), 0);
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "kept\n");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_writer_goes_on_and_every_byte_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let (path, held) = fifo(&directory);
        let (began, begins) = mpsc::channel();
        let drain = Drain::hold(held, count(&directory), move || began.send(()).unwrap()).unwrap();
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        // Small writes and ones larger than the FIFO.
        let written = tokio::task::spawn_blocking(move || {
            let mut total = 0;
            for size in [1, 5000, 300_000, 7, 1 << 20] {
                writer.write_all(&vec![7; size]).unwrap();
                total += size;
            }
            (total, writer)
        });
        drain.go();
        let (total, writer) = written.await.unwrap();
        assert_eq!(begins.iter().take(1).count(), 1);
        // Paused, it takes nothing.
        drain.pause();
        drain.stop(true).await.unwrap();
        assert_eq!(count(&directory).take().unwrap(), total as u64, "dropped, or still in the FIFO");
        drop(writer);
        assert!(begins.try_recv().is_err(), "announced once");
    }
}
