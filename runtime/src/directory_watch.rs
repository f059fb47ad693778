//! The names in a directory. The directory is read once; afterwards the kernel reports changes by any process
//! (inotify(7)).

use std::{
    collections::BTreeSet,
    fs, io,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use rustix::{
    fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init},
    io::Errno,
};

/// The size of the buffer for events, in bytes. An event is a few bytes longer than its name.
const BUFFER_SIZE: usize = 16 * 1024;

/// A directory with a cache of its names.
#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    directory: PathBuf,
    /// `None` before the first reading, and after changes were lost.
    cache: Mutex<Option<Cache>>,
}

/// The names, and the inotify instance that reports changes. The watch is older than the names.
#[derive(Debug)]
struct Cache {
    names: BTreeSet<String>,
    inotify: OwnedFd,
}

impl DirectoryWatch {
    /// Reads nothing before the first call of [`DirectoryWatch::names_with_prefix`].
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, cache: Mutex::default() }
    }

    /// The current names that begin with `prefix`. Names that are not UTF-8 are skipped.
    pub fn names_with_prefix(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.as_mut().is_none_or(|cache| !cache.update()) {
            *cache = None;
            match Cache::read(&self.directory) {
                Ok(read) => *cache = Some(read),
                // The number of inotify instances and watches is limited. Without one, each call reads the directory.
                Err(Errno::MFILE | Errno::NOSPC | Errno::NOMEM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let uncached;
        let names = match &*cache {
            Some(cache) => &cache.names,
            None => {
                uncached = list(&self.directory)?;
                &uncached
            }
        };
        Ok(names.range(prefix.to_owned()..).take_while(|name| name.starts_with(prefix)).cloned().collect())
    }
}

impl Cache {
    fn read(directory: &Path) -> Result<Self, Errno> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        add_watch(&inotify, directory, flags)?;
        // The directory is read after the watch has begun. A change in between is also reported, with the same result.
        let names = list(directory).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Self { names, inotify })
    }

    /// Applies the reported changes. Returns false if changes were lost: the queue has overflowed, or the directory was
    /// removed.
    fn update(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_SIZE];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(error) => return error == Errno::AGAIN,
            };
            let name = event.file_name().and_then(|name| name.to_str().ok());
            match (event.events(), name) {
                (lost, _) if lost.intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::IGNORED | ReadFlags::UNMOUNT) => {
                    return false;
                }
                (added, Some(name)) if added.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) => {
                    self.names.insert(name.to_owned());
                }
                (_, Some(name)) => {
                    self.names.remove(name);
                }
                (_, None) => {}
            }
        }
    }
}

/// Reads the current names in a directory. Names that are not UTF-8 are skipped.
pub(crate) fn list(directory: &Path) -> io::Result<BTreeSet<String>> {
    let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_known_without_reading_the_directory_again() {
        let directory = tempfile::tempdir().unwrap();
        let create = |name: &str| fs::create_dir(directory.path().join(name)).unwrap();
        let remove = |name: &str| fs::remove_dir(directory.path().join(name)).unwrap();
        create("a.1");
        let watch = DirectoryWatch::new(directory.path().to_owned());
        assert_eq!(watch.names_with_prefix("a.").unwrap(), ["a.1"]);
        assert!(watch.cache.lock().unwrap().as_mut().unwrap().update(), "no change was lost");
        create("a.2");
        create("b.1");
        fs::rename(directory.path().join("b.1"), directory.path().join("a.0")).unwrap();
        assert_eq!(watch.names_with_prefix("a.").unwrap(), ["a.0", "a.1", "a.2"]);
        assert_eq!(watch.names_with_prefix("b.").unwrap(), Vec::<String>::new());
        remove("a.1");
        create("a.1");
        remove("a.2");
        assert_eq!(watch.names_with_prefix("a.").unwrap(), ["a.0", "a.1"]);
        assert_eq!(watch.names_with_prefix("").unwrap().len(), 2);
    }

    #[test]
    fn the_directory_is_read_again_after_the_queue_has_overflowed() {
        let directory = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new(directory.path().to_owned());
        assert_eq!(watch.names_with_prefix("").unwrap(), Vec::<String>::new());
        let max: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        fs::write(&one, "").unwrap();
        for _ in 0..max.min(100_000) {
            fs::rename(&one, &other).unwrap();
            fs::rename(&other, &one).unwrap();
        }
        fs::write(&other, "").unwrap();
        assert_eq!(watch.names_with_prefix("o").unwrap(), ["one", "other"]);
    }

    #[test]
    fn a_directory_that_was_created_again_is_read_again() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("tasks");
        fs::create_dir_all(directory.join("a")).unwrap();
        let watch = DirectoryWatch::new(directory.clone());
        assert_eq!(watch.names_with_prefix("").unwrap(), ["a"]);
        fs::remove_dir_all(&directory).unwrap();
        assert!(watch.names_with_prefix("").is_err(), "there is none");
        fs::create_dir_all(directory.join("b")).unwrap();
        assert_eq!(watch.names_with_prefix("").unwrap(), ["b"]);
    }
}
