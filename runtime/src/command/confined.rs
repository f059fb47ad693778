//! A command and the restrictions under which it is executed, applied in the one correct order.
//!
//! The process that applies them is in the container's namespaces and root, has the container's user, and still has all
//! our capabilities. Every step must succeed. A failure is reported and ends the process, so that nothing ever runs
//! with more rights than its plan says.

use std::{
    ffi::CString,
    fs,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    path::{Path, PathBuf},
};

use confinement::{FilterLog, install_filter, limit_bounding_set};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{CWD, FileType, Mode, OFlags, fchown, fcntl_getfl, fstat, makedev, open},
    mount::{MoveMountFlags, move_mount},
    process::{Resource, Rlimit, Signal, Uid, getrlimit, set_parent_process_death_signal, setrlimit, umask},
    termios::{Winsize, tcsetwinsize},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, configure_capability_in_ambient_set,
        set_capabilities, set_no_new_privs,
    },
};

use super::{
    inherited::{OwnLabels, OwnProfile},
    init,
    lookup::{DEFAULT_PATH, candidates, is_missing, not_executable, not_found},
    propagation::join_groups,
};
use crate::{
    capability::{CapabilityMask, HeldCapabilities},
    error::StartError,
    hooks::{self, HookState},
    plan::Hook,
    rootfs::BuildRoot,
    sys,
};

/// The size of a terminal until a client sets it.
const TERMINAL_SIZE: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// A command with its restrictions.
#[derive(Debug, Clone)]
pub(crate) struct ConfinedCommand {
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    /// The user of the process, which has been set already.
    pub uid: u32,
    /// Standard input is a terminal. The user becomes its owner.
    pub terminal: bool,
    /// Detached mount trees, by their descriptors, and the place in the container where each is attached.
    pub trees: Vec<(RawFd, PathBuf)>,
    /// Detached clones of mounts of the host, by their descriptors, and the place of the bind that joins the groups of
    /// each.
    pub peers: Vec<(RawFd, String)>,
    /// Programs of the container that run before the command, with the container's state.
    pub start_hooks: Option<(Vec<Hook>, HookState)>,
    /// The network namespace is new: its loopback device is switched on.
    pub loopback: bool,
    /// Stay as process 1 and let a child be the command.
    pub init: bool,
    /// The AppArmor profile of process 1, if it stays.
    pub init_profile: Option<String>,
    /// What the process has not inherited from its creator.
    pub own_labels: OwnLabels,
    /// The kernel kills the process when its parent, the monitor, has ended.
    pub ends_with_monitor: bool,
    /// Resource limits, with their names for errors.
    pub rlimits: Vec<(String, Resource, Rlimit)>,
    pub no_new_privileges: bool,
    /// A compiled seccomp filter.
    pub filter: Option<Vec<u8>>,
    /// The capability bounding set.
    pub bounding: CapabilityMask,
    /// The other capability sets. `None`: root has the bounding set, another user has none.
    pub explicit: Option<HeldCapabilities>,
    /// A descriptor to which a failure is written as JSON. execve(2) closes it: end of file means success.
    pub report: RawFd,
    /// The root in which the container was built, if it must be left.
    pub build_root: Option<BuildRoot>,
}

impl ConfinedCommand {
    /// Applies the restrictions and executes the command, or reports the failure and ends the process.
    pub fn run(&self) -> ! {
        let error = match self.restrict_all().and_then(|()| self.run_start_hooks()) {
            Ok(()) if self.init => init::run(&self.args, || self.execute()),
            Ok(()) => self.execute(),
            Err(error) => error,
        };
        self.fail(&error)
    }

    /// Runs the hooks that come before the command, with its rights.
    fn run_start_hooks(&self) -> Result<(), StartError> {
        let Some((hooks, state)) = &self.start_hooks else { return Ok(()) };
        let state = HookState { pid: Some(std::process::id() as i32), ..state.clone() };
        hooks::run_all(hooks.iter(), &state, &self.env).map_err(StartError::invalid)
    }

    /// Applies the restrictions. An init is confined here, because it executes no program.
    fn restrict_all(&self) -> Result<(), StartError> {
        self.own_labels.apply()?;
        let Some(profile) = self.init_profile.as_deref().filter(|_| self.init) else { return self.restrict() };
        // A custom filter may forbid to open it.
        let own = OwnProfile::open();
        let own = own.map_err(|error| StartError::internal(format!("AppArmor profile of the init: {error}")))?;
        self.restrict()?;
        own.become_profile(profile)
    }

    /// Reports a failure and ends the process.
    fn fail(&self, error: &StartError) -> ! {
        let report = serde_json::to_vec(error).unwrap_or_default();
        // If the report cannot be written, the exit status still tells the failure.
        drop(sys::file_of(self.report).write_all(&report));
        sys::exit_now(127)
    }

