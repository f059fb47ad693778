//! Volumes that are mounted on the node, and their users.
//!
//! A volume has the directory `<state>/volumes/<key>`, which is also its lock:
//!
//! - `mount`: the file system is mounted here;
//! - `users/<container>`: an empty file for each container that uses it, or is about to;
//! - `options.json`: the options with which it is mounted.
//!
//! The options of a volume with a name are also kept in `<data>/volumes/.options.<name>.json`, so that a task can name
//! the volume without them, as with docker.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, ErrorKind},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use host::{
    durable::{self, Durability},
    lock::{Locked, Wait, lock, open_directory},
    record,
};
use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, move_mount},
};

use super::{
    client::{Mounters, OrderError},
    options::VolumeOptions,
    problem::{VolumeError, timed_out},
    table::mounts_at,
};
use crate::{
    error::{Context, RuntimeError},
    launcher::Launcher,
    plan::ContainerId,
};

/// The version of the records. See `host::record`.
const VERSION: u32 = 1;
/// Writing back what the node has not yet sent to a device or server may take this long before a removal goes on.
const UNMOUNT: Duration = Duration::from_secs(10);

/// The identity of a volume on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeKey(String);

impl VolumeKey {
    /// A volume that tasks share by its name, which must be safe as a file name and must not begin with a dot.
    pub fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// A volume without a name, which belongs to one container.
    pub fn of_container(container: &ContainerId, number: usize) -> Self {
        Self(format!(".{container}.{number}"))
    }

    /// The directory on which the volume is mounted.
    pub fn mount_point(&self, state_dir: &Path) -> PathBuf {
        volumes(state_dir).join(&self.0).join(MOUNT)
    }

    fn has_name(&self) -> bool {
        !self.0.starts_with('.')
    }

    /// The volume as a text names it.
    fn text(&self) -> String {
        if self.has_name() { format!("volume {:?}", self.0) } else { "the volume without a name".to_owned() }
    }
}

const MOUNT: &str = "mount";
const USERS: &str = "users";
const OPTIONS: &str = "options.json";

fn volumes(state_dir: &Path) -> PathBuf {
    state_dir.join("volumes")
}

/// The file that a container locks while it fills a volume that is mounted at `mount_point`.
pub(crate) fn fill_lock(mount_point: &Path) -> Option<PathBuf> {
    Some(mount_point.parent()?.join(USERS))
}

/// The volumes of one state directory.
#[derive(Debug)]
pub(crate) struct Volumes {
    state: PathBuf,
    data: PathBuf,
    mounters: Mounters,
}

/// One volume, locked.
struct Volume<'a> {
    directory: PathBuf,
    key: &'a VolumeKey,
    _lock: File,
}

/// What a start has to do with a volume.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Mount,
    /// It is mounted.
    Share,
    /// It is mounted with other options, and has no other user.
    Exchange,
}

/// Decides what a start has to do. `known` are the options of the volume's record.
fn decide(
    wanted: &VolumeOptions,
    known: Option<&VolumeOptions>,
    mounted: bool,
    other_users: usize,
) -> Result<Step, VolumeError> {
    let same = known.is_some_and(|known| *known == wanted.without_secrets());
    if !same && other_users > 0 {
        // The other job's author did not mean its mount options for this one.
        let known = known.map_or_else(|| "they are unknown".to_owned(), |known| format!("it is {known}"));
        return Err(VolumeError::passing(format!(
            "another task of this node uses it with other options ({known}): give all jobs the same \
             `driver_config {{ options }}`, or use another name"
        )));
    }
    let step = match (mounted, same) {
        (true, true) => return Ok(Step::Share),
        (true, false) => Step::Exchange,
        (false, _) => Step::Mount,
    };
    if let [name, ..] = wanted.forgotten.as_slice() {
        // A start of a job that gives the value heals it.
        return Err(VolumeError::passing(format!(
            "it was made with the mount option `{name}`, whose value is not stored: give this job the volume's \
             `driver_config {{ options }}` too"
        )));
    }
    Ok(step)
}

impl Volumes {
    /// Makes nothing.
    pub fn new(state_dir: &Path, data_dir: &Path) -> Self {
        Self { state: volumes(state_dir), data: data_dir.join("volumes"), mounters: Mounters::default() }
    }

    /// The options of a named volume that a task used with options before.
    pub fn stored_options(&self, name: &str) -> Result<Option<VolumeOptions>, RuntimeError> {
        Ok(record::read(VERSION, &self.stored(name))?)
    }

    fn stored(&self, name: &str) -> PathBuf {
        self.data.join(format!(".options.{name}.json"))
    }

