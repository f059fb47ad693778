//! All restrictions of a thread, in the one order in which the kernel takes them.

use std::io;

use rustix::{
    io::Errno,
    thread::{CapabilitySet, set_no_new_privs},
};
use seccomp::{OwnCalls, Violation};

use crate::{
    capabilities::{hold_only, limit_bounding_set},
    files::Files,
    sys::{FilterLog, install_filter},
};

/// With this environment variable, a development build is killed by a system call that is not listed. Tests set it, so
/// that an incomplete list does not go unnoticed.
pub const KILL_VARIABLE: &str = "OCI_RS_KILL_ON_VIOLATION";

/// What a thread keeps.
#[derive(Debug)]
pub struct Confinement<'a> {
    /// The capabilities. Those that the thread does not have are not added.
    pub capabilities: CapabilitySet,
    /// The system calls.
    pub calls: OwnCalls<'a>,
    /// The files. `None`: all that its user may open.
    pub files: Option<Files<'a>>,
}

impl Confinement<'_> {
    /// Restricts the calling thread. On a kernel without Landlock, files are not restricted.
    ///
    /// # Errors
    /// The kernel refused a restriction. Those before it hold.
    pub fn apply(&self) -> io::Result<()> {
        let program = seccomp::own_program(&self.calls, violation()).map_err(io::Error::other)?;
        set_no_new_privs(true)?;
        if let Some(files) = &self.files {
            files.restrict()?;
        }
        match limit_bounding_set(self.capabilities) {
            // Without CAP_SETPCAP the bounding set stays. With no_new_privs no program gets a capability from it.
            Ok(()) | Err(Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        hold_only(self.capabilities)?;
        install_filter(&program, FilterLog::Violations)
    }
}

fn violation() -> Violation {
    let kill = cfg!(debug_assertions) && std::env::var_os(KILL_VARIABLE).is_some();
    if kill { Violation::Kill } else { Violation::Refuse }
}

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpListener, thread};

    use rustix::thread::capabilities;

    use super::*;
    use crate::{
        calls,
        files::{Access, Place},
    };

    const GROUPS: &[&[&str]] =
        &[calls::BASE, calls::FILES, calls::COMMIT, &["socket", "bind", "listen", "setsockopt", "capget"]];

    /// Runs `action` in a confined thread.
    fn confined<T: Send>(
        capabilities: CapabilitySet,
        files: Option<Files<'_>>,
        action: impl FnOnce() -> T + Send,
    ) -> T {
        let calls = OwnCalls { any: GROUPS, checked: calls::CHECKED };
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                Confinement { capabilities, calls, files }.apply().expect("restricted");
                action()
            });
            thread.join().expect("the thread ends")
        })
    }

    #[test]
    fn the_thread_has_what_it_keeps_and_the_others_what_they_had() {
        let before = capabilities(None).expect("capabilities").effective;
        let kept = CapabilitySet::SYSLOG & before;
        let status = confined(CapabilitySet::SYSLOG, None, || fs::read_to_string("/proc/thread-self/status"));
        let status = status.expect("its status");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim();
        for set in ["CapEff:", "CapPrm:"] {
            assert_eq!(u64::from_str_radix(field(set), 16).expect("a number"), kept.bits(), "{set}");
        }
        for (name, value) in [("CapInh:", "0000000000000000"), ("CapAmb:", "0000000000000000")] {
            assert_eq!(field(name), value);
        }
        assert_eq!((field("NoNewPrivs:"), field("Seccomp:"), field("Seccomp_filters:")), ("1", "2", "1"));
        assert_eq!(capabilities(None).expect("capabilities").effective, before);
    }

    #[test]
    fn a_call_that_is_not_listed_fails() {
        let (grouped, executable) = confined(CapabilitySet::all(), None, || {
            crate::sys::map(libc::PROT_READ | libc::PROT_WRITE).expect("memory");
            (rustix::process::setpgid(None, None), crate::sys::map(libc::PROT_READ | libc::PROT_EXEC))
        });
        assert_eq!(grouped, Err(Errno::PERM));
        // The C library changes the error.
        executable.expect_err("executable memory");
    }

    #[test]
    fn only_the_named_files_can_be_opened() {
        if !crate::files::is_supported() {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let [written, read, other] = ["written", "read", "other"].map(|name| directory.path().join(name));
        for path in [&written, &read, &other] {
            fs::create_dir(path).expect("a directory");
            fs::write(path.join("file"), "text").expect("a file");
        }
        let missing = directory.path().join("missing");
        let files = Files {
            places: vec![
                (Place::Path(&written), Access::Write),
                (Place::Path(&read), Access::Read),
                (Place::Path(&missing), Access::Read),
            ],
            tcp: false,
            signals: false,
        };
        let denied = |result: io::Result<()>| result.map_err(|error| error.raw_os_error());
        confined(CapabilitySet::all(), Some(files), || {
            fs::write(written.join("temporary"), "text").expect("a new file");
            fs::rename(written.join("temporary"), written.join("file")).expect("replaced");
            fs::read(read.join("file")).expect("read");
            assert_eq!(denied(fs::write(read.join("file"), "text")), Err(Some(libc::EACCES)));
            assert_eq!(denied(fs::read(other.join("file")).map(drop)), Err(Some(libc::EACCES)));
            assert_eq!(denied(fs::read("/etc/passwd").map(drop)), Err(Some(libc::EACCES)));
            assert_eq!(denied(TcpListener::bind("127.0.0.1:0").map(drop)), Err(Some(libc::EACCES)));
        });
        fs::read(other.join("file")).expect("other threads are not restricted");
    }
}