    /// Applies the restrictions to the calling process.
    pub fn restrict(&self) -> Result<(), StartError> {
        let step = |what: &'static str| move |error: io::Error| StartError::internal(format!("{what}: {error}"));
        self.build_root.map_or(Ok(()), BuildRoot::leave).map_err(step("entering the container's root"))?;
        if self.terminal {
            prepare_terminal(self.uid).map_err(step("preparing the terminal"))?;
        }
        for (tree, place) in &self.trees {
            attach(*tree, place)
                .map_err(|error| StartError::internal(format!("mounting {}: {error}", place.display())))?;
        }
        for (peer, place) in &self.peers {
            join_groups(&*sys::file_of(*peer), Path::new(place)).map_err(|error| {
                StartError::internal(format!("mount propagation of {place}: {error}; it needs Linux 5.15"))
            })?;
        }
        if self.loopback {
            sys::loopback_up().map_err(step("switching the loopback device on"))?;
        }
        discard_output().map_err(step("opening /dev/null"))?;
        sys::default_signals().map_err(step("resetting signals"))?;
        umask(Mode::from_raw_mode(0o022));
        for (name, resource, limit) in &self.rlimits {
            setrlimit(*resource, *limit)
                .map_err(|error| StartError::invalid(format!("ulimit {name}: {}", io::Error::from(error))))?;
        }
        if self.no_new_privileges {
            set_no_new_privs(true).map_err(|error| step("setting no_new_privileges")(error.into()))?;
        }
        if self.ends_with_monitor {
            self.end_with_monitor().map_err(step("tying the container to its monitor"))?;
        }
        if let Some(filter) = &self.filter {
            install_filter(filter, FilterLog::Nothing).map_err(step("loading the seccomp filter"))?;
        }
        drop_capabilities(self.bounding, &self.held_capabilities()).map_err(step("dropping capabilities"))
    }

    /// Lets the kernel kill this process with the monitor. Later changes only reduce rights, which does not clear the
    /// signal (prctl(2)).
    fn end_with_monitor(&self) -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The monitor alone reads reports. It may have ended before the call.
        let report = sys::file_of(self.report);
        let mut reader = [PollFd::new(&*report, PollFlags::empty())];
        poll(&mut reader, Some(&Timespec::default()))?;
        if reader[0].revents().contains(PollFlags::ERR) {
            return Err(io::Error::other("the monitor has ended"));
        }
        Ok(())
    }

    /// The capabilities that the command has: the bounding set for root, none for another user.
    pub fn kept_capabilities(&self) -> CapabilityMask {
        self.held_capabilities().effective
    }

    fn held_capabilities(&self) -> HeldCapabilities {
        let kept = if self.uid == 0 { self.bounding } else { CapabilityMask(0) };
        self.explicit.unwrap_or(HeldCapabilities { effective: kept, permitted: kept, ..HeldCapabilities::default() })
    }

    /// Executes the command; returns only the reason why it could not.
    pub fn execute(&self) -> StartError {
        let args: Result<Vec<CString>, _> = self.args.iter().cloned().map(CString::new).collect();
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
                _ if is_missing(&candidate, &error) => {}
                Some(libc::EACCES) => denied = Some(not_executable(program, &candidate, &error)),
                _ => return not_executable(program, &candidate, &error),
            }
        }
        denied.unwrap_or_else(|| not_found(program, path))
    }
}

/// Makes output to `/dev/null` writable: libcontainer replaces such a standard stream by the container's `/dev/null`,
/// opened for reading only.
fn discard_output() -> io::Result<()> {
    let is_null = |file: BorrowedFd<'_>| -> io::Result<bool> {
        let stat = fstat(file)?;
        let device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        Ok(device && stat.st_rdev == makedev(1, 3))
    };
    let closed = |file: BorrowedFd<'_>| -> io::Result<bool> {
        Ok(is_null(file)? && fcntl_getfl(file)? & OFlags::RWMODE == OFlags::RDONLY)
    };
    let null = || -> io::Result<OwnedFd> {
        let null = open("/dev/null", OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if is_null(null.as_fd())? { Ok(null) } else { Err(io::Error::other("it is another file")) }
    };
    if closed(rustix::stdio::stdout())? {
        rustix::stdio::dup2_stdout(null()?)?;
    }
    if closed(rustix::stdio::stderr())? {
        rustix::stdio::dup2_stderr(null()?)?;
    }
    Ok(())
}

/// Attaches a tree at its place. The place of a file is made if it is missing.
fn attach(tree: RawFd, place: &Path) -> io::Result<()> {
    let tree = sys::file_of(tree);
    if !tree.metadata()?.is_dir() && !place.try_exists()? {
        place.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::File::create(place)?;
    }
    Ok(move_mount(&*tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Raises this process's hard limits to those that a command will have. A process in another user namespace than the
/// node's may not raise them. The soft limits stay.
pub(crate) fn raise_hard_limits(limits: &[(String, Resource, Rlimit)]) -> Result<(), StartError> {
    for (name, resource, limit) in limits {
        let own = getrlimit(*resource);
        let lower = own.maximum.is_some_and(|own| limit.maximum.is_none_or(|wanted| wanted > own));
        if lower {
            setrlimit(*resource, Rlimit { current: own.current, maximum: limit.maximum })
                .map_err(|error| StartError::invalid(format!("ulimit {name}: {}", io::Error::from(error))))?;
        }
    }
    Ok(())
}

fn prepare_terminal(uid: u32) -> io::Result<()> {
    let stdin = rustix::stdio::stdin();
    fchown(stdin, Some(Uid::from_raw(uid)), None)?;
    Ok(tcsetwinsize(stdin, TERMINAL_SIZE)?)
}

/// Gives up all capabilities but `held`, and all outside `bounding` for ever.
fn drop_capabilities(bounding: CapabilityMask, held: &HeldCapabilities) -> io::Result<()> {
    const LAST: u32 = 63;
    clear_ambient_capability_set()?;
    let set = |mask: CapabilityMask| CapabilitySet::from_bits_retain(mask.0);
    limit_bounding_set(set(bounding))?;
    let (effective, permitted, inheritable) = (set(held.effective), set(held.permitted), set(held.inheritable));
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?;
    for bit in (0..=LAST).filter(|bit| held.ambient.0 & (1 << bit) != 0) {
        configure_capability_in_ambient_set(CapabilitySet::from_bits_retain(1 << bit), true)?;
    }
    Ok(())
}
