//! The link to a source: how soon it answers, and how fast its bytes come.

use std::{
    ops::{ControlFlow, Range},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use crate::source::{Source, SourceError};

/// Fewer bytes say nothing about a link.
const ENOUGH: u64 = 256 << 10;

/// What is known of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// From a request to the first byte of its answer.
    pub(crate) latency: Duration,
    /// Bytes per second.
    pub(crate) rate: u64,
}

impl Link {
    /// The bytes that come in the time that one more request takes, if so many share its latency.
    pub(crate) fn bytes_of_a_request(self, together: u32) -> u64 {
        (self.rate as f64 * self.latency.as_secs_f64() / f64::from(together)) as u64
    }
}

/// A source that is asked for several things at once, and what its answers say about the link.
pub(crate) struct Measured<'a> {
    source: &'a dyn Source,
    begun: Instant,
    /// Nanoseconds until the first byte and until the last one so far.
    first: AtomicU64,
    last: AtomicU64,
    bytes: AtomicU64,
}

impl<'a> Measured<'a> {
    /// The first request follows at once.
    pub(crate) fn new(source: &'a dyn Source) -> Self {
        let zero = || AtomicU64::new(0);
        Self { source, begun: Instant::now(), first: AtomicU64::new(u64::MAX), last: zero(), bytes: zero() }
    }

    /// What is known so far.
    pub(crate) fn link(&self) -> Option<Link> {
        let [first, last, bytes] = [&self.first, &self.last, &self.bytes].map(|value| value.load(Ordering::Relaxed));
        let (latency, took) = (Duration::from_nanos(first), Duration::from_nanos(last.checked_sub(first)?));
        let rate = (bytes as f64 / took.as_secs_f64()) as u64;
        (bytes >= ENOUGH).then_some(Link { latency, rate })
    }
}

impl Source for Measured<'_> {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn read(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), SourceError> {
        self.source.read(range, &mut |piece| {
            let now = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.first.fetch_min(now, Ordering::Relaxed);
            self.last.fetch_max(now, Ordering::Relaxed);
            self.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
            sink(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_request_is_worth_bytes_of_the_link() {
        let bytes = |megabytes: u64, milliseconds, together| {
            let link = Link { latency: Duration::from_millis(milliseconds), rate: megabytes * 1_000_000 };
            link.bytes_of_a_request(together)
        };
        assert_eq!(bytes(125, 24, 6), 500_000);
        assert_eq!(bytes(12, 3, 6), 6_000);
        assert_eq!(bytes(125, 0, 6), 0);
    }

    /// Delivers a range after a pause, and one more byte after another one.
    struct Slow(Duration);

    impl Source for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        fn read(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), SourceError> {
            for bytes in [range.end - range.start, 1] {
                std::thread::sleep(self.0);
                if sink(&vec![0; bytes as usize]).is_break() {
                    break;
                }
            }
            Ok(())
        }
    }

    #[test]
    fn answers_say_what_the_link_is_like() {
        let pause = Duration::from_millis(5);
        let read = |bytes| {
            let slow = Slow(pause);
            let measured = Measured::new(&slow);
            measured.read(0..bytes, &mut |_| ControlFlow::Continue(())).unwrap();
            measured.link()
        };
        assert_eq!(read(1000), None, "too few bytes");
        let link = read(ENOUGH).unwrap();
        assert!(link.latency >= pause && link.rate <= (ENOUGH + 1) * 200, "{link:?}");
    }
}