    /// Mounts a volume for a container, unless it is mounted. All of it takes little longer than `limit`.
    pub fn mount(
        &self,
        launcher: &Launcher,
        key: &VolumeKey,
        options: &VolumeOptions,
        user: &ContainerId,
        limit: Duration,
    ) -> Result<(), VolumeError> {
        let began = Instant::now();
        let volume = self.lock(key, Wait::Forever, true)?;
        let Some(volume) = volume else { return Err(VolumeError::passing("the volume's directory is gone")) };
        // Others may have waited for the same server in vain. Each of many starts must not take its own time after
        // that.
        let done = match limit.checked_sub(began.elapsed()) {
            Some(left) if !left.is_zero() => self.mount_locked(launcher, &volume, options, user, left, limit),
            _ => Err(timed_out("mounting", options, limit)),
        };
        done.map_err(|error| {
            let error = error.of(&key.text());
            match volume.remove_user(user.as_str()).and_then(|()| self.remove_unused(launcher, &volume)) {
                Ok(_) => error,
                Err(left) => VolumeError { text: format!("{}; cleaning up failed too: {left}", error.text), ..error },
            }
        })
    }

    fn mount_locked(
        &self,
        launcher: &Launcher,
        volume: &Volume<'_>,
        options: &VolumeOptions,
        user: &ContainerId,
        left: Duration,
        limit: Duration,
    ) -> Result<(), VolumeError> {
        let key = volume.key;
        let plain = self.data.join(&key.0);
        if key.has_name() && plain.exists() {
            return Err(VolumeError::lasting(format!(
                "it exists on this node without options: use another name, or remove the directory {}",
                plain.display()
            )));
        }
        let mount_point = volume.mount_point();
        let mounted = || mounts_at(&mount_point).context(|| "reading the table of mounts".to_owned());
        let others = volume.users()?.iter().filter(|other| *other != user.as_str()).count();
        let step = decide(options, volume.options().as_ref(), mounted()? > 0, others)?;
        failpoint::at("start-before-volume-user");
        volume.add_user(user.as_str())?;
        if step == Step::Exchange {
            self.unmount(launcher, volume)?;
        }
        if step == Step::Share {
            return self
                .mounters
                .ask(launcher, &mount_point, left)
                .map_err(|error| error.into("asking", options, limit));
        }
        volume.write_options(options)?;
        failpoint::at("start-before-volume-mount");
        let tree = self.mounters.mount(launcher, options, &mount_point, left);
        let tree = tree.map_err(|error| error.into("mounting", options, limit))?;
        failpoint::at("start-before-volume-attach");
        attach(&tree, &mount_point).context(|| format!("attaching a mount at {}", mount_point.display()))?;
        failpoint::at("start-before-volume-options");
        if key.has_name() { self.store(&key.0, options) } else { Ok(()) }
    }

