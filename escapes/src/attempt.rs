//! An attempt to leave a container, and its result.

use std::{fmt, io};

/// The result of an attempt: `Ok` if the container got what it wanted.
pub type Tried = Result<i64, Refusal>;

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel refused a system call.
    Errno(i32),
    /// The system calls were answered, but there is nothing to gain.
    Nothing(&'static str),
}

impl Refusal {
    /// The errno of the last system call.
    #[must_use]
    pub fn last() -> Self {
        io::Error::last_os_error().into()
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::Nothing("no answer"), Self::Errno)
    }
}

/// One attempt. No attempt harms the node where it succeeds.
#[derive(Debug, Clone, Copy)]
pub struct Attempt {
    /// What the container tries: the verb of a sentence. Unique in the suite.
    pub what: &'static str,
    /// Tries it.
    pub run: fn() -> Tried,
    /// Why oci-rs lets it succeed. Without a reason it must fail.
    pub harmless: Option<&'static str>,
}

impl Attempt {
    /// An attempt that must fail.
    #[must_use]
    pub const fn new(what: &'static str, run: fn() -> Tried) -> Self {
        Self { what, run, harmless: None }
    }

    /// An attempt that [`crate::watch`] makes while commands are started in the container.
    #[must_use]
    pub const fn watched(what: &'static str) -> Self {
        Self::new(what, || Err(Refusal::Nothing("not watched")))
    }

    /// An attempt that the node makes: it starts a task with an image of its own.
    #[must_use]
    pub const fn hosted(what: &'static str) -> Self {
        Self::new(what, || Err(Refusal::Nothing("not made")))
    }

    /// An attempt that may succeed, for this reason.
    #[must_use]
    pub const fn harmless(mut self, why: &'static str) -> Self {
        self.harmless = Some(why);
        self
    }
}

/// The text of a result that succeeded.
pub const WORKS: &str = "works";

/// The result as the table has it.
#[must_use]
pub fn text(tried: Tried) -> String {
    tried.map_or_else(|refusal| refusal.to_string(), |_| WORKS.to_owned())
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing(text) => f.write_str(text),
            Self::Errno(number) => match NAMES.iter().find(|(known, _)| known == number) {
                Some((_, name)) => f.write_str(name),
                None => write!(f, "errno {number}"),
            },
        }
    }
}

const NAMES: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ESRCH, "ESRCH"),
    (libc::EIO, "EIO"),
    (libc::ENXIO, "ENXIO"),
    (libc::E2BIG, "E2BIG"),
    (libc::ENOEXEC, "ENOEXEC"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::ENOTBLK, "ENOTBLK"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::EXDEV, "EXDEV"),
    (libc::ENODEV, "ENODEV"),
    (libc::ENOTDIR, "ENOTDIR"),
    (libc::EISDIR, "EISDIR"),
    (libc::EINVAL, "EINVAL"),
    (libc::ENOTTY, "ENOTTY"),
    (libc::ETXTBSY, "ETXTBSY"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::EROFS, "EROFS"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ELOOP, "ELOOP"),
    (libc::ENOKEY, "ENOKEY"),
    (libc::ENOPROTOOPT, "ENOPROTOOPT"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
    (libc::ESOCKTNOSUPPORT, "ESOCKTNOSUPPORT"),
    (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
    (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
    (libc::ENETUNREACH, "ENETUNREACH"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
    (libc::ECONNREFUSED, "ECONNREFUSED"),
    (libc::EHOSTUNREACH, "EHOSTUNREACH"),
    (libc::ESTALE, "ESTALE"),
    (libc::EOVERFLOW, "EOVERFLOW"),
    (libc::ENODATA, "ENODATA"),
    (libc::EUSERS, "EUSERS"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_names() {
        assert_eq!(text(Ok(3)), "works");
        assert_eq!(text(Err(Refusal::Errno(libc::EPERM))), "EPERM");
        assert_eq!(text(Err(Refusal::Errno(9999))), "errno 9999");
        assert_eq!(text(Err(Refusal::Nothing("no process"))), "no process");
    }
}
