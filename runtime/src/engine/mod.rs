//! libcontainer. No other module uses it.
//!
//! Building a container runs ordinary Rust code in forked processes and changes the state of the calling process
//! (working directory, dumpable flag, namespace of its children). So the caller must be a process that ends right
//! afterwards: the monitor's creator. The container's first process becomes the monitor's child. The last steps before
//! the command are ours ([`ConfinedCommand`]): libcontainer does not make all of them, or not in the right order.
//!
//! libcontainer makes the first process with an intermediate process, which finds the cgroups and joins them. On cgroup
//! v1 it reads the table of mounts for each controller. A caller that is a member of the cgroups needs no such process:
//! the first process is forked here, and libcontainer begins in it ([`fork_init`]).

mod executor;
#[cfg(feature = "bundle")]
mod stored;
mod trace;

use std::{
    fs,
    io::{self, Read, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    rc::Rc,
};

use libcgroups::common::CgroupConfig;
use libcontainer::{
    container::{Container, ContainerStatus},
    error::{LibcontainerError, MissingSpecError},
    notify_socket::{NOTIFY_FILE, NotifyListener, NotifySocket},
    oci_spec::runtime::{HookBuilder, HooksBuilder, LinuxNamespaceType, Spec},
    process::{
        args::{ContainerArgs, ContainerType},
        channel::{MainReceiver, init_channel, main_channel},
        container_main_process::{ProcessError, container_main_process},
        init::container_init_process,
    },
    syscall::syscall::SyscallType,
    tty::setup_console_socket,
    user_ns::UserNamespaceConfig,
    validator::Validator,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// The version of libcontainer, which is pinned.
pub const LIBCONTAINER_VERSION: &str = "0.7.0";

#[cfg(feature = "bundle")]
pub use stored::StoredContainer;
#[cfg(feature = "bundle")]
pub(crate) use stored::{ORIGIN, StoredRequest};

use crate::{
    command::ConfinedCommand,
    error::StartError,
    hooks,
    id_map::{become_root, map_process},
    plan::{ContainerId, IdRange},
    role::HookMoment,
    state::{TaskDir, private_dir},
    sys::{self, Fork},
};
use executor::CommandExecutor;

/// The file name of the console socket in the engine's directory.
const CONSOLE: &str = "console-socket";

/// The inputs of a container.
pub(crate) struct BuildRequest<'a> {
    pub id: &'a ContainerId,
    /// The directory of the engine's sockets. It is created.
    pub state: &'a Path,
    pub spec: Spec,
    /// Standard input, output and error.
    pub stdio: [OwnedFd; 3],
    /// The socket to which the terminal is sent, if the spec asks for a terminal.
    pub console_socket: Option<PathBuf>,
    /// The last steps of the container's first process.
    pub command: ConfinedCommand,
    /// The ids of a user namespace of the container's own.
    pub ids: Option<IdRange>,
    /// The task's directory, if hooks run before the root is entered.
    pub hooks: Option<&'a TaskDir>,
    /// Whether the caller is a member of the container's cgroups. Otherwise libcontainer creates and joins them.
    pub in_cgroups: bool,
}

/// A container that its first process builds. It then waits for [`BuiltContainer::start`].
pub(crate) struct BuiltContainer {
    /// The container's first process.
    pub init: i32,
    /// The first process tells through it that the container is built. `None` if it has told so.
    building: Option<MainReceiver>,
    socket: NotifySocket,
    errors: trace::Errors,
}

/// Makes the container's first process, which builds the container. The calling process must end soon.
pub(crate) fn build(request: BuildRequest<'_>) -> Result<BuiltContainer, StartError> {
    let prepare = || private_dir(request.state).and_then(|()| trace::capture(request.ids.is_some()));
    let errors = prepare().map_err(|error| StartError::internal(format!("preparing the engine: {error}")))?;
    let socket = request.state.join(NOTIFY_FILE);
    let hooks = request.hooks;
    match create(request, &socket) {
        Ok((init, building)) => Ok(BuiltContainer { init, building, socket: NotifySocket::new(socket), errors }),
        Err(error) => {
            let failure = hooks.and_then(hooks::failure);
            Err(failure.unwrap_or_else(|| errors.explain("making the container", &error)))
        }
    }
}

/// The container's first process, and the channel through which it reports, unless it has done so.
type Init = (i32, Option<MainReceiver>);

/// Makes the container's first process. It waits for its start at `socket`.
fn create(request: BuildRequest<'_>, socket: &Path) -> Result<Init, LibcontainerError> {
    let mut spec = request.spec;
    let container = request.hooks.map(|task| with_hook_runner(&mut spec, request.id, task)).transpose()?;
    Validator::validate_spec(&spec)?;
    let rootfs = spec.root().as_ref().ok_or(MissingSpecError::Root)?.path();
    let rootfs = fs::canonicalize(rootfs).map_err(LibcontainerError::OtherIO)?;
    let cgroup_path = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().clone()).unwrap_or_default();
    let console = request.console_socket.as_deref();
    let console = console.map(|socket| setup_console_socket(request.state, socket, CONSOLE)).transpose()?;
    let [stdin, stdout, stderr] = &request.stdio;
    // `fork_init` makes the user namespace itself.
    let new_user_namespace = spec.linux().as_ref().filter(|_| request.ids.is_some() && !request.in_cgroups);
    let user_ns_config = new_user_namespace.map(UserNamespaceConfig::try_from).transpose()?;
    let args = ContainerArgs {
        container_type: ContainerType::InitContainer,
        syscall: SyscallType::default(),
        rootfs,
        console_socket: console.as_ref().map(AsRawFd::as_raw_fd),
        notify_listener: NotifyListener::new(socket)?,
        preserve_fds: 0,
        container,
        user_ns_config,
        cgroup_config: CgroupConfig { cgroup_path, systemd_cgroup: false, container_name: request.id.to_string() },
        detached: true,
        executor: Box::new(CommandExecutor::new(request.command)),
        no_pivot: false,
        stdin: Some(stdin.as_raw_fd()),
        stdout: Some(stdout.as_raw_fd()),
        stderr: Some(stderr.as_raw_fd()),
        as_sibling: true,
        pid_file: None,
        spec: Rc::new(spec),
    };
    // A process that is about to change its namespaces must not be readable by processes in them.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| LibcontainerError::OtherIO(error.into()))?;
    match request.in_cgroups {
        true => fork_init(&args, request.ids, request.hooks),
        false => Ok((container_main_process(&args)?.as_raw(), None)),
    }
}