    /// Keeps the options of a named volume.
    fn store(&self, name: &str, options: &VolumeOptions) -> Result<(), VolumeError> {
        let options = options.without_secrets();
        // A record that cannot be read is replaced.
        if self.stored_options(name).is_ok_and(|stored| stored.as_ref() == Some(&options)) {
            return Ok(());
        }
        let path = self.stored(name);
        let write = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.data)?;
            let bytes = record::encode(VERSION, &options)?;
            Ok(durable::write(&path, &path.with_extension("tmp"), &bytes, Durability::Now, |_| {})?)
        };
        Ok(write().context(|| format!("writing {}", path.display()))?)
    }

    /// Ends a container's use of all its volumes, and unmounts those that no other container uses.
    pub fn release(&self, launcher: &Launcher, user: &ContainerId) -> Result<(), RuntimeError> {
        let mut failed = Ok(());
        for key in self.list()? {
            if !self.state.join(&key.0).join(USERS).join(user.as_str()).exists() {
                continue;
            }
            let Some(volume) = self.lock(&key, Wait::Forever, false)? else { continue };
            let released = volume.remove_user(user.as_str()).and_then(|()| self.remove_unused(launcher, &volume));
            // The container's other volumes are still released.
            failed = failed.and(released.map(drop));
        }
        failed
    }

    /// Ends the use by containers for which `keep` is false, and unmounts what no container uses; the names of the
    /// unmounted volumes. Waits for processes and threads that work on a volume: a skipped one would stay mounted.
    pub fn sweep(&self, launcher: &Launcher, keep: impl Fn(&str) -> bool) -> Result<Vec<String>, RuntimeError> {
        let mut swept = Vec::new();
        for key in self.list()? {
            let sweep = || -> Result<bool, RuntimeError> {
                let Some(volume) = self.lock(&key, Wait::Forever, false)? else { return Ok(false) };
                for user in volume.users()?.iter().filter(|user| !keep(user)) {
                    volume.remove_user(user)?;
                }
                self.remove_unused(launcher, &volume)
            };
            match sweep() {
                Ok(true) => swept.push(key.0),
                Ok(false) => {}
                // One volume that cannot be unmounted does not keep the others.
                Err(error) => tracing::warn!(volume = key.0, %error, "an unused volume was not unmounted"),
            }
        }
        Ok(swept)
    }

    fn list(&self) -> Result<Vec<VolumeKey>, RuntimeError> {
        let entries = match fs::read_dir(&self.state) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(|| format!("listing {}", self.state.display()))?,
        };
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).map(VolumeKey).collect())
    }

    /// Locks a volume, whose directory is made if `create` says so. `None` if it is missing, or in use and this call
    /// does not wait.
    fn lock<'a>(&self, key: &'a VolumeKey, wait: Wait, create: bool) -> Result<Option<Volume<'a>>, RuntimeError> {
        let directory = self.state.join(&key.0);
        if create {
            let action = || format!("making {}", self.state.display());
            DirBuilder::new().recursive(true).mode(0o700).create(&self.state).context(action)?;
        }
        let open = || if create { open_directory(&directory) } else { File::open(&directory) };
        let locked = lock(&directory, wait, create, open).context(|| format!("locking {}", directory.display()))?;
        let volume = |lock| Volume { directory: directory.clone(), key, _lock: lock };
        Ok(match locked {
            Locked::Held(lock) => Some(volume(lock)),
            Locked::Missing | Locked::Busy => None,
        })
    }

    /// Unmounts a volume without users and removes its directory; whether it had none.
    fn remove_unused(&self, launcher: &Launcher, volume: &Volume<'_>) -> Result<bool, RuntimeError> {
        if !volume.users()?.is_empty() {
            return Ok(false);
        }
        failpoint::at("destroy-before-volume-unmount");
        self.unmount(launcher, volume)?;
        failpoint::at("destroy-before-volume-removal");
        volume.remove()?;
        Ok(true)
    }

    fn unmount(&self, launcher: &Launcher, volume: &Volume<'_>) -> Result<(), RuntimeError> {
        let mount_point = volume.mount_point();
        let mounts = || mounts_at(&mount_point).context(|| "reading the table of mounts".to_owned());
        let mut left = mounts()?;
        while left > 0 {
            let unmounted = self.mounters.unmount(launcher, &mount_point, UNMOUNT);
            let now = mounts()?;
            match unmounted {
                Ok(()) => {}
                // The mount is gone, and the kernel still writes back.
                Err(OrderError::TimedOut) if now < left => {
                    let volume = volume.key.text();
                    tracing::warn!(volume, "unmounted; its server or device does not answer, and data may be lost");
                }
                Err(error) => return Err(error.into_io()).context(|| format!("unmounting {}", mount_point.display())),
            }
            if now >= left {
                let error = io::Error::from(ErrorKind::ResourceBusy);
                return Err(error).context(|| format!("unmounting {}", mount_point.display()));
            }
            left = now;
        }
        Ok(())
    }
}

impl OrderError {
    fn into(self, doing: &str, options: &VolumeOptions, limit: Duration) -> VolumeError {
        match self {
            Self::Refused(error) => error,
            Self::TimedOut => timed_out(doing, options, limit),
            Self::Io(error) => VolumeError::passing(format!("{doing} {options}: {error}")),
        }
    }

    fn into_io(self) -> io::Error {
        match self {
            Self::Refused(error) => io::Error::other(error),
            Self::TimedOut => ErrorKind::TimedOut.into(),
            Self::Io(error) => error,
        }
    }
}

