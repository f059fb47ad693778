//! Draining the log FIFOs while no plugin does it.
//!
//! While a plugin watches the container's FIFOs (`keeper.json` names it), the monitor only waits for the end of that
//! plugin. Without one, the monitor waits until a FIFO has content. A FIFO that stays full although nothing is read
//! from it is drained ([`UnreadWatch`]): the monitor may not look at other processes. The FIFOs of a log relay are
//! drained only while there is no relay. Dropped bytes are counted in a file, from which the next plugin reports them.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    slice,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    time::Timespec,
};

use super::{guard::GuardedLayers, relay::Helper};
use crate::{
    logs::{self, DroppedBytes, HeldFifo, OutputStream, Outputs, UnreadWatch, Verdict},
    process::{ProcessRecord, ProcessRef},
    state::{LOG_WATCHER, TaskDir},
};

/// The kernel does not tell when a FIFO becomes full. So a FIFO is examined this long after it got content.
const REST: Duration = Duration::from_secs(1);
/// A FIFO that was drained fills again. It is examined this long after it got content.
const SHORT_REST: Duration = Duration::from_millis(5);

/// The processes of the monitor that are started again when they were killed.
pub(super) struct Helpers<'a> {
    /// The log relay, with the logs to which it writes.
    pub relay: Option<(&'a Outputs, &'a mut Helper)>,
    /// The guard of incomplete layers.
    pub layers: Option<&'a mut GuardedLayers>,
}

/// Waits for the end of a container and drains its log FIFOs meanwhile.
pub(super) struct LogDrain<'a> {
    task: &'a TaskDir,
    init: &'a ProcessRef,
    fifos: Vec<WatchedFifo<'a>>,
    helpers: Helpers<'a>,
    /// The plugin that watches the FIFOs, if it lives.
    watcher: Option<ProcessRef>,
    /// Time until the next look.
    rest: Duration,
}

struct WatchedFifo<'a> {
    stream: OutputStream,
    held: &'a HeldFifo,
    reader: Reader,
}

/// Who reads a FIFO.
enum Reader {
    /// The log relay.
    Relay,
    /// A process that the monitor does not know.
    Unknown(UnreadWatch),
}

impl<'a> LogDrain<'a> {
    /// `init` is the container's first process.
    pub fn new(task: &'a TaskDir, init: &'a ProcessRef, outputs: &'a Outputs, helpers: Helpers<'a>) -> Self {
        let logs = helpers.relay.as_ref().map(|(logs, _)| *logs);
        let mut fifos = Vec::new();
        for stream in OutputStream::ALL {
            let mut add = |outputs: &'a Outputs, reader| {
                fifos.extend(outputs.log(stream).held.as_ref().map(|held| WatchedFifo { stream, held, reader }));
            };
            let unknown = Reader::Unknown(UnreadWatch::new(stream));
            match logs {
                None => add(outputs, unknown),
                Some(logs) => {
                    add(outputs, Reader::Relay);
                    add(logs, unknown);
                }
            }
        }
        Self { task, init, fifos, helpers, watcher: None, rest: REST }
    }

    /// Drains until the container has ended.
    pub fn until_end(&mut self) -> io::Result<()> {
        while !self.init.ended() {
            let (init, rest) = (self.init, self.rest);
            let revive = self.helpers.revive(init);
            let mut ends = vec![PollFd::new(&init.pidfd, PollFlags::IN)];
            ends.extend(self.helpers.awaited(revive));
            if let Some(watcher) = &self.watcher {
                ends.push(PollFd::new(&watcher.pidfd, PollFlags::IN));
                wait(&mut ends, revive)?;
            } else {
                let filled = self.fifos.iter().map(|fifo| PollFd::new(&fifo.held.both, PollFlags::IN));
                wait(&mut ends.iter().cloned().chain(filled).collect::<Vec<_>>(), revive)?;
                wait(&mut ends, Some(revive.map_or(rest, |revive| revive.min(rest))))?;
            }
            self.look()?;
        }
        Ok(())
    }

    /// Waits for content of the terminal, which is open as `master`, or for the end of the container.
    pub fn until_content(&mut self, master: &OwnedFd) -> io::Result<()> {
        let revive = self.helpers.revive(self.init);
        let helpers = self.helpers.awaited(revive);
        let awaited = [PollFd::new(master, PollFlags::IN), PollFd::new(&self.init.pidfd, PollFlags::IN)];
        wait(&mut awaited.into_iter().chain(helpers).collect::<Vec<_>>(), revive).map(drop)
    }

    /// Drains until there may be room in `log`, which is full, or the container has ended.
    pub fn until_room(&mut self, log: BorrowedFd<'_>) -> io::Result<()> {
        let end = PollFd::new(&self.init.pidfd, PollFlags::IN);
        let room = PollFd::from_borrowed_fd(log, PollFlags::OUT);
        let revive = self.helpers.revive(self.init);
        let helpers = self.helpers.awaited(revive);
        let rest = revive.map_or(self.rest, |revive| revive.min(self.rest));
        let happened = match &self.watcher {
            Some(watcher) => {
                let watcher = PollFd::new(&watcher.pidfd, PollFlags::IN);
                wait(&mut [end, room, watcher].into_iter().chain(helpers).collect::<Vec<_>>(), revive)?
            }
            None => wait(&mut [end, room].into_iter().chain(helpers).collect::<Vec<_>>(), Some(rest))?,
        };
        if self.watcher.is_some() || !happened { self.look() } else { Ok(()) }
    }

    /// Drains full FIFOs without a reader, unless a plugin watches them.
    fn look(&mut self) -> io::Result<()> {
        self.rest = REST;
        if let Some(watcher) = self.watcher.take() {
            self.watcher = (!watcher.ended()).then_some(watcher);
            return Ok(());
        }
        self.watcher = self.find_watcher()?;
        let (watched, relayed) =
            (self.watcher.is_some(), self.helpers.relay.as_ref().is_some_and(|(_, relay)| relay.is_alive()));
        for fifo in &mut self.fifos {
            if watched {
                fifo.leave()?;
            } else if logs::is_full(&fifo.held.both)? {
                let rest = match fifo.verdict(relayed, Instant::now())? {
                    Verdict::Wait(rest) => rest,
                    Verdict::Discard => {
                        fifo.discard(self.task)?;
                        SHORT_REST
                    }
                };
                self.rest = self.rest.min(rest);
            }
        }
        Ok(())
    }

    /// The plugin that watches the FIFOs, if it lives.
    fn find_watcher(&self) -> io::Result<Option<ProcessRef>> {
        let record: Option<ProcessRecord> = self.task.read(LOG_WATCHER).map_err(io::Error::other)?;
        Ok(record.map(|record| ProcessRef::find(&record)).transpose()?.flatten())
    }
}

