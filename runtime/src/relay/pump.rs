//! Moving a container's output: from its FIFOs to Nomad's, and as messages into the queue.
//!
//! Every byte goes to Nomad's log first, and into the queue when it is written there. Output is read only when the
//! bytes before are written, and, in the mode `blocking`, when the queue has room: so a slow reader and a slow server
//! both make the container wait, and nothing else. When all writers have closed the FIFOs, the rest is read in any
//! case, so that it reaches Nomad's log even if the server takes nothing.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use log_drivers::{Lines, Message, Source};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, read, write},
    time::Timespec,
};

use super::queue::Queue;
use crate::logs::{OutputStream, Outputs, waiting_bytes};

/// Output that the server does not take is delivered for this long after the end of the container, as docker does.
pub(super) const DRAIN: Duration = Duration::from_secs(10);

/// This long after the end of the container the messages are counted that are not delivered yet. The monitor waits a
/// little longer before it records the end, so that the plugin reports them.
const MARK: Duration = Duration::from_millis(1500);

/// The most bytes that are read at once: as many as a FIFO holds.
const AT_ONCE: usize = 64 << 10;

type NewId = fn() -> Arc<str>;

/// The output of one container.
pub(super) struct Pump<'a> {
    streams: Vec<Stream<'a>>,
    queue: &'a Queue,
}

struct Stream<'a> {
    name: OutputStream,
    /// The FIFO into which the container writes, until it has ended.
    source: Option<OwnedFd>,
    /// All writers have closed it.
    hung_up: bool,
    /// Nomad's FIFO. `None` discards.
    log: Option<&'a OwnedFd>,
    /// Bytes that are not in `log` yet.
    pending: Vec<u8>,
    lines: Lines<NewId>,
}

impl<'a> Pump<'a> {
    /// Moves nothing yet.
    pub fn new(sources: [(OutputStream, OwnedFd); 2], logs: &'a Outputs, queue: &'a Queue) -> Self {
        let streams = sources.into_iter().map(|(name, source)| Stream {
            name,
            source: Some(source),
            hung_up: false,
            log: logs.log(name).held.as_ref().map(|held| &held.both),
            pending: Vec::new(),
            lines: Lines::new(source_of(name), new_id),
        });
        Self { streams: streams.collect(), queue }
    }

    /// Moves output until its end, or until a while after all writers have closed the FIFOs. Returns the end of that
    /// while, and the time at which undelivered messages are to be counted. `dropped` gets the number of messages that
    /// had no room. `count` is called at that time, if there is still output to move.
    pub fn run(&mut self, dropped: impl Fn(u64), mut count: impl FnMut()) -> io::Result<(Instant, Instant)> {
        let mut end = None;
        let mut counted = false;
        let mut buffer = vec![0; AT_ONCE];
        loop {
            let mut moved = false;
            let mut refused = 0;
            for stream in &mut self.streams {
                let mut emit = |message| refused += u64::from(!self.queue.add(message));
                moved |= stream.write(&mut emit)?;
                if stream.may_read(self.queue) {
                    moved |= stream.read(&mut buffer, &mut emit)?;
                }
            }
            if refused > 0 {
                dropped(refused);
            }
            if self.streams.iter().all(|stream| stream.source.is_none() || stream.hung_up) {
                end.get_or_insert_with(Instant::now);
            }
            let passed = end.map(|end: Instant| end.elapsed());
            if self.streams.iter().all(Stream::is_done) || passed.is_some_and(|passed| passed >= DRAIN) {
                let end = end.unwrap_or_else(Instant::now);
                return Ok((end + DRAIN, end + MARK));
            }
            if !counted && passed.is_some_and(|passed| passed >= MARK) {
                counted = true;
                count();
            }
            if !moved {
                let limit = if counted { DRAIN } else { MARK };
                self.wait(passed.map(|passed| limit.saturating_sub(passed)))?;
            }
        }
    }

    /// The bytes of each stream that did not reach its log.
    pub fn left(&self) -> Vec<(OutputStream, u64)> {
        let left = |stream: &Stream| {
            let unread = stream.source.as_ref().map_or(0, |source| waiting_bytes(source).unwrap_or(0));
            (stream.name, stream.pending.len() as u64 + unread)
        };
        self.streams.iter().map(left).filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Waits until something can be moved, or the limit is over.
    fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let mut awaited = vec![PollFd::from_borrowed_fd(self.queue.room(), PollFlags::IN)];
        for stream in &self.streams {
            // A hang-up is always told.
            let wanted = if stream.may_read(self.queue) { PollFlags::IN } else { PollFlags::empty() };
            let source = stream.source.as_ref().filter(|_| !stream.hung_up);
            awaited.extend(source.map(|source| PollFd::new(source, wanted)));
            let log = stream.log.filter(|_| !stream.pending.is_empty());
            awaited.extend(log.map(|log| PollFd::new(log, PollFlags::OUT)));
        }
        let limit = limit.map(Timespec::try_from).transpose().map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut awaited, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let told: Vec<PollFlags> = awaited.iter().map(PollFd::revents).collect();
        let mut told = told.into_iter();
        if told.next().is_some_and(|room| room.contains(PollFlags::IN)) {
            // The counter is only a signal.
            read(self.queue.room(), &mut [0; 8]).ok();
        }
        for stream in &mut self.streams {
            if stream.source.is_some() && !stream.hung_up {
                stream.hung_up = told.next().is_some_and(|told| told.contains(PollFlags::HUP));
            }
            if stream.log.is_some() && !stream.pending.is_empty() {
                told.next();
            }
        }
        Ok(())
    }
}

impl Stream<'_> {
    fn is_done(&self) -> bool {
        self.source.is_none() && self.pending.is_empty()
    }

    fn may_read(&self, queue: &Queue) -> bool {
        self.source.is_some() && self.pending.is_empty() && (self.hung_up || queue.has_room())
    }

    /// Writes to the log what fits, and emits that; whether anything did.
    fn write(&mut self, emit: &mut impl FnMut(Message)) -> io::Result<bool> {
        if self.pending.is_empty() {
            return Ok(false);
        }
        let written = match self.log.map(|log| write(log, &self.pending)) {
            None => self.pending.len(),
            Some(Ok(count)) => count,
            Some(Err(Errno::AGAIN | Errno::INTR)) => return Ok(false),
            Some(Err(error)) => return Err(error.into()),
        };
        self.lines.take(self.pending.get(..written).unwrap_or_default(), SystemTime::now(), emit);
        self.pending.drain(..written);
        Ok(true)
    }

    /// Reads once, when all is written; whether there was output, or its end.
    fn read(&mut self, buffer: &mut [u8], emit: &mut impl FnMut(Message)) -> io::Result<bool> {
        let Some(source) = &self.source else { return Ok(false) };
        match read(source, &mut *buffer) {
            Ok(0) => {
                self.source = None;
                self.lines.end(SystemTime::now(), emit);
                Ok(true)
            }
            Ok(count) => {
                let output = buffer.get(..count).unwrap_or_default();
                self.pending.extend_from_slice(output);
                self.write(emit)?;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn source_of(stream: OutputStream) -> Source {
    match stream {
        OutputStream::Stdout => Source::Stdout,
        OutputStream::Stderr => Source::Stderr,
    }
}

/// 64 random hexadecimal digits, as docker's ids are.
fn new_id() -> Arc<str> {
    let mut bytes = [0; 32];
    // Without random bytes the id only fails to be unique.
    drop(File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)));
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}
