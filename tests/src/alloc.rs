//! An allocation as a Nomad client prepares it: directories, secrets mount, cgroups, network namespace, log FIFOs.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use fixtures::{cgroup, must::Must, random::uuid};
use proto::driver::{NetworkIsolationSpec, network_isolation_spec::NetworkIsolationMode};
use rustix::{
    fs::{Mode, mkfifoat},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};

use crate::{
    cgroup::TaskGroups,
    log::{self, Log},
};

/// The owner of the directories that tasks may write (`nobody`).
const NOBODY: u32 = 65534;

/// The allocations of one node.
#[derive(Debug)]
pub struct Allocs {
    root: PathBuf,
    made: Mutex<Vec<Arc<Alloc>>>,
}

impl Allocs {
    /// No allocations yet; their directories will be below `root`.
    pub fn new(root: PathBuf) -> Self {
        Self { root, made: Mutex::default() }
    }

    /// Makes a new allocation.
    pub fn make(&self) -> Arc<Alloc> {
        let alloc = Arc::new(Alloc::make(&self.root));
        lock(&self.made).push(Arc::clone(&alloc));
        alloc
    }

    /// All allocations so far.
    pub fn list(&self) -> Vec<Arc<Alloc>> {
        lock(&self.made).clone()
    }
}

/// A poisoned lock is usable here: a test that panicked has not left its list half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The directories, mounts, cgroups and network namespace of an allocation.
#[derive(Debug)]
pub struct Alloc {
    /// The id, a UUID.
    pub id: String,
    /// `<alloc_dir>/<id>`.
    pub dir: PathBuf,
    mounts: Mutex<Vec<PathBuf>>,
    groups: Mutex<BTreeMap<String, TaskGroups>>,
    readers: Mutex<Vec<PathBuf>>,
    network: OnceLock<PathBuf>,
}

fn make_dir(path: &Path, mode: u32, owner: u32) {
    fs::create_dir_all(path).must("make a directory of an allocation");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).must("set a directory's mode");
    chown(path, Some(owner), Some(owner)).must("give a directory to its owner");
}

impl Alloc {
    fn make(root: &Path) -> Self {
        let id = uuid();
        let dir = root.join(&id);
        for name in ["data", "logs", "tmp"] {
            make_dir(&dir.join("alloc").join(name), 0o777, NOBODY);
        }
        make_dir(&dir.join("alloc"), 0o777, NOBODY);
        Self {
            id,
            dir,
            mounts: Mutex::default(),
            groups: Mutex::default(),
            readers: Mutex::default(),
            network: OnceLock::new(),
        }
    }

    /// The directory of a task. It is made when it is missing, as a client makes it for a driver with image isolation.
    pub fn task_dir(&self, task: &str) -> PathBuf {
        let dir = self.dir.join(task);
        if !dir.exists() {
            make_dir(&dir.join("local"), 0o777, NOBODY);
            make_dir(&dir.join("tmp"), 0o1777, 0);
            for name in ["secrets", "private"] {
                let point = dir.join(name);
                make_dir(&point, 0o700, 0);
                let flags = MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::NODEV;
                mount("tmpfs", &point, "tmpfs", flags, Some(c"size=1m,mode=0777")).must("mount a tmpfs for secrets");
                lock(&self.mounts).push(point);
            }
            fs::write(dir.join("secrets/.nomad-mount"), "").must("mark the secrets mount");
        }
        dir
    }

    /// The cgroups of a task. They are made when they are missing, and stay over restarts of the task.
    pub fn task_groups(&self, task: &str, reserve: bool) -> TaskGroups {
        let mut groups = lock(&self.groups);
        let made = || TaskGroups::make(&self.id, task, reserve).must("make the cgroups of a task");
        groups.entry(task.to_owned()).or_insert_with(made).clone()
    }

    /// The task group's network namespace as a client makes it for bridge mode. Its only interface is loopback.
    pub fn network(&self) -> NetworkIsolationSpec {
        let path = self.network.get_or_init(|| {
            ip(&["netns", "add", &self.id]).must("make a network namespace");
            ip(&["-n", &self.id, "link", "set", "lo", "up"]).must("loopback");
            Path::new("/run/netns").join(&self.id)
        });
        NetworkIsolationSpec {
            mode: NetworkIsolationMode::Group.into(),
            path: path.to_string_lossy().into_owned(),
            ..Default::default()
        }
    }

    fn remove_network(&self) -> Result<(), String> {
        if self.network.get().is_some_and(|path| path.exists()) { ip(&["netns", "delete", &self.id]) } else { Ok(()) }
    }

    /// Removes cgroups, mounts and network as a client does at an allocation's end. Returns an error for each failure.
    pub fn release(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for groups in lock(&self.groups).values() {
            let left = groups.remove();
            failures.extend(left.iter().map(|group| format!("cgroup {} cannot be removed", group.display())));
        }
        lock(&self.mounts).retain(|point| match unmount(point, UnmountFlags::empty()) {
            Ok(()) => false,
            Err(error) => {
                failures.push(format!("{} cannot be unmounted: {error}", point.display()));
                true
            }
        });
        failures.extend(self.remove_network().err());
        failures
    }

    /// Removes everything by force, after a failed test.
    pub(crate) fn force_release(&self) {
        self.remove_network().ok();
        for fifo in lock(&self.readers).drain(..) {
            log::wake_reader(&fifo);
        }
        for point in lock(&self.mounts).drain(..) {
            unmount(&point, UnmountFlags::DETACH).ok();
        }
        remove_groups(&self.id);
    }

    /// Makes the FIFO of one stream of a task and starts its reader, as logmon does before each start of a task.
    pub(crate) fn logmon(&self, task: &str, stream: &str) -> (PathBuf, Log) {
        let fifo = self.dir.join("alloc/logs").join(format!(".{task}.{stream}.fifo"));
        if !fifo.exists() {
            mkfifoat(rustix::fs::CWD, &fifo, Mode::from_raw_mode(0o600)).must("make a log FIFO");
        }
        lock(&self.readers).push(fifo.clone());
        (fifo.clone(), Log::read(fifo))
    }
}

/// Removes the cgroups of an allocation. Its processes were killed.
pub(crate) fn remove_groups(alloc: &str) {
    // A killed process leaves its cgroup a moment later.
    for _ in 0..100 {
        let left = cgroup::find(alloc);
        if left.is_empty() {
            break;
        }
        for group in left.iter().rev() {
            cgroup::thaw(group);
            fs::remove_dir(group).ok();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs ip(8).
pub(crate) fn ip(args: &[&str]) -> Result<(), String> {
    let output =
        std::process::Command::new("ip").args(args).output().map_err(|error| format!("ip (iproute2): {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
