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
}

impl TaskWatch {
    /// Watches the directory that contains the containers' directories.
    pub(super) fn new(tasks: &Path) -> io::Result<Self> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        add_watch(&inotify, tasks, flags)?;
        let mut watch = Self { inotify, tasks: tasks.to_owned(), watched: BTreeMap::new() };
        watch.all()?;
        Ok(watch)
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
            } else if let Some(id) =
                event.file_name().and_then(|name| name.to_str().ok()).and_then(|name| name.parse().ok())
            {
                if event.events().intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                    created.insert(id);
                } else {
                    changed.insert(id);
                }
            }
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
