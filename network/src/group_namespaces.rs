//! Network namespaces of groups that the driver makes in Nomad's place.
//!
//! They are pinned to the files to which Nomad pins those that it makes itself. So Nomad and the driver find each
//! other's namespaces, when an operator lets the one or the other make them while groups run.
//!
//! Always holds:
//!
//! - Before a namespace is made, a file in the state directory with the allocation's name records it. That file is
//!   removed last.
//! - A namespace is made and removed only under the lock of that file. One exception: a request to remove a namespace
//!   without a record, which Nomad made itself, needs no lock.
//! - The sweep removes only a namespace that no process uses and that has no interface but loopback: a new one would be
//!   the same.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use host::{
    Context,
    lock::{Locked, Wait, lock},
};

use crate::{cni::cached, error::NetworkError, namespace};

/// The directory in which Nomad pins the namespaces of groups.
const NAMESPACES: &str = "/var/run/netns";

/// Devices that the kernel makes in each new namespace when their module is loaded.
const FALLBACK_DEVICES: [&str; 10] =
    ["lo", "tunl0", "gre0", "gretap0", "erspan0", "sit0", "ip6tnl0", "ip6gre0", "ip_vti0", "ip6_vti0"];

/// The network namespaces of groups.
#[derive(Debug)]
pub struct GroupNamespaces {
    records: PathBuf,
    namespaces: PathBuf,
}

/// The network namespace of one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupNamespace {
    /// The file to which it is pinned.
    pub path: PathBuf,
    /// It has no interface but loopback: Nomad has yet to connect it.
    pub unconnected: bool,
}

impl GroupNamespaces {
    /// Creates and reads nothing on disk. `state_dir` must be an absolute path.
    pub fn new(state_dir: &Path) -> Self {
        Self::pinned_in(state_dir, Path::new(NAMESPACES))
    }

    fn pinned_in(state_dir: &Path, namespaces: &Path) -> Self {
        Self { records: state_dir.join("groups"), namespaces: namespaces.to_owned() }
    }

    /// The file to which the namespace of an allocation's group is pinned.
    pub fn path(&self, alloc: &str) -> PathBuf {
        self.namespaces.join(alloc)
    }

    /// Makes the namespace of an allocation's group unless it exists. Its age begins anew. The id must be safe as a
    /// file name.
    pub fn create(&self, alloc: &str) -> Result<GroupNamespace, NetworkError> {
        for directory in [&self.records, &self.namespaces] {
            // Other programs use the second directory too, which has this mode then.
            let mode = if directory == &self.records { 0o700 } else { 0o755 };
            let made = DirBuilder::new().recursive(true).mode(mode).create(directory);
            made.context(|| format!("making {}", directory.display()))?;
        }
        let record = self.lock(alloc, Wait::Forever, true)?;
        if let Some(record) = &record {
            // The sweep of another process keeps it until its group uses it.
            record.set_modified(SystemTime::now()).context(|| format!("marking the network of allocation {alloc}"))?;
        }
        let path = self.path(alloc);
        if !namespace::is_pinned(&path) {
            failpoint::at("group-before-namespace");
            namespace::pin(&path, || Ok(())).context(|| format!("making the network namespace {}", path.display()))?;
        }
        failpoint::at("group-before-answer");
        let unconnected = is_unconnected(&path).context(|| format!("looking into {}", path.display()))?;
        drop(record);
        Ok(GroupNamespace { path, unconnected })
    }

    /// Removes the namespace of an allocation's group. Idempotent.
    pub fn destroy(&self, alloc: &str) -> Result<(), NetworkError> {
        let lock = self.lock(alloc, Wait::Forever, false)?;
        self.remove(alloc)?;
        drop(lock);
        Ok(())
    }

    /// The allocations with a record.
    pub fn recorded(&self) -> Result<Vec<String>, NetworkError> {
        let entries = match fs::read_dir(&self.records) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(|| format!("listing {}", self.records.display()))?,
        };
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// A process in the namespace of an allocation, if there is one.
    pub fn user(&self, alloc: &str) -> Result<Option<i32>, NetworkError> {
        let path = self.path(alloc);
        if !namespace::is_pinned(&path) {
            return Ok(None);
        }
        Ok(user_of(&path).context(|| format!("looking for processes in {}", path.display()))?)
    }

