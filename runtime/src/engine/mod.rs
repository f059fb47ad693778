//! libcontainer. No other module uses it.
//!
//! Building a container runs ordinary Rust code in forked processes and changes the state of the calling process
//! (working directory, dumpable flag, namespace of its children). So the caller must be a process that ends right
//! afterwards: the monitor's creator. The container's first process becomes the monitor's child. The last steps before
//! the command are ours ([`ConfinedCommand`]): libcontainer does not make all of them, or not in the right order.
//!
//! The first process is made here, and libcontainer begins in it ([`fork_init`]). It begins in the root of the
//! building, which the command leaves ([`RootExchange`]).

mod executor;
mod first_process;
#[cfg(feature = "bundle")]
mod stored;
mod trace;

use std::{
    fs,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    rc::Rc,
};

use libcgroups::common::CgroupConfig;
use libcontainer::{
    container::{Container, ContainerStatus},
    error::{LibcontainerError, MissingSpecError},
    notify_socket::{NOTIFY_FILE, NotifyListener, NotifySocket},
    oci_spec::runtime::{Hooks, LinuxNamespaceType, Spec},
    process::{
        args::{ContainerArgs, ContainerType},
        channel::MainReceiver,
    },
    syscall::syscall::SyscallType,
    tty::setup_console_socket,
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
    plan::{ContainerId, IdRange},
    rootfs::RootExchange,
    state::{TaskDir, private_dir},
};
use executor::CommandExecutor;
use first_process::{InitRequest, fork_init};

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
    /// Whether the caller is a member of the container's cgroups. Otherwise libcontainer's manager makes them.
    pub in_cgroups: bool,
    /// The mounts of the caller and of the container's root.
    pub exchange: RootExchange,
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
        Ok((init, building)) => {
            Ok(BuiltContainer { init, building: Some(building), socket: NotifySocket::new(socket), errors })
        }
        Err(error) => {
            let failure = hooks.and_then(hooks::failure);
            Err(failure.unwrap_or_else(|| errors.explain("making the container", &error)))
        }
    }
}

/// Makes the container's first process. It waits for its start at `socket`.
fn create(request: BuildRequest<'_>, socket: &Path) -> Result<(i32, MainReceiver), LibcontainerError> {
    let mut spec = request.spec;
    let container = request.hooks.map(|task| with_hook_request(&mut spec, request.id, task)).transpose()?;
    Validator::validate_spec(&spec)?;
    without_mount_namespace(&mut spec);
    let rootfs = spec.root().as_ref().ok_or(MissingSpecError::Root)?.path();
    let rootfs = fs::canonicalize(rootfs).map_err(LibcontainerError::OtherIO)?;
    let cgroup_path = spec.linux().as_ref().and_then(|linux| linux.cgroups_path().clone()).unwrap_or_default();
    let console = request.console_socket.as_deref();
    let console = console.map(|socket| setup_console_socket(request.state, socket, CONSOLE)).transpose()?;
    let [stdin, stdout, stderr] = &request.stdio;
    let args = ContainerArgs {
        container_type: ContainerType::InitContainer,
        syscall: SyscallType::default(),
        rootfs,
        console_socket: console.as_ref().map(AsRawFd::as_raw_fd),
        notify_listener: NotifyListener::new(socket)?,
        preserve_fds: 0,
        container,
        // `fork_init` makes the user namespace.
        user_ns_config: None,
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
    let BuildRequest { ids, hooks, in_cgroups, exchange, .. } = request;
    fork_init(&args, InitRequest { ids, hooks, in_cgroups, exchange })
}

/// Lets libcontainer ask for the hooks before it enters the root. It only does so for a container with a state: the
/// result.
fn with_hook_request(spec: &mut Spec, id: &ContainerId, task: &TaskDir) -> Result<Container, LibcontainerError> {
    spec.set_hooks(Some(Hooks::default()));
    Container::new(id.as_str(), ContainerStatus::Creating, None, &task.bundle(), task.path())
}

/// Takes the mount namespace out of a spec: the first process has one when libcontainer begins in it. Without one in
/// the spec, libcontainer enters the root by chroot(2).
fn without_mount_namespace(spec: &mut Spec) {
    if let Some(list) = spec.linux_mut().as_mut().and_then(|linux| linux.namespaces_mut().as_mut()) {
        list.retain(|namespace| namespace.typ() != LinuxNamespaceType::Mount);
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
