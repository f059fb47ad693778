//! Making the container's first process.
//!
//! libcontainer would make it with an intermediate process, which finds and joins the cgroups. Here the creator forks
//! it, and libcontainer begins in it. The first process waits until the creator has settled it: in its cgroups, and
//! with its ids.

use std::{
    error::Error,
    io::{self, PipeReader, Read, Write},
    mem,
};

use libcgroups::common::{CgroupManager, ControllerOpt, create_cgroup_manager};
use libcontainer::{
    error::LibcontainerError,
    oci_spec::runtime::{LinuxNamespaceType, Spec},
    process::{
        args::ContainerArgs,
        channel::{MainReceiver, MainSender, init_channel, main_channel},
        container_main_process::ProcessError,
        init::container_init_process,
    },
};
use nix::unistd::Pid;

use super::trace::with_causes;
use crate::{
    hooks,
    id_map::{become_root, map_process},
    plan::IdRange,
    role::HookMoment,
    rootfs::RootExchange,
    state::TaskDir,
    sys::{self, Fork},
};

/// What the first process is made with, beside libcontainer's arguments.
pub(super) struct InitRequest<'a> {
    /// The ids of a user namespace of its own.
    pub ids: Option<IdRange>,
    /// The task's directory, if hooks run before the root is entered.
    pub hooks: Option<&'a TaskDir>,
    /// The caller is a member of the container's cgroups. Otherwise libcontainer's manager makes and limits them.
    pub in_cgroups: bool,
    pub exchange: RootExchange,
}

/// Makes the first process, which builds the container and reports through the channel.
pub(super) fn fork_init(
    args: &ContainerArgs,
    mut request: InitRequest<'_>,
) -> Result<(i32, MainReceiver), LibcontainerError> {
    let (mut to_caller, mut from_init) = main_channel().map_err(ProcessError::from)?;
    // libcontainer only listens to it for hooks, and for network devices, which our specs do not have.
    let (mut to_init, mut from_caller) = init_channel().map_err(ProcessError::from)?;
    let (settled, settling) = io::pipe().map_err(LibcontainerError::OtherIO)?;
    request.exchange.enter().map_err(LibcontainerError::OtherIO)?;
    let own_pids = has_namespace(&args.spec, LinuxNamespaceType::Pid);
    let forked = match request.ids {
        Some(_) => sys::fork_sibling_in_user_namespace(own_pids),
        None if own_pids => sys::unshare_children_pids().and_then(|()| sys::fork_sibling()),
        None => sys::fork_sibling(),
    };
    let init = match forked.map_err(LibcontainerError::OtherIO)? {
        Fork::Child => {
            drop(settling);
            // Beside the creator.
            let begun = request.exchange.begin();
            // An error means that the creator has ended, or reports its own error.
            if wait_for_creator(settled).is_ok() {
                if let Err(error) = begun.and_then(|()| become_root_of(request.ids)) {
                    report(&mut to_caller, &error);
                } else if let Err(error) = container_init_process(args, &mut to_caller, &mut from_caller) {
                    report(&mut to_caller, &error);
                }
            }
            sys::exit_now(255)
        }
        Fork::Parent(pid) => pid.as_raw_nonzero().get(),
    };
    drop(settled);
    // The other ends must be closed here, so that the end of the first process is noticed.
    to_caller.close().map_err(ProcessError::from)?;
    request.exchange.return_to_creator().map_err(LibcontainerError::OtherIO)?;
    if !request.in_cgroups {
        add_to_cgroup(args, init)?;
    }
    request.ids.map_or(Ok(()), |ids| map_process(init, ids)).map_err(LibcontainerError::OtherIO)?;
    // Without this, the first process ends when the pipe is closed.
    (&settling).write_all(&[0]).map_err(LibcontainerError::OtherIO)?;
    if let Some(task) = request.hooks {
        from_init.wait_for_hook_request().map_err(ProcessError::from)?;
        // The first hooks run in the node's namespaces.
        sys::rejoin_own_pids().map_err(LibcontainerError::OtherIO)?;
        let state = format!("{{\"pid\":{init}}}");
        let run = hooks::run_here(task, HookMoment::Create, state.as_bytes());
        run.map_err(|error| LibcontainerError::Other(error.message))?;
        to_init.hook_done().map_err(ProcessError::from)?;
    }
    to_init.close().map_err(ProcessError::from)?;
    from_caller.close().map_err(ProcessError::from)?;
    // Left to the end of this process.
    mem::forget(request);
    Ok((init, from_init))
}

/// Whether a container gets a namespace of this kind.
fn has_namespace(spec: &Spec, kind: LinuxNamespaceType) -> bool {
    let list = spec.linux().iter().filter_map(|linux| linux.namespaces().as_ref()).flatten();
    list.into_iter().any(|namespace| namespace.typ() == kind)
}

fn wait_for_creator(mut settled: PipeReader) -> io::Result<()> {
    settled.read_exact(&mut [0])
}

/// Becomes root of the user namespace that this process has, if any.
fn become_root_of(ids: Option<IdRange>) -> io::Result<()> {
    if ids.is_some() {
        become_root()?;
        // The keyring of the creator belongs to the node's root.
        sys::join_new_session_keyring()?;
    }
    Ok(())
}

fn report(to_caller: &mut MainSender, error: &(dyn Error + 'static)) {
    tracing::error!("the container's first process: {}", with_causes(error));
    // If sending fails, the caller sees the end of this process.
    drop(to_caller.exec_failed(error.to_string()));
}

/// Makes the cgroup of version 2, adds the first process, and sets the limits.
fn add_to_cgroup(args: &ContainerArgs, init: i32) -> Result<(), LibcontainerError> {
    let manager = create_cgroup_manager(args.cgroup_config.clone())?;
    manager.add_task(Pid::from_raw(init))?;
    let resources = args.spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let limits =
        |resources| ControllerOpt { resources, freezer_state: None, oom_score_adj: None, disable_oom_killer: false };
    Ok(resources.map_or(Ok(()), |resources| manager.apply(&limits(resources)))?)
}