impl WatchedFifo<'_> {
    /// What to do with the FIFO, which is full.
    fn verdict(&mut self, relayed: bool, now: Instant) -> io::Result<Verdict> {
        match (&mut self.reader, &self.held.writer) {
            (Reader::Relay, _) => Ok(if relayed { Verdict::Wait(REST) } else { Verdict::Discard }),
            (Reader::Unknown(watch), Some(writer)) => watch.full(writer.as_fd()),
            // The monitor could not open the FIFO for writing alone. So it has kept its rights, and it may look at
            // other processes.
            (Reader::Unknown(watch), None) => {
                let readers = logs::readers_of(slice::from_ref(&self.held.fifo))?;
                Ok(watch.full_without_writer(!readers.is_empty(), now))
            }
        }
    }

    /// Discards and counts the content.
    fn discard(&mut self, task: &TaskDir) -> io::Result<()> {
        let dropped = logs::discard(&self.held.both, &File::options().write(true).open("/dev/null")?)?;
        if let Reader::Unknown(watch) = &mut self.reader {
            watch.discarded()?;
        }
        DroppedBytes::open(&task.dropped(self.stream))?.add(dropped)
    }

    /// Another process watches the FIFO.
    fn leave(&mut self) -> io::Result<()> {
        match &mut self.reader {
            Reader::Unknown(watch) => watch.stop(self.held.writer.as_ref().map(AsFd::as_fd)),
            Reader::Relay => Ok(()),
        }
    }
}

impl Helpers<'_> {
    /// Starts those that were killed again; the time until that may be done for the log relay, if not now.
    fn revive(&mut self, init: &ProcessRef) -> Option<Duration> {
        if let Some(layers) = &mut self.layers {
            layers.renew(init);
        }
        self.relay.as_mut().and_then(|(_, relay)| relay.revive())
    }

    /// The ends of those that live, as awaited events. `revive` says when the log relay may be started again.
    fn awaited(&self, revive: Option<Duration>) -> impl Iterator<Item = PollFd<'_>> {
        let relay = self.relay.as_ref().filter(|_| revive.is_none());
        let relay = relay.map(|(_, relay)| PollFd::new(&relay.process().pidfd, PollFlags::IN));
        relay.into_iter().chain(self.layers.as_ref().and_then(|layers| layers.awaited()))
    }
}

/// Waits for one of the descriptors; whether one became ready before the limit.
pub(super) fn wait(awaited: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<bool> {
    let limit = limit.map(Timespec::try_from).transpose().map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(awaited, limit.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write,
        process::{Command, Stdio},
    };

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::plan::Output;

    /// A monitor that could not open the FIFO for writing alone keeps its rights, and looks for readers itself.
    #[test]
    fn a_fifo_without_a_held_writer_is_drained_when_no_process_reads_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(".main.stdout.fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        let outputs = Outputs::open(&Output { stdout: path.clone(), stderr: "/dev/null".into() }).expect("opened");
        let held = outputs.stdout.held.as_ref().expect("a FIFO");
        assert!(held.writer.is_none());
        let stream = OutputStream::Stdout;
        let mut watched = WatchedFifo { stream, held, reader: Reader::Unknown(UnreadWatch::new(stream)) };
        let mut filler = fs::File::from(held.both.try_clone().expect("a copy"));
        while filler.write(&[7; 4096]).is_ok() {}

        // A reader that does not read.
        let open = fs::File::open(&path).expect("opened for reading");
        let mut reader = Command::new("sleep").arg("1000").stdin(open).stdout(Stdio::null()).spawn().expect("a reader");
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        for look in 0..3 {
            assert!(matches!(watched.verdict(false, now + hour * look), Ok(Verdict::Wait(_))), "it has a reader");
        }
        reader.kill().and_then(|()| reader.wait()).expect("ended");
        assert!(matches!(watched.verdict(false, now + hour * 2), Ok(Verdict::Wait(_))), "a reader may come back");
        assert!(matches!(watched.verdict(false, now + hour * 3), Ok(Verdict::Discard)));
    }
}