impl Volume<'_> {
    fn mount_point(&self) -> PathBuf {
        self.directory.join(MOUNT)
    }

    fn users(&self) -> Result<Vec<String>, RuntimeError> {
        let directory = self.directory.join(USERS);
        match fs::read_dir(&directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            entries => {
                let names = || -> io::Result<Vec<String>> {
                    entries?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
                };
                names().context(|| format!("listing {}", directory.display()))
            }
        }
    }

    /// Notes a user, and makes the mount point.
    fn add_user(&self, user: &str) -> Result<(), RuntimeError> {
        let add = || -> io::Result<()> {
            for directory in [USERS, MOUNT] {
                // No other call: it would look at a directory that exists, and so at a file system whose server may
                // not answer.
                match DirBuilder::new().mode(0o700).create(self.directory.join(directory)) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    made => made?,
                }
            }
            durable::private_file(&self.directory.join(USERS).join(user)).map(drop)
        };
        add().context(|| format!("noting a user of {}", self.directory.display()))
    }

    fn remove_user(&self, user: &str) -> Result<(), RuntimeError> {
        let file = self.directory.join(USERS).join(user);
        match fs::remove_file(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.context(|| format!("removing {}", file.display())),
        }
    }

    /// The options with which the volume is mounted. `None` also for a record that this build cannot read: a reboot may
    /// have torn it, or a newer release wrote it.
    fn options(&self) -> Option<VolumeOptions> {
        record::read(VERSION, &self.directory.join(OPTIONS)).unwrap_or_else(|error| {
            tracing::warn!(%error, "the options of a mounted volume are unknown");
            None
        })
    }

    fn write_options(&self, options: &VolumeOptions) -> Result<(), RuntimeError> {
        let path = self.directory.join(OPTIONS);
        let write = || -> io::Result<()> {
            let bytes = record::encode(VERSION, &options.without_secrets())?;
            Ok(durable::write(&path, &path.with_extension("tmp"), &bytes, Durability::Later, |_| {})?)
        };
        write().context(|| format!("writing {}", path.display()))
    }

    /// Removes the directory. Nothing is mounted in it, and a removal that met a mounted file system would fail: it
    /// removes empty directories and its own files only.
    fn remove(&self) -> Result<(), RuntimeError> {
        let missing_is_fine = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let remove = || -> io::Result<()> {
            missing_is_fine(fs::remove_dir(self.mount_point()))?;
            missing_is_fine(fs::remove_file(self.directory.join(OPTIONS)))?;
            missing_is_fine(fs::remove_file(self.directory.join(OPTIONS).with_extension("tmp")))?;
            missing_is_fine(fs::remove_dir(self.directory.join(USERS)))?;
            missing_is_fine(fs::remove_dir(&self.directory))
        };
        remove().context(|| format!("removing {}", self.directory.display()))
    }
}

/// Attaches a detached mount.
fn attach(tree: &OwnedFd, path: &Path) -> io::Result<()> {
    Ok(move_mount(tree, "", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mount_options: &str) -> VolumeOptions {
        VolumeOptions {
            kind: "cifs".to_owned(),
            device: "//nas/data".to_owned(),
            mount_options: mount_options.to_owned(),
            forgotten: Vec::new(),
        }
    }

    #[test]
    fn a_volume_with_users_keeps_its_options() {
        let (ro, rw) = (options("ro,soft,password=a"), options("rw"));
        let stored = ro.without_secrets();
        let same_with_another_password = options("ro,soft,password=b");
        let step = |wanted: &VolumeOptions, mounted, others| decide(wanted, Some(&stored), mounted, others);
        for (wanted, mounted, others, expected) in [
            (&ro, false, 0, Step::Mount),
            (&rw, false, 0, Step::Mount),
            (&ro, true, 0, Step::Share),
            (&ro, true, 2, Step::Share),
            (&same_with_another_password, true, 2, Step::Share),
            (&stored, true, 2, Step::Share),
            (&rw, true, 0, Step::Exchange),
            // The other users' mount was lost, for example because an operator unmounted it.
            (&ro, false, 2, Step::Mount),
        ] {
            assert_eq!(step(wanted, mounted, others), Ok(expected), "{wanted:?} {mounted} {others}");
        }
        for mounted in [true, false] {
            let error = step(&rw, mounted, 2).expect_err("another task uses it");
            assert!(error.passing && error.text.starts_with("another task of this node uses it with other options"));
            assert!(error.text.contains("(it is cifs //nas/data)") && !error.text.contains("soft"), "{error}");
        }
        assert_eq!(decide(&ro, None, false, 0), Ok(Step::Mount));
    }

    #[test]
    fn a_start_gets_the_volume_while_others_remove_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let volumes = Volumes::new(&directory.path().join("state"), &directory.path().join("data"));
        let key = VolumeKey::named("v");
        let start_and_end = || {
            for _ in 0..300 {
                let volume = volumes.lock(&key, Wait::Forever, true).expect("locked").expect("made");
                volume.remove().expect("removed");
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(start_and_end))));
        assert!(!volumes.state.join("v").exists());
    }

    #[test]
    fn a_stored_volume_with_a_password_can_only_be_shared() {
        let stored = options("username=app,password=a").without_secrets();
        let error = decide(&stored, Some(&stored), false, 0).expect_err("no password");
        assert!(error.text.contains("mount option `password`, whose value is not stored"), "{error}");
        assert!(error.passing, "another job's start may give it");
    }
}
