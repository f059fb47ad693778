//! The state that the listener and the workers share: the layers that are served, and the reads that wait.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    ops::Range,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use layer::Limits;
use rustix::fs::fstat;

use crate::{
    description::CHUNK,
    observer::{LazyEvent, Observer},
    pace::Pace,
    partial::PartialLayer,
    plan::{FIRST_JOBS, Plan, Reason},
    reads::Reads,
    slots::{FileId, Left, Slots},
    source::Sources,
    sys::{self, Verdict},
    waiting::{self, Waiting},
};

/// How layers are served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a read waits for its data before it fails with `EIO`.
    pub read_timeout: Duration,
    /// Requests of the background that run at the same time, of all layers.
    pub streams: usize,
    /// Reads whose data is fetched at the same time.
    pub demands: usize,
    /// Bytes per second of all layers that stream in the background. Reads are not slowed down.
    pub bandwidth: Option<u64>,
    /// Notes which data is read first. A layer is then announced for at least this time, also when it is complete.
    pub profile: Option<Duration>,
    /// Limits against hostile images.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        let read_timeout = Duration::from_secs(60);
        Self { read_timeout, streams: 3, demands: 6, bandwidth: None, profile: None, limits: Limits::default() }
    }
}

/// What all threads share.
pub(crate) struct Shared {
    pub(crate) group: OwnedFd,
    /// Wakes the listener.
    pub(crate) wake: OwnedFd,
    pub(crate) settings: Settings,
    pub(crate) observer: Arc<dyn Observer>,
    /// Something changed that workers wait for.
    pub(crate) work: Condvar,
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(
        group: OwnedFd,
        slots: Slots,
        settings: Settings,
        observer: Arc<dyn Observer>,
    ) -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)?;
        let files = BTreeMap::new();
        let pace = Pace::new(settings.bandwidth);
        let state = State {
            slots,
            waiting: Vec::new(),
            files,
            complete: BTreeSet::new(),
            demands: 0,
            firsts: 0,
            starts: 0,
            streams: 0,
            pace,
            stopping: false,
        };
        Ok(Self { group, wake, settings, observer, work: Condvar::new(), state: Mutex::new(state) })
    }

    /// No system call that may block for long is made under this lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the listener that slots are free, or that it shall look again.
    pub(crate) fn wake_listener(&self) {
        sys::wake(&self.wake);
    }

    /// Reports events. The caller must not hold the lock.
    pub(crate) fn report(&self, events: impl IntoIterator<Item = LazyEvent>) {
        events.into_iter().for_each(|event| self.observer.report(event));
    }
}

/// How far a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Chunks are missing.
    Fetching,
    /// All chunks are here, and a worker checks the whole.
    Checking,
    /// It is whole. Its reads are not announced any more, but events may be on the way.
    Unmarked,
    /// All chunks are here, but it is not the layer that the manifest promised.
    Refused,
}

/// One layer.
pub(crate) struct Served {
    pub(crate) layer: Arc<PartialLayer>,
    pub(crate) sources: Sources,
    pub(crate) plan: Plan,
    /// A descriptor whose accesses are not announced: that of the first event.
    pub(crate) image: Option<Arc<File>>,
    pub(crate) phase: Phase,
    /// Why the last job failed.
    pub(crate) problem: Option<String>,
    /// Callers that wait for the whole layer.
    hurried: usize,
    since: Instant,
    /// The data in the order of its first reads, if they are noted.
    reads: Option<Reads>,
}

impl Served {
    pub(crate) fn new(layer: PartialLayer, sources: Sources, settings: &Settings) -> Self {
        let plan = Plan::new(layer.present(), layer.first(), layer.gap());
        let reads = settings.profile.map(|_| Reads::default());
        let (phase, since) = (Phase::Fetching, Instant::now());
        Self { layer: Arc::new(layer), sources, plan, image: None, phase, problem: None, hurried: 0, since, reads }
    }

    /// What was read first; `None` if it was not noted.
    pub(crate) fn reads(&self) -> Option<Vec<Range<u64>>> {
        self.reads.as_ref().map(Reads::ranges)
    }

    /// Bytes that are here.
    pub(crate) fn bytes_here(&self) -> u64 {
        self.layer.description().size.saturating_sub(self.plan.missing() as u64 * CHUNK)
    }

