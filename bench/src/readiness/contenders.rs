//! One start of a service with each program, on a new file system, until it answers and its image is whole.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use kit::{plugin::binary, task::Task};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify::{self, CreateFlags, WatchFlags},
};
use serde_json::{Value as Json, json};

use super::{
    answer,
    images::{Image, command},
    reader,
    sample::Sample,
};
use crate::{
    containerd::{Containerd, REMOTE, SOCI, STARGZ},
    docker::Docker,
    ours::Ours,
    process::{processor_time, until_done},
    pull::link::{Link, Traffic},
    report::note,
    workdir::{Fresh, WorkDirectory, text},
};

/// The limit of a start.
const LIMIT: Duration = Duration::from_secs(280);
/// The memory limit of a service, in MiB.
const MEMORY: i64 = 768;
/// How long reads are noted for the profile.
const OBSERVED: &str = "6s";
/// How often a wait for layers looks whether it was given up.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A program, and the form in which it gets the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// A client that only reads the native image.
    Reader,
    /// Ours: the task starts before its image is here.
    Lazy,
    /// Ours: the whole native image is pulled first.
    Native,
    /// Ours: the image with gzip layers.
    Gzip,
    /// `docker run`.
    Docker,
    /// `ctr images pull` and `ctr run`, with this snapshotter.
    Containerd(&'static str),
}

impl Contender {
    /// Ours, and what they are compared with.
    pub const OURS: [Self; 4] = [Self::Reader, Self::Lazy, Self::Native, Self::Gzip];
    /// The others. A snapshotter that the installed containerd lacks is left out.
    pub const PEERS: [Self; 5] = [
        Self::Docker,
        Self::Containerd("overlayfs"),
        Self::Containerd("erofs"),
        Self::Containerd(STARGZ),
        Self::Containerd(SOCI),
    ];
    /// The row of a start of ours with an image that is present.
    pub const PRESENT: &str = "oci-rs, image present";

    /// The name of its row.
    pub fn name(self) -> String {
        match self {
            Self::Reader => "reading the native image alone".to_owned(),
            Self::Lazy => "oci-rs, lazy".to_owned(),
            Self::Native => "oci-rs, native image, whole first".to_owned(),
            Self::Gzip => "oci-rs, gzip image".to_owned(),
            Self::Docker => "docker run".to_owned(),
            Self::Containerd(snapshotter) => format!("ctr pull + run, {snapshotter}"),
        }
    }

    /// Whether the row with this name tells when the image is whole.
    pub fn tells_whole(name: &str) -> bool {
        name != Self::PRESENT && REMOTE.iter().all(|snapshotter| name != Self::Containerd(snapshotter).name())
    }
}

/// What all starts share.
pub struct Arena<'a> {
    /// The run.
    pub workdir: &'a WorkDirectory,
    /// The link to the registry.
    pub link: &'a Link,
    /// The port on which the services listen, and their answer.
    pub service: (u16, &'a str),
}

