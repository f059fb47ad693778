//! The log FIFOs while no plugin looks after them.
//!
//! As long as one does (`keeper.json` names it), the monitor only waits for that plugin's end. Without one it waits until something is
//! put into a FIFO, and after a while makes room in a FIFO that is full and that nobody reads. What is dropped is counted where the
//! next plugin finds it. Nothing is dropped unless a look at all processes just before found no reader.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, ioctl_fionread},
    time::Timespec,
};

use super::output::{Outputs, Stream};
use crate::{
    fifo::{self, Fifo},
    losses::LostBytes,
    process::{ProcessRecord, ProcessRef},
    state::{KEEPER, TaskDir},
};

/// The kernel tells nobody that a FIFO has become full: so long after something was put into one, it is looked at.
const REST: Duration = Duration::from_secs(1);
/// Looks at all processes may take one part in so many of a processor.
const SHARE: u32 = 20;

/// See the module's head.
pub(super) struct Relief<'a> {
    task: &'a TaskDir,
    init: &'a ProcessRef,
    streams: Vec<Held<'a>>,
    keeper: Option<ProcessRef>,
    /// Until the next look.
    rest: Duration,
}

struct Held<'a> {
    name: &'static str,
    fifo: &'a Fifo,
    held: &'a OwnedFd,
    /// Something was dropped, and no reader has been seen since.
    unread: bool,
}

impl<'a> Relief<'a> {
    pub fn new(task: &'a TaskDir, init: &'a ProcessRef, outputs: &'a Outputs) -> Self {
        let held = |(name, stream): (&'static str, &'a Stream)| {
            stream.held.as_ref().map(|(fifo, held)| Held { name, fifo, held, unread: false })
        };
        let streams = [("stdout", &outputs.stdout), ("stderr", &outputs.stderr)].into_iter().filter_map(held).collect();
        Self { task, init, streams, keeper: None, rest: REST }
    }

    /// Until the container has ended.
    pub fn until_end(&mut self) -> io::Result<()> {
        while !self.init.ended() {
            let end = PollFd::new(&self.init.pidfd, PollFlags::IN);
            if let Some(keeper) = &self.keeper {
                wait(&mut [end, PollFd::new(&keeper.pidfd, PollFlags::IN)], None)?;
            } else {
                let filled = self.streams.iter().map(|stream| PollFd::new(stream.held, PollFlags::IN));
                wait(&mut [end].into_iter().chain(filled).collect::<Vec<_>>(), None)?;
                self.init.wait_for(Some(self.rest))?;
            }
            self.look()?;
        }
        self.count_rest()
    }

    /// Until there may be room in a log that is full, or the container has ended.
    pub fn until_room(&mut self, log: &OwnedFd) -> io::Result<()> {
        let end = PollFd::new(&self.init.pidfd, PollFlags::IN);
        let room = PollFd::new(log, PollFlags::OUT);
        let happened = match &self.keeper {
            Some(keeper) => wait(&mut [end, room, PollFd::new(&keeper.pidfd, PollFlags::IN)], None)?,
            None => wait(&mut [end, room], Some(self.rest))?,
        };
        if self.keeper.is_some() || !happened { self.look() } else { Ok(()) }
    }

    /// Makes room where that is up to us.
    fn look(&mut self) -> io::Result<()> {
        self.rest = REST;
        if let Some(keeper) = self.keeper.take() {
            self.keeper = (!keeper.ended()).then_some(keeper);
            return Ok(());
        }
        self.keeper = self.find_keeper()?;
        if self.keeper.is_some() {
            self.streams.iter_mut().for_each(|stream| stream.unread = false);
            return Ok(());
        }
        let (mut looked, mut made_room) = (Duration::ZERO, false);
        for stream in &mut self.streams {
            if !fifo::is_full(stream.held)? {
                continue;
            }
            let begun = Instant::now();
            stream.unread = stream.has_no_reader()?;
            looked += begun.elapsed();
            if stream.unread {
                made_room = true;
                let dropped = fifo::drop_all(stream.held, &File::options().write(true).open("/dev/null")?)?;
                LostBytes::open(&self.task.lost(stream.name))?.add(dropped)?;
            }
        }
        self.rest = rest_after(looked, made_room);
        Ok(())
    }

    /// The plugin that looks after the FIFOs, if it lives.
    fn find_keeper(&self) -> io::Result<Option<ProcessRef>> {
        let record: Option<ProcessRecord> = self.task.read(KEEPER).map_err(io::Error::other)?;
        Ok(record.map(|record| ProcessRef::find(&record)).transpose()?.flatten())
    }

    /// What is left in a FIFO that nobody reads goes with us.
    fn count_rest(&self) -> io::Result<()> {
        for stream in self.streams.iter().filter(|stream| stream.unread) {
            if stream.has_no_reader()? {
                LostBytes::open(&self.task.lost(stream.name))?.add(ioctl_fionread(stream.held)?)?;
            }
        }
        Ok(())
    }
}

impl Held<'_> {
    fn has_no_reader(&self) -> io::Result<bool> {
        Ok(fifo::attended(std::slice::from_ref(self.fifo))?.is_empty())
    }
}

/// How long to rest after looks that took so long. Where room was made the task goes on writing, and waits for the next look.
fn rest_after(looked: Duration, made_room: bool) -> Duration {
    let within_share = looked * SHARE;
    if made_room { within_share } else { within_share.max(REST) }
}

/// Waits for one of them; whether that came before the limit.
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
    fn looks_take_their_share_and_no_more() {
        let millis = Duration::from_millis;
        for (looked, made_room, expected) in [
            (millis(1), true, millis(20)),
            (millis(200), true, millis(4000)),
            (millis(1), false, REST),
            (millis(200), false, millis(4000)),
            (Duration::ZERO, false, REST),
        ] {
            assert_eq!(rest_after(looked, made_room), expected, "{looked:?} {made_room}");
        }
    }
}
