//! The last steps of a container's first process, in the one order that is right.
//!
//! It stands in the container's namespaces and root, as the container's user, still with all our capabilities. From here
//! on every step must succeed: a failure is reported and ends the process, so that nothing ever runs with more rights than
//! its plan says.

use std::{
    ffi::CString,
    io::{self, Write},
    os::fd::RawFd,
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, fchown},
    mount::{MoveMountFlags, move_mount},
    process::{Resource, Rlimit, Uid, setrlimit, umask},
    termios::{Winsize, tcsetwinsize},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};

use super::init;
use crate::{
    error::{StartError, StartErrorKind},
    spec::CapabilityMask,
    sys,
};

/// Where programs are looked for when the environment has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a terminal measures until somebody says otherwise.
const TERMINAL_SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// What to do last, and the command.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub uid: u32,
    /// Standard input is the terminal, to be owned by the user.
    pub terminal: bool,
    /// Trees of mounts, by their descriptors, and where in the container each is attached.
    pub trees: Vec<(RawFd, &'static str)>,
    /// The network namespace is new.
    pub loopback: bool,
    /// Stay as process 1 and let a child be the command.
    pub init: bool,
    pub rlimits: Vec<(String, Resource, Rlimit)>,
    pub no_new_privileges: bool,
    /// A compiled seccomp filter.
    pub filter: Option<Vec<u8>>,
    pub bounding: CapabilityMask,
    /// Where a failure is written as JSON. Closed by the execve of the command: the end of file means success.
    pub report: RawFd,
}

/// The limit's name as rustix has it.
pub(crate) fn rlimit_resource(name: &str) -> Option<Resource> {
    Some(match name {
        "as" => Resource::As,
        "core" => Resource::Core,
        "cpu" => Resource::Cpu,
        "data" => Resource::Data,
        "fsize" => Resource::Fsize,
        "locks" => Resource::Locks,
        "memlock" => Resource::Memlock,
        "msgqueue" => Resource::Msgqueue,
        "nice" => Resource::Nice,
        "nofile" => Resource::Nofile,
        "nproc" => Resource::Nproc,
        "rss" => Resource::Rss,
        "rtprio" => Resource::Rtprio,
        "rttime" => Resource::Rttime,
        "sigpending" => Resource::Sigpending,
        "stack" => Resource::Stack,
        _ => return None,
    })
}

impl Launch {
    /// Becomes the command, or reports why not and ends the process.
    pub fn run(&self) -> ! {
        let error = match self.restrict() {
            Ok(()) if self.init => init::run(|| self.execute()),
            Ok(()) => self.execute(),
            Err(error) => error,
        };
        self.fail(&error)
    }

    /// Reports a failure and ends the process.
    fn fail(&self, error: &StartError) -> ! {
        let report = serde_json::to_vec(error).unwrap_or_default();
        // The process ends with a status that says the same, should nobody listen.
        drop(sys::file_of(self.report).write_all(&report));
        sys::exit_now(127)
    }

