//! The service: one listener and some workers for all incomplete layers of a node.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
    sync::{Arc, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    error::{LazyError, at},
    listener,
    observer::Observer,
    partial::PartialLayer,
    slots::{FileId, Slots, Wait},
    source::Sources,
    state::{Served, Settings, Shared},
    sys, worker,
};

/// The right to serve the layers of a directory. One process has it at a time; the kernel frees it with the process.
#[derive(Debug)]
pub struct ServiceLock(Slots);

impl ServiceLock {
    /// Takes the lock. `events` is a file that only this crate uses; it outlives the process.
    ///
    /// A process that was killed right after its start can have the lock for another tenth of a second, although it was
    /// reaped: the file is mapped, and the kernel keeps the memory of a process with threads a little longer (seen with
    /// Linux 6.18 on 16 processors).
    ///
    /// # Errors
    /// Another process serves ([`LazyError::Served`]), or the file system fails.
    pub fn acquire(events: &Path) -> Result<Self, LazyError> {
        Slots::open(events, Wait::No).map(Self)
    }

    /// As [`Self::acquire`], but blocks as long as another process serves.
    ///
    /// # Errors
    /// The file system fails.
    pub fn wait(events: &Path) -> Result<Self, LazyError> {
        Slots::open(events, Wait::Forever).map(Self)
    }
}

/// What a process that has ended leaves to the next one that serves.
#[derive(Debug)]
pub struct Predecessor {
    /// Its group, of which another process held a copy.
    pub group: OwnedFd,
    /// All layers that it served and that are not complete.
    pub layers: Vec<(PartialLayer, Sources)>,
    /// The layers that it may have completed. Reads of them pass that it has not answered.
    pub complete: Vec<FileId>,
}

/// A start that waits for its layers.
pub struct StartWaits(Arc<Shared>);

impl Drop for StartWaits {
    fn drop(&mut self) {
        self.0.lock().starts -= 1;
        self.0.work.notify_all();
    }
}

impl std::fmt::Debug for StartWaits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("StartWaits").finish()
    }
}

/// Serves incomplete layers.
pub struct Lazy {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Lazy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lazy").field("group", &self.shared.group).finish_non_exhaustive()
    }
}

impl Lazy {
    /// Begins without a predecessor.
    ///
    /// # Errors
    /// The kernel has no such events, or the system lacks resources.
    pub fn start(lock: ServiceLock, settings: Settings, observer: Arc<dyn Observer>) -> Result<Self, LazyError> {
        let ServiceLock(mut slots) = lock;
        let group = sys::new_group().map_err(|error| LazyError::Unsupported {
            problem: format!("the kernel does not announce reads: {error}"),
        })?;
        slots.clear();
        Self::run(shared(group, slots, settings, observer)?)
    }

