//! Making a command with the runtime that made the container.
//!
//! The runtime makes the command's process and ends. The helper is a subreaper, so the process becomes its child. What
//! a sandbox runs is no process of the node: there, the child is the runtime's process that waits for the command.

use std::{
    fs,
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use host::durable::private_file;
use oci_spec::runtime::{BoxBuilder, Process, Spec, UserBuilder};
use rustix::{
    process::{Signal, getpid, set_child_subreaper, set_parent_process_death_signal},
    termios::{Winsize, tcsetwinsize},
};

use super::{
    identity,
    protocol::CommandRequest,
    refusal::Refusal,
    request::TerminalSize,
    running::RunningCommand,
    sandboxed::SandboxedCommand,
    waiting::{END_OF_CONTAINER, ENTERING, end_children, is_readable, wait_for},
};
use crate::{
    cgroup::{Cgroups, cgroups_of_process, is_frozen, join},
    command::held_capabilities,
    console_socket::ConsoleSocket,
    error::StartErrorKind,
    installed::{ExecFiles, InstalledContainer, exec_process, failure_kind},
    plan::ContainerPlan,
    process::ProcessRef,
    spec,
    state::{CGROUP, ContainerRecord, TaskDir},
    sys::{self, Fork},
};

/// A container of an installed runtime, in which a command is made.
pub(super) struct Target<'a> {
    pub task: &'a TaskDir,
    pub container: InstalledContainer,
    pub plan: ContainerPlan,
    pub record: ContainerRecord,
    pub init: ProcessRef,
}

/// Makes the command. The result is the command and the master side of its terminal. Gives up when the plugin closes
/// the connection.
pub(super) fn begin(
    target: Target<'_>,
    request: CommandRequest,
    stdio: Option<[OwnedFd; 3]>,
    plugin: &OwnedFd,
) -> Result<(RunningCommand, Option<OwnedFd>), Refusal> {
    let Target { task, ref container, ref init, .. } = target;
    let groups = cgroups_of_process(init.pid);
    if init.ended() {
        return Err(Refusal::ContainerGone);
    }
    let groups = groups?;
    if is_frozen(&groups)? {
        return Err(Refusal::Failed("the container is frozen: thaw its control group (freezer) first".to_owned()));
    }
    let terminal = request.terminal;
    let process = process(&target, request)?;
    let files = ExecFiles::make(container)?;
    private_file(&files.process())?.write_all(&serde_json::to_vec(&process)?)?;
    let console = terminal.map(|_| ConsoleSocket::listen(files.directory())).transpose()?;
    let socket = console.as_ref().map(ConsoleSocket::short_path).transpose()?;
    let command = command(container, &files, socket.as_deref(), stdio.as_ref())?;
    let joined = match container.dialect().joins_no_cgroup(container.version()) {
        true => groups,
        false => Vec::new(),
    };
    set_child_subreaper(Some(getpid()))?;
    let child = match sys::fork()? {
        Fork::Child => execute(command, &joined),
        Fork::Parent(pid) => pid,
    };
    let runtime = ProcessRef::open(child.as_raw_nonzero().get())?;
    if !is_readable(&runtime.pidfd, plugin, Instant::now() + ENTERING)? {
        end_children()?;
        let text =
            format!("runtime {:?} did not make the command within {} seconds", container.runtime(), ENTERING.as_secs());
        return Err(Refusal::Failed(text));
    }
    if wait_for(child)? != Some(0) {
        return Err(refusal(container, init, &files, terminal.is_some()));
    }
    let take = |console: ConsoleSocket| console.expect_now().and_then(|()| console.accept());
    let master = console.map(take).transpose()?;
    if let Some((master, size)) = master.as_ref().zip(terminal) {
        tcsetwinsize(master, window(size))?;
    }
    let pid = files.pid()?;
    let command = if container.dialect().shares_kernel() {
        RunningCommand::adopt(pid, task.read::<Cgroups>(CGROUP)?)?
    } else {
        let sandbox_pid = files.sandbox_pid()?;
        RunningCommand::in_sandbox(pid, SandboxedCommand::new(target.container, sandbox_pid))?
    };
    Ok((command, master))
}

/// The description of the process.
fn process(target: &Target<'_>, request: CommandRequest) -> Result<Process, Refusal> {
    let CommandRequest { args, terminal, options } = request;
    if options.debug_image.is_some() {
        let text = format!(
            "a debug image needs the built-in runtime, and the task has runtime {:?}",
            target.container.runtime()
        );
        return Err(Refusal::Failed(text));
    }
    let config: Spec = serde_json::from_slice(&fs::read(target.container.bundle().join("config.json"))?)?;
    let process = config.process().clone().ok_or_else(|| Refusal::Failed("the bundle has no process".to_owned()))?;
    let console =
        |size: TerminalSize| BoxBuilder::default().height(u64::from(size.rows)).width(u64::from(size.cols)).build();
    let mut process = exec_process(process, args, options.cwd, terminal.map(console).transpose()?);
    if let Some(other) = options.user {
        let bounding = spec::capabilities(&target.plan, held_capabilities())?;
        // The files of a sandbox are not those of its process on the node.
        let root = target.container.dialect().shares_kernel().then_some(&target.init);
        let user = identity::become_other(root, &target.record.user, bounding, &other)?;
        let groups = user.groups.clone();
        process.set_user(
            UserBuilder::default().uid(user.uid).gid(user.gid).additional_gids(groups).umask(0o022u32).build()?,
        );
        process.set_capabilities(Some(spec::capability_sets(bounding, user.uid)?));
    }
    Ok(process)
}

/// The runtime's command, with the streams of the command that it makes.
fn command(
    container: &InstalledContainer,
    files: &ExecFiles,
    socket: Option<&Path>,
    stdio: Option<&[OwnedFd; 3]>,
) -> io::Result<Command> {
    let mut command = container.exec_command(files, socket);
    if let Some([stdin, stdout, stderr]) = stdio {
        let copy = |stream: &OwnedFd| stream.as_fd().try_clone_to_owned().map(Stdio::from);
        command.stdin(copy(stdin)?).stdout(copy(stdout)?).stderr(copy(stderr)?);
    }
    Ok(command)
}

/// Executes the runtime as a member of these cgroups. It ends with this process's parent, the helper.
fn execute(mut command: Command, cgroups: &[PathBuf]) -> ! {
    let prepare = || -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        join(cgroups)
    };
    let error = prepare().map_or_else(|error| error, |()| command.exec());
    // Standard error is the command's, or nothing.
    drop(writeln!(io::stderr(), "oci-rs: executing the runtime: {error}"));
    sys::exit_now(1)
}

/// Why the runtime made no command.
fn refusal(container: &InstalledContainer, init: &ProcessRef, files: &ExecFiles, terminal: bool) -> Refusal {
    let reason = files.error();
    let code = match failure_kind(&reason) {
        StartErrorKind::CommandNotFound => 127,
        StartErrorKind::CommandNotExecutable => 126,
        _ => 0,
    };
    // The runtime has written the reason to the command's standard error. With a terminal there is none.
    if code != 0 && !terminal {
        return Refusal::NotExecuted(code);
    }
    // In a container that is about to end, any step may fail.
    let gone = code == 0 && (init.wait_for(Some(END_OF_CONTAINER)).unwrap_or(false) || container.is_stopped());
    if gone { Refusal::ContainerGone } else { Refusal::Failed(format!("runtime {:?}: {reason}", container.runtime())) }
}

fn window(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 }
}
