//! What is fetched next, for one layer. Pure.
//!
//! Reads that wait come first, the oldest of them first of all. The chunks that a profile names come next. The start of
//! a task waits for all of them, so their order does not matter, and few large requests are better than many small
//! ones. The rest streams in the background, in the order of the file. A background job reserves no chunk from reads: a
//! read that waits for one of its chunks is served by a job of its own.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use layer::ranges::merged;

use crate::{description::CHUNK, link::Link};

/// Chunks that a read fetches together with its own, because the reader often goes on with them.
const AHEAD: usize = 4;
/// Chunks of one background job. When the last chunk comes, the layer is hashed up to the oldest job that runs, so
/// large jobs would leave much to hash.
const STREAM: usize = 128;
/// Missing chunks of the background jobs that run, with which the next one sends its request. On a link of 1 Gbit/s
/// they take 70 ms: longer than the answer to the request.
const LEFT: usize = 64;
/// Chunks of background jobs that begin before a profile is complete. On a link of 1 Gbit/s they take 18 ms: as long as
/// the answer to a request from a registry that is far away.
const EARLY: usize = 16;
/// A profile has at least this many chunks if the background may begin when [`EARLY`] of them are missing. They share
/// the link with that job, so it delays a start by at most a sixteenth.
const LONG: usize = 16 * EARLY;
/// Jobs for what a profile names that run at the same time.
pub(crate) const FIRST_JOBS: usize = 6;
/// Chunks of one such job.
const FIRST: usize = 64;
/// Missing chunks between two parts of a profile that one job fetches with them, at most. On a link of 1 Gbit/s they
/// take as long as the answer to a request from a registry that is not far away.
pub(crate) const GAP: usize = 4;
/// Requests that share the latency of one more, because they run at the same time. It would be [`FIRST_JOBS`] if the
/// measured rate were that of the link. The rate is lower, because the layers of an image come at the same time.
const SHARE: u32 = 2;
/// Chunks that are here and that a background job fetches again, between two that are not. The requests of the
/// background follow each other without a pause, so each chunk more makes the whole take longer.
const AGAIN: usize = 1;
/// The pause after a failure. It doubles with each further one …
const PAUSE: Duration = Duration::from_millis(100);
/// … up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause for a read that waits. The source may be back, and the read has a deadline.
const LONGEST_DEMAND_PAUSE: Duration = Duration::from_millis(500);

/// Why chunks are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A read waits.
    Demand,
    /// A start waits: the profile names the chunks.
    First,
    /// The layer shall be complete.
    Stream,
}

/// The chunks of a layer.
#[derive(Debug)]
pub(crate) struct Plan {
    present: Vec<bool>,
    /// Chunks that come before the others, the next one last.
    first: Vec<Range<usize>>,
    /// Missing chunks of those with which the background may begin.
    early: usize,
    /// Chunks that a job for a read or for a start fetches.
    reserved: Vec<bool>,
    missing: usize,
    /// Chunks at the beginning that are all here.
    leading: usize,
    /// Chunks of the background jobs that run.
    streaming: Vec<Range<usize>>,
    failures: u32,
    /// When reads and the background may try again after a failure.
    retries: Option<(Instant, Instant)>,
}

impl Plan {
    /// Parts of the profile with at most this gap are one.
    pub(crate) fn new(present: &[bool], first: &[Range<usize>], gap: usize) -> Self {
        let mut first = parts(first, present.len(), gap);
        first.reverse();
        let missing_first = first.iter().cloned().flatten().filter(|chunk| !present[*chunk]).count();
        Self {
            present: present.to_vec(),
            first,
            early: if missing_first < LONG { 0 } else { EARLY },
            reserved: vec![false; present.len()],
            missing: present.iter().filter(|present| !**present).count(),
            leading: present.iter().take_while(|present| **present).count(),
            streaming: Vec::new(),
            failures: 0,
            retries: None,
        }
    }

    /// Chunks that are not here.
    pub(crate) fn missing(&self) -> usize {
        self.missing
    }

