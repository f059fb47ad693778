//! The process that enters the container and makes the command there.
//!
//! Everything of the host that it needs is opened and decided before it enters. From then on nothing that the container
//! says is believed, and what fails is reported and ends the process: the command is made last, with no right left that
//! the container does not have, and with no descriptor but its own.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{FileType, fchown, fstat},
    process::{
        Gid, Signal, Uid, getcwd, getpid, ioctl_tiocsctty, set_child_subreaper, set_parent_process_death_signal, setsid,
    },
    thread::{
        CapabilitySet, CapabilitySets, ThreadNameSpaceType, capabilities, move_into_thread_name_spaces,
        set_capabilities, set_keep_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

use super::{
    TerminalSize,
    protocol::Entered,
    terminal::{Terminal, open_terminal},
};
use crate::{
    capability::CapabilityMask,
    command::{ConfinedCommand, apply_apparmor, apply_oom_score},
    error::StartErrorKind,
    packets::{clip, send},
    process::ProcessRef,
    rootfs::DebugRoot,
    sys::{self, Fork},
    user::ResolvedUser,
};

/// All that is needed to run a command in a container.
pub(super) struct Entry {
    pub init: ProcessRef,
    /// The namespaces in which the container is apart from us.
    pub namespaces: ThreadNameSpaceType,
    /// The control groups to join.
    pub groups: Vec<PathBuf>,
    pub oom_score_adj: i32,
    pub apparmor: Option<String>,
    pub user: ResolvedUser,
    pub cwd: String,
    /// Another directory, to be entered with the user's own rights.
    pub other_cwd: Option<String>,
    /// Another root, with programs.
    pub tools: Option<ToolsRoot>,
    /// The command collects orphans among its descendants.
    pub whole_tree: bool,
    pub terminal: Option<TerminalSize>,
    /// The command's descriptors, unless it gets a terminal.
    pub stdio: Option<[OwnedFd; 3]>,
    pub command: ConfinedCommand,
}

/// What a root of tools is made of.
pub(super) struct ToolsRoot {
    pub layers: Vec<PathBuf>,
    /// For the places where the container's parts go.
    pub directory: PathBuf,
    /// An empty directory to mount it on.
    pub target: PathBuf,
}

/// Enters, makes the command as a child of our parent, tells it and ends.
pub(super) fn run(entry: Entry, helper: &OwnedFd) -> ! {
    let (entered, master) = match entry.enter() {
        Ok((pid, terminal)) => (Entered::Running { pid }, terminal.map(|terminal| terminal.master)),
        Err(reason) => (Entered::Failed(clip(reason)), None),
    };
    let descriptors: Vec<_> = master.iter().map(AsFd::as_fd).collect();
    // A helper that is not told sees our end instead.
    let told = send(helper, &entered, &descriptors);
    sys::exit_now(i32::from(told.is_err()))
}

impl Entry {
    fn enter(self) -> Result<(i32, Option<Terminal>), String> {
        let step = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        apply_oom_score(self.oom_score_adj).map_err(|error| error.to_string())?;
        let apparmor = self.apparmor.as_deref().map_or(Ok(()), apply_apparmor);
        apparmor.map_err(|error| error.to_string())?;
        crate::cgroup::join(&self.groups).map_err(step("joining the container's control groups"))?;
        let tools = self.tools.as_ref().map(|tools| DebugRoot::mount(&tools.layers, &tools.directory, &tools.target));
        let tools = tools.transpose().map_err(|error| format!("the image of the tools: {error}"))?;
        move_into_thread_name_spaces(self.init.pidfd.as_fd(), self.namespaces)
            .map_err(|error| step("joining the container's namespaces")(error.into()))?;
        let terminal = self
            .terminal
            .map(|size| open_terminal(self.user.uid, size))
            .transpose()
            .map_err(step("opening a terminal of the container"))?;
        self.take_stdio(terminal.as_ref()).map_err(step("passing on standard input and output"))?;
        if let Some(tools) = tools {
            tools.enter().map_err(step("going to the tools"))?;
        } else if self.other_cwd.is_none() {
            enter_directory(&self.cwd).map_err(|error| format!("working directory {}: {error}", self.cwd))?;
        }
        become_user(&self.user).map_err(step("becoming the container's user"))?;
        if let Some(directory) = &self.other_cwd {
            as_the_command(self.command.kept_capabilities(), || enter_directory(directory))
                .map_err(|error| format!("working directory {directory}: {error}"))?;
        }
        self.command.restrict().map_err(|error| error.to_string())?;
        let (mut ready, unready) = io::pipe().map_err(step("making a pipe"))?;
        match sys::fork_sibling().map_err(too_many)? {
            Fork::Child => self.become_command(terminal.is_some()),
            Fork::Parent(pid) => {
                drop(unready);
                // What is typed before the terminal has its session reaches nobody. The end of the pipe is all that comes.
                ready.read_to_end(&mut Vec::new()).map_err(step("waiting for the command"))?;
                Ok((pid.as_raw_nonzero().get(), terminal))
            }
        }
    }

    fn take_stdio(&self, terminal: Option<&Terminal>) -> io::Result<()> {
        let [stdin, stdout, stderr] = match (terminal, &self.stdio) {
            (Some(terminal), _) => [&terminal.slave; 3],
            (None, Some([stdin, stdout, stderr])) => [stdin, stdout, stderr],
            (None, None) => return Err(io::ErrorKind::InvalidInput.into()),
        };
        if terminal.is_none() {
            for pipe in [stdin, stdout, stderr] {
                give_pipe(pipe, self.user.uid)?;
            }
        }
        rustix::stdio::dup2_stdin(stdin)?;
        rustix::stdio::dup2_stdout(stdout)?;
        Ok(rustix::stdio::dup2_stderr(stderr)?)
    }

    /// The command's own steps: it has the container's rights already.
    fn become_command(&self, terminal: bool) -> ! {
        let prepare = || -> io::Result<()> {
            // The helper is our parent. Should it be killed, nobody else could end the command.
            set_parent_process_death_signal(Some(Signal::KILL))?;
            setsid()?;
            if self.whole_tree {
                set_child_subreaper(Some(getpid()))?;
            }
            if terminal {
                ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            // The entrant's pipe is among them.
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
        // Nobody reads it: then the exit code says it.
        drop(writeln!(io::stderr(), "oci-rs: {text}"));
        sys::exit_now(status)
    }
}

/// A program that opens `/dev/stdout` anew must be allowed to: pipes are made for the command alone. Other files belong to
/// somebody.
fn give_pipe(pipe: &OwnedFd, uid: u32) -> io::Result<()> {
    if FileType::from_raw_mode(fstat(pipe)?.st_mode) == FileType::Fifo {
        fchown(pipe, Some(Uid::from_raw(uid)), None)?;
    }
    Ok(())
}

fn enter_directory(cwd: &str) -> io::Result<()> {
    std::env::set_current_dir(cwd)?;
    // A link of procfs can lead to a directory that is not in the container.
    let reached = getcwd(Vec::new())?;
    if reached.to_bytes().starts_with(b"/") { Ok(()) } else { Err(io::Error::other("it is outside of the container")) }
}

/// Does something with no more rights than the command will have.
fn as_the_command<T>(kept: CapabilityMask, action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let permitted = capabilities(None)?.permitted;
    let with = |effective| CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, with(CapabilitySet::from_bits_retain(kept.0) & permitted))?;
    let result = action();
    set_capabilities(None, with(permitted))?;
    result
}

/// Changes ids and keeps the capabilities, for what is still to be done.
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

fn too_many(error: io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => "making the command's process: the container has as many processes as it may".to_owned(),
        _ => format!("making the command's process: {error}"),
    }
}

/// The namespaces in which a process is apart from us.
pub(super) fn foreign_namespaces(pid: i32) -> io::Result<ThreadNameSpaceType> {
    const KINDS: [(&str, ThreadNameSpaceType); 8] = [
        ("user", ThreadNameSpaceType::USER),
        ("mnt", ThreadNameSpaceType::MOUNT),
        ("pid", ThreadNameSpaceType::PROCESS_ID),
        ("net", ThreadNameSpaceType::NETWORK),
        ("ipc", ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION),
        ("uts", ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME),
        ("cgroup", ThreadNameSpaceType::CONTROL_GROUP),
        ("time", ThreadNameSpaceType::TIME),
    ];
    let mut foreign = ThreadNameSpaceType::empty();
    for (name, kind) in KINDS {
        let own = match std::fs::read_link(format!("/proc/self/ns/{name}")) {
            // A kernel without this kind.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            own => own?,
        };
        if own != std::fs::read_link(format!("/proc/{pid}/ns/{name}"))? {
            foreign |= kind;
        }
    }
    Ok(foreign)
}

/// Nothing to read, and writing vanishes.
pub(super) fn null() -> io::Result<OwnedFd> {
    Ok(File::options().read(true).write(true).open("/dev/null")?.into())
}
