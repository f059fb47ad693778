//! Draining the log FIFOs while no plugin does it.
//!
//! While a plugin watches the container's FIFOs (`keeper.json` names it), the monitor only waits for the end of that
//! plugin. Without one, the monitor waits until a FIFO has content. When a FIFO is full, it looks for readers among all
//! processes; a full FIFO without a reader is drained. Dropped bytes are counted in a file, from which the next plugin
//! reports them. Nothing is dropped unless a look at all processes just before found no reader.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    time::Timespec,
};

use super::relay::Helper;
use crate::{
    logs::{self, DroppedBytes, Fifo, OutputStream, Outputs},
    process::{ProcessRecord, ProcessRef},
    state::{LOG_WATCHER, TaskDir},
};

/// The kernel does not tell when a FIFO becomes full. So a FIFO is examined this long after it got content.
const REST: Duration = Duration::from_secs(1);
/// Looks at all processes may take this share of one processor at most: one part in so many.
const SHARE: u32 = 20;

/// Waits for the end of a container and drains its log FIFOs meanwhile.
pub(super) struct LogDrain<'a> {
    task: &'a TaskDir,
    init: &'a ProcessRef,
    fifos: Vec<HeldFifo<'a>>,
    /// The log relay, if there is one. It is started again when it ends.
    relay: Option<&'a mut Helper>,
    /// The plugin that watches the FIFOs, if it lives.
    watcher: Option<ProcessRef>,
    /// Time until the next look.
    rest: Duration,
}

struct HeldFifo<'a> {
    stream: OutputStream,
    fifo: &'a Fifo,
    held: &'a OwnedFd,
}

impl<'a> LogDrain<'a> {
    /// `init` is the container's first process. `relay` is the log relay, with the logs to which it writes.
    pub fn new(
        task: &'a TaskDir,
        init: &'a ProcessRef,
        outputs: &'a Outputs,
        relay: Option<(&'a Outputs, &'a mut Helper)>,
    ) -> Self {
        let (logs, relay) = relay.unzip();
        let held = |outputs: &'a Outputs, stream: OutputStream| {
            let log = outputs.log(stream);
            log.held.as_ref().map(|(fifo, held)| HeldFifo { stream, fifo, held })
        };
        let all = [Some(outputs), logs].into_iter().flatten();
        let fifos =
            all.flat_map(|outputs| OutputStream::ALL.into_iter().filter_map(move |stream| held(outputs, stream)));
        Self { task, init, fifos: fifos.collect(), relay, watcher: None, rest: REST }
    }

    /// Drains until the container has ended.
    pub fn until_end(&mut self) -> io::Result<()> {
        while !self.init.ended() {
            let (init, rest) = (self.init, self.rest);
            let end = PollFd::new(&init.pidfd, PollFlags::IN);
            let revive = revive(self.relay.as_deref_mut());
            let relay = awaited_relay(self.relay.as_deref(), revive);
            if let Some(watcher) = &self.watcher {
                let watcher = PollFd::new(&watcher.pidfd, PollFlags::IN);
                wait(&mut [end, watcher].into_iter().chain(relay).collect::<Vec<_>>(), revive)?;
            } else {
                let filled = self.fifos.iter().map(|fifo| PollFd::new(fifo.held, PollFlags::IN));
                wait(&mut [end].into_iter().chain(relay).chain(filled).collect::<Vec<_>>(), revive)?;
                init.wait_for(Some(revive.map_or(rest, |revive| revive.min(rest))))?;
            }
            self.look()?;
        }
        Ok(())
    }

    /// Waits for content of the terminal, which is open as `master`, or for the end of the container.
    pub fn until_content(&mut self, master: &OwnedFd) -> io::Result<()> {
        let revive = revive(self.relay.as_deref_mut());
        let relay = awaited_relay(self.relay.as_deref(), revive);
        let awaited = [PollFd::new(master, PollFlags::IN), PollFd::new(&self.init.pidfd, PollFlags::IN)];
        wait(&mut awaited.into_iter().chain(relay).collect::<Vec<_>>(), revive).map(drop)
    }

    /// Drains until there may be room in `log`, which is full, or the container has ended.
    pub fn until_room(&mut self, log: &OwnedFd) -> io::Result<()> {
        let end = PollFd::new(&self.init.pidfd, PollFlags::IN);
        let room = PollFd::new(log, PollFlags::OUT);
        let revive = revive(self.relay.as_deref_mut());
        let relay = awaited_relay(self.relay.as_deref(), revive);
        let rest = revive.map_or(self.rest, |revive| revive.min(self.rest));
        let happened = match &self.watcher {
            Some(watcher) => {
                let watcher = PollFd::new(&watcher.pidfd, PollFlags::IN);
                wait(&mut [end, room, watcher].into_iter().chain(relay).collect::<Vec<_>>(), revive)?
            }
            None => wait(&mut [end, room].into_iter().chain(relay).collect::<Vec<_>>(), Some(rest))?,
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
        if self.watcher.is_some() {
            return Ok(());
        }
        let (mut looked, mut drained) = (Duration::ZERO, false);
        for fifo in &self.fifos {
            if !logs::is_full(fifo.held)? {
                continue;
            }
            let begun = Instant::now();
            let unread = fifo.has_no_reader()?;
            looked += begun.elapsed();
            if unread {
                drained = true;
                let dropped = logs::discard(fifo.held, &File::options().write(true).open("/dev/null")?)?;
                DroppedBytes::open(&self.task.dropped(fifo.stream))?.add(dropped)?;
            }
        }
        self.rest = rest_after(looked, drained);
        Ok(())
    }

    /// The plugin that watches the FIFOs, if it lives.
    fn find_watcher(&self) -> io::Result<Option<ProcessRef>> {
        let record: Option<ProcessRecord> = self.task.read(LOG_WATCHER).map_err(io::Error::other)?;
        Ok(record.map(|record| ProcessRef::find(&record)).transpose()?.flatten())
    }
}

impl HeldFifo<'_> {
    fn has_no_reader(&self) -> io::Result<bool> {
        Ok(logs::readers_of(std::slice::from_ref(self.fifo))?.is_empty())
    }
}

/// Starts the log relay again if it has ended; the time until that may be done, if not now.
fn revive(relay: Option<&mut Helper>) -> Option<Duration> {
    relay.and_then(Helper::revive)
}

/// The end of the log relay as an awaited event, if it lives.
fn awaited_relay(relay: Option<&Helper>, revive: Option<Duration>) -> Option<PollFd<'_>> {
    relay.filter(|_| revive.is_none()).map(|relay| PollFd::new(&relay.process().pidfd, PollFlags::IN))
}

/// The rest after looks that took `looked` in all. Where a FIFO was drained the task writes on, so the next look comes
/// sooner.
fn rest_after(looked: Duration, drained: bool) -> Duration {
    let within_share = looked * SHARE;
    if drained { within_share } else { within_share.max(REST) }
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
    use super::*;

    #[test]
    fn looks_take_at_most_their_share_of_a_processor() {
        let millis = Duration::from_millis;
        for (looked, drained, expected) in [
            (millis(1), true, millis(20)),
            (millis(200), true, millis(4000)),
            (millis(1), false, REST),
            (millis(200), false, millis(4000)),
            (Duration::ZERO, false, REST),
        ] {
            assert_eq!(rest_after(looked, drained), expected, "{looked:?} {drained}");
        }
    }
}
