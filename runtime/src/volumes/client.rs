//! The plugin's side of a mounter: it waits for a bounded time.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Mode, OFlags, open},
    io::{Errno, retry_on_intr},
    time::Timespec,
};

use super::{
    options::VolumeOptions,
    problem::VolumeError,
    protocol::{Answer, Order},
};
use crate::{
    launcher::Launcher,
    packets::{connection, receive, send},
    process::ProcessRef,
    role::Role,
};

/// A mounter that was killed may take this long to end. The kernel keeps a longer one until its call returns.
const END: Duration = Duration::from_secs(1);

/// Starts mounters.
#[derive(Debug, Default)]
pub(super) struct Mounters {
    /// Killed mounters that had not ended. They are reaped later.
    hanging: Mutex<Vec<ProcessRef>>,
}

/// Why an order has no result.
#[derive(Debug)]
pub(super) enum OrderError {
    /// The answer says why.
    Refused(VolumeError),
    /// There was no answer in time.
    TimedOut,
    /// The process could not be used.
    Io(io::Error),
}

impl Mounters {
    /// Mounts a volume without a place: a detached mount.
    pub fn mount(
        &self,
        launcher: &Launcher,
        options: &VolumeOptions,
        place: &Path,
        limit: Duration,
    ) -> Result<OwnedFd, OrderError> {
        let order = Order::Mount { options: options.clone(), place: place.to_owned() };
        let mut mounts = self.carry_out(launcher, &order, limit)?;
        mounts.pop().ok_or_else(|| OrderError::Io(io::Error::other("the mounter sent no mount")))
    }

    /// Whether a mounted file system answers.
    pub fn ask(&self, launcher: &Launcher, path: &Path, limit: Duration) -> Result<(), OrderError> {
        self.carry_out(launcher, &Order::Ask { path: path.to_owned() }, limit).map(drop)
    }

    /// Unmounts a path.
    pub fn unmount(&self, launcher: &Launcher, path: &Path, limit: Duration) -> Result<(), OrderError> {
        self.carry_out(launcher, &Order::Unmount { path: path.to_owned() }, limit).map(drop)
    }

    fn carry_out(&self, launcher: &Launcher, order: &Order, limit: Duration) -> Result<Vec<OwnedFd>, OrderError> {
        let deadline = Instant::now() + limit;
        let (ours, theirs) = connection().map_err(OrderError::Io)?;
        let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let null = null.map_err(|error| OrderError::Io(error.into()))?;
        let mounter = launcher.spawn(&Role::Mounter, [theirs.as_fd(), null.as_fd(), null.as_fd()]);
        let mounter = mounter.map_err(OrderError::Io)?;
        drop(theirs);
        let answer = send(&ours, order, &[]).and_then(|()| answer(&ours, deadline));
        self.end(mounter, matches!(answer, Ok(Some(_))));
        match answer {
            Ok(Some((Ok(()), mounts))) => Ok(mounts),
            Ok(Some((Err(error), _))) => Err(OrderError::Refused(error)),
            Ok(None) => Err(OrderError::TimedOut),
            Err(error) => Err(OrderError::Io(error)),
        }
    }

    /// Ends a mounter. One that has answered ends by itself.
    fn end(&self, mounter: ProcessRef, answered: bool) {
        if !answered && let Err(error) = mounter.signal(libc::SIGKILL) {
            tracing::warn!(pid = mounter.pid, %error, "a process that mounts a volume was not killed");
        }
        let ended = mounter.wait_for(Some(END)).unwrap_or(false) && mounter.reap().is_ok();
        let mut hanging = self.hanging.lock().unwrap_or_else(PoisonError::into_inner);
        hanging.retain(|mounter| !(mounter.ended() && mounter.reap().is_ok()));
        if !ended {
            hanging.push(mounter);
        }
    }
}

/// Waits for the answer; `None` if there is none before the deadline.
fn answer(connection: &OwnedFd, deadline: Instant) -> io::Result<Option<(Answer, Vec<OwnedFd>)>> {
    let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()));
    let left = left.map_err(|_| io::Error::from(Errno::INVAL))?;
    if retry_on_intr(|| poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&left)))? == 0 {
        return Ok(None);
    }
    match receive(connection)? {
        Some(answer) => Ok(Some(answer)),
        None => Err(io::Error::other("the process that mounts volumes ended without an answer")),
    }
}