    /// Goes on in the place of a process that has ended.
    ///
    /// # Errors
    /// As [`Lazy::start`] and [`Lazy::serve`]. Readers wait until a later call succeeds.
    pub fn take_over(
        lock: ServiceLock,
        predecessor: Predecessor,
        settings: Settings,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, LazyError> {
        let ServiceLock(mut slots) = lock;
        let Predecessor { group, layers, complete } = predecessor;
        let left = slots.left();
        let deadline = Instant::now() + settings.read_timeout;
        let shared = shared(group, slots, settings, observer)?;
        let mut images = Vec::new();
        for (layer, sources) in layers {
            let (path, image) = open(&layer)?;
            shared.lock().files.insert(id(&image, &path)?, Served::new(layer, sources, &shared.settings));
            images.push((path, image));
        }
        {
            let mut state = shared.lock();
            state.complete.extend(complete);
            state.inherit(left, deadline);
        }
        // Before a worker runs: it removes the mark of a layer that is complete, and nothing may set it again.
        for (path, image) in &images {
            mark(&shared, image, path)?;
        }
        let lazy = Self::run(shared)?;
        for (path, image) in images {
            lazy.confirm(&image, &path)?;
        }
        Ok(lazy)
    }

    /// Serves a layer from now on. It may be mounted when this call has returned, and not before. Blocks shortly.
    ///
    /// # Errors
    /// The file system's files have no such events, or the layer is served already.
    pub fn serve(&self, layer: PartialLayer, sources: Sources) -> Result<(), LazyError> {
        let (path, image) = open(&layer)?;
        let file = id(&image, &path)?;
        {
            let mut state = self.shared.lock();
            if state.files.contains_key(&file) {
                return Err(LazyError::Served { path });
            }
            state.complete.remove(&file);
            state.files.insert(file, Served::new(layer, sources, &self.shared.settings));
        }
        let announced = mark(&self.shared, &image, &path).and_then(|()| self.confirm(&image, &path));
        if announced.is_err() {
            self.shared.lock().files.remove(&file);
        }
        announced
    }

    /// Waits until the chunks of a layer are here that come before the others, or until the time is over. Returns
    /// whether they are here. A layer that is not served is complete.
    pub fn await_first(&self, image: &Path, limit: Duration) -> bool {
        let Ok(file) = File::open(image).map_err(at("opening", image)).and_then(|file| id(&file, image)) else {
            return true;
        };
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match state.files.get(&file) {
                Some(served) if !served.plan.has_first() && !state.stopping => {}
                _ => return true,
            }
            if left.is_zero() {
                return false;
            }
            state = self.shared.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has a layer stream before the others, at once and without the limit of the bandwidth, as long as the result
    /// lives. `None`: the layer is not served any more. Its completion or its next failure is reported to the observer.
    pub fn hurry(&self, image: &Path) -> Option<Hurry> {
        let file = File::open(image).map_err(at("opening", image)).and_then(|file| id(&file, image)).ok()?;
        let hurried = self.shared.lock().hurry(file);
        self.shared.work.notify_all();
        hurried.then(|| Hurry { shared: Arc::clone(&self.shared), file })
    }

    /// A start waits for its layers: until the value is dropped, the background leaves the link to it. A layer that a
    /// caller hurries is not in the background.
    pub fn start_waits(&self) -> StartWaits {
        self.shared.lock().starts += 1;
        StartWaits(Arc::clone(&self.shared))
    }

    /// The descriptor that keeps readers of incomplete layers waiting. A process that outlives this one must hold a
    /// copy of it as long as a layer is incomplete.
    pub fn group(&self) -> BorrowedFd<'_> {
        self.shared.group.as_fd()
    }

    fn run(shared: Shared) -> Result<Self, LazyError> {
        let shared = Arc::new(shared);
        let spawn = |name: &str, run: fn(&Arc<Shared>)| {
            let shared = Arc::clone(&shared);
            let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared));
            thread.map_err(at("starting a thread for", Path::new(name)))
        };
        let mut lazy = Self { shared: Arc::clone(&shared), threads: vec![spawn("lazy-listen", listener::run)?] };
        for _ in 0..shared.settings.streams.max(1) + shared.settings.demands.max(1) {
            lazy.threads.push(spawn("lazy-fetch", worker::run)?);
        }
        Ok(lazy)
    }

    /// Makes sure that reads of a marked file are announced. The first event brings the descriptor through which the
    /// data is written.
    fn confirm(&self, image: &File, path: &Path) -> Result<(), LazyError> {
        // The metadata is here, so this read passes. A descriptor that is older than the mark would not be announced.
        let announced = File::open(path).map_err(at("opening", path))?;
        announced.read_exact_at(&mut [0], 0).map_err(at("reading", path))?;
        let file = id(image, path)?;
        let state = self.shared.lock();
        // A layer that was complete may be forgotten already.
        if state.files.get(&file).is_some_and(|served| served.image.is_none()) {
            let problem = format!("a read of {} was not announced", path.display());
            return Err(LazyError::Unsupported { problem });
        }
        drop(state);
        self.shared.work.notify_all();
        Ok(())
    }
}

/// A caller waits for the whole layer, see [`Lazy::hurry`].
pub struct Hurry {
    shared: Arc<Shared>,
    file: FileId,
}

impl std::fmt::Debug for Hurry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hurry").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Hurry {
    /// Bytes of the layer that are here; `None` if it is not served any more.
    pub fn bytes_here(&self) -> Option<u64> {
        self.shared.lock().files.get(&self.file).map(Served::bytes_here)
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        self.shared.lock().unhurry(self.file);
    }
}

impl Drop for Lazy {
    /// Stops to serve, and waits for what the sources are asked for at the moment. Readers of incomplete layers wait
    /// for the next process that serves: the group stays open until this process ends.
    fn drop(&mut self) {
        let incomplete = {
            let mut state = self.shared.lock();
            state.stopping = true;
            !state.files.is_empty()
        };
        self.shared.work.notify_all();
        self.shared.wake_listener();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that serves layers had died");
            }
        }
        if incomplete {
            std::mem::forget(self.shared.group.try_clone());
        }
    }
}

fn shared(group: OwnedFd, slots: Slots, settings: Settings, observer: Arc<dyn Observer>) -> Result<Shared, LazyError> {
    Shared::new(group, slots, settings, observer).map_err(at("making", Path::new("an eventfd")))
}

/// Has reads of a file announced.
fn mark(shared: &Shared, image: &File, path: &Path) -> Result<(), LazyError> {
    sys::mark(shared.group.as_fd(), image.as_fd(), true).map_err(|error| LazyError::Unsupported {
        problem: format!("reads of {} are not announced: {error}", path.display()),
    })
}

fn open(layer: &PartialLayer) -> Result<(std::path::PathBuf, File), LazyError> {
    let path = layer.image();
    let image = File::open(&path).map_err(at("opening", &path))?;
    Ok((path, image))
}

fn id(image: &File, path: &Path) -> Result<FileId, LazyError> {
    let metadata = image.metadata();
    let metadata: io::Result<_> = metadata.map(|metadata| (metadata.dev(), metadata.ino()));
    metadata.map_err(at("reading", path))
}