    /// Chunks at the beginning that are all here.
    pub(crate) fn leading(&self) -> usize {
        self.leading
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    pub(crate) fn has(&self, chunk: usize) -> bool {
        self.present[chunk]
    }

    pub(crate) fn has_all(&self, chunks: Range<usize>) -> bool {
        self.present[chunks].iter().all(|present| *present)
    }

    /// When the next attempts may begin after a failure.
    pub(crate) fn retries(&self) -> impl Iterator<Item = Instant> + use<> {
        self.retries.into_iter().flat_map(|(demand, stream)| [demand, stream])
    }

    /// Reserves chunks for a read that needs these.
    pub(crate) fn demand(&mut self, now: Instant, chunks: Range<usize>) -> Option<Range<usize>> {
        if self.retries.is_some_and(|(demand, _)| demand > now) {
            return None;
        }
        let free = |chunk: &usize| !self.present[*chunk] && !self.reserved[*chunk];
        let start = chunks.clone().find(free)?;
        let most = chunks.end.max(start + AHEAD).min(self.present.len());
        let end = (start..most).find(|chunk| !free(chunk)).unwrap_or(most);
        self.reserved[start..end].fill(true);
        Some(start..end)
    }

    /// Whether the background jobs that run have so little left that the next one shall send its request. If it waited
    /// for their end, the link would have nothing to do for a round trip.
    pub(crate) fn stream_ends(&self) -> bool {
        self.streaming_at_most(LEFT + 1) <= LEFT
    }

    /// Begins a background job, unless those that run have enough left. `early`: a profile is not complete, and
    /// its jobs fetch what it lacks.
    pub(crate) fn stream(&mut self, now: Instant, early: bool) -> Option<Range<usize>> {
        if !self.stream_ends() || self.retries.is_some_and(|(_, stream)| stream > now) {
            return None;
        }
        let free = |chunk: &usize| {
            let taken = self.present[*chunk] || (early && self.reserved[*chunk]);
            !taken && !self.streaming.iter().any(|job| job.contains(chunk))
        };
        let start = (self.leading..self.present.len()).find(free)?;
        let mut end = start + 1;
        let most = if early { EARLY } else { STREAM };
        for chunk in start + 1..(start + most).min(self.present.len()) {
            if free(&chunk) {
                end = chunk + 1;
            } else if chunk >= end + AGAIN || !self.present[chunk] {
                break;
            }
        }
        self.streaming.push(start..end);
        Some(start..end)
    }

    /// Reserves chunks that come before the others.
    pub(crate) fn first(&mut self, now: Instant) -> Option<Range<usize>> {
        if self.retries.is_some_and(|(_, stream)| stream > now) {
            return None;
        }
        while self.first.last().is_some_and(|chunks| self.has_all(chunks.clone())) {
            self.first.pop();
        }
        let free = |chunk: &usize| !self.present[*chunk] && !self.reserved[*chunk];
        let mut parts = self.first.iter().rev();
        let (start, end) = parts.find_map(|chunks| Some((chunks.clone().find(free)?, chunks.end)))?;
        let most = (start + FIRST).min(end);
        let end = (start..most).find(|chunk| !free(chunk)).unwrap_or(most);
        self.reserved[start..end].fill(true);
        Some(start..end)
    }

    /// Whether the background jobs that run are enough before a profile is complete.
    pub(crate) fn early_jobs_suffice(&self) -> bool {
        self.streaming_at_most(EARLY) > EARLY / 2
    }

    /// Missing chunks of the background jobs that run, at most `limit`.
    fn streaming_at_most(&self, limit: usize) -> usize {
        self.streaming.iter().cloned().flatten().filter(|chunk| !self.present[*chunk]).take(limit).count()
    }

    /// Whether there are so many chunks that come before the others that the background begins before all are here.
    pub(crate) fn has_long_first(&self) -> bool {
        self.early > 0
    }

    /// Whether so few chunks are missing that come before the others that the background may begin.
    pub(crate) fn first_ends(&self) -> bool {
        let missing = self.first.iter().cloned().flatten().filter(|chunk| !self.present[*chunk]);
        missing.take(self.early + 1).count() <= self.early
    }

    /// Whether all chunks are here that come before the others.
    pub(crate) fn has_first(&self) -> bool {
        self.first.iter().all(|chunks| self.has_all(chunks.clone()))
    }

    /// A chunk is here.
    pub(crate) fn arrived(&mut self, chunk: usize) {
        if !self.present[chunk] {
            self.present[chunk] = true;
            self.missing -= 1;
            self.leading += self.present[self.leading..].iter().take_while(|present| **present).count();
        }
        self.retry_now();
    }

    /// Ends the pause after failures.
    pub(crate) fn retry_now(&mut self) {
        (self.failures, self.retries) = (0, None);
    }

    /// A job ended, at `now` without success if `failed`.
    pub(crate) fn ended(&mut self, reason: Reason, chunks: Range<usize>, failed: Option<Instant>) {
        match reason {
            Reason::Demand | Reason::First => self.reserved[chunks].fill(false),
            Reason::Stream => self.streaming.retain(|job| *job != chunks),
        }
        if let Some(now) = failed {
            let pause = PAUSE * 2u32.saturating_pow(self.failures.min(16));
            self.failures += 1;
            self.retries = Some((now + pause.min(LONGEST_DEMAND_PAUSE), now + pause.min(LONGEST_PAUSE)));
        }
    }
}

/// The parts of a profile in the order of the file, within a layer with so many chunks. Parts with at most this gap are
/// one.
pub(crate) fn parts(first: &[Range<usize>], count: usize, gap: usize) -> Vec<Range<usize>> {
    merged(first.iter().map(|chunks| chunks.start.min(count)..chunks.end.min(count)).collect(), gap)
}

/// The gap that takes less time than a request more.
pub(crate) fn gap(link: Link) -> usize {
    (link.bytes_of_a_request(SHARE) / CHUNK).min(GAP as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Plan {
        /// All background jobs that begin now.
        fn jobs(&mut self, now: Instant) -> Vec<(usize, usize)> {
            std::iter::from_fn(|| self.stream(now, false)).map(|chunks| (chunks.start, chunks.end)).collect()
        }
    }

    fn plan(present: &str) -> Plan {
        plan_with(present, &[])
    }

    fn plan_with(present: &str, first: &[Range<usize>]) -> Plan {
        Plan::new(&present.chars().map(|chunk| chunk == 'x').collect::<Vec<_>>(), first, GAP)
    }

    #[test]
    fn a_slow_link_brings_nothing_between_the_parts_of_a_profile() {
        for (megabits, milliseconds, expected) in
            [(1000, 20, GAP), (500, 20, GAP), (1000, 2, 0), (100, 20, 0), (100, 30, 1)]
        {
            let link = Link { latency: Duration::from_millis(milliseconds), rate: megabits * 125_000 };
            assert_eq!(gap(link), expected, "{megabits} Mbit/s, {milliseconds} ms");
        }
        assert_eq!(parts(&[8..9, 2..4, 6..7], 100, 0), [2..4, 6..7, 8..9]);
        assert_eq!(parts(&[8..9, 2..4, 6..7], 100, 1), [2..4, 6..9]);
    }

    #[test]
    fn the_chunks_of_a_profile_are_fetched_in_few_jobs() {
        let present = format!("....x{}", ".".repeat(195));
        let (mut plan, now) =
            (plan_with(&present, &[80..82, 3..6, 8..9, 8..8, 300..400, 190..999, 14..80]), Instant::now());
        let mut jobs = Vec::new();
        while let Some(job) = plan.first(now) {
            jobs.push(job);
        }
        assert_eq!(jobs, [3..4, 5..9, 14..78, 78..82, 190..200]);
        assert!(!plan.has_first());
        for job in jobs {
            job.clone().for_each(|chunk| plan.arrived(chunk));
            plan.ended(Reason::First, job, None);
        }
        assert!(plan.has_first());
        assert_eq!((plan.first(now), plan.stream(now, false)), (None, Some(0..3)));
    }

    #[test]
    fn the_background_begins_before_the_last_chunks_of_a_long_profile_are_here() {
        for (first, early) in [(0..LONG, EARLY), (0..LONG - 1, 0)] {
            let mut plan = plan_with(&".".repeat(LONG + 100), std::slice::from_ref(&first));
            let now = Instant::now();
            while plan.first(now).is_some() {}
            let left = first.clone().find(|chunk| {
                plan.arrived(*chunk);
                plan.first_ends()
            });
            assert_eq!(left.map(|chunk| first.end - chunk - 1), Some(early), "{first:?}");
            assert_eq!(plan.stream(now, true), Some(first.end..first.end + EARLY));
            assert!(plan.early_jobs_suffice());
        }
    }

    #[test]
    fn leading_chunks_are_those_before_the_first_that_is_missing() {
        for (present, arrivals, leading) in [
            ("....", &[][..], &[][..]),
            ("xx..", &[3, 2], &[2, 4]),
            (".x.x", &[2, 0, 0], &[0, 4, 4]),
            ("...x", &[0, 2, 1], &[1, 1, 4]),
        ] {
            let mut plan = plan(present);
            assert_eq!(plan.leading(), present.chars().take_while(|chunk| *chunk == 'x').count());
            for (chunk, expected) in arrivals.iter().zip(leading) {
                plan.arrived(*chunk);
                assert_eq!(plan.leading(), *expected, "{present} {arrivals:?}");
            }
        }
    }

    #[test]
    fn a_job_for_a_profile_that_failed_is_repeated_after_a_pause() {
        let (mut plan, now) = (plan_with("..........", &[2..4, 2..3]), Instant::now());
        assert_eq!((plan.first(now), plan.first(now), plan.demand(now, 3..4)), (Some(2..4), None, None));
        plan.ended(Reason::First, 2..4, Some(now));
        assert_eq!(plan.first(now), None);
        assert_eq!(plan.first(now + PAUSE), Some(2..4));
    }

    #[test]
    fn a_read_gets_its_chunks_and_some_behind_them() {
        let now = Instant::now();
        for (present, chunks, job) in [
            ("..........", 2..3, Some(2..6)),
            ("..........", 2..9, Some(2..9)),
            ("..........", 8..9, Some(8..10)),
            ("..x.......", 1..4, Some(1..2)),
            (".xx.......", 1..4, Some(3..7)),
            (".xxx......", 1..4, None),
            ("xxxxxxxxxx", 0..10, None),
        ] {
            assert_eq!(plan(present).demand(now, chunks.clone()), job, "{present} {chunks:?}");
        }
    }

    #[test]
    fn two_reads_do_not_fetch_the_same_chunk() {
        let (mut plan, now) = (plan(".........."), Instant::now());
        assert_eq!(plan.demand(now, 0..2), Some(0..4));
        assert_eq!(plan.demand(now, 1..2), None);
        assert_eq!(plan.demand(now, 3..5), Some(4..8));
        plan.ended(Reason::Demand, 0..4, None);
        assert_eq!(plan.demand(now, 1..2), Some(1..4));
    }

    #[test]
    fn background_jobs_never_stop_a_read_and_are_repeated_after_a_pause() {
        let (mut plan, now) = (plan("xx..xxxxx..xxxxx."), Instant::now());
        assert_eq!([(); 4].map(|()| plan.stream(now, false)), [Some(2..4), Some(9..11), Some(16..17), None]);
        assert_eq!(plan.demand(now, 3..4), Some(3..4));
        plan.arrived(2);
        plan.arrived(3);
        plan.arrived(3);
        plan.ended(Reason::Stream, 2..4, None);
        assert_eq!(plan.stream(now, false), None);
        assert_eq!(plan.missing(), 3);
        plan.arrived(9);
        plan.ended(Reason::Stream, 9..11, Some(now));
        assert_eq!(plan.stream(now, false), None);
        assert_eq!(plan.stream(now + PAUSE, false), Some(10..11));
        plan.arrived(10);
        plan.arrived(16);
        assert!(plan.is_complete());
    }

    #[test]
    fn a_background_job_fetches_few_chunks_again_instead_of_asking_twice() {
        for (present, jobs) in [
            ("..x..", &[(0, 5)][..]),
            ("..xx..", &[(0, 2), (4, 6)]),
            (".x.x..xx.x", &[(0, 6), (8, 9)]),
            ("x.xxxxx", &[(1, 2)]),
        ] {
            assert_eq!(plan(present).jobs(Instant::now()), jobs, "{present}");
        }
    }

    #[test]
    fn several_background_jobs_run_while_they_are_small() {
        let now = Instant::now();
        let small = plan(&"..xxxxx".repeat(40)).jobs(now);
        assert_eq!((small.len(), small[0], small[32]), (33, (0, 2), (224, 226)));
    }

    #[test]
    fn a_background_job_begins_before_the_one_before_it_ends() {
        let (mut plan, now) = (plan(&".".repeat(3 * STREAM)), Instant::now());
        assert_eq!(plan.jobs(now), [(0, STREAM)]);
        (0..STREAM - LEFT - 1).for_each(|chunk| plan.arrived(chunk));
        assert_eq!(plan.stream(now, false), None);
        plan.arrived(STREAM - LEFT - 1);
        assert_eq!(plan.jobs(now), [(STREAM, 2 * STREAM)]);
        // The chunks that the first one did not fetch come next.
        plan.ended(Reason::Stream, 0..STREAM, None);
        assert_eq!(plan.stream(now, false), None);
        (STREAM..2 * STREAM - LEFT).for_each(|chunk| plan.arrived(chunk));
        assert_eq!(plan.jobs(now), [(STREAM - LEFT, STREAM)]);
    }

    #[test]
    fn failures_pause_longer_and_longer_until_a_chunk_arrives() {
        let (mut plan, now) = (plan("...."), Instant::now());
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            let Some(chunks) = plan.demand(plan.retries().next().unwrap_or(now), 0..1) else { panic!("a job") };
            plan.ended(Reason::Demand, chunks, Some(now));
            let (for_reads, pause) = plan.retries.map(|(demand, stream)| (demand - now, stream - now)).unwrap();
            assert!(pause >= last && pause <= LONGEST_PAUSE);
            assert_eq!(for_reads, pause.min(LONGEST_DEMAND_PAUSE));
            assert_eq!(plan.demand(now, 0..1), None);
            assert_eq!(plan.stream(now, false), None);
            last = pause;
        }
        assert_eq!(last, LONGEST_PAUSE);
        plan.retry_now();
        assert_eq!(plan.stream(now, false), Some(0..4));
        plan.ended(Reason::Stream, 0..4, Some(now));
        assert_eq!(plan.retries.map(|(_, stream)| stream - now), Some(PAUSE));
        plan.arrived(0);
        assert_eq!(plan.stream(now, false), Some(1..4));
    }
}
