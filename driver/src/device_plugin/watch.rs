//! Changes of specs and device nodes, reported by the kernel (inotify(7)).
//!
//! The caller follows the directories of specs before it reads them, and the nodes before it looks at them. A later
//! change is then always reported. A path that does not exist is followed in the nearest directory above it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use cdi::Format;
use rustix::{
    fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch},
    io::Errno,
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::sys;

/// Enough for some dozens of reports.
const BUFFER_SIZE: usize = 16 << 10;

/// Names that appear and disappear.
const NAMES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::MASK_ADD);

/// The same, and the content of files.
const CONTENT: WatchFlags = NAMES.union(WatchFlags::CLOSE_WRITE).union(WatchFlags::ATTRIB);

/// The names that count in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    /// Files that are specs by their names, and these.
    Specs(BTreeSet<OsString>),
    /// These.
    Only(BTreeSet<OsString>),
}

impl Names {
    fn count(&self, name: &OsStr) -> bool {
        match self {
            Self::Specs(others) => Format::of(Path::new(name)).is_some() || others.contains(name),
            Self::Only(names) => names.contains(name),
        }
    }

    fn add(&mut self, name: &OsStr) {
        let (Self::Specs(names) | Self::Only(names)) = self;
        names.insert(name.to_owned());
    }
}

/// A watch over directories of specs, and over device nodes.
pub struct DeviceWatch {
    inotify: AsyncFd<OwnedFd>,
    /// The watched directories, by the numbers of their watches.
    watched: BTreeMap<i32, Names>,
    /// Those of the round that [`DeviceWatch::follow_specs`] has begun.
    next: BTreeMap<i32, Names>,
}