    fn is_hurried(&self) -> bool {
        self.hurried > 0
    }

    fn has(&self, range: &Range<u64>) -> bool {
        self.plan.has_all(self.layer.chunks_of(range))
    }
}

/// What a worker does next.
pub(crate) enum Job {
    /// Fetches chunks.
    Fetch(Fetch),
    /// Checks a whole layer.
    Check { file: FileId, layer: Arc<PartialLayer>, image: Arc<File> },
}

/// Chunks of a layer to fetch.
pub(crate) struct Fetch {
    pub(crate) file: FileId,
    pub(crate) reason: Reason,
    pub(crate) chunks: Range<usize>,
    pub(crate) layer: Arc<PartialLayer>,
    pub(crate) image: Arc<File>,
    pub(crate) sources: Sources,
}

/// What the lock protects.
pub(crate) struct State {
    slots: Slots,
    waiting: Vec<Waiting<OwnedFd>>,
    pub(crate) files: BTreeMap<FileId, Served>,
    /// Layers that were complete. A reader that met the mark before it was removed may send its event late.
    pub(crate) complete: BTreeSet<FileId>,
    /// Jobs for reads that run.
    pub(crate) demands: usize,
    /// Jobs for starts that run.
    pub(crate) firsts: usize,
    /// Starts that wait for their layers.
    pub(crate) starts: usize,
    /// Background jobs that run.
    pub(crate) streams: usize,
    pub(crate) pace: Pace,
    pub(crate) stopping: bool,
}

impl State {
    /// Takes on what a predecessor read and did not answer.
    pub(crate) fn inherit(&mut self, left: Vec<Left>, deadline: Instant) {
        for Left { slot, event, file } in left {
            let verdict = file.filter(|file| !self.files.contains_key(file)).map(|file| self.of_other(file));
            let (number, range) = (event.number, event.range);
            self.waiting.push(Waiting { slot, number, file, range, deadline, verdict, _descriptor: None });
        }
        self.judge();
    }

    /// Reads one event and answers it if its data is here. `Ok(None)`: there is none, or no slot is free.
    pub(crate) fn read_event(&mut self, shared: &Shared) -> io::Result<Option<Read>> {
        let Some((slot, event)) = self.slots.read(shared.group.as_fd())? else { return Ok(None) };
        // From here on, each way must lead to an answer: the number is in use until then.
        let descriptor = sys::event_descriptor(event.number);
        let file = fstat(&descriptor).map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
        self.slots.set_file(slot, file);
        let mut verdict = None;
        let mut is_first = false;
        if let Some(served) = self.files.get_mut(&file) {
            if served.image.is_none() {
                served.image = descriptor.try_clone().ok().map(|descriptor| Arc::new(descriptor.into()));
                is_first = served.image.is_some();
            }
            if let Some(reads) = &mut served.reads {
                reads.note(served.layer.data_of(&event.range));
            }
            if served.has(&event.range) {
                verdict = Some(Verdict::Allow);
            } else if served.image.is_none() {
                verdict = Some(Verdict::Deny);
            }
        } else {
            verdict = Some(self.of_other(file));
        }
        // With the first event, workers can serve what a predecessor left. Their data may be what this event waits for.
        let read = match verdict {
            Some(Verdict::Allow) if !is_first => Read::Answered,
            Some(Verdict::Deny) => Read::Unknown,
            _ => Read::GivesWork,
        };
        let (number, range, file) = (event.number, event.range, Some(file));
        let deadline = Instant::now() + shared.settings.read_timeout;
        self.waiting.push(Waiting { slot, number, file, range, deadline, verdict, _descriptor: Some(descriptor) });
        self.settle(shared);
        Ok(Some(read))
    }

    /// The answer to a read of a file that is not served.
    fn of_other(&self, file: FileId) -> Verdict {
        if self.complete.contains(&file) { Verdict::Allow } else { Verdict::Deny }
    }

    /// Whether no further event can be read.
    pub(crate) fn is_full(&self) -> bool {
        self.slots.are_full()
    }