impl Arena<'_> {
    /// Measures one start. A lazy one is followed by a start with the image that is then present.
    pub async fn measure(&self, contender: Contender, image: &Image) -> Result<Vec<(String, Sample)>, String> {
        // What was written before does not share the disk with this start.
        rustix::fs::sync();
        let host = self.link.host();
        let named = |sample| vec![(contender.name(), sample)];
        match contender {
            Contender::Reader => {
                let (index, blobs) = image.requests();
                let read = blocking(move || reader::read(&host, &index, &blobs)).await;
                let whole = read.map_err(|error| error.to_string())?;
                Ok(named(Sample { ready: whole, whole, ..Sample::default() }))
            }
            Contender::Lazy => {
                let (first, second) = self.ours(&image.native(&host), true, image.layers()).await?;
                Ok(vec![(contender.name(), first), (Contender::PRESENT.to_owned(), second)])
            }
            Contender::Native => self.ours(&image.native(&host), false, image.layers()).await.map(|both| named(both.0)),
            Contender::Gzip => self.ours(&image.gzip(&host), false, image.layers()).await.map(|both| named(both.0)),
            Contender::Docker => self.docker(&image.gzip(&host)).map(named),
            Contender::Containerd(snapshotter) => {
                self.containerd(&image.of_snapshotter(&host, snapshotter), snapshotter).map(named)
            }
        }
    }

    /// Notes what a service reads first. `reference` is an image without anything else. Returns the profile's file.
    pub async fn profile(&self, reference: &str, layers: usize) -> Result<PathBuf, String> {
        let data = self.workdir.fresh("readiness");
        let mut node = self.node(&data, json!({"min_size": "1", "profile": OBSERVED})).await;
        let task = task(&mut node, reference, true).await;
        let started = self.start(&node, &task, (&data, layers)).await;
        end(&node, &task).await;
        let store = text(&store(&data));
        let shown = command(node.node.root(), &["image", "profile", reference, "--json", "--data-dir", &store]);
        node.finish().await;
        let file = self.workdir.directory("profiles").join(reference.replace(['/', ':'], "-"));
        std::fs::write(&file, started.and(shown)?).map_err(|error| error.to_string())?;
        Ok(file)
    }

    async fn node(&self, data: &Fresh, lazy: Json) -> Ours {
        let options = json!({"network": {"default_mode": "host"}, "lazy": lazy});
        Ours::launch_with(&binary(), NAME, data, options).await
    }

    async fn ours(&self, reference: &str, lazy: bool, layers: usize) -> Result<(Sample, Sample), String> {
        let data = self.workdir.fresh("readiness");
        let mut node = self.node(&data, json!({"enabled": true})).await;
        let mut samples = Vec::new();
        for _ in 0..1 + usize::from(lazy) {
            let task = task(&mut node, reference, lazy).await;
            samples.push(self.start(&node, &task, (&data, layers)).await);
            end(&node, &task).await;
        }
        node.finish().await;
        let first = samples.remove(0)?;
        Ok((first, samples.pop().transpose()?.unwrap_or(first)))
    }

    /// From the call of StartTask to the service's answer and to the end of the pull.
    async fn start(&self, node: &Ours, task: &Task, (data, layers): (&Fresh, usize)) -> Result<Sample, String> {
        let pid = node.plugin.process.pid();
        let (cpu, traffic) = (processor_time(pid), self.link.traffic());
        let (stop, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let _stopped = StopOnDrop(Arc::clone(&stop));
        let ((port, text), flag) = ((self.service.0, self.service.1.to_owned()), Arc::clone(&stop));
        let answered = tokio::task::spawn_blocking(move || answer::first((port, &text), begun, LIMIT, &flag));
        let answered = async {
            let ready = answered.await.map_err(|error| error.to_string())?;
            ready.map(|ready| (ready, self.link.traffic()))
        };
        let started = async {
            let started = node.plugin.start_within(LIMIT, task).await;
            if started.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            started
        };
        let whole = async {
            let (directory, stop) = (store(data).join("images/layers"), Arc::clone(&stop));
            let given_up = move || begun.elapsed() > LIMIT || stop.load(Ordering::Relaxed);
            blocking(move || until_filled(&directory, layers, given_up).map(|()| begun.elapsed())).await
        };
        let (started, answered, whole) = tokio::join!(started, answered, whole);
        started.map_err(|status| format!("StartTask: {}", status.message()))?;
        let (ready, reached) = answered?;
        let whole = whole.map_err(|error| format!("watching the layers: {error}"))?;
        let cpu = processor_time(pid).saturating_sub(cpu);
        Ok(Sample { ready, whole, cpu, before: since(traffic, reached) })
    }

    fn docker(&self, reference: &str) -> Result<Sample, String> {
        let data = self.workdir.fresh("readiness");
        let docker = Docker::start(self.workdir, data.path())?;
        let memory = format!("{MEMORY}m");
        let run = ["run", "--detach", "--name", NAME, "--network=host", "--memory", &memory, reference];
        let sample = self.peer(&docker.daemons(), || until_done(docker.client().args(run)));
        until_done(docker.client().args(["rm", "--force", NAME])).ok();
        sample
    }

    fn containerd(&self, reference: &str, snapshotter: &str) -> Result<Sample, String> {
        let data = self.workdir.fresh("readiness");
        let containerd = Containerd::start(self.workdir, data.path(), snapshotter)?;
        let ctr = |args: &[&str]| until_done(containerd.client().args(args));
        let mut puller = if snapshotter == STARGZ { containerd.remote_client() } else { containerd.client() };
        let pull = if snapshotter == STARGZ { "rpull" } else { "pull" };
        puller.args(["images", pull, "--plain-http", "--snapshotter", snapshotter, reference]);
        let listed = containerd.client().args(["plugins", "ls"]).output();
        let listed = listed.map_err(|error| format!("ctr: {error}"))?;
        if !has_snapshotter(&String::from_utf8_lossy(&listed.stdout), snapshotter) {
            return Err(format!("this containerd has no snapshotter {snapshotter}"));
        }
        let memory = (MEMORY << 20).to_string();
        let limits = ["--net-host", "--null-io", "--detach", "--memory-limit", &memory];
        let run = [["run", "--snapshotter", snapshotter].as_slice(), &limits, &[reference, NAME]].concat();
        let sample = self.peer(&containerd.pids(), || {
            let pulled = until_done(&mut puller)?;
            ctr(&run)?;
            Ok(pulled)
        });
        for end in [["tasks", "delete", "--force", NAME].as_slice(), &["containers", "delete", NAME]] {
            if let Err(error) = ctr(end) {
                note(&error);
            }
        }
        sample
    }

    /// From the start of another program to the service's answer. `run` returns when the image is pulled.
    fn peer(&self, daemons: &[i32], run: impl FnOnce() -> Result<Duration, String>) -> Result<Sample, String> {
        let all = || daemons.iter().map(|pid| processor_time(*pid)).sum::<Duration>();
        let (cpu, traffic) = (all(), self.link.traffic());
        let (stop, begun) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let answered = scope.spawn(|| {
                let ready = answer::first(self.service, begun, LIMIT, &stop)?;
                Ok::<_, String>((ready, self.link.traffic()))
            });
            let run = run();
            if run.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            let answered = answered.join().unwrap_or_else(|_| Err("the wait for an answer failed".to_owned()));
            let (whole, (ready, reached)) = (run?, answered?);
            Ok(Sample { ready, whole, cpu: all().saturating_sub(cpu), before: since(traffic, reached) })
        })
    }
}