impl DeviceWatch {
    /// Follows nothing yet. Needs an async runtime.
    pub fn new() -> io::Result<Self> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let inotify = sys::watch(inotify, Interest::READABLE)?;
        Ok(Self { inotify, watched: BTreeMap::new(), next: BTreeMap::new() })
    }

    /// Follows the specs in these directories. Begins a round.
    pub fn follow_specs(&mut self, directories: &[PathBuf]) -> io::Result<()> {
        self.next = BTreeMap::new();
        directories.iter().try_for_each(|directory| self.follow_directory(directory))
    }

    /// Follows these device nodes. Ends the round: what neither call has named is followed no longer.
    pub fn follow_nodes<'a>(&mut self, paths: impl Iterator<Item = &'a Path>) -> io::Result<()> {
        let followed = paths.into_iter().try_for_each(|path| {
            self.follow_path(path)?;
            // Names of serial devices are links to nodes.
            match path.canonicalize() {
                Ok(target) if target != path => self.follow_path(&target),
                _ => Ok(()),
            }
        });
        for stale in self.watched.keys().filter(|number| !self.next.contains_key(*number)) {
            // The kernel has ended the watch of a directory that was removed.
            match remove_watch(&self.inotify, *stale) {
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.watched = std::mem::take(&mut self.next);
        followed
    }

    fn follow_directory(&mut self, directory: &Path) -> io::Result<()> {
        loop {
            match add_watch(&self.inotify, directory, CONTENT) {
                Ok(number) => {
                    let names = match self.next.remove(&number) {
                        Some(Names::Specs(names) | Names::Only(names)) => names,
                        None => BTreeSet::new(),
                    };
                    self.next.insert(number, Names::Specs(names));
                    return Ok(());
                }
                Err(Errno::NOENT | Errno::NOTDIR) => self.follow_path(directory)?,
                Err(error) => return Err(error.into()),
            }
            // It may have been made before its name was followed.
            if !directory.is_dir() {
                return Ok(());
            }
        }
    }

    /// Follows a name in its directory, or in the nearest directory that exists, the next name of the path there.
    fn follow_path(&mut self, path: &Path) -> io::Result<()> {
        let mut below = path;
        while let (Some(directory), Some(name)) = (below.parent(), below.file_name()) {
            match add_watch(&self.inotify, directory, NAMES) {
                Ok(number) => {
                    self.next.entry(number).or_insert_with(|| Names::Only(BTreeSet::new())).add(name);
                    if below == path || !below.is_dir() {
                        return Ok(());
                    }
                    // It was made before its name was followed.
                    below = path;
                }
                Err(Errno::NOENT | Errno::NOTDIR) => below = directory,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits for a change.
    pub async fn changed(&self) -> io::Result<()> {
        loop {
            let mut ready = self.inotify.readable().await?;
            let changed = self.drain()?;
            ready.clear_ready();
            if changed {
                return Ok(());
            }
        }
    }

    /// Takes all reports. Tells whether one of them counts.
    fn drain(&self) -> io::Result<bool> {
        let mut changed = false;
        let mut buffer = [MaybeUninit::uninit(); BUFFER_SIZE];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(changed),
                Err(error) => return Err(error.into()),
            };
            changed |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            if let Some(names) = self.watched.get(&event.wd()) {
                // A report without a name is about the directory itself.
                let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                changed |= name.is_none_or(|name| names.count(name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;

    /// Whether a change is reported, after both were followed.
    async fn reports(specs: &Path, node: &Path, change: impl FnOnce()) -> bool {
        let mut watch = DeviceWatch::new().unwrap();
        watch.follow_specs(&[specs.to_owned()]).unwrap();
        watch.follow_nodes([node].into_iter()).unwrap();
        change();
        // The kernel reports a change before the call that made it returns.
        tokio::time::timeout(Duration::ZERO, watch.changed()).await.is_ok() || watch.drain().unwrap()
    }

    #[tokio::test]
    async fn specs_and_nodes_are_followed_where_they_are_and_where_they_will_be() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("cdi")).unwrap();
        fs::create_dir_all(at("dev/bus")).unwrap();
        let (specs, node) = (at("cdi"), at("dev/bus/usb/001"));
        for (change, expected) in [
            ((&|| fs::write(at("cdi/a.json"), "{}").unwrap()) as &dyn Fn(), true),
            (&|| fs::write(at("cdi/a.txt"), "{}").unwrap(), false),
            (&|| fs::write(at("cdi/a.json"), "").unwrap(), true),
            (&|| fs::remove_file(at("cdi/a.json")).unwrap(), true),
            (&|| fs::write(at("dev/other"), "").unwrap(), false),
            (&|| fs::write(at("dev/bus/other"), "").unwrap(), false),
            (&|| fs::create_dir(at("dev/bus/usb")).unwrap(), true),
            (&|| fs::write(at("dev/bus/usb/002"), "").unwrap(), false),
            (&|| fs::write(at("dev/bus/usb/001"), "").unwrap(), true),
            (&|| fs::remove_file(at("dev/bus/usb/001")).unwrap(), true),
            (&|| fs::remove_dir_all(at("dev")).unwrap(), true),
            (&|| fs::create_dir(at("dev")).unwrap(), true),
            (&|| fs::rename(at("cdi"), at("gone")).unwrap(), true),
            (&|| fs::create_dir(at("cdi")).unwrap(), true),
            (&|| fs::remove_dir(at("cdi")).unwrap(), true),
            (&|| fs::write(at("other"), "").unwrap(), false),
        ] {
            assert_eq!(reports(&specs, &node, change).await, expected);
        }
    }

    #[tokio::test]
    async fn links_to_nodes_are_followed_with_their_targets() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().canonicalize().unwrap().join(name);
        fs::create_dir_all(at("by-id")).unwrap();
        fs::create_dir_all(at("real")).unwrap();
        fs::write(at("real/tty"), "").unwrap();
        std::os::unix::fs::symlink(at("real/tty"), at("by-id/modem")).unwrap();
        assert!(reports(&at("cdi"), &at("by-id/modem"), || fs::remove_file(at("real/tty")).unwrap()).await);
        assert!(reports(&at("cdi"), &at("by-id/modem"), || fs::remove_file(at("by-id/modem")).unwrap()).await);
    }

    #[tokio::test]
    async fn what_a_new_round_does_not_name_is_followed_no_longer() {
        let root = tempfile::tempdir().unwrap();
        let mut watch = DeviceWatch::new().unwrap();
        let follow = |watch: &mut DeviceWatch, node: &str| {
            watch.follow_specs(&[]).unwrap();
            watch.follow_nodes([root.path().join(node).as_path()].into_iter()).unwrap();
        };
        fs::create_dir(root.path().join("a")).unwrap();
        fs::create_dir(root.path().join("b")).unwrap();
        follow(&mut watch, "a/node");
        follow(&mut watch, "b/node");
        assert_eq!(watch.watched.len(), 1);
        fs::write(root.path().join("a/node"), "").unwrap();
        assert!(!watch.drain().unwrap());
        fs::write(root.path().join("b/node"), "").unwrap();
        assert!(watch.drain().unwrap());
    }
}
