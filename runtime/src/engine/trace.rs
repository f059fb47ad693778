//! The causes of libcontainer's errors.
//!
//! An error that crosses libcontainer's processes keeps only its top-most text. The cause is in the ERROR events that
//! the failing process emits. They are collected in a memory file, which all forks of this process share, position
//! included.

use std::{
    error::Error,
    fmt,
    fs::File,
    io::{self, Read, Seek, Write},
    iter,
    sync::Arc,
};

use rustix::fs::{MemfdFlags, memfd_create};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::error::{StartError, StartErrorKind};

/// The collected events.
pub(super) struct Errors {
    events: Arc<File>,
    /// The container has a user namespace of its own.
    own_ids: bool,
}

/// Collects the ERROR events of this process and its forks from now on.
pub(super) fn capture(own_ids: bool) -> io::Result<Errors> {
    let file = Arc::new(File::from(memfd_create("errors", MemfdFlags::CLOEXEC)?));
    match tracing::subscriber::set_global_default(Collector(Arc::clone(&file))) {
        Ok(()) => Ok(Errors { events: file, own_ids }),
        Err(error) => Err(io::Error::other(error)),
    }
}

impl Errors {
    /// An error with the first collected event, which is nearest to the cause.
    pub fn explain(&self, action: &str, error: &dyn fmt::Display) -> StartError {
        let mut text = String::new();
        let mut file = &*self.events;
        let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
        let cause = read.ok().and_then(|_| text.lines().next().map(str::to_owned));
        let message = match cause {
            Some(cause) => format!("{action}: {cause} ({error})"),
            None => format!("{action}: {error}"),
        };
        let may_be_its_ids = self.own_ids && (says_refusal(&text) || says_refusal(&message));
        let kind = if may_be_its_ids { StartErrorKind::UserNamespace } else { StartErrorKind::Internal };
        StartError::new(kind, message)
    }
}

/// Whether a text contains an error with which the kernel refuses something to a process in a user namespace: a missing
/// right (of a mount, of a kernel parameter), or a limit of `/proc/sys/user`. Root of the node may be allowed the same.
fn says_refusal(text: &str) -> bool {
    const REFUSALS: [(&str, i32); 4] =
        [("EPERM", libc::EPERM), ("EACCES", libc::EACCES), ("ENOSPC", libc::ENOSPC), ("EUSERS", libc::EUSERS)];
    // With processes between, libcontainer's error about a file of /proc keeps no cause.
    let without_cause = text.contains("in procfs failed") && !text.contains("(os error ");
    let names = |(name, code): &(&str, i32)| text.contains(name) || text.contains(&format!("(os error {code})"));
    without_cause || REFUSALS.iter().any(names)
}

/// The text of an error with those of its causes.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in iter::successors(error.source(), |error: &&dyn Error| (*error).source()) {
        text.push_str(&format!(": {cause}"));
    }
    text
}

struct Collector(Arc<File>);

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        Some(tracing::level_filters::LevelFilter::ERROR)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = format!("{}{}\n", line.message, line.fields).replace('\n', " ");
        // A lost event only loses the cause: the error itself is reported anyway.
        drop((&*self.0).write_all(format!("{}\n", text.trim_end()).as_bytes()));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// One event as text: the message, then its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message.push_str(&format!("{value:?}")),
            name => self.fields.push_str(&format!(", {name} {value:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_from_other_errors() {
        for error in [libc::EPERM, libc::EACCES, libc::ENOSPC, libc::EUSERS] {
            assert!(says_refusal(&io::Error::from_raw_os_error(error).to_string()), "{error}");
        }
        let of_procfs = "open subpath in procfs failed";
        assert!(says_refusal(of_procfs) && says_refusal(&format!("{of_procfs}: Permission denied (os error 13)")));
        assert!(!says_refusal(&format!("{of_procfs}: No such file or directory (os error 2)")));
        assert!(says_refusal("failed to prepare rootfs, err Mount(Syscall(Nix(EPERM)))"));
        for error in [libc::ENOENT, libc::EINVAL, libc::EIO, libc::ENXIO] {
            assert!(!says_refusal(&io::Error::from_raw_os_error(error).to_string()), "{error}");
        }
    }
}
