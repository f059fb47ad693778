//! The threads that fetch chunks and check whole layers.

use std::{
    fs::File,
    io,
    ops::{ControlFlow, Range},
    os::fd::AsFd,
    sync::{Arc, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    observer::LazyEvent,
    plan::{Plan, Reason},
    source::{Source, SourceError, joined},
    state::{Fetch, Job, Phase, Shared},
    sys,
};

/// A background job looks this often whether the reads that it waits for are done.
const LOOK: Duration = Duration::from_secs(1);

/// Why a source did not deliver the next chunk.
enum Failure {
    /// Its bytes are wrong.
    Lied,
    /// It did not deliver.
    Source(String),
    /// The file system failed, so no other source can help.
    Disk(io::Error),
    /// The service stops.
    Stopping,
}

/// Works until the service stops.
pub(crate) fn run(shared: &Arc<Shared>) {
    while let Some(job) = next(shared) {
        match job {
            Job::Fetch(fetch) if is_removed(&fetch.image) => give_up(shared, &fetch),
            Job::Fetch(fetch) => work(shared, &fetch),
            Job::Check { file, layer, image } => {
                let digest = layer.description().digest.clone();
                let checked = layer.check_whole(&image, &shared.settings.limits).and_then(|problem| {
                    if problem.is_none() {
                        sys::mark(shared.group.as_fd(), image.as_fd(), false)?;
                    }
                    Ok(problem)
                });
                let problem = checked.unwrap_or_else(|error| Some(format!("it cannot be checked: {error}")));
                // It can write. As long as a descriptor can, the kernel does not protect the file by fs-verity.
                drop(image);
                let phase = if problem.is_none() { Phase::Unmarked } else { Phase::Refused };
                if let Some(served) = shared.lock().files.get_mut(&file) {
                    served.phase = phase;
                }
                let image = layer.image();
                shared.report(problem.map(|problem| LazyEvent::Refused { digest, image, problem }));
                shared.wake_listener();
            }
        }
    }
}

/// Whether no directory has the file any more. The store removes only layers that no task uses.
fn is_removed(image: &File) -> bool {
    rustix::fs::fstat(image).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Stops serving a layer whose file was removed.
fn give_up(shared: &Shared, fetch: &Fetch) {
    let digest = fetch.layer.description().digest.clone();
    let mut state = shared.lock();
    state.ended(fetch.reason);
    state.abandon(fetch.file);
    state.settle(shared);
    drop(state);
    shared.report([LazyEvent::Removed { digest, image: fetch.layer.image() }]);
    shared.work.notify_all();
    shared.wake_listener();
}

/// Waits for a job. `None`: the service stops.
fn next(shared: &Shared) -> Option<Job> {
    let mut state = shared.lock();
    loop {
        if state.stopping {
            return None;
        }
        let now = Instant::now();
        state = match state.next_job(now, &shared.settings) {
            Ok(job) => return Some(job),
            Err(None) => shared.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            Err(Some(then)) => {
                let waited = shared.work.wait_timeout(state, then.saturating_duration_since(now));
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

/// Fetches chunks, each from the first source that has it right.
fn work(shared: &Shared, fetch: &Fetch) {
    let digest = &fetch.layer.description().digest;
    let mut next = fetch.chunks.start;
    let (mut only_lies, mut problem) = (true, None);
    for source in fetch.sources.iter() {
        let before = next;
        let result = fetch_from(shared, fetch, &**source, &mut next);
        if next > before {
            only_lies = true;
        }
        match result {
            Ok(()) => problem = None,
            Err(Failure::Lied) => {
                let offset = fetch.layer.range_of(next).start;
                let name = source.name().to_owned();
                problem = Some(format!("{name} delivered wrong bytes"));
                shared.report([LazyEvent::WrongChunk { digest: digest.clone(), offset, source: name }]);
                continue;
            }
            Err(Failure::Source(error)) => {
                only_lies = false;
                problem = Some(format!("{}: {error}", source.name()));
                continue;
            }
            Err(Failure::Disk(error)) => {
                only_lies = false;
                problem = Some(format!("writing {}: {error}", fetch.layer.image().display()));
            }
            Err(Failure::Stopping) => return,
        }
        break;
    }
    end(shared, fetch, next, problem, only_lies);
}

/// Notes the end of a job. Reads of a chunk about which all sources lie fail now; the others wait for a next attempt.
fn end(shared: &Shared, fetch: &Fetch, next: usize, problem: Option<String>, only_lies: bool) {
    let digest = fetch.layer.description().digest.clone();
    let mut events = Vec::new();
    let mut state = shared.lock();
    state.ended(fetch.reason);
    if let Some(served) = state.files.get_mut(&fetch.file) {
        let failed = problem.as_ref().map(|_| Instant::now());
        if let Some(problem) = &problem
            && served.problem.as_ref() != Some(problem)
        {
            let (digest, problem) = (digest.clone(), problem.clone());
            events.push(LazyEvent::Stalled { digest, missing: served.plan.missing(), problem });
        }
        served.problem.clone_from(&problem);
        served.plan.ended(fetch.reason, fetch.chunks.clone(), failed);
    }
    if let Some(problem) = problem.filter(|_| only_lies) {
        let offset = fetch.layer.range_of(next).start;
        let failed = (0..state.refuse(fetch.file, next)).map(|_| LazyEvent::ReadFailed {
            digest: digest.clone(),
            offset,
            problem: problem.clone(),
        });
        events.extend(failed);
    }
    let freed = state.settle(shared);
    drop(state);
    shared.report(events);
    shared.work.notify_all();
    if freed {
        shared.wake_listener();
    }
}

/// Fetches from one source. `next` is the first chunk that is missing; it counts up as they arrive.
fn fetch_from(shared: &Shared, fetch: &Fetch, source: &dyn Source, next: &mut usize) -> Result<(), Failure> {
    let last = fetch.chunks.end;
    let length = |chunk| {
        let range = fetch.layer.range_of(chunk);
        (range.end - range.start) as usize
    };
    let range = fetch.layer.range_of(*next).start..fetch.layer.range_of(last - 1).end;
    let mut bytes = Vec::with_capacity(length(*next));
    let mut failure = None;
    let missing = missing_hashes(shared, fetch, *next..last).map_err(Failure::Disk)?;
    let read = thread::scope(|scope| {
        // The chunks wait for their hashes, so both are asked for at the same time.
        let mut hashes = missing.map(|range| scope.spawn(move || fetch_hashes(fetch, source, &range)));
        source.read(range, &mut |mut piece| {
            while !piece.is_empty() && *next < last {
                let (now, later) = piece.split_at(piece.len().min(length(*next) - bytes.len()));
                bytes.extend_from_slice(now);
                piece = later;
                if bytes.len() == length(*next) {
                    let hashes = hashes.take().map_or(Ok(()), joined);
                    let result = hashes.and_then(|()| arrived(shared, fetch, *next, &bytes));
                    if let Err(error) = result {
                        failure = Some(error);
                        return ControlFlow::Break(());
                    }
                    *next += 1;
                    bytes.clear();
                }
            }
            if *next == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    outcome(read, failure, *next == last)
}

/// What became of a request, of which all is here or not.
fn outcome(read: Result<(), SourceError>, failure: Option<Failure>, is_whole: bool) -> Result<(), Failure> {
    match (failure, read) {
        (Some(failure), _) => Err(failure),
        _ if is_whole => Ok(()),
        (None, Ok(())) => Err(Failure::Source("it ended before its end".to_owned())),
        (None, Err(error)) => Err(Failure::Source(error.to_string())),
    }
}

/// The part of the hash tree that a job fetches together with its chunks. The background fetches all that is missing,
/// unless a read or a start needs the link.
fn missing_hashes(shared: &Shared, fetch: &Fetch, chunks: Range<usize>) -> io::Result<Option<Range<u64>>> {
    let missing = fetch.layer.missing_hashes(&fetch.image, chunks)?;
    let all = missing.is_some() && fetch.reason == Reason::Stream && !shared.lock().is_urgent();
    Ok(if all { fetch.layer.unknown_hashes() } else { missing })
}

/// Fetches a part of the hash tree. Wrong blocks of it count as missing.
fn fetch_hashes(fetch: &Fetch, source: &dyn Source, range: &Range<u64>) -> Result<(), Failure> {
    let (mut start, mut bytes, mut failure) = (range.start, Vec::new(), None);
    let read = source.read(range.clone(), &mut |piece| {
        let left = (range.end - start) as usize - bytes.len();
        bytes.extend_from_slice(&piece[..piece.len().min(left)]);
        match fetch.layer.accept_hashes(&fetch.image, start, &bytes) {
            Ok(accepted) => {
                bytes.drain(..accepted);
                start += accepted as u64;
            }
            Err(error) => failure = Some(Failure::Disk(error)),
        }
        if failure.is_some() || start == range.end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    outcome(read, failure, start == range.end)
}

/// Verifies and writes a chunk, and lets the reads go on that waited for it.
fn arrived(shared: &Shared, fetch: &Fetch, chunk: usize, bytes: &[u8]) -> Result<(), Failure> {
    let is_here = |shared: &Shared| shared.lock().files.get(&fetch.file).is_some_and(|served| served.plan.has(chunk));
    if !is_here(shared) {
        if !fetch.layer.accept(&fetch.image, chunk, bytes).map_err(Failure::Disk)? {
            return Err(Failure::Lied);
        }
        let mut state = shared.lock();
        let (mut wakes, mut leading) = (false, 0);
        if let Some(served) = state.files.get_mut(&fetch.file) {
            let ends = |plan: &Plan| (plan.first_ends(), plan.has_first(), plan.stream_ends());
            let before = ends(&served.plan);
            served.plan.arrived(chunk);
            leading = served.plan.leading();
            wakes = served.plan.is_complete() || ends(&served.plan) != before;
        }
        state.judge();
        let freed = state.settle(shared);
        drop(state);
        if freed {
            shared.wake_listener();
        }
        if wakes {
            shared.work.notify_all();
        }
        // A read or a start does not wait for it.
        if fetch.reason == Reason::Stream {
            fetch.layer.hash_ahead(&fetch.image, leading);
        }
    }
    make_way(shared, fetch, bytes.len() as u64)
}

/// A background job waits while data is fetched for reads or starts, and as long as it is faster than its bandwidth.
/// Its source waits too, because its bytes are not taken. A layer that a caller waits for makes way for reads only.
fn make_way(shared: &Shared, fetch: &Fetch, bytes: u64) -> Result<(), Failure> {
    let mut state = shared.lock();
    if fetch.reason == Reason::Stream {
        let due = if state.is_hurried(fetch.file) { None } else { state.pace.spend(Instant::now(), bytes) };
        while !state.stopping {
            let due = due.filter(|_| !state.is_hurried(fetch.file));
            let left = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
            let makes_way = if state.is_hurried(fetch.file) { state.demands > 0 } else { state.is_urgent() };
            if !makes_way && left.is_zero() {
                break;
            }
            let limit = if makes_way { LOOK } else { left };
            state = shared.work.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    if state.stopping { Err(Failure::Stopping) } else { Ok(()) }
}