    /// Lets those reads pass whose data is here.
    pub(crate) fn judge(&mut self) {
        for event in self.waiting.iter_mut().filter(|event| event.is_open()) {
            let here = match event.file {
                Some(file) => self.files.get(&file).is_some_and(|served| served.has(&event.range)),
                None => self.files.values().all(|served| served.has(&event.range)),
            };
            event.verdict = here.then_some(Verdict::Allow);
        }
    }

    /// Answers the reads that have a verdict. Returns whether slots became free.
    pub(crate) fn settle(&mut self, shared: &Shared) -> bool {
        let mut numbers = waiting::answerable(&self.waiting);
        numbers.retain(|(number, verdict)| {
            let events = self.waiting.iter().filter(|event| event.number == *number).count();
            (0..events).all(|_| match sys::answer(shared.group.as_fd(), *number, *verdict) {
                // Without an event, a predecessor has answered it.
                Ok(_) => true,
                Err(error) => {
                    // The number stays in use: the kernel would take its next answer for this event.
                    tracing::error!(number, %error, "a read cannot be answered; it waits for the next plugin");
                    false
                }
            })
        });
        let is_answered = |event: &Waiting<OwnedFd>| numbers.iter().any(|(number, _)| *number == event.number);
        let answered: Vec<_> = self.waiting.extract_if(.., |event| is_answered(event)).collect();
        // A slot is free before its number is. Otherwise a successor could take the number's next event for this one.
        answered.iter().for_each(|event| self.slots.free(event.slot));
        !answered.is_empty()
    }

    /// Makes the reads of a chunk fail that wait for it.
    pub(crate) fn refuse(&mut self, file: FileId, chunk: usize) -> usize {
        let Some(served) = self.files.get(&file) else { return 0 };
        let concerns =
            |event: &Waiting<OwnedFd>| event.concerns(file) && served.layer.chunks_of(&event.range).contains(&chunk);
        let mut count = 0;
        for event in self.waiting.iter_mut().filter(|event| event.is_open()) {
            if concerns(event) {
                event.verdict = Some(Verdict::Deny);
                count += 1;
            }
        }
        count
    }

    /// Makes the reads fail that waited too long. Returns what is missing.
    pub(crate) fn give_up(&mut self, now: Instant) -> Vec<LazyEvent> {
        let mut events = Vec::new();
        for event in self.waiting.iter_mut().filter(|event| event.is_open() && event.deadline <= now) {
            event.verdict = Some(Verdict::Deny);
            for (_, served) in self.files.iter().filter(|(file, _)| event.concerns(**file)) {
                if !served.has(&event.range) {
                    let problem = served.problem.clone().unwrap_or_else(|| "its source is too slow".to_owned());
                    let digest = served.layer.description().digest.clone();
                    events.push(LazyEvent::ReadFailed { digest, offset: event.range.start, problem });
                }
            }
        }
        events
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        waiting::next_deadline(&self.waiting)
    }

    /// The layers in this phase.
    pub(crate) fn in_phase(&self, phase: Phase) -> Vec<FileId> {
        self.files.iter().filter(|(_, served)| served.phase == phase).map(|(file, _)| *file).collect()
    }

    /// Forgets a layer whose reads are not announced any more, unless one still waits.
    pub(crate) fn forget(&mut self, file: FileId) -> Option<Served> {
        if self.waiting.iter().any(|event| event.file == Some(file)) {
            return None;
        }
        let complete = self.files.remove(&file)?;
        self.complete.insert(file);
        Some(complete)
    }

    /// Forgets a layer whose file was removed. Its reads fail.
    pub(crate) fn abandon(&mut self, file: FileId) {
        for event in self.waiting.iter_mut().filter(|event| event.file == Some(file) && event.is_open()) {
            event.verdict = Some(Verdict::Deny);
        }
        self.files.remove(&file);
    }

    /// Lets a layer stream before the others, at once and without the limit of the bandwidth, until
    /// [`Self::unhurry`]. Returns whether it is served.
    pub(crate) fn hurry(&mut self, file: FileId) -> bool {
        let Some(served) = self.files.get_mut(&file) else { return false };
        served.hurried += 1;
        // A next failure is news for the caller that waits.
        served.problem = None;
        served.plan.retry_now();
        true
    }

