//! What the driver calls: containers of one state directory.
//!
//! Nothing is remembered here that the kernel does not keep current: every call looks at the state directory and at the
//! kernel, so any number of processes can use the same directories, and a driver that starts anew knows what its
//! predecessor knew.

mod removal;

use std::{
    fs::{self, File},
    io,
    os::fd::AsFd,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use rustix::pipe::{PipeFlags, pipe_with};

use crate::{
    address::NamespaceAddress,
    cgroup::{
        self, CgroupEvents, Cgroups,
        stats::{Counters, Stats},
    },
    directory_watch::{self, DirectoryWatch},
    error::{Context, ExecError, RuntimeError, StartError, StartErrorKind},
    exec::{self, ExecProcess, ExecRequest},
    launcher::Launcher,
    logs::{DroppedBytes, OutputStream},
    monitor::StartOutcome,
    plan::{CgroupPlacement, ContainerId, ContainerPlan, Output},
    process::{ProcessRecord, ProcessRef},
    report_pipe::read_report,
    role::{MonitorArgs, Role},
    rootfs::{EmptyNamespace, MountedImages, image_problem, overlay_problem},
    state::{
        self, CGROUP, CONTAINER, ContainerRecord, EXIT, ExitRecord, LOG_WATCHER, MONITOR, PLAN, TaskDir, TaskLock,
    },
    terminal_hold::TerminalHold,
};

/// Containers of one state directory. Cheap to clone, safe to share between threads.
#[derive(Debug, Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state_dir: PathBuf,
    data_dir: PathBuf,
    launcher: Launcher,
    empty: Mutex<Option<EmptyNamespace>>,
    images: MountedImages,
    containers: DirectoryWatch,
    overlay_problem: Mutex<Option<Option<String>>>,
}

/// The containers that have a directory in a state directory, for those who only look: nothing is made.
pub fn containers(state_dir: &Path) -> Result<Vec<ContainerId>, RuntimeError> {
    let directory = state::tasks(state_dir);
    let names = directory_watch::list(&directory).context(|| format!("listing {}", directory.display()))?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Why layers cannot be images in the data directory; `None` when they can. Tries it out with `image`, whose root has
/// these extended attributes.
pub fn layer_image_problem(
    data_dir: &Path,
    image: &[u8],
    attributes: &[(Vec<u8>, Vec<u8>)],
) -> Result<Option<String>, RuntimeError> {
    image_problem(data_dir, image, attributes)
}

/// What is known of a container.
#[derive(Debug)]
pub enum Status {
    /// No such container.
    Unknown,
    /// It runs.
    Running(Running),
    /// It has ended.
    Exited(ExitRecord),
    /// It has ended, or was never started, and nobody wrote down how.
    Lost,
}

/// A running container.
#[derive(Debug)]
pub struct Running {
    /// The monitor; when it was killed, the container's first process once more.
    pub monitor: ProcessRef,
    /// The container's first process.
    pub init: ProcessRef,
    /// When the command was started.
    pub started_at: SystemTime,
}

/// The counters of a container, opened once.
#[derive(Debug)]
pub struct StatsReader {
    id: ContainerId,
    init: ProcessRef,
    counters: Counters,
}

impl StatsReader {
    /// What the container uses now; an error once it has ended.
    pub fn read(&self) -> Result<Stats, RuntimeError> {
        if self.init.ended() {
            return Err(RuntimeError::NotRunning(self.id.clone()));
        }
        Ok(self.counters.read())
    }
}

impl Running {
    /// Sends a signal to the container's first process; fine when that has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.init.signal(signal)
    }

    /// Holds the container's terminal, if its monitor has one, so that it does not go with the monitor.
    pub fn hold_terminal(&self) -> io::Result<Option<TerminalHold>> {
        // Without a monitor there is nothing left to hold.
        if self.monitor.pid == self.init.pid { Ok(None) } else { TerminalHold::of(&self.monitor) }
    }
}