/// Lets libcontainer wait for the hook runner before the root is entered. It only runs hooks of a container with a
/// state, which is the result.
fn with_hook_runner(spec: &mut Spec, id: &ContainerId, task: &TaskDir) -> Result<Container, LibcontainerError> {
    let (path, args) = hooks::runner_hook(task.path()).map_err(LibcontainerError::OtherIO)?;
    let runner = HookBuilder::default().path(path).args(args).build()?;
    spec.set_hooks(Some(HooksBuilder::default().create_runtime(vec![runner]).build()?));
    Container::new(id.as_str(), ContainerStatus::Creating, None, &task.bundle(), task.path())
}

/// Forks the container's first process, which is born in the caller's cgroups.
fn fork_init(args: &ContainerArgs, ids: Option<IdRange>, hooks: Option<&TaskDir>) -> Result<Init, LibcontainerError> {
    let (mut to_caller, mut from_init) = main_channel().map_err(ProcessError::from)?;
    // libcontainer only listens to it for hooks, and for network devices, which our specs do not have.
    let (mut to_init, mut from_caller) = init_channel().map_err(ProcessError::from)?;
    let namespaces = args.spec.linux().as_ref().and_then(|linux| linux.namespaces().as_ref());
    let own_pids = namespaces.is_some_and(|list| list.iter().any(|one| one.typ() == LinuxNamespaceType::Pid));
    let forked = match ids {
        None if own_pids => sys::unshare_children_pids().and_then(|()| sys::fork_sibling()),
        None => sys::fork_sibling(),
        Some(ids) => fork_with_ids(ids, own_pids),
    };
    let init = match forked.map_err(LibcontainerError::OtherIO)? {
        Fork::Child => {
            if let Err(error) = container_init_process(args, &mut to_caller, &mut from_caller) {
                tracing::error!("the container's first process: {}", trace::with_causes(&error));
                // If sending fails, the caller sees the end of this process.
                drop(to_caller.exec_failed(error.to_string()));
            }
            sys::exit_now(255)
        }
        Fork::Parent(pid) => pid,
    };
    // The other ends must be closed here, so that the end of the first process is noticed.
    to_caller.close().map_err(ProcessError::from)?;
    if let Some(task) = hooks {
        from_init.wait_for_hook_request().map_err(ProcessError::from)?;
        // The first hooks run in the node's namespaces.
        sys::rejoin_own_pids().map_err(LibcontainerError::OtherIO)?;
        let state = format!("{{\"pid\":{}}}", init.as_raw_nonzero());
        let run = hooks::run_here(task, HookMoment::Create, state.as_bytes());
        run.map_err(|error| LibcontainerError::Other(error.message))?;
        to_init.hook_done().map_err(ProcessError::from)?;
    }
    to_init.close().map_err(ProcessError::from)?;
    from_caller.close().map_err(ProcessError::from)?;
    Ok((init.as_raw_nonzero().get(), Some(from_init)))
}

/// Forks a sibling that is root of a new user namespace with these ids.
fn fork_with_ids(ids: IdRange, own_pids: bool) -> io::Result<Fork> {
    let (mut mapped, mut mapping) = io::pipe()?;
    match sys::fork_sibling_in_user_namespace(own_pids)? {
        Fork::Child => {
            drop(mapping);
            let mut settle = || -> io::Result<()> {
                mapped.read_exact(&mut [0])?;
                become_root()?;
                // The keyring of the creator belongs to the node's root.
                sys::join_new_session_keyring()
            };
            match settle() {
                Ok(()) => Ok(Fork::Child),
                // The creator has ended, or reports its own error.
                Err(_) => sys::exit_now(255),
            }
        }
        Fork::Parent(pid) => {
            // Without the mapping, the process ends when the pipe is closed.
            map_process(pid.as_raw_nonzero().get(), ids)?;
            mapping.write_all(&[0])?;
            Ok(Fork::Parent(pid))
        }
    }
}

impl BuiltContainer {
    /// Waits until the container is built.
    pub fn wait(&mut self) -> Result<(), StartError> {
        let built = self.building.take().map_or(Ok(()), |mut building| building.wait_for_init_ready());
        built.map_err(|error| self.errors.explain("making the container", &error))
    }

    /// Lets the first process execute the command. A failure of that is written to [`ConfinedCommand::report`].
    pub fn start(&mut self) -> Result<(), StartError> {
        let started = self.socket.notify_container_start();
        started.map_err(|error| self.errors.explain("starting the container", &error))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_of_libcontainer_is_the_pinned_one() {
        let manifest = include_str!("../../../Cargo.toml");
        let pinned = format!("libcontainer = {{ version = \"={}\"", super::LIBCONTAINER_VERSION);
        assert!(manifest.contains(&pinned), "{pinned}");
    }
}