/// Ends the thread that waits for an answer, also when the run is interrupted.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The name of the node's directory, and of the peers' containers.
const NAME: &str = "readiness";

fn store(data: &Fresh) -> PathBuf {
    data.path().join(NAME)
}

/// Runs work that blocks on a thread of its own.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Blocks until a directory has a number of entries (inotify(7)), or until the wait is given up.
fn until_filled(directory: &Path, entries: usize, given_up: impl Fn() -> bool) -> io::Result<()> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watch, directory, WatchFlags::CREATE | WatchFlags::MOVED_TO)?;
    while std::fs::read_dir(directory)?.count() < entries && !given_up() {
        if poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&LOOK))? > 0 {
            // Which entries came is seen in the directory.
            rustix::io::read(&watch, &mut [0; 4096])?;
        }
    }
    Ok(())
}

async fn task(node: &mut Ours, reference: &str, lazy: bool) -> Task {
    // The CPU weight is docker's default.
    let task = node.node.task(reference).resources(1024, MEMORY, 0).option("lazy", json!(lazy));
    task.build(&mut node.plugin).await
}

/// Ends a task that may not have started.
async fn end(node: &Ours, task: &Task) {
    for ended in [node.plugin.stop(task.id(), Duration::ZERO, "").await, node.plugin.destroy(task.id(), true).await] {
        if let Err(status) = ended {
            note(&format!("the end of a task: {}", status.message()));
        }
    }
    task.alloc.release().iter().for_each(|failure| note(failure));
}

fn since(before: Traffic, now: Traffic) -> Traffic {
    Traffic { requests: now.requests - before.requests, bytes: now.bytes - before.bytes }
}

/// Whether the output of `ctr plugins ls` has a snapshotter that works.
fn has_snapshotter(plugins: &str, name: &str) -> bool {
    let fields = plugins.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.into_iter().any(|fields| {
        matches!(fields.as_slice(), [kind, id, .., state]
            if *kind == "io.containerd.snapshotter.v1" && *id == name && *state == "ok")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_snapshotters_that_work_count() {
        let plugins = "TYPE                            ID          PLATFORMS      STATUS\n\
                       io.containerd.snapshotter.v1    overlayfs   linux/amd64    ok\n\
                       io.containerd.snapshotter.v1    erofs       linux/amd64    skip\n\
                       io.containerd.differ.v1         blockfile   -              ok\n";
        for (name, there) in [("overlayfs", true), ("erofs", false), ("blockfile", false), ("zfs", false)] {
            assert_eq!(has_snapshotter(plugins, name), there, "{name}");
        }
    }
}