    /// Undoes in Nomad's place what Nomad's CNI plugins connected, then removes the namespace. Only for a namespace of
    /// which Nomad will make no use again. `plugins` are the directories with CNI plugins. Idempotent.
    pub fn disconnect(&self, alloc: &str, plugins: &[PathBuf]) -> Result<(), NetworkError> {
        let lock = self.lock(alloc, Wait::Forever, false)?;
        let path = self.path(alloc);
        let namespace = namespace::is_pinned(&path).then_some(&*path);
        cached::disconnect(Path::new(cached::CACHE), alloc, namespace, plugins)?;
        self.remove(alloc)?;
        drop(lock);
        Ok(())
    }

    /// Removes namespaces that were made at least `age` ago, that are not `wanted`, that Nomad has disconnected or
    /// never connected, and that no process uses. Returns their allocations.
    pub fn sweep(&self, age: Duration, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, NetworkError> {
        let mut swept = Vec::new();
        for alloc in self.recorded()? {
            match self.sweep_one(&alloc, age, &wanted) {
                Ok(true) => swept.push(alloc),
                Ok(false) => {}
                // One namespace that cannot be removed does not keep the others.
                Err(error) => tracing::warn!(alloc, %error, "the network namespace of an ended group was not removed"),
            }
        }
        Ok(swept)
    }

    fn sweep_one(&self, alloc: &str, age: Duration, wanted: &impl Fn(&str) -> bool) -> Result<bool, NetworkError> {
        let Some(record) = self.lock(alloc, Wait::No, false)? else { return Ok(false) };
        let looking = || format!("looking at the network namespace of allocation {alloc}");
        let metadata = record.metadata().context(looking)?;
        // A time in the future counts as young.
        let is_old = metadata.modified().context(looking)?.elapsed().is_ok_and(|passed| passed >= age);
        let path = self.path(alloc);
        let unused = || Ok::<_, io::Error>(is_unconnected(&path)? && user_of(&path)?.is_none());
        if !is_old || wanted(alloc) || namespace::is_pinned(&path) && !unused().context(looking)? {
            return Ok(false);
        }
        self.remove(alloc)?;
        Ok(true)
    }

    /// Removes the namespace, then its record.
    fn remove(&self, alloc: &str) -> Result<(), NetworkError> {
        let (path, record) = (self.path(alloc), self.records.join(alloc));
        failpoint::at("group-before-unpin");
        namespace::unpin(&path).context(|| format!("removing the network namespace {}", path.display()))?;
        failpoint::at("group-before-record");
        match fs::remove_file(&record) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).context(|| format!("removing {}", record.display()))?
            }
            _ => Ok(()),
        }
    }

    /// Locks an allocation's record. `None` if it is missing, or if another process has the lock and this call does not
    /// wait.
    fn lock(&self, alloc: &str, wait: Wait, create: bool) -> Result<Option<File>, NetworkError> {
        let path = self.records.join(alloc);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).truncate(false).mode(0o600);
        let locked =
            lock(&path, wait, create, || options.open(&path)).context(|| format!("locking {}", path.display()))?;
        Ok(match locked {
            Locked::Held(record) => Some(record),
            Locked::Missing | Locked::Busy => None,
        })
    }
}

/// Whether a namespace has no interface but those that the kernel makes in each.
fn is_unconnected(file: &Path) -> io::Result<bool> {
    let table = inside(file, || fs::read_to_string("/proc/thread-self/net/dev"))?;
    let names = table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    Ok(names.into_iter().all(|name| FALLBACK_DEVICES.contains(&name)))
}

/// A process in the namespace.
fn user_of(file: &Path) -> io::Result<Option<i32>> {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let namespace = identity(fs::metadata(file)?);
    let entries = fs::read_dir("/proc")?.flatten();
    let mut processes = entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    // A process that has ended has no such file.
    let is_inside =
        |process: &Path| fs::metadata(process.join("ns/net")).is_ok_and(|other| identity(other) == namespace);
    Ok(processes.find_map(|(pid, process): (i32, PathBuf)| is_inside(&process).then_some(pid)))
}

