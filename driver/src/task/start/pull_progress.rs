//! Pull progress as task events. There are few of them, because Nomad keeps the last ten of a task.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use image_store::{Progress, PullEvent};

use crate::events::TaskEvents;

/// The time until the first progress event. Each interval is twice as long as the one before.
const FIRST_REPORT: Duration = Duration::from_secs(10);
const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Turns the reports of a pull into task events.
pub struct PullEvents {
    events: TaskEvents,
    pace: Mutex<Pace>,
}

impl PullEvents {
    /// Progress of a pull that begins now.
    pub fn new(events: TaskEvents) -> Self {
        let began = Instant::now();
        Self { events, pace: Mutex::new(Pace { began, next: FIRST_REPORT }) }
    }
}

struct Pace {
    began: Instant,
    next: Duration,
}

impl Pace {
    /// The time since the start if a report is due now.
    fn due(&mut self, now: Instant) -> Option<Duration> {
        let elapsed = now.duration_since(self.began);
        if elapsed < self.next {
            return None;
        }
        self.next = elapsed * 2;
        Some(elapsed)
    }
}

impl Progress for PullEvents {
    fn report(&self, event: PullEvent) {
        match event {
            // A local image gets no event: only a download is worth one of the ten.
            PullEvent::Resolved { digest, bytes_total, layers } if layers > 0 => {
                let annotations = [
                    ("digest", digest.to_string()),
                    ("layers", layers.to_string()),
                    ("bytes", bytes_total.to_string()),
                ];
                self.events.emit("Downloading image", annotations);
            }
            PullEvent::Advanced { bytes_done, bytes_total, layers_done, layers } => {
                let due = self.pace.lock().unwrap_or_else(PoisonError::into_inner).due(Instant::now());
                if let Some(elapsed) = due {
                    let annotations =
                        [("bytes_done", bytes_done.to_string()), ("bytes_total", bytes_total.to_string())];
                    self.events.emit(advance(bytes_done, bytes_total, layers_done, layers, elapsed), annotations);
                }
            }
            PullEvent::Done { digest, bytes, elapsed, cached: false } => {
                let text =
                    format!("Downloaded image: {:.1} MiB in {:.1} s", bytes as f64 / MEBIBYTE, elapsed.as_secs_f64());
                self.events.emit(text, [("digest", digest.to_string())]);
            }
            _ => {}
        }
    }
}

fn advance(done: u64, total: u64, layers_done: usize, layers: usize, elapsed: Duration) -> String {
    let (done, total) = (done as f64 / MEBIBYTE, total as f64 / MEBIBYTE);
    let rate = done / elapsed.as_secs_f64().max(0.001);
    format!("Image download: {done:.0} of {total:.0} MiB, {layers_done} of {layers} layers, {rate:.1} MiB/s")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{FIRST_REPORT, Pace, advance};

    #[test]
    fn reports_come_at_doubling_intervals() {
        let began = Instant::now();
        let mut pace = Pace { began, next: FIRST_REPORT };
        let reports =
            (0..600).filter(|second| pace.due(began + Duration::from_secs(*second)).is_some()).collect::<Vec<_>>();
        assert_eq!(reports, [10, 20, 40, 80, 160, 320]);
    }

    #[test]
    fn a_report_contains_amount_and_rate() {
        let text = advance(50 << 20, 200 << 20, 1, 4, Duration::from_secs(10));
        assert_eq!(text, "Image download: 50 of 200 MiB, 1 of 4 layers, 5.0 MiB/s");
    }
}
