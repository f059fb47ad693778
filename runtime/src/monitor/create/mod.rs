//! The creator: creates a container and ends.
//!
//! It is a fork of the monitor, so that the memory that it takes is given back. It has a mount namespace of its own, so
//! that no mount of ours shows on the host, and no mount of the host is held by us.
//!
//! A creation is a chain of phases. Each phase is a type that owns what it made; its one method makes the next phase.
//! So the compiler enforces their order:
//!
//! 1. [`HostHandles`](handles::HostHandles): handles on the host's mounts and namespaces, opened in the host's mount
//!    namespace.
//! 2. [`Detached`](handles::Detached): the creator has left the host's mount namespace.
//! 3. [`RootMounted`](root::RootMounted): the root file system is mounted.
//! 4. [`PathsPrepared`](paths::PathsPrepared): the user is known, and all places of mounts exist.
//! 5. [`CgroupsRecorded`](cgroups::CgroupsRecorded): the task's directory names the cgroups, and they exist. A second
//!    thread makes them during the phases 3 and 4, which need no cgroup. It has ended when this phase is reached.
//! 6. [`SpecWritten`](spec::SpecWritten): the bundle is written, and the command's restrictions are known.
//! 7. [`CgroupsJoined`](join::CgroupsJoined): the creator is a member of the cgroups, so its forks are too.
//! 8. [`Built`](build::Built): libcontainer has created the container's first process, which waits.
//!
//! With a runtime of the node, the creator goes to a copy of the host's mount namespace, because the runtime needs its
//! own files, and the last phase is the runtime's (`installed`).
//!
//! If a phase fails, the creator reports the error and ends. Its mounts end with it. Everything on disk and all cgroups
//! are removed by the plugin (`Runtime::destroy`). Only one thing is undone here: a waiting first process would stay.
//! See `build`.

mod build;
mod cgroups;
mod handles;
mod installed;
mod job;
mod join;
mod mounted_volumes;
mod paths;
mod place;
mod root;
mod spec;
mod streams;
mod volumes;

use std::{fs::File, os::fd::OwnedFd, thread};

use rustix::{
    fs::Mode,
    process::{Pid, Signal, getppid, set_parent_process_death_signal, umask},
};

pub(super) use self::job::Job;
use self::{cgroups::MadeBeside, handles::HostHandles};
use super::report::CreatedContainer;
use crate::{
    command::{apply_apparmor, apply_oom_score, apply_selinux, label_keys},
    error::{Context, StartError},
    plan::ContainerPlan,
    report_pipe::write_report,
    resctrl::ClassMembership,
    selinux::SelinuxLabels,
    state::PLAN,
    sys,
};

/// The creator's process: creates the container and sends the outcome to `monitor` through `created`.
pub(super) fn main(job: &Job<'_>, created: OwnedFd, monitor: Pid) -> ! {
    let outcome = end_with_monitor(monitor).and_then(|()| create(job));
    // If sending fails, the monitor sees the end of the creator and reports that.
    drop(write_report(File::from(created), &outcome));
    sys::exit_now(0)
}

/// A container that is half made must not outlive its monitor. The engine's forks are in the container's cgroups, where
/// the removal finds them.
fn end_with_monitor(monitor: Pid) -> Result<(), StartError> {
    set_parent_process_death_signal(Some(Signal::KILL)).context(|| "tying the creator to its monitor".to_owned())?;
    match getppid() == Some(monitor) {
        true => Ok(()),
        false => Err(StartError::internal("the monitor was killed")),
    }
}

fn create(job: &Job<'_>) -> Result<CreatedContainer, StartError> {
    let plan: ContainerPlan = job.task.read(PLAN)?.ok_or_else(|| StartError::internal("the plan is gone"))?;
    set_inherited_attributes(&plan)?;
    // In the host's mount namespace.
    let class = plan.cache_class.as_ref().map(|class| ClassMembership::prepare(class, &plan.id)).transpose()?;
    let detached = HostHandles::open(job, &plan)?.leave_host(job, &plan)?;
    let joined = thread::scope(|scope| {
        let beside = MadeBeside::begin(scope, job.task, &plan)?;
        let paths = detached.mount_root(job, &plan)?.prepare_paths(job, &plan)?;
        let (recorded, prepared, filter) = paths.record_cgroups(beside)?;
        recorded.write_spec(job, &plan, filter)?.join_cgroups(job, &plan, prepared)
    })?;
    match &plan.runtime {
        Some(runtime) => joined.run_installed(job, &plan, runtime),
        None => joined.build(job, &plan)?.start(&plan, class),
    }
}

/// Sets the attributes of this process that the container's processes inherit.
fn set_inherited_attributes(plan: &ContainerPlan) -> Result<(), StartError> {
    apply_oom_score(plan.oom_score_adj)?;
    // The container's users must be able to enter places in the root, and cgroups. Private files are made with explicit
    // modes.
    umask(Mode::from_raw_mode(0o022));
    let labels = plan.selinux.as_ref().map(SelinuxLabels::of_processes);
    // The keyring gets the label too.
    match labels.as_deref() {
        Some(label) if plan.inherits_labels() => apply_selinux(label)?,
        Some(label) if plan.runtime.is_none() => label_keys(label)?,
        _ => {}
    }
    sys::join_new_session_keyring().context(|| "making a session keyring".to_owned())?;
    let apparmor = plan.security.apparmor.as_deref().filter(|_| plan.inherits_labels());
    apparmor.map_or(Ok(()), apply_apparmor)
}
