//! The thread that reads events.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::{
    observer::LazyEvent,
    state::{Phase, Read, Shared},
};

/// Reads and answers events until the service stops.
pub(crate) fn run(shared: &Arc<Shared>) {
    loop {
        // Before the events are read: an event of such a layer that comes later is none of these.
        let unmarked = shared.lock().in_phase(Phase::Unmarked);
        let drained = read_all(shared);
        let mut state = shared.lock();
        let mut events = state.give_up(Instant::now());
        state.settle(shared);
        if drained {
            let done = unmarked.into_iter().filter_map(|file| state.forget(file));
            events.extend(done.map(|served| LazyEvent::Complete {
                digest: served.layer.description().digest.clone(),
                image: served.layer.image(),
                reads: served.reads(),
            }));
        }
        let (deadline, full, stopping) = (state.next_deadline(), state.is_full(), state.stopping);
        drop(state);
        shared.report(events);
        if stopping {
            return;
        }
        wait(shared, deadline, full);
    }
}

/// Reads all events that there are. Returns false if events may be left.
fn read_all(shared: &Shared) -> bool {
    loop {
        let mut state = shared.lock();
        if state.is_full() {
            return false;
        }
        let read = state.read_event(shared);
        drop(state);
        match read {
            Ok(Some(Read::GivesWork)) => shared.work.notify_all(),
            Ok(Some(Read::Answered)) => {}
            Ok(Some(Read::Unknown)) => tracing::warn!("a read of a file that is not served was refused"),
            Ok(None) => return true,
            Err(error) => {
                // The kernel refuses the read of an event that it cannot deliver.
                tracing::error!(%error, "an event before a read is lost; the read fails");
                return false;
            }
        }
    }
}

/// Waits for events, for a call of the other threads, or for a read that waited too long.
fn wait(shared: &Shared, deadline: Option<Instant>, full: bool) {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let mut sources = vec![PollFd::new(&shared.wake, PollFlags::IN)];
    if !full {
        sources.push(PollFd::new(&shared.group, PollFlags::IN));
    }
    match poll(&mut sources, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => tracing::error!(%error, "waiting for events before reads"),
    }
    let mut counter = [0; 8];
    match rustix::io::read(&shared.wake, &mut counter) {
        Ok(_) | Err(Errno::AGAIN) => {}
        Err(error) => tracing::error!(%error, "waiting for the workers"),
    }
}
