//! One stream of a task: what is believed of its reader, and what follows.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use runtime::{Runtime, fifo::Fifo, plan::ContainerId};
use rustix::fs::{
    CWD, FileType, Mode, OFlags, fstat,
    inotify::{self, WatchFlags},
    open, openat,
};
use tokio::time::Instant;

use super::drain::Drain;
use crate::events::TaskEvents;

/// What is believed of a FIFO's reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// Somebody reads.
    Attended,
    /// Nobody was seen, but somebody may have come since.
    Doubtful,
    /// Nobody reads.
    Unattended,
}

/// What to do with a FIFO that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Hold it open, have its opening told, and look once more.
    Hold,
    /// Keep it from staying full.
    Drain,
    /// Leave it to its reader.
    Release,
}

/// Decides by what a look at all processes has shown, when nobody touched the FIFO since it began.
pub fn decide(care: Care, attended: bool) -> (Care, Step) {
    match (care, attended) {
        (Care::Attended, true) => (Care::Attended, Step::Nothing),
        (Care::Attended, false) => (Care::Doubtful, Step::Hold),
        (Care::Doubtful | Care::Unattended, false) => (Care::Unattended, Step::Drain),
        (Care::Doubtful | Care::Unattended, true) => (Care::Attended, Step::Release),
    }
}

/// Which of a task's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Stdout,
    Stderr,
}

impl Kind {
    /// As users know it.
    fn text(self) -> &'static str {
        match self {
            Self::Stdout => "standard output",
            Self::Stderr => "standard error",
        }
    }

    /// As files are called.
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// See the module's head.
pub struct Stream {
    pub container: ContainerId,
    /// The number under which inotify speaks of it.
    pub watch: i32,
    pub care: Care,
    /// When its readers are to be looked for.
    pub look_at: Option<Instant>,
    /// It was never looked at.
    pub is_new: bool,
    /// A look is under way.
    pub being_looked_at: bool,
    /// Held open because nobody reads.
    pub drain: Option<Drain>,
    kind: Kind,
    runtime: Runtime,
    events: TaskEvents,
    /// An O_PATH handle.
    handle: OwnedFd,
    fifo: Fifo,
}

impl Stream {
    /// A FIFO, watched from now on; `None` for everything else.
    pub fn open(
        kind: Kind,
        path: &Path,
        (runtime, container): (Runtime, ContainerId),
        events: TaskEvents,
        inotify: &OwnedFd,
    ) -> io::Result<Option<Self>> {
        let handle = openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&handle)?.st_mode) != FileType::Fifo {
            return Ok(None);
        }
        let fifo = Fifo::of(&handle, path)?;
        let watch = inotify::add_watch(inotify, magic_link(&handle), WatchFlags::CLOSE_NOWRITE)?;
        Ok(Some(Self {
            container,
            watch,
            care: Care::Attended,
            look_at: None,
            is_new: true,
            being_looked_at: false,
            drain: None,
            kind,
            runtime,
            events,
            handle,
            fifo,
        }))
    }

    /// What to look for in the open files of processes.
    pub fn fifo(&self) -> Fifo {
        self.fifo.clone()
    }

    /// Somebody opened or closed it.
    pub fn touched(&mut self) {
        if self.care == Care::Unattended {
            self.care = Care::Doubtful;
        }
        if let Some(drain) = &self.drain {
            drain.pause();
        }
    }

    /// Holds it open, and has its opening told.
    pub fn hold(&mut self, inotify: &OwnedFd) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fifo = open(magic_link(&self.handle), flags, Mode::empty())?;
        // Only now, or our own opening would be told.
        inotify::add_watch(inotify, magic_link(&self.handle), WatchFlags::CLOSE_NOWRITE | WatchFlags::OPEN)?;
        let (events, name, container) = (self.events.clone(), self.kind.text(), self.container.clone());
        let begins = move || {
            tracing::warn!(%container, stream = name, "nobody reads the task's log, its output is being dropped");
            let text = format!("Nobody reads the task's log: {name} is dropped until Nomad's log collector is back");
            events.emit(text, []);
        };
        let lost = self.runtime.lost_bytes(&self.container, self.kind.name()).map_err(io::Error::other)?;
        self.drain = Some(Drain::hold(fifo, lost, begins)?);
        Ok(())
    }

    /// Keeps it from staying full.
    pub fn drain(&self) {
        if let Some(drain) = &self.drain {
            drain.go();
        }
    }

    /// Back to its being told when a reader goes.
    pub fn watch_for_closing(&self, inotify: &OwnedFd) -> io::Result<()> {
        inotify::add_watch(inotify, magic_link(&self.handle), WatchFlags::CLOSE_NOWRITE)?;
        Ok(())
    }

    /// Lets it go, to its reader or, `abandoned`, to nobody. Tells what was lost.
    pub async fn release(&mut self, abandoned: bool) {
        let Some(drain) = self.drain.take() else { return self.tell_old_losses() };
        match drain.stop(abandoned).await {
            Ok(lost) => self.tell_lost(lost),
            Err(error) => tracing::warn!(container = %self.container, %error, "lost output was not counted"),
        }
    }

    /// Tells what others dropped before this plugin looked after the stream: a plugin before it, or the monitor.
    pub fn tell_old_losses(&self) {
        self.kind.tell_old_losses(&self.runtime, &self.container, &self.events);
    }

    fn tell_lost(&self, lost: u64) {
        self.kind.tell_lost(lost, &self.container, &self.events);
    }
}

impl Kind {
    /// Tells what was dropped of a container's stream and was not told yet.
    pub fn tell_old_losses(self, runtime: &Runtime, container: &ContainerId, events: &TaskEvents) {
        let taken = || match runtime.lost_so_far(container, self.name()).map_err(io::Error::other)? {
            0 => Ok(0),
            _ => runtime.lost_bytes(container, self.name()).map_err(io::Error::other)?.take(),
        };
        match taken() {
            Ok(lost) => self.tell_lost(lost, container, events),
            Err(error) => tracing::warn!(%container, %error, "lost output was not counted"),
        }
    }

    fn tell_lost(self, lost: u64, container: &ContainerId, events: &TaskEvents) {
        if lost == 0 {
            return;
        }
        let stream = self.text();
        tracing::warn!(%container, stream, lost, "output was lost while nobody read the log");
        let text = format!("{lost} bytes of {stream} were lost while nobody read the task's log");
        events.emit(text, [("stream", self.name().to_owned()), ("lost_bytes", lost.to_string())]);
    }
}

/// A path by which the kernel follows a handle.
fn magic_link(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::{Care, Step, decide};

    #[test]
    fn nothing_is_dropped_before_a_second_look() {
        let (care, step) = decide(Care::Attended, false);
        assert_eq!((care, step), (Care::Doubtful, Step::Hold));
        assert_eq!(decide(care, false), (Care::Unattended, Step::Drain));
        assert_eq!(decide(care, true), (Care::Attended, Step::Release));
    }

    #[test]
    fn a_reader_ends_every_doubt() {
        assert_eq!(decide(Care::Attended, true), (Care::Attended, Step::Nothing));
        for care in [Care::Doubtful, Care::Unattended] {
            assert_eq!(decide(care, true), (Care::Attended, Step::Release));
        }
    }
}