/// Runs a function inside a pinned namespace, on a thread that ends with it.
fn inside<T: Send>(file: &Path, run: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    namespace::inside(&File::open(file)?, run)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::Path,
        process::{Command, Stdio},
        time::Duration,
    };

    use tempfile::TempDir;

    use super::{GroupNamespace, GroupNamespaces, inside};
    use crate::namespace;

    fn groups() -> Option<(TempDir, GroupNamespaces)> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let root = tempfile::tempdir().expect("a directory");
        let groups = GroupNamespaces::pinned_in(&root.path().join("state"), &root.path().join("netns"));
        Some((root, groups))
    }

    fn sweep(groups: &GroupNamespaces, age: Duration, wanted: &str) -> Vec<String> {
        groups.sweep(age, |alloc| alloc == wanted).expect("a sweep")
    }

    #[test]
    fn a_namespace_is_made_once_and_removed_once() {
        let Some((root, groups)) = groups() else { return };
        let first = groups.create("a").expect("made");
        assert_eq!(first, GroupNamespace { path: root.path().join("netns/a"), unconnected: true });
        let identity = |path: &Path| fs::metadata(path).map(|file| std::os::unix::fs::MetadataExt::ino(&file)).ok();
        let made = identity(&first.path);
        assert_eq!((groups.create("a").expect("found"), identity(&first.path)), (first.clone(), made));
        // After a reboot the files are there without a namespace.
        namespace::unpin(&first.path).expect("unpinned");
        fs::write(&first.path, "").expect("the file of the earlier boot");
        assert_eq!(groups.create("a").expect("made again"), first);
        for _ in 0..2 {
            groups.destroy("a").expect("removed");
            assert!(!first.path.exists() && !root.path().join("state/groups/a").exists());
        }
        // Nomad made this one before the driver was told to.
        namespace::pin(&first.path, || Ok(())).expect("pinned");
        groups.destroy("a").expect("removed without a record");
        assert!(!first.path.exists());
    }

    #[test]
    fn a_namespace_that_is_asked_for_again_is_young_again() {
        let Some((root, groups)) = groups() else { return };
        let path = groups.create("a").expect("made").path;
        let record = fs::File::options().write(true).open(root.path().join("state/groups/a")).expect("the record");
        record.set_modified(std::time::UNIX_EPOCH).expect("made old");
        groups.create("a").expect("found");
        assert_eq!(sweep(&groups, Duration::from_secs(60), ""), Vec::<String>::new());
        record.set_modified(std::time::UNIX_EPOCH).expect("made old");
        assert_eq!(sweep(&groups, Duration::from_secs(60), ""), ["a"]);
        assert!(!path.exists());
    }

    #[test]
    fn the_sweep_keeps_what_is_young_wanted_connected_or_used() {
        let Some((_root, groups)) = groups() else { return };
        let paths: Vec<_> =
            ["left", "wanted", "connected", "used"].map(|alloc| groups.create(alloc).expect("made").path).into();
        assert_eq!(sweep(&groups, Duration::from_secs(60), ""), Vec::<String>::new());
        let add = || {
            let made =
                Command::new("ip").args(["link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]).status();
            assert!(made?.success(), "ip link add");
            Ok(())
        };
        inside(&paths[2], add).expect("an interface");
        assert!(!groups.create("connected").expect("found").unconnected);
        let sleep = || Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn();
        let mut process = inside(&paths[3], sleep).expect("a process in the namespace");
        let user = |alloc| groups.user(alloc).expect("a look at the processes");
        assert_eq!((user("used"), user("left"), user("no-such")), (Some(process.id().cast_signed()), None, None));
        let swept = sweep(&groups, Duration::ZERO, "wanted");
        process.kill().and_then(|()| process.wait()).expect("ended");
        assert_eq!(swept, ["left"]);
        let mut left = sweep(&groups, Duration::ZERO, "");
        left.sort();
        assert_eq!(left, ["used", "wanted"]);
        groups.destroy("connected").expect("removed");
        assert!(paths.iter().all(|path| !path.exists()));
    }
}
