//! Whether a full FIFO has a reader, as a process can tell that may not look at others.
//!
//! The kernel tells of each read by a signal ([`announce_reads`]). A reader of a full FIFO reads. So a FIFO that stays
//! full while nothing is read from it has no reader, or one that does not work.

use std::{
    io, mem,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::stream::OutputStream;
use crate::sys::{announce_no_reads, announce_reads, take_signal};

/// A FIFO has no reader if it is full and nothing is read from it for so long.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is known about the reader of one FIFO.
#[derive(Debug)]
pub(crate) struct UnreadWatch {
    signal: Signal,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Reads are not announced.
    Idle,
    /// The FIFO was full at this time, and nothing was read from it since.
    Full(Instant),
    /// There is no reader.
    Unread,
}

/// What to do with a full FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Look again after this time.
    Wait(Duration),
    /// Discard the content. Then call [`UnreadWatch::discarded`].
    Discard,
}

impl UnreadWatch {
    /// Watches nothing yet. A process has one watch per stream, because each has its own signal.
    pub fn new(stream: OutputStream) -> Self {
        let signal = match stream {
            OutputStream::Stdout => Signal::IO,
            OutputStream::Stderr => Signal::URG,
        };
        Self { signal, state: State::Idle }
    }

    /// The FIFO is full. `writer` is open for writing alone.
    pub fn full(&mut self, writer: BorrowedFd<'_>) -> io::Result<Verdict> {
        if self.state == State::Idle {
            announce_reads(writer, self.signal)?;
        }
        let was_read = take_signal(self.signal)?;
        let (state, verdict) = decide(self.state, was_read, Instant::now());
        self.state = state;
        Ok(verdict)
    }

    /// The FIFO is full, and this process could not open it for writing alone. So it was looked up whether another
    /// process has it open for reading.
    pub fn full_without_writer(&mut self, has_reader: bool, now: Instant) -> Verdict {
        let (state, verdict) = decide(self.state, has_reader, now);
        self.state = state;
        verdict
    }

    /// This process has discarded the content: that was a read, too.
    pub fn discarded(&mut self) -> io::Result<()> {
        take_signal(self.signal).map(drop)
    }

    /// Watches no longer, because another process does. `writer` is that of [`Self::full`].
    pub fn stop(&mut self, writer: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let state = mem::replace(&mut self.state, State::Idle);
        writer.filter(|_| state != State::Idle).map_or(Ok(()), announce_no_reads)
    }
}

fn decide(state: State, was_read: bool, now: Instant) -> (State, Verdict) {
    match state {
        State::Full(since) if !was_read => {
            let left = PATIENCE.saturating_sub(now.saturating_duration_since(since));
            if left.is_zero() { (State::Unread, Verdict::Discard) } else { (state, Verdict::Wait(left)) }
        }
        State::Unread if !was_read => (State::Unread, Verdict::Discard),
        _ => (State::Full(now), Verdict::Wait(PATIENCE)),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read, Write},
        os::fd::AsFd,
    };

    use rustix::fs::{CWD, Mode, OFlags, mkfifoat};

    use super::*;

    #[test]
    fn nothing_is_discarded_before_a_while_without_a_read() {
        let start = Instant::now();
        let (short, long) = (PATIENCE / 3, PATIENCE * 2);
        let wait = Verdict::Wait;
        for (state, was_read, passed, expected) in [
            (State::Idle, false, short, (State::Full(start + short), wait(PATIENCE))),
            (State::Full(start), false, short, (State::Full(start), wait(PATIENCE - short))),
            (State::Full(start), true, short, (State::Full(start + short), wait(PATIENCE))),
            (State::Full(start), true, long, (State::Full(start + long), wait(PATIENCE))),
            (State::Full(start), false, PATIENCE, (State::Unread, Verdict::Discard)),
            (State::Full(start), false, long, (State::Unread, Verdict::Discard)),
            (State::Unread, false, short, (State::Unread, Verdict::Discard)),
            (State::Unread, true, short, (State::Full(start + short), wait(PATIENCE))),
        ] {
            assert_eq!(decide(state, was_read, start + passed), expected, "{state:?} {was_read} {passed:?}");
        }
    }

    #[test]
    fn the_kernel_tells_of_reads_and_of_nothing_else() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("fifo");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).expect("a FIFO");
        let open = |read, write| {
            let nonblock = OFlags::NONBLOCK.bits() as i32;
            let mut options = File::options();
            std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, nonblock);
            options.read(read).write(write).open(&path).expect("opened")
        };
        // On a thread of its own: the signals stay blocked in it.
        let told = || {
            let mut reader = open(true, false);
            let (mut task, writer) = (open(true, true), open(false, true));
            announce_reads(writer.as_fd(), Signal::IO).expect("announced");
            while task.write(&[7; 4096]).is_ok() {}
            assert!(!take_signal(Signal::IO).expect("looked"), "writes are not told");
            reader.read_exact(&mut [0; 4096]).expect("read");
            assert!(take_signal(Signal::IO).expect("looked"), "a read is told");
            assert!(!take_signal(Signal::IO).expect("looked"), "once");
            announce_no_reads(writer.as_fd()).expect("announced");
            reader.read_exact(&mut [0; 4096]).expect("read");
            assert!(!take_signal(Signal::IO).expect("looked"), "no longer");
        };
        std::thread::scope(|scope| scope.spawn(told).join()).expect("the thread ends");
    }
}