impl Runtime {
    /// Opens the directories, making them when they are missing. No other effect.
    pub fn open(state_dir: &Path, data_dir: &Path) -> Result<Self, RuntimeError> {
        for directory in [state_dir, data_dir, &state::tasks(state_dir), &data_dir.join("containers")] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .context(|| format!("making the directory {}", directory.display()))?;
        }
        let absolute = |path: &Path| fs::canonicalize(path).context(|| format!("finding {}", path.display()));
        let launcher = Launcher::default();
        let (state_dir, data_dir) = (absolute(state_dir)?, absolute(data_dir)?);
        let containers = DirectoryWatch::new(state::tasks(&state_dir));
        Ok(Self {
            inner: Arc::new(Inner {
                containers,
                state_dir,
                data_dir,
                launcher,
                empty: Mutex::default(),
                images: MountedImages::default(),
                overlay_problem: Mutex::default(),
            }),
        })
    }

    /// Does what the first start would have to do, so that it need not: seals a copy of our binary in memory, and
    /// empties a mount namespace.
    pub fn prepare(&self) -> Result<(), RuntimeError> {
        self.inner.launcher.prepare().context(|| "sealing a copy of the plugin's binary".to_owned())?;
        self.empty_mounts().map(drop)
    }

    /// The role of the monitor that creates this container.
    pub fn monitor_role(&self, plan: &ContainerPlan) -> Result<Role, RuntimeError> {
        Ok(Role::Monitor(MonitorArgs {
            task: self.task(&plan.id).path().to_owned(),
            data_dir: self.inner.data_dir.clone(),
            empty_mounts: self.empty_mounts()?,
            layer_mounts: self.inner.images.address(&plan.root.layers),
        }))
    }

    /// Lets go of images of layers that are removed. Until then they take their space.
    pub fn forget_removed_images(&self) {
        self.inner.images.forget_removed();
    }

    /// The address of an empty mount namespace, made now if it was not yet.
    fn empty_mounts(&self) -> Result<NamespaceAddress, RuntimeError> {
        let mut known = self.inner.empty.lock().unwrap_or_else(PoisonError::into_inner);
        let address = match &*known {
            Some(empty) => empty.address(),
            None => EmptyNamespace::create(&self.inner.state_dir).and_then(|empty| known.insert(empty).address()),
        };
        address.context(|| "making an empty mount namespace".to_owned())
    }

    /// Why roots cannot be mounted as overlays with the data directory as storage; `None` when they can. Tried out
    /// once.
    pub fn overlay_problem(&self) -> Result<Option<String>, RuntimeError> {
        let mut known = self.inner.overlay_problem.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(problem) = &*known {
            return Ok(problem.clone());
        }
        Ok(known.insert(overlay_problem(&self.inner.data_dir)?).clone())
    }

    fn task(&self, id: &ContainerId) -> TaskDir {
        TaskDir::new(&self.inner.state_dir, id)
    }

    /// Makes and starts a container; blocks until the command has been executed or could not be. On an error nothing of
    /// the container is left.
    pub fn start(&self, plan: &ContainerPlan) -> Result<Running, StartError> {
        let task = self.task(&plan.id);
        let lock = TaskLock::create(&task).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                StartError::new(StartErrorKind::Exists, format!("container {} exists already", plan.id))
            }
            _ => StartError::internal(format!("making {}: {error}", task.path().display())),
        })?;
        let started = self.launch(&task, plan, &lock).and_then(|running| {
            failpoint::at("start-before-unmark");
            // The caller is about to give out a handle: from here on a restart of the plugin finds a task.
            lock.unmark(&task).context(|| format!("taking over {}", task.path().display()))?;
            Ok(running)
        });
        if let Err(error) = started {
            return Err(match self.remove(&plan.id, &task, lock) {
                Ok(()) => error,
                Err(left) => {
                    StartError { message: format!("{}; cleaning up failed too: {left}", error.message), ..error }
                }
            });
        }
        started
    }

    fn launch(&self, task: &TaskDir, plan: &ContainerPlan, lock: &TaskLock) -> Result<Running, StartError> {
        // Beside everything up to the engine, which would wait for it otherwise.
        cgroup::warm_up();
        failpoint::at("start-before-plan");
        task.commit(PLAN, plan)?;
        let (outcome, writer) = pipe_with(PipeFlags::CLOEXEC).context(|| "making a pipe".to_owned())?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(task.monitor_log())
            .context(|| "opening the monitor's log".to_owned())?;
        // Should we be killed, whoever removes the directory waits until the monitor has recorded itself, and so finds
        // it.
        let stdio = [lock.as_fd(), writer.as_fd(), log.as_fd()];
        let role = self.monitor_role(plan)?;
        failpoint::at("start-before-monitor");
        let monitor = self.inner.launcher.spawn(&role, stdio).context(|| "executing the monitor".to_owned())?;
        drop(writer);
        failpoint::at("start-before-outcome");
        let mut outcome = File::from(outcome);
        if let Err(error) = await_outcome(task, &mut outcome, &monitor) {
            self.end_family(&plan.id, outcome)?;
            // It is our child and about to end, perhaps before it could write down who it was.
            monitor
                .wait_for(Some(removal::PATIENCE))
                .and_then(|_| monitor.reap())
                .context(|| "ending the monitor".to_owned())?;
            return Err(error);
        }
        failpoint::at("start-before-container");
        let record: ContainerRecord =
            task.read(CONTAINER)?.ok_or_else(|| StartError::internal("the monitor left no record of the container"))?;
        let init = ProcessRef::find(&record.init).context(|| "looking at the container's first process".to_owned())?;
        // It may have ended already: then the record of its end is there, or about to be.
        let init = init.map_or_else(|| ProcessRef::gone(&record.init), Ok).context(|| "making an event".to_owned())?;
        Ok(Running { monitor, init, started_at: record.started_at })
    }

    /// What the state directory says of a container.
    pub fn status(&self, id: &ContainerId) -> Result<Status, RuntimeError> {
        let task = self.task(id);
        // The monitor first: whatever it writes, it writes before it ends.
        let monitor = self.process(&task, MONITOR)?;
        if let Some(exit) = task.read::<ExitRecord>(EXIT)? {
            return Ok(Status::Exited(exit));
        }
        if !task.path().exists() {
            return Ok(Status::Unknown);
        }
        let Some(container) = task.read::<ContainerRecord>(CONTAINER)? else { return Ok(Status::Lost) };
        let find = |record: &ProcessRecord| ProcessRef::find(record).context(|| format!("looking for {id}"));
        match (monitor, find(&container.init)?) {
            (Some(monitor), init) => {
                // Ended and not yet written down: the monitor is about to.
                let init = init
                    .map_or_else(|| ProcessRef::gone(&container.init), Ok)
                    .context(|| "making an event".to_owned())?;
                Ok(Status::Running(Running { monitor, init, started_at: container.started_at }))
            }
            (None, Some(init)) => match find(&container.init)? {
                Some(again) => Ok(Status::Running(Running { monitor: again, init, started_at: container.started_at })),
                None => Ok(Status::Lost),
            },
            (None, None) => Ok(Status::Lost),
        }
    }

    /// How a container has ended whose monitor was killed, by what the kernel still tells of its first process; written
    /// down as the monitor would have. `None` when nobody knows. `running` must come from a time when the process still
    /// lived.
    pub fn end_without_monitor(&self, id: &ContainerId, running: &Running) -> Result<Option<ExitRecord>, RuntimeError> {
        let task = self.task(id);
        // Its last act, perhaps.
        if let Some(exit) = task.read::<ExitRecord>(EXIT)? {
            return Ok(Some(exit));
        }
        let end = running.init.end().context(|| format!("asking how {id} ended"))?;
        let (Some(end), Some(container)) = (end, task.read::<ContainerRecord>(CONTAINER)?) else { return Ok(None) };
        let groups = task.read::<Cgroups>(CGROUP)?.filter(|_| container.events_before.is_some());
        let exit =
            ExitRecord::of(end, groups.as_ref(), container.events_before.unwrap_or_default(), running.started_at);
        if let Err(error) = task.commit(EXIT, &exit) {
            tracing::warn!(container = %id, %error, "the end is known to this process alone");
        }
        Ok(Some(exit))
    }

    /// All containers of the state directory, whatever their state.
    pub fn list(&self) -> Result<Vec<ContainerId>, RuntimeError> {
        containers(&self.inner.state_dir)
    }

    /// Other containers that were placed in the same control group, among those whose id begins with `prefix`.
    pub fn sharing_group(&self, plan: &ContainerPlan, prefix: &str) -> Result<Vec<ContainerId>, RuntimeError> {
        let listing = || format!("listing {}", state::tasks(&self.inner.state_dir).display());
        let named = self.inner.containers.names_with_prefix(prefix).context(listing)?;
        let others = named.iter().filter_map(|name| name.parse().ok()).filter(|id| *id != plan.id);
        let mut sharing = Vec::new();
        for id in others {
            let placed = self.task(&id).read::<Placed>(PLAN)?;
            if placed.is_some_and(|other| other.cgroup.path == plan.cgroup.path) {
                sharing.push(id);
            }
        }
        Ok(sharing)
    }

    fn process(&self, task: &TaskDir, name: &str) -> Result<Option<ProcessRef>, RuntimeError> {
        let Some(record) = task.read::<ProcessRecord>(name)? else { return Ok(None) };
        ProcessRef::find(&record).context(|| format!("looking for process {}", record.pid))
    }

    /// Where the container's output goes, and whether it has a terminal; `None` when there is no such container.
    pub fn output(&self, id: &ContainerId) -> Result<Option<(Output, bool)>, RuntimeError> {
        #[derive(serde::Deserialize)]
        struct Essentials {
            output: Output,
            terminal: bool,
        }
        Ok(self.task(id).read::<Essentials>(PLAN)?.map(|plan| (plan.output, plan.terminal)))
    }

    /// Tells the container's monitor that this process watches the log FIFOs from now on, for as long as it lives.
    pub fn announce_log_watcher(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let own = || ProcessRef::open(std::process::id() as i32)?.record();
        self.task(id).note(LOG_WATCHER, &own().context(|| "looking at our own process".to_owned())?)
    }

    /// The count of dropped bytes of one of the container's streams; its file is created if it is missing.
    pub fn dropped_bytes(&self, id: &ContainerId, stream: OutputStream) -> Result<DroppedBytes, RuntimeError> {
        let path = self.task(id).dropped(stream);
        DroppedBytes::open(&path).context(|| format!("opening {}", path.display()))
    }

    /// The number that [`Runtime::dropped_bytes`] has counted. Creates no file.
    pub fn dropped_so_far(&self, id: &ContainerId, stream: OutputStream) -> Result<u64, RuntimeError> {
        let path = self.task(id).dropped(stream);
        DroppedBytes::peek(&path).context(|| format!("reading {}", path.display()))
    }

    /// The events that the container's cgroups have counted, files that become readable when an event is counted, and the
    /// limit on processes.
    pub fn cgroup_events(&self, id: &ContainerId) -> Result<(CgroupEvents, Vec<File>, Option<u64>), RuntimeError> {
        let groups = self.task(id).read::<Cgroups>(CGROUP)?.ok_or_else(|| RuntimeError::NotRunning(id.clone()))?;
        // Opened first, so that no change goes unnoticed.
        let files = groups.event_files();
        Ok((groups.events(), files, groups.pids_limit()))
    }

    /// Opens the counters of a running container.
    pub fn stats_reader(&self, id: &ContainerId) -> Result<StatsReader, RuntimeError> {
        let task = self.task(id);
        let not_running = || RuntimeError::NotRunning(id.clone());
        let record = task.read::<ContainerRecord>(CONTAINER)?.ok_or_else(not_running)?;
        let init = ProcessRef::find(&record.init).context(|| format!("looking for {id}"))?.ok_or_else(not_running)?;
        let groups = task.read::<Cgroups>(CGROUP)?.ok_or_else(not_running)?;
        Ok(StatsReader { id: id.clone(), init, counters: Counters::open(&groups) })
    }

    /// Runs a command in the running container.
    pub fn exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecProcess, ExecError> {
        exec::start(&self.inner.launcher, &self.task(id), id, request)
    }
}

/// What finding a container's neighbours needs of its plan.
#[derive(serde::Deserialize)]
struct Placed {
    cgroup: CgroupPlacement,
}

/// Waits for the monitor's one message. Its forks hold the pipe too, and may outlive it when it was killed.
fn await_outcome(task: &TaskDir, pipe: &mut File, monitor: &ProcessRef) -> Result<(), StartError> {
    let text = read_report(pipe, monitor).context(|| "listening to the monitor".to_owned())?;
    match serde_json::from_slice(&text) {
        Ok(StartOutcome::Started) => Ok(()),
        Ok(StartOutcome::Failed(error)) => Err(error),
        Err(_) => {
            let log = fs::read_to_string(task.monitor_log()).unwrap_or_default();
            Err(StartError::internal(format!("the container's monitor died: {}", log.trim())))
        }
    }
}