    pub(crate) fn restrict(&self) -> Result<(), StartError> {
        let step = |what: &'static str| move |error: io::Error| StartError::internal(format!("{what}: {error}"));
        if self.terminal {
            let stdin = rustix::stdio::stdin();
            fchown(stdin, Some(Uid::from_raw(self.uid)), None)
                .and_then(|()| tcsetwinsize(stdin, TERMINAL_SIZE))
                .map_err(|error| step("preparing the terminal")(error.into()))?;
        }
        for (tree, place) in &self.trees {
            move_mount(&*sys::file_of(*tree), "", CWD, *place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
                .map_err(|error| StartError::internal(format!("mounting {place}: {}", io::Error::from(error))))?;
        }
        if self.loopback {
            sys::loopback_up().map_err(step("switching the loopback device on"))?;
        }
        sys::default_signals().map_err(step("resetting signals"))?;
        umask(Mode::from_raw_mode(0o022));
        for (name, resource, limit) in &self.rlimits {
            setrlimit(*resource, *limit)
                .map_err(|error| StartError::invalid(format!("ulimit {name}: {}", io::Error::from(error))))?;
        }
        if self.no_new_privileges {
            set_no_new_privs(true).map_err(|error| step("setting no_new_privileges")(error.into()))?;
        }
        if let Some(filter) = &self.filter {
            sys::install_filter(filter).map_err(step("loading the seccomp filter"))?;
        }
        drop_capabilities(self.bounding, self.kept_capabilities()).map_err(step("dropping capabilities"))
    }

    /// The capabilities that the command holds: those of the bounding set, which a user other than root does not hold either.
    pub(crate) fn kept_capabilities(&self) -> CapabilityMask {
        if self.uid == 0 { self.bounding } else { CapabilityMask(0) }
    }

    /// Executes the command; returns only with the reason why it could not.
    pub(crate) fn execute(&self) -> StartError {
        let c_string = |text: String| CString::new(text);
        let args: Result<Vec<CString>, _> = self.args.iter().cloned().map(c_string).collect();
        let env: Result<Vec<CString>, _> =
            self.env.iter().map(|(name, value)| CString::new(format!("{name}={value}"))).collect();
        let (Ok(args), Ok(env)) = (args, env) else {
            return StartError::invalid("the command or its environment contains a NUL byte");
        };
        let program = &self.args[0];
        let path = self.env.iter().find(|(name, _)| name == "PATH").map_or(DEFAULT_PATH, |(_, value)| value);
        let mut denied = None;
        for candidate in candidates(program, path) {
            let Ok(file) = CString::new(candidate.clone()) else { continue };
            let error = sys::execve(&file, &args, &env);
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) if !Path::new(&candidate).exists() => {}
                Some(libc::EACCES) => denied = Some(not_executable(program, &candidate, &error)),
                _ => return not_executable(program, &candidate, &error),
            }
        }
        denied.unwrap_or_else(|| not_found(program, path))
    }
}

/// The files that a program's name can stand for.
fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    if program.is_empty() {
        return Vec::new();
    }
    path.split(':')
        .map(|directory| format!("{}/{program}", if directory.is_empty() { "." } else { directory }))
        .collect()
}

fn not_found(program: &str, path: &str) -> StartError {
    let place = if program.contains('/') { "in the image".to_owned() } else { format!("in the image's PATH ({path})") };
    StartError::new(StartErrorKind::CommandNotFound, format!("command {program:?} not found {place}"))
}

fn not_executable(program: &str, file: &str, error: &io::Error) -> StartError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOENT) => {
            "the file is there, but the interpreter or dynamic loader that it names is not".to_owned()
        }
        Some(libc::ENOEXEC) => "not a program for this machine, and not a script that begins with #!".to_owned(),
        Some(libc::EACCES) => {
            "permission denied: a directory, not marked as executable, or on a noexec mount".to_owned()
        }
        _ => error.to_string(),
    };
    let at = if program == file { String::new() } else { format!(" ({file})") };
    StartError::new(
        StartErrorKind::CommandNotExecutable,
        format!("command {program:?}{at} cannot be executed: {reason}"),
    )
}

/// Gives up all capabilities but these.
fn drop_capabilities(bounding: CapabilityMask, kept: CapabilityMask) -> io::Result<()> {
    const LAST: u32 = 63;
    clear_ambient_capability_set()?;
    for bit in (0..=LAST).filter(|bit| bounding.0 & (1 << bit) == 0) {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            Ok(()) => {}
            // The kernel knows no more.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let kept = CapabilitySet::from_bits_retain(kept.0);
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_like_a_shell_does() {
        assert_eq!(candidates("sh", "/a:/b"), ["/a/sh", "/b/sh"]);
        assert_eq!(candidates("sh", "/a:"), ["/a/sh", "./sh"]);
        assert_eq!(candidates("./run", "/a"), ["./run"]);
        assert!(candidates("", "/a").is_empty());
    }
}
