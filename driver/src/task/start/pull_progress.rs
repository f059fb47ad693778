//! Pull progress as task events. There are few of them, because Nomad keeps the last ten of a task.
//!
//! A pull that lasts long always has an event that says what it waits for.

use std::{
    convert::Infallible,
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use image_store::{Progress, PullEvent};

use crate::events::{Content, TaskEvents};

/// The time until the first event about a wait. Each interval is twice as long as the one before.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// The time until the first event about a download that goes on.
const FIRST_REPORT: Duration = Duration::from_secs(10);
const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Turns the reports of a pull into task events.
pub struct PullEvents {
    events: TaskEvents,
    /// The image, if it is not the task's own: a space and its name.
    name: String,
    pace: Mutex<Pace>,
}

impl PullEvents {
    /// Progress of a pull that begins now.
    pub fn new(events: TaskEvents) -> Self {
        Self::named(events, String::new())
    }

    /// Progress of a pull that begins now, of an image that the task mounts beside its own.
    pub fn of_mounted(events: TaskEvents, image: &str) -> Self {
        Self::named(events, format!(" {image}"))
    }

    fn named(events: TaskEvents, name: String) -> Self {
        let began = Instant::now();
        Self { events, name, pace: Mutex::new(Pace { began, next: FIRST_WAIT, state: State::Silent }) }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a pull that reports to this value. While it runs, events say what it waits for.
    pub async fn during<T>(&self, pull: impl Future<Output = T>) -> T {
        tokio::select! {
            done = pull => done,
            never = self.announce() => match never {},
        }
    }

    /// Sends the events that are due, for ever.
    async fn announce(&self) -> Infallible {
        loop {
            let due = self.pace().due();
            tokio::time::sleep_until(due.into()).await;
            let report = self.pace().report(&self.name, Instant::now());
            if let Some(content) = report {
                self.events.emit(content);
            }
        }
    }
}

/// What the pull does now.
#[derive(Debug, Clone, PartialEq)]
enum State {
    /// Nothing was reported yet.
    Silent,
    Waiting(String),
    Downloading {
        bytes_done: u64,
        bytes_total: u64,
        layers_done: usize,
        layers: usize,
    },
}

struct Pace {
    began: Instant,
    /// The time between the start and the next event.
    next: Duration,
    state: State,
}

impl Pace {
    /// When the next event is due.
    fn due(&self) -> Instant {
        self.began + self.next
    }

    /// The event that is due at this time, if there is something to say. Sets the time of the next one.
    fn report(&mut self, name: &str, now: Instant) -> Option<Content> {
        let elapsed = now.duration_since(self.began).max(self.next);
        let first = if let State::Downloading { .. } = self.state { FIRST_REPORT } else { FIRST_WAIT };
        if elapsed < first {
            self.next = first;
            return None;
        }
        self.next = elapsed * 2;
        match &self.state {
            State::Silent => None,
            State::Waiting(reason) => Some(Content::ImageWaits {
                image: name.to_owned(),
                reason: reason.clone(),
                seconds: format!("{:.0}", elapsed.as_secs_f64()),
            }),
            State::Downloading { bytes_done, bytes_total, layers_done, layers } => {
                Some(advance(name, *bytes_done, *bytes_total, *layers_done, *layers, elapsed))
            }
        }
    }
}

impl Progress for PullEvents {
    fn report(&self, event: PullEvent) {
        let image = self.name.clone();
        match event {
            PullEvent::Waiting(wait) => self.pace().state = State::Waiting(wait.to_string()),
            PullEvent::Resolved { digest, bytes_total, layers } if layers > 0 => {
                let (digest, layers, bytes) = (digest.to_string(), layers.to_string(), bytes_total.to_string());
                self.events.emit(Content::Downloading { image, digest, layers, bytes });
            }
            PullEvent::NativeRefused { problem } => {
                self.events.emit(Content::NativeRefused { image, problem });
            }
            PullEvent::Incomplete { layers, bytes } => {
                let mebibytes = format!("{:.1}", bytes as f64 / MEBIBYTE);
                let (layers, bytes) = (layers.to_string(), bytes.to_string());
                self.events.emit(Content::LazyStart { image, mebibytes, layers, bytes });
            }
            PullEvent::Advanced { bytes_done, bytes_total, layers_done, layers } => {
                self.pace().state = State::Downloading { bytes_done, bytes_total, layers_done, layers };
            }
            PullEvent::Done { digest, bytes, elapsed, cached: false } if bytes > 0 => {
                let mebibytes = format!("{:.1}", bytes as f64 / MEBIBYTE);
                let seconds = format!("{:.1}", elapsed.as_secs_f64());
                self.events.emit(Content::Downloaded { image, mebibytes, seconds, digest: digest.to_string() });
            }
            PullEvent::Done { digest, cached: true, .. } => {
                self.events.emit(Content::ImagePresent { image, digest: digest.to_string() });
            }
            _ => {}
        }
    }
}

fn advance(name: &str, done: u64, total: u64, layers_done: usize, layers: usize, elapsed: Duration) -> Content {
    let [done_mebibytes, total_mebibytes] = [done, total].map(|bytes| bytes as f64 / MEBIBYTE);
    let rate = done_mebibytes / elapsed.as_secs_f64().max(0.001);
    Content::Download {
        image: name.to_owned(),
        done: format!("{done_mebibytes:.0}"),
        total: format!("{total_mebibytes:.0}"),
        layers_done: layers_done.to_string(),
        layers: layers.to_string(),
        rate: format!("{rate:.1}"),
        bytes_done: done.to_string(),
        bytes_total: total.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds of the events of a pull that stays in this state for ten minutes.
    fn seconds_of_events(state: State) -> Vec<u64> {
        let began = Instant::now();
        let mut pace = Pace { began, next: FIRST_WAIT, state };
        let mut seconds = Vec::new();
        while pace.next.as_secs() < 600 {
            let now = pace.due();
            if pace.report("", now).is_some() {
                seconds.push(now.duration_since(began).as_secs());
            }
        }
        seconds
    }

    #[test]
    fn reports_come_at_doubling_intervals() {
        let downloading = State::Downloading { bytes_done: 1, bytes_total: 2, layers_done: 0, layers: 1 };
        assert_eq!(seconds_of_events(downloading), [10, 20, 40, 80, 160, 320]);
        let waiting = State::Waiting("an answer of r.example: manifest a:1".into());
        assert_eq!(seconds_of_events(waiting), [2, 4, 8, 16, 32, 64, 128, 256, 512]);
        assert_eq!(seconds_of_events(State::Silent), [0; 0]);
    }

    #[test]
    fn a_wait_names_its_reason() {
        let mut pace = Pace { began: Instant::now(), next: FIRST_WAIT, state: State::Waiting("a thing".into()) };
        let (text, annotations) = pace.report(" r.example/models:1", pace.due()).unwrap().into_parts();
        let expected = "Image r.example/models:1: waiting for a thing (2 s so far)";
        assert_eq!((text.as_str(), annotations.len()), (expected, 0));
    }

    #[test]
    fn a_report_contains_amount_and_rate() {
        let content = advance("", 50 << 20, 200 << 20, 1, 4, Duration::from_secs(10));
        assert_eq!(content.to_string(), "Image download: 50 of 200 MiB, 1 of 4 layers, 5.0 MiB/s");
    }
}
