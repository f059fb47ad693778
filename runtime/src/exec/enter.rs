//! The entering process: it enters the container's namespaces and makes the command there.
//!
//! Everything of the host that it needs is opened and decided before it enters. From then on it trusts no answer of the
//! container. A failure is reported and ends the process. The command is made last: it has no right that the container
//! does not have, and no descriptor but its own.

use std::{
    io::{self, Read, Write},
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    process::{
        Gid, Signal, Uid, getcwd, getpid, ioctl_tiocsctty, set_child_subreaper, set_parent_process_death_signal, setsid,
    },
    thread::{
        CapabilitySet, CapabilitySets, ThreadNameSpaceType, capabilities, move_into_thread_name_spaces,
        set_capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

use super::{
    protocol::EnterReport,
    pty::{Pty, open_pty},
    request::TerminalSize,
    stdio::give_pipe,
};
use crate::{
    capability::CapabilityMask,
    command::{
        ConfinedCommand, apply_apparmor, apply_oom_score, apply_selinux, raise_hard_limits, stacks_attached_mounts_only,
    },
    error::StartErrorKind,
    id_map::{IdMap, become_root},
    packets::{clip, send},
    plan::{CacheClass, ContainerId, IdRange, SelinuxLabels},
    process::ProcessRef,
    rootfs::DebugRoot,
    sys::{self, Fork},
    user::ResolvedUser,
};

/// The inputs of the entering process.
pub(super) struct EnteringProcess {
    /// The container's first process.
    pub init: ProcessRef,
    /// The kinds of namespaces in which the container is not in ours.
    pub namespaces: ThreadNameSpaceType,
    /// The ids of the container's user namespace, if it has one of its own.
    pub ids: Option<IdRange>,
    /// The cgroups to join.
    pub cgroups: Vec<PathBuf>,
    /// The class of cache and memory bandwidth to join, and the container's id.
    pub class: Option<(CacheClass, ContainerId)>,
    pub oom_score_adj: i32,
    pub apparmor: Option<String>,
    /// The SELinux labels of the container.
    pub selinux: Option<SelinuxLabels>,
    pub user: ResolvedUser,
    pub cwd: String,
    /// Another working directory. It is entered with the user's own rights.
    pub other_cwd: Option<String>,
    /// Another root, with programs.
    pub debug_root: Option<DebugRootPlan>,
    /// The command becomes the subreaper of its descendants.
    pub whole_tree: bool,
    pub terminal: Option<TerminalSize>,
    /// The command's descriptors, unless it gets a terminal.
    pub stdio: Option<[OwnedFd; 3]>,
    pub command: ConfinedCommand,
}

/// The parts of a debug root.
pub(super) struct DebugRootPlan {
    pub layers: Vec<PathBuf>,
    /// A directory for the places of the container's parts.
    pub directory: PathBuf,
    /// An empty directory to mount the root on.
    pub target: PathBuf,
}

/// Enters, reports that, makes the command as a child of the helper and ends. No value is dropped here: the descriptors
/// are closed by their numbers.
pub(super) fn run(entering: EnteringProcess, helper: OwnedFd) -> ! {
    let entered = entering.close_others(&helper).and_then(|()| entering.enter());
    let (report, master) = match &entered {
        Ok(terminal) => (EnterReport::Entered, terminal.as_ref().map(|terminal| terminal.master.as_fd())),
        Err(reason) => (EnterReport::Failed(clip(reason.clone())), None),
    };
    // If sending fails, the helper sees the end of this process.
    let told = send(&helper, &report, master.as_slice());
    match entered {
        Ok(terminal) if told.is_ok() => entering.make_command(&ManuallyDrop::new(terminal)),
        Ok(_) => sys::exit_now(libc::EPIPE),
        Err(_) => sys::exit_now(0),
    }
}

impl EnteringProcess {
    /// Closes all descriptors of the helper but those that this process needs.
    fn close_others(&self, helper: &OwnedFd) -> Result<(), String> {
        let mut needed: Vec<u32> = self.stdio.iter().flatten().chain([helper, &self.init.pidfd]).map(number).collect();
        needed.sort_unstable();
        let mut first = 3;
        for kept in needed {
            if kept > first {
                sys::close_descriptors(first, kept - 1).map_err(|error| format!("closing descriptors: {error}"))?;
            }
            first = first.max(kept + 1);
        }
        sys::close_descriptors(first, u32::MAX).map_err(|error| format!("closing descriptors: {error}"))
    }

    fn enter(&self) -> Result<Option<Pty>, String> {
        let step = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        apply_oom_score(self.oom_score_adj).map_err(|error| error.to_string())?;
        let apparmor = self.apparmor.as_deref().map_or(Ok(()), apply_apparmor);
        apparmor.map_err(|error| error.to_string())?;
        let labels = self.selinux.as_ref();
        labels.map_or(Ok(()), |labels| apply_selinux(&labels.of_processes())).map_err(|error| error.to_string())?;
        crate::cgroup::join(&self.cgroups).map_err(step("joining the container's control groups"))?;
        let class = self.class.as_ref().map_or(Ok(()), |(class, container)| crate::resctrl::join(class, container));
        class.map_err(step("joining the container's class of cache"))?;
        let map = self.ids.map(|ids| IdMap::of_process(self.init.pid, ids)).transpose();
        let map = map.map_err(step("opening the container's user namespace"))?;
        let attach = map.is_some() && stacks_attached_mounts_only();
        let label = labels.map(SelinuxLabels::of_files);
        let mount = |plan: &DebugRootPlan| {
            let label = label.as_deref();
            DebugRoot::mount(&plan.layers, &plan.directory, &plan.target, map.as_ref(), attach, label)
        };
        let debug_root = self.debug_root.as_ref().map(mount).transpose();
        let debug_root = debug_root.map_err(|error| format!("the debug image: {error}"))?;
        if self.ids.is_some() {
            raise_hard_limits(&self.command.rlimits).map_err(|error| error.to_string())?;
        }
        self.give_pipes().map_err(step("passing on standard input and output"))?;
        move_into_thread_name_spaces(self.init.pidfd.as_fd(), self.namespaces)
            .map_err(|error| step("joining the container's namespaces")(error.into()))?;
        if self.ids.is_some() {
            become_root().map_err(step("becoming root of the container's user namespace"))?;
        }
        let terminal = self
            .terminal
            .map(|size| open_pty(self.user.uid, size))
            .transpose()
            .map_err(step("opening a terminal of the container"))?;
        self.take_stdio(terminal.as_ref()).map_err(step("passing on standard input and output"))?;
        if let Some(root) = debug_root {
            root.enter().map_err(step("entering the debug image"))?;
        } else if self.other_cwd.is_none() {
            enter_directory(&self.cwd).map_err(|error| format!("working directory {}: {error}", self.cwd))?;
        }
        become_user(&self.user).map_err(step("becoming the container's user"))?;
        if let Some(directory) = &self.other_cwd {
            as_the_command(self.command.kept_capabilities(), || enter_directory(directory))
                .map_err(|error| format!("working directory {directory}: {error}"))?;
        }
        self.command.restrict().map_err(|error| error.to_string())?;
        Ok(terminal)
    }

    /// Makes the command and ends when it begins. The container can see the command from the fork on. So all
    /// descriptors but the command's own, and a pipe, are closed before: with CAP_SYS_PTRACE, the container could open
    /// the others through `/proc`.
    fn make_command(&self, terminal: &Option<Pty>) -> ! {
        let fork = || -> io::Result<()> {
            sys::close_descriptors(3, u32::MAX)?;
            let (mut ready, unready) = io::pipe()?;
            match sys::fork_sibling()? {
                Fork::Child => self.become_command(terminal.is_some()),
                Fork::Parent(_) => {
                    drop(unready);
                    // Input that comes before the terminal has its session is lost, so wait for that: the command
                    // closes the pipe.
                    ready.read_to_end(&mut Vec::new()).map(drop)
                }
            }
        };
        sys::exit_now(fork().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0))
    }

    /// Makes the command's user the owner of its pipes.
    fn give_pipes(&self) -> io::Result<()> {
        let uid = self.user.uid;
        let on_node = self.ids.map_or(Some(uid), |ids| ids.on_node(uid));
        let owner = on_node.ok_or_else(|| io::Error::other(format!("the container has no user {uid}")))?;
        self.stdio.iter().flatten().try_for_each(|pipe| give_pipe(pipe, owner))
    }

    fn take_stdio(&self, terminal: Option<&Pty>) -> io::Result<()> {
        let [stdin, stdout, stderr] = match (terminal, &self.stdio) {
            (Some(terminal), _) => [&terminal.slave; 3],
            (None, Some([stdin, stdout, stderr])) => [stdin, stdout, stderr],
            (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        rustix::stdio::dup2_stdin(stdin)?;
        rustix::stdio::dup2_stdout(stdout)?;
        Ok(rustix::stdio::dup2_stderr(stderr)?)
    }

    /// The command's own steps. It has the container's rights already.
    fn become_command(&self, terminal: bool) -> ! {
        let prepare = || -> io::Result<()> {
            // The helper is our parent. If it is killed together with the plugin, no other process ends the command.
            set_parent_process_death_signal(Some(Signal::KILL))?;
            setsid()?;
            if self.whole_tree {
                set_child_subreaper(Some(getpid()))?;
            }
            if terminal {
                ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            // The entering process's pipe is among them.
            sys::close_descriptors(3, u32::MAX)
        };
        let (text, status) = match prepare() {
            Ok(()) => {
                let error = self.command.execute();
                let not_found = error.kind == StartErrorKind::CommandNotFound;
                (error.message, if not_found { 127 } else { 126 })
            }
            Err(error) => (error.to_string(), 126),
        };
        // If standard error has no reader, the exit code still tells the failure.
        drop(writeln!(io::stderr(), "oci-rs: {text}"));
        sys::exit_now(status)
    }
}

fn enter_directory(cwd: &str) -> io::Result<()> {
    std::env::set_current_dir(cwd)?;
    // A link of procfs can lead to a directory that is not in the container.
    let reached = getcwd(Vec::new())?;
    if reached.to_bytes().starts_with(b"/") { Ok(()) } else { Err(io::Error::other("it is outside of the container")) }
}

/// Does `action` with no more rights than the command will have.
fn as_the_command<T>(kept: CapabilityMask, action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let permitted = capabilities(None)?.permitted;
    let with = |effective| CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, with(CapabilitySet::from_bits_retain(kept.0) & permitted))?;
    let result = action();
    set_capabilities(None, with(permitted))?;
    result
}

/// Changes the ids and keeps the capabilities, which later steps need.
fn become_user(user: &ResolvedUser) -> io::Result<()> {
    set_keep_capabilities(true)?;
    let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    let gid = Gid::from_raw(user.gid);
    set_thread_res_gid(gid, gid, gid)?;
    let uid = Uid::from_raw(user.uid);
    set_thread_res_uid(uid, uid, uid)?;
    set_keep_capabilities(false)?;
    let permitted = capabilities(None)?.permitted;
    let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// The reason why the entering process could not make the command, from its exit status.
pub(super) fn fork_failure(status: i32) -> String {
    match status {
        libc::EAGAIN => "making the command's process: the container has as many processes as it may".to_owned(),
        error => format!("making the command's process: {}", io::Error::from_raw_os_error(error)),
    }
}

fn number(descriptor: &OwnedFd) -> u32 {
    descriptor.as_raw_fd().unsigned_abs()
}
