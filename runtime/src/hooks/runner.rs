//! The hook runner: a process for the hooks of one moment.
//!
//! It is executed anew, so that it has one thread, which can join namespaces. It ends with its parent. While the
//! container is made it is in the container's cgroups: the removal of the container also ends what a hook left.

use std::{
    fs::File,
    io::{self, Write},
    iter,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, ExitCode, Stdio},
};

use rustix::{
    fs::{Mode, OFlags, open},
    process::{Signal, set_parent_process_death_signal, umask},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use serde::Deserialize;

use super::{HookPlan, HookState, of_stages, run_all};
use crate::{
    cgroup::Cgroups,
    error::{Context, StartError},
    plan::HookStage,
    process::ProcessRecord,
    role::{HookMoment, HooksArgs, Role},
    state::{CGROUP, CONTAINER, ContainerRecord, MONITOR, PLAN, TaskDir},
    sys,
};

/// Why a hook failed, in the task's directory.
const FAILURE: &str = "hook-failure.json";

/// The part of the state that the engine knows and the runner does not.
#[derive(Deserialize)]
struct EngineState {
    pid: i32,
}

/// The role `hooks`.
pub(crate) fn main(args: &HooksArgs) -> ExitCode {
    let task = TaskDir::at(args.task.clone());
    let outcome = settle().map_err(|error| StartError::internal(format!("hooks: {error}"))).and_then(|()| {
        // Opened now: the runner changes its mount namespace.
        let failure = host::durable::private_file(&task.file(FAILURE));
        let failure = failure.context(|| format!("making {FAILURE}"))?;
        run(&task, args.moment).inspect_err(|error| {
            // The exit status tells the failure if the file cannot.
            drop((&failure).write_all(&serde_json::to_vec(error).unwrap_or_default()));
        })
    });
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn settle() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    sys::close_descriptors(3, u32::MAX)?;
    sys::default_signals()?;
    umask(Mode::from_raw_mode(0o022));
    rustix::thread::set_name(c"oci-rs:hooks")?;
    std::env::set_current_dir("/")
}

fn run(task: &TaskDir, moment: HookMoment) -> Result<(), StartError> {
    let plan: HookPlan = task.read(PLAN)?.ok_or_else(|| StartError::internal("the plan is gone"))?;
    let state = |status, pid| HookState {
        id: plan.id.clone(),
        status,
        pid,
        bundle: task.bundle(),
        annotations: plan.annotations.clone(),
    };
    let run_stages = |stages: &[HookStage], state: &HookState| {
        run_all(of_stages(&plan.hooks, stages), state, &[]).map_err(StartError::invalid)
    };
    match moment {
        HookMoment::Create => {
            let engine: EngineState = serde_json::from_reader(io::stdin())
                .map_err(|error| StartError::internal(format!("hooks: the engine's state: {error}")))?;
            let state = state("creating", Some(engine.pid));
            let joined = || "joining namespaces for hooks".to_owned();
            let own = Namespaces::of_container(engine.pid).context(joined)?;
            let node = Namespaces::of_node(task).context(joined)?;
            join_cgroup(task)?;
            node.join().context(joined)?;
            run_stages(&[HookStage::Prestart, HookStage::CreateRuntime], &state)?;
            own.join().context(joined)?;
            run_stages(&[HookStage::CreateContainer], &state)
        }
        HookMoment::Started => {
            let record: Option<ContainerRecord> = task.read(CONTAINER)?;
            run_stages(&[HookStage::Poststart], &state("running", record.map(|record| record.init.pid)))
        }
        // After a hook that fails, the others run too.
        HookMoment::Removed => {
            let state = state("stopped", None);
            let hooks = of_stages(&plan.hooks, &[HookStage::Poststop]);
            let failed = hooks.filter_map(|hook| run_all(iter::once(hook), &state, &[]).err());
            let failed = failed.collect::<Vec<String>>().join("; ");
            if failed.is_empty() { Ok(()) } else { Err(StartError::invalid(failed)) }
        }
    }
}

/// Namespaces to join.
struct Namespaces(Vec<(OwnedFd, LinkNameSpaceType)>);

impl Namespaces {
    /// Those of a container's first process, which waits before it enters the root.
    fn of_container(pid: i32) -> io::Result<Self> {
        use LinkNameSpaceType::{
            ControlGroup, HostNameAndNISDomainName, InterProcessCommunication, Mount, Network, ProcessID,
        };
        let kinds = [
            ("pid_for_children", ProcessID),
            ("net", Network),
            ("ipc", InterProcessCommunication),
            ("uts", HostNameAndNISDomainName),
            ("cgroup", ControlGroup),
            ("mnt", Mount),
        ];
        let open = |(name, kind)| Ok((open_namespace(&format!("/proc/{pid}/ns/{name}"))?, kind));
        kinds.into_iter().map(open).collect::<io::Result<_>>().map(Self)
    }

    /// The mount namespace of the monitor, which is the node's. This process has the other ones already.
    fn of_node(task: &TaskDir) -> io::Result<Self> {
        let monitor: Option<ProcessRecord> = task.read(MONITOR).map_err(io::Error::other)?;
        let monitor = monitor.ok_or_else(|| io::Error::other("the monitor is not recorded"))?;
        let namespace = open_namespace(&format!("/proc/{}/ns/mnt", monitor.pid))?;
        Ok(Self(vec![(namespace, LinkNameSpaceType::Mount)]))
    }

    /// Joins them. This process has one thread.
    fn join(&self) -> io::Result<()> {
        for (namespace, kind) in &self.0 {
            move_into_link_name_space(namespace.as_fd(), Some(*kind))?;
        }
        Ok(())
    }
}

fn open_namespace(path: &str) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Joins the container's cgroup of version 2. On version 1 the parent is a member of the cgroups.
fn join_cgroup(task: &TaskDir) -> Result<(), StartError> {
    match task.read::<Cgroups>(CGROUP)? {
        Some(groups) => Ok(groups.join_unified().context(|| "joining the container's cgroup".to_owned())?),
        None => Ok(()),
    }
}

/// Runs the runner, and waits for its end. This process is the sealed copy of our binary.
pub(crate) fn run_here(task: &TaskDir, moment: HookMoment, input: &[u8]) -> Result<(), StartError> {
    let starting = || "starting the hook runner".to_owned();
    let args = Role::Hooks(HooksArgs { task: task.path().to_owned(), moment }).to_args().context(starting)?;
    let (stdin, mut writer) = io::pipe().context(starting)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("oci-rs").args(args).stdin(Stdio::from(stdin)).stdout(Stdio::null());
    let mut child = command.spawn().context(starting)?;
    drop(command);
    // A runner that has ended reads nothing. Its end tells why.
    drop(writer.write_all(input));
    drop(writer);
    let status = child.wait().context(|| "waiting for the hook runner".to_owned())?;
    match status.success() {
        true => Ok(()),
        false => Err(failure(task).unwrap_or_else(|| StartError::internal("the hook runner ended without a word"))),
    }
}

/// Why the last runner failed.
pub(crate) fn failure(task: &TaskDir) -> Option<StartError> {
    serde_json::from_reader(File::open(task.file(FAILURE)).ok()?).ok()
}
