//! The names in a directory, read once: what comes and goes afterwards is told by the kernel, whoever's doing it is.

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

/// Room for many events, each of which is a few bytes longer than a name.
const BUFFER: usize = 16 * 1024;

/// The names in a directory.
#[derive(Debug)]
pub(crate) struct Names {
    directory: PathBuf,
    known: Mutex<Option<Known>>,
}

/// What was read, and what tells of changes since before it was.
#[derive(Debug)]
struct Known {
    names: BTreeSet<String>,
    changes: OwnedFd,
}

impl Names {
    /// Nothing is read before the first question.
    pub fn of(directory: PathBuf) -> Self {
        Self { directory, known: Mutex::default() }
    }

    /// The names of now that begin with `prefix`. Those that are no text are left out.
    pub fn beginning_with(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_mut().is_none_or(|known| !known.catches_up()) {
            *known = None;
            match Known::read(&self.directory) {
                Ok(read) => *known = Some(read),
                // Instances of inotify are few: then each question reads the directory.
                Err(Errno::MFILE | Errno::NOSPC | Errno::NOMEM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let read;
        let names = match &*known {
            Some(known) => &known.names,
            None => {
                read = list(&self.directory)?;
                &read
            }
        };
        Ok(names.range(prefix.to_owned()..).take_while(|name| name.starts_with(prefix)).cloned().collect())
    }
}

impl Known {
    fn read(directory: &Path) -> Result<Self, Errno> {
        let changes = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let flags = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        add_watch(&changes, directory, flags)?;
        // Read afterwards: whatever happens meanwhile is told as well, and comes to the same.
        let names = list(directory).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Self { names, changes })
    }

    /// Takes in what has happened; false when that cannot be known any more: too much at once, or the directory itself is gone.
    fn catches_up(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut events = Reader::new(&self.changes, &mut buffer);
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
                (came, Some(name)) if came.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) => {
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

/// The names that are in a directory now.
pub(crate) fn list(directory: &Path) -> io::Result<BTreeSet<String>> {
    let names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_is_known_without_reading_again() {
        let directory = tempfile::tempdir().unwrap();
        let make = |name: &str| fs::create_dir(directory.path().join(name)).unwrap();
        let remove = |name: &str| fs::remove_dir(directory.path().join(name)).unwrap();
        make("a.1");
        let names = Names::of(directory.path().to_owned());
        assert_eq!(names.beginning_with("a.").unwrap(), ["a.1"]);
        assert!(names.known.lock().unwrap().as_mut().unwrap().catches_up(), "nothing has happened");
        make("a.2");
        make("b.1");
        fs::rename(directory.path().join("b.1"), directory.path().join("a.0")).unwrap();
        assert_eq!(names.beginning_with("a.").unwrap(), ["a.0", "a.1", "a.2"]);
        assert_eq!(names.beginning_with("b.").unwrap(), Vec::<String>::new());
        remove("a.1");
        make("a.1");
        remove("a.2");
        assert_eq!(names.beginning_with("a.").unwrap(), ["a.0", "a.1"]);
        assert_eq!(names.beginning_with("").unwrap().len(), 2);
    }

    #[test]
    fn more_than_the_kernel_remembers_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let names = Names::of(directory.path().to_owned());
        assert_eq!(names.beginning_with("").unwrap(), Vec::<String>::new());
        let most: usize = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        fs::write(&one, "").unwrap();
        for _ in 0..most.min(100_000) {
            fs::rename(&one, &other).unwrap();
            fs::rename(&other, &one).unwrap();
        }
        fs::write(&other, "").unwrap();
        assert_eq!(names.beginning_with("o").unwrap(), ["one", "other"]);
    }

    #[test]
    fn a_directory_that_is_made_anew_is_read_anew() {
        let outer = tempfile::tempdir().unwrap();
        let directory = outer.path().join("tasks");
        fs::create_dir_all(directory.join("a")).unwrap();
        let names = Names::of(directory.clone());
        assert_eq!(names.beginning_with("").unwrap(), ["a"]);
        fs::remove_dir_all(&directory).unwrap();
        assert!(names.beginning_with("").is_err(), "there is none");
        fs::create_dir_all(directory.join("b")).unwrap();
        assert_eq!(names.beginning_with("").unwrap(), ["b"]);
    }
}
