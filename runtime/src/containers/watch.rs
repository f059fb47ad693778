//! Watching the records of all containers with inotify(7).
//!
//! A change is reported after it was made. After a loss of reports, all containers are reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init},
    io::Errno,
};

use crate::{directory_watch, plan::ContainerId};

/// Enough for some dozens of reports.
const BUFFER_SIZE: usize = 16 << 10;

/// A watch over the directories of all containers.
#[derive(Debug)]
pub struct TaskWatch {
    inotify: OwnedFd,
    tasks: PathBuf,
    /// The watched directories of containers by the number of their watch.
    watched: BTreeMap<i32, ContainerId>,
    /// The watch over the directory of all containers. Until it exists, a directory above it is watched.
    root: Option<i32>,
}

impl TaskWatch {
    /// Watches the directory that contains the containers' directories. On a node without a task so far it need not
    /// exist.
    pub(super) fn new(tasks: &Path) -> io::Result<Self> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watch = Self { inotify, tasks: tasks.to_owned(), watched: BTreeMap::new(), root: None };
        watch.descend()?;
        Ok(watch)
    }

    /// Watches the directory of all containers, or, until it exists, the lowest directory above it. Returns the
    /// containers that are there when it is watched for the first time.
    fn descend(&mut self) -> io::Result<BTreeSet<ContainerId>> {
        let of_all = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        let above = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        let mut lowest: Option<PathBuf> = None;
        loop {
            match add_watch(&self.inotify, &self.tasks, of_all) {
                Ok(root) => {
                    self.root = Some(root);
                    return self.all();
                }
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            let exists = self.tasks.ancestors().skip(1).find(|directory| directory.exists()).map(Path::to_owned);
            // Once the watch is older than this look, the kernel reports what appears later.
            if exists == lowest {
                return Ok(BTreeSet::new());
            }
            match exists.as_ref().map_or(Err(Errno::NOENT), |directory| add_watch(&self.inotify, directory, above)) {
                Ok(_) => lowest = exists,
                // It was removed meanwhile.
                Err(Errno::NOENT) if exists.is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Readable when [`TaskWatch::changed`] may report containers.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// The containers whose records may have changed since the last call. Does not block.
    pub fn changed(&mut self) -> io::Result<BTreeSet<ContainerId>> {
        let (mut changed, mut created, mut lost) = (BTreeSet::new(), BTreeSet::new(), false);
        let mut buffer = [MaybeUninit::uninit(); BUFFER_SIZE];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            };
            lost |= event.events().intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::UNMOUNT);
            if let Some(id) = self.watched.get(&event.wd()) {
                changed.insert(id.clone());
                if event.events().contains(ReadFlags::IGNORED) {
                    self.watched.remove(&event.wd());
                }
            } else if Some(event.wd()) == self.root
                && let Some(name) = event.file_name().and_then(|name| name.to_str().ok())
                && let Ok(id) = name.parse()
            {
                if event.events().intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                    created.insert(id);
                } else {
                    changed.insert(id);
                }
            }
        }
        if self.root.is_none() {
            return self.descend();
        }
        // The directory of a new container is read after its watch has begun.
        created.iter().for_each(|id| self.watch(id));
        changed.extend(created);
        if lost {
            changed.extend(self.all()?);
        }
        Ok(changed)
    }

    /// Watches all containers that there are now.
    fn all(&mut self) -> io::Result<BTreeSet<ContainerId>> {
        let names = directory_watch::list(&self.tasks)?;
        let ids: BTreeSet<ContainerId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        ids.iter().for_each(|id| self.watch(id));
        Ok(ids)
    }

    fn watch(&mut self, id: &ContainerId) {
        let flags = WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::ONLYDIR;
        match add_watch(&self.inotify, self.tasks.join(id.as_str()), flags) {
            Ok(number) => drop(self.watched.insert(number, id.clone())),
            // The container was removed meanwhile, which is reported too.
            Err(Errno::NOENT) => {}
            Err(error) => tracing::warn!(container = %id, %error, "the container is not watched"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn changed(watch: &mut TaskWatch) -> Vec<String> {
        watch.changed().unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_node_without_a_task_so_far_is_watched_until_it_has_one() {
        let node = tempfile::tempdir().unwrap();
        let tasks = node.path().join("run/state/tasks");
        let mut watch = TaskWatch::new(&tasks).unwrap();
        assert_eq!(changed(&mut watch), [""; 0]);
        fs::create_dir_all(node.path().join("run/state/networks/of-no-task")).unwrap();
        assert_eq!(changed(&mut watch), [""; 0]);
        fs::create_dir_all(tasks.join("a.web.1")).unwrap();
        assert_eq!(changed(&mut watch), ["a.web.1"]);
        // From now on, only that directory counts.
        fs::create_dir(node.path().join("run/state/other")).unwrap();
        fs::create_dir(tasks.join("a.web.2")).unwrap();
        assert_eq!(changed(&mut watch), ["a.web.2"]);
        fs::remove_dir(tasks.join("a.web.1")).unwrap();
        assert_eq!(changed(&mut watch), ["a.web.1"]);
    }
}