    /// Ends one call of [`Self::hurry`].
    pub(crate) fn unhurry(&mut self, file: FileId) {
        if let Some(served) = self.files.get_mut(&file) {
            served.hurried = served.hurried.saturating_sub(1);
        }
    }

    /// Whether a caller waits for the whole layer.
    pub(crate) fn is_hurried(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(Served::is_hurried)
    }

    /// Whether the background leaves the link to others.
    pub(crate) fn is_urgent(&self) -> bool {
        self.demands + self.firsts + self.starts > 0
    }

    /// Whether the jobs for starts have so little left that a background job may send its request: its answer comes
    /// when they are done. Without them, a start waits for something else.
    fn firsts_end(&self) -> bool {
        let plans = || self.files.values().map(|served| &served.plan);
        let ends = || plans().any(Plan::has_long_first) && plans().all(Plan::first_ends);
        self.firsts > 0 && self.demands == 0 && ends() && !plans().any(Plan::early_jobs_suffice)
    }

    /// Notes the end of a job.
    pub(crate) fn ended(&mut self, reason: Reason) {
        match reason {
            Reason::Demand => self.demands -= 1,
            Reason::First => self.firsts -= 1,
            Reason::Stream => self.streams -= 1,
        }
    }

    /// The next job of a worker, or the time at which there may be one.
    pub(crate) fn next_job(&mut self, now: Instant, settings: &Settings) -> Result<Job, Option<Instant>> {
        let mut later = Vec::new();
        for event in self.waiting.iter().filter(|event| event.is_open()) {
            for (file, served) in self.files.iter_mut().filter(|(file, _)| event.concerns(**file)) {
                let Some(image) = &served.image else { continue };
                let Some(chunks) = served.plan.demand(now, served.layer.chunks_of(&event.range)) else { continue };
                self.demands += 1;
                let fetch = fetch(*file, served, image, Reason::Demand, chunks);
                return Ok(Job::Fetch(fetch));
            }
        }
        for (file, served) in self.files.iter_mut().filter(|_| self.firsts < FIRST_JOBS) {
            let Some(image) = &served.image else { continue };
            let Some(chunks) = served.plan.first(now) else { continue };
            self.firsts += 1;
            return Ok(Job::Fetch(fetch(*file, served, image, Reason::First, chunks)));
        }
        let early = self.firsts_end();
        let urgent = self.is_urgent() && !early;
        // Layers that a caller waits for come first. They may use some of the workers for reads.
        let most = |hurried: bool| settings.streams + if hurried { settings.demands / 2 } else { 0 };
        let (hurried, others): (Vec<_>, Vec<_>) = self.files.iter_mut().partition(|(_, served)| served.is_hurried());
        for (file, served) in hurried.into_iter().chain(others) {
            let Some(image) = served.image.clone() else { continue };
            if served.phase == Phase::Fetching && served.plan.is_complete() {
                let noted = settings.profile.filter(|_| !served.is_hurried()).map(|time| served.since + time);
                if let Some(until) = noted.filter(|until| *until > now) {
                    later.push(until);
                    continue;
                }
                served.phase = Phase::Checking;
                return Ok(Job::Check { file: *file, layer: Arc::clone(&served.layer), image });
            }
            // A start may wait for a layer that is hurried.
            if (urgent && !served.is_hurried()) || self.streams >= most(served.is_hurried()) {
                continue;
            }
            let Some(chunks) = served.plan.stream(now, early) else { continue };
            self.streams += 1;
            return Ok(Job::Fetch(fetch(*file, served, &image, Reason::Stream, chunks)));
        }
        let retries = self.files.values().flat_map(|served| served.plan.retries());
        Err(retries.chain(later).filter(|instant| *instant > now).min())
    }
}

fn fetch(file: FileId, served: &Served, image: &Arc<File>, reason: Reason, chunks: Range<usize>) -> Fetch {
    let (layer, image, sources) = (Arc::clone(&served.layer), Arc::clone(image), Arc::clone(&served.sources));
    Fetch { file, reason, chunks, layer, image, sources }
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// Its data is here.
    Answered,
    /// Workers have something to do: its data must be fetched, or it brought the descriptor that they need.
    GivesWork,
    /// Its file is not served, so the read failed.
    Unknown,
}
