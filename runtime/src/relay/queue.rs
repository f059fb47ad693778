//! The messages between the two threads of a relay.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use log_drivers::{Message, Mode};
use rustix::event::{EventfdFlags, eventfd};

/// In the mode `blocking`, output is read while fewer bytes than these wait.
const BLOCKING: u64 = 64 << 10;
/// The memory that a message takes besides its line, roughly. Without it, empty lines would take memory without limit.
const OVERHEAD: u64 = 64;

/// Messages that wait for the sender.
#[derive(Debug)]
pub(super) struct Queue {
    mode: Mode,
    state: Mutex<State>,
    changed: Condvar,
    /// Readable when there is room again after [`Queue::has_room`] was false.
    room: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    messages: VecDeque<Message>,
    bytes: u64,
    /// The sender works on a message that it has taken.
    sending: bool,
    /// The pump waits for room.
    awaited: bool,
    closed: bool,
}

impl Queue {
    /// An empty queue.
    pub fn new(mode: Mode) -> io::Result<Self> {
        let room = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { mode, state: Mutex::default(), changed: Condvar::new(), room })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether output may be read. If not, [`Queue::room`] becomes readable when that changes.
    pub fn has_room(&self) -> bool {
        let mut state = self.state();
        let has_room = self.mode != Mode::Blocking || state.bytes < BLOCKING;
        state.awaited |= !has_room;
        has_room
    }

    /// Readable when there is room again.
    pub fn room(&self) -> BorrowedFd<'_> {
        self.room.as_fd()
    }

    /// Adds a message; whether it was taken. In the mode `blocking` it always is. Otherwise a message that does not fit
    /// is dropped, unless the queue is empty, as docker does.
    pub fn add(&self, message: Message) -> bool {
        let cost = cost(&message);
        let mut state = self.state();
        if let Mode::NonBlocking { max_buffer_size } = self.mode
            && state.bytes + cost > max_buffer_size
            && !state.messages.is_empty()
        {
            return false;
        }
        state.bytes += cost;
        state.messages.push_back(message);
        self.changed.notify_all();
        true
    }

    /// The next message; waits for it. `None` when the queue is closed and empty.
    pub fn next(&self) -> Option<Message> {
        let mut state = self.state();
        state.sending = false;
        self.changed.notify_all();
        loop {
            if let Some(message) = state.messages.pop_front() {
                state.bytes -= cost(&message);
                state.sending = true;
                if state.bytes < BLOCKING && std::mem::take(&mut state.awaited) {
                    // Fails only if the counter is full. Then the descriptor is readable.
                    rustix::io::write(&self.room, &1_u64.to_ne_bytes()).ok();
                }
                return Some(message);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// No message will be added any more.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// The number of messages that are not sent yet.
    pub fn left(&self) -> u64 {
        self.state().left()
    }

    /// Waits until all messages are sent, up to the deadline; the number of those that are not.
    pub fn wait_empty(&self, deadline: Instant) -> u64 {
        let mut state = self.state();
        loop {
            let left = state.left();
            let rest = deadline.saturating_duration_since(Instant::now());
            if left == 0 || rest.is_zero() {
                return left;
            }
            state = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn left(&self) -> u64 {
        self.messages.len() as u64 + u64::from(self.sending)
    }
}

fn cost(message: &Message) -> u64 {
    message.line.len() as u64 + OVERHEAD
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        thread,
        time::{Duration, SystemTime},
    };

    use log_drivers::Source;
    use rustix::{
        event::{PollFd, PollFlags, poll},
        time::Timespec,
    };

    use super::*;

    fn message(length: usize) -> Message {
        Message { source: Source::Stdout, line: vec![b'x'; length], time: SystemTime::now(), partial: None }
    }

    fn is_readable(queue: &Queue) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(queue.room(), PollFlags::IN)], Some(&now)).expect("a poll") > 0
    }

    #[test]
    fn a_full_queue_tells_when_there_is_room() {
        let queue = Queue::new(Mode::Blocking).expect("a queue");
        assert!(queue.has_room());
        while queue.has_room() {
            assert!(queue.add(message(16_384)));
        }
        assert!(queue.add(message(16_384)), "what was read is never dropped");
        assert!(!is_readable(&queue));
        queue.next().expect("a message");
        assert!(!is_readable(&queue), "still full");
        while !is_readable(&queue) {
            queue.next().expect("a message");
        }
        assert!(queue.has_room());
    }

    #[test]
    fn a_message_that_does_not_fit_is_dropped_unless_the_queue_is_empty() {
        let queue = Queue::new(Mode::NonBlocking { max_buffer_size: 1000 }).expect("a queue");
        assert!(queue.add(message(5000)), "docker takes it too");
        assert!(!queue.add(message(1)));
        assert!(queue.has_room(), "the container never waits");
        assert_eq!(queue.next().expect("a message").line.len(), 5000);
        assert!(queue.add(message(500)) && queue.add(message(300)));
        assert!(!queue.add(message(100)));
        assert_eq!((queue.next().expect("one").line.len(), queue.next().expect("one").line.len()), (500, 300));
    }

    #[test]
    fn the_end_waits_for_the_message_that_is_being_sent() {
        let queue = Arc::new(Queue::new(Mode::Blocking).expect("a queue"));
        for _ in 0..3 {
            queue.add(message(1));
        }
        let sender = thread::spawn({
            let queue = Arc::clone(&queue);
            move || std::iter::from_fn(|| queue.next()).count()
        });
        queue.close();
        assert_eq!(queue.wait_empty(Instant::now() + Duration::from_secs(60)), 0);
        assert_eq!(sender.join().expect("the sender"), 3);

        let stuck = Queue::new(Mode::Blocking).expect("a queue");
        stuck.add(message(1));
        stuck.add(message(1));
        stuck.next().expect("a message");
        stuck.close();
        assert_eq!(stuck.wait_empty(Instant::now()), 2, "one is being sent, one waits");
    }
}
