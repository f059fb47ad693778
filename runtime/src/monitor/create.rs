//! The creator: makes a container and ends.
//!
//! A fork of the monitor, so that the memory this takes is given back, with a mount namespace of its own, so that no mount
//! of ours ever shows on the host and no mount of the host is held by us.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use host::durable::private_file;
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal, getppid, set_parent_process_death_signal, umask},
};

use super::{Args, Created, terminal::Console};
use crate::{
    cgroup::{self, Access, Cgroups, DeviceRule, MembershipGuard},
    command::{ConfinedCommand, apply_apparmor, apply_oom_score, confined_command, held_capabilities, kernel_version},
    engine::{self, BuildRequest},
    error::{Context, StartError, StartErrorKind},
    logs::Outputs,
    plan::{ContainerPlan, Device, MountKind, RootStorage},
    process::ProcessRef,
    rootfs::{
        EmptyMounts, HeldNetwork, HostMounts, Layers, Root, View, Writable, hide_from_engine, make_binds, make_volume,
        tree_of_groups,
    },
    spec::{
        self, GROUPS, GroupsView, HostDevice, Sources, SpecInputs, below_virtual, file_source, host_devices,
        libcontainer_spec::Spec,
    },
    state::{CGROUP, PLAN, TaskDir, private_dir},
    sys,
    user::{self, MAX_USER_FILE, ResolvedUser},
};

/// The creator's whole life.
pub(super) fn main(
    args: &Args,
    outputs: &Outputs,
    console: Option<Console>,
    report: OwnedFd,
    told: OwnedFd,
    monitor: Pid,
) -> ! {
    // A container that is half made must not outlive its monitor. What the engine forks is in the container's groups.
    let outcome = set_parent_process_death_signal(Some(Signal::KILL))
        .context(|| "tying the creator to its monitor".to_owned())
        .map_err(StartError::from)
        .and_then(|()| match getppid() == Some(monitor) {
            true => Ok(()),
            false => Err(StartError::internal("the monitor was killed")),
        })
        .and_then(|()| create(args, outputs, console, &report));
    let text = serde_json::to_vec(&outcome).unwrap_or_default();
    // An untold outcome is noticed by the monitor, which is the only one to tell.
    drop(File::from(told).write_all(&text));
    sys::exit_now(0)
}

fn create(args: &Args, outputs: &Outputs, console: Option<Console>, report: &OwnedFd) -> Result<Created, StartError> {
    let Args { task, data_dir, empty, images } = args;
    let plan: ContainerPlan = task.read(PLAN)?.ok_or_else(|| StartError::internal("the plan is gone"))?;
    apply_oom_score(plan.oom_score_adj)?;
    // Places in the root and groups are for the container's users to enter. What is ours alone is made with modes that say so.
    umask(Mode::from_raw_mode(0o022));
    // Inherited by all that becomes of this process.
    sys::join_new_session_keyring().context(|| "making a session keyring".to_owned())?;
    plan.security.apparmor.as_deref().map_or(Ok(()), apply_apparmor)?;
    let mut host_mounts = HostMounts::open(&plan)?;
    let network = HeldNetwork::open(&plan.namespaces.network)?;
    let layers = Layers::open(&plan.root.layers, images.as_deref())?;
    let view = View::open(task, data_dir, &plan)?;
    view.enter(&EmptyMounts::at(empty).context(|| "finding the plugin's empty mount namespace".to_owned())?)?;
    failpoint::at("creator-before-root");
    let root = make_root(task, data_dir, &plan, &layers)?;
    for volume in &plan.volumes {
        make_volume(volume, &root)?;
    }
    failpoint::at("creator-before-paths");
    let dev = host_mounts.take_dev(&plan)?;
    let sources = host_mounts.prepare(&plan, &task.mounts())?;
    let user = resolve_user(&plan, &root)?;
    prepare_paths(task, &plan, &root, &sources)?;
    outputs.give_to(user.uid, user.gid).context(|| "giving the log FIFOs to the user".to_owned())?;

    let groups = Cgroups::locate(&plan.cgroup)?;
    failpoint::at("creator-before-cgroups");
    task.commit(CGROUP, &groups)?;
    groups.create_parents()?;
    cgroup::reset_limits(&groups)?;
    let devices = find_devices(&plan)?;
    let held = held_capabilities();
    let visible = visible_groups(&plan, &groups);
    let inputs = SpecInputs {
        user: &user,
        cgroup_version: groups.version,
        swap_accounting: groups.accounts_swap(),
        held,
        kernel: kernel_version(),
        devices: &devices,
        rootfs: &task.rootfs(),
        files: &task.files(),
        visible_cgroups: &visible,
        writable_paths: &writable_paths(&plan, &root)?,
    };
    let view = spec::groups_view(&plan, groups.version, &visible);
    let mut spec = engine_spec(task, &plan, &inputs, &sources, view.as_ref())?;
    make_binds(&root, &task.mounts(), &mut spec)?;
    let stdio = stdio(outputs).context(|| "opening the container's standard streams".to_owned())?;
    let command = confined_command(&plan, &user, held, report.as_raw_fd())?;
    let rules: Vec<DeviceRule> = devices.iter().map(device_rule).collect();
    let rules = (!plan.security.privileged).then_some(rules.as_slice());
    failpoint::at("creator-before-cgroup-join");
    let membership = MembershipGuard::enter(&groups, &plan.cgroup, &plan.resources, rules)?;
    let events_before = groups.events();
    let view = view.map(|view| tree_of_groups(&view, &task.mounts().join("groups"))).transpose()?;
    network.name_in(&mut spec);
    hide_from_engine(groups.version, &mut spec, &task.mounts())?;
    let dev = dev.iter().map(|tree| (tree.as_raw_fd(), "/dev"));
    let trees = view.iter().map(|tree| (tree.as_raw_fd(), GROUPS)).chain(dev).collect();
    let request = BuildRequest {
        id: &plan.id,
        state: &task.engine_state(),
        bundle: &task.engine_bundle(),
        spec: &spec,
        stdio,
        console_socket: console.as_ref().map(Console::path),
        command: ConfinedCommand { trees, ..command },
    };
    failpoint::at("creator-before-build");
    let mut built = match engine::build(request) {
        Ok(built) => built,
        Err(error) => {
            groups.recreate_existing()?;
            return Err(error);
        }
    };
    let init = built.pid()?;
    let restrict = || match rules {
        Some(rules) => groups.restrict_devices(rules),
        None => Ok(()),
    };
    let started = restrict().and_then(|()| membership.leave()).map_err(StartError::from).and_then(|()| {
        failpoint::at("creator-before-start");
        built.start()?;
        failpoint::at("creator-before-answer");
        Ok(())
    });
    match started {
        Ok(()) => Ok(Created { init, user, private_pid: plan.namespaces.private_pid, events_before }),
        Err(error) => {
            // It waits to be started: without a start it must not stay.
            if let Ok(process) = ProcessRef::open(init) {
                drop(process.signal(libc::SIGKILL));
            }
            Err(error)
        }
    }
}

/// The engine's OCI spec. The complete one is written to the container's bundle.
fn engine_spec(
    task: &TaskDir,
    plan: &ContainerPlan,
    inputs: &SpecInputs<'_>,
    sources: &Sources,
    view: Option<&GroupsView<'_>>,
) -> Result<Spec, StartError> {
    let mut spec = spec::complete_spec(plan, inputs)?;
    let write = || -> io::Result<()> {
        private_dir(&task.bundle())?;
        private_file(&task.bundle().join("config.json"))?.write_all(&serde_json::to_vec(&spec)?)
    };
    write().context(|| format!("writing {}", task.bundle().display()))?;
    if let Some(dev) = spec::host_dev(plan) {
        let mut without = plan.clone();
        without.mounts.remove(dev);
        spec = spec::complete_spec(&without, inputs)?;
    }
    Ok(spec::for_engine(spec, &inputs.user.home, sources, inputs.cgroup_version, view))
}

fn make_root(task: &TaskDir, data_dir: &Path, plan: &ContainerPlan, layers: &Layers) -> Result<Root, StartError> {
    if plan.root.layers.is_empty() {
        return Err(StartError::invalid("the image has no layers"));
    }
    let writable = Writable::of(data_dir, plan.id.as_str());
    let (layers, state_dir, rootfs) = (layers.paths(), task.state_dir(), task.rootfs());
    private_dir(&rootfs).context(|| format!("making {}", rootfs.display()))?;
    match plan.root.storage {
        RootStorage::Overlay => writable.mount_over(layers, state_dir, &rootfs)?,
        RootStorage::Copy => writable.copy_of(layers, state_dir, &rootfs)?,
    }
    Ok(Root::open(&rootfs).context(|| format!("opening {}", rootfs.display()))?)
}

fn resolve_user(plan: &ContainerPlan, root: &Root) -> Result<ResolvedUser, StartError> {
    let read = |path: &str| {
        root.read(path, MAX_USER_FILE)
            .map(Option::unwrap_or_default)
            .map_err(|error| StartError::invalid(format!("the image's {path}: {error}")))
    };
    Ok(user::resolve(&plan.user, &plan.groups, &read("/etc/passwd")?, &read("/etc/group")?)?)
}

/// Makes what must be there in the image: the directories that everything else stands on, the working directory, the places of
/// mounts, which libcontainer does not make behind dangling links, and the small files.
fn prepare_paths(task: &TaskDir, plan: &ContainerPlan, root: &Root, sources: &Sources) -> Result<(), StartError> {
    for name in ["dev", "proc", "sys"] {
        root.real_dir(name).map_err(|error| StartError::invalid(error.to_string()))?;
    }
    let in_image = |path: &str| {
        let path = path.to_owned();
        move |error: io::Error| StartError::invalid(format!("making {path} in the container: {error}"))
    };
    if !plan.cwd.starts_with('/') {
        return Err(StartError::invalid(format!("working directory {:?}: an absolute path is needed", plan.cwd)));
    }
    root.make_dirs(Path::new(&plan.cwd)).map_err(in_image(&plan.cwd))?;
    let make_files = || -> io::Result<()> {
        private_dir(&task.files())?;
        for (index, (destination, content)) in plan.files.iter().enumerate() {
            use std::os::unix::fs::PermissionsExt;
            let path = file_source(&task.files(), index, destination);
            private_file(&path)?.write_all(content.as_bytes())?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
        }
        Ok(())
    };
    make_files().context(|| format!("writing {}", task.files().display()))?;
    for (destination, _) in &plan.files {
        root.make_file(Path::new(destination)).map_err(in_image(destination))?;
    }
    for mount in plan.mounts.iter().filter(|mount| !below_virtual(Path::new(&mount.destination))) {
        let path = Path::new(&mount.destination);
        match &mount.kind {
            MountKind::Bind { source } => {
                // What stands in for it is what will be mounted, wherever the path leads by now.
                let found = fs::metadata(sources.stand_in(&mount.destination).unwrap_or(source));
                let metadata = found.map_err(|error| {
                    let text = format!("mount source {}: {error}", source.display());
                    StartError::new(StartErrorKind::MountSource, text)
                })?;
                if metadata.is_dir() { root.make_dirs(path).map(drop) } else { root.make_file(path) }
            }
            MountKind::Tmpfs { .. } => root.make_dirs(path).map(drop),
        }
        .and_then(|()| check_place(root, path))
        .map_err(in_image(&mount.destination))?;
    }
    Ok(())
}

/// A link of the image must not lead a mount to where the plan may not mount.
fn check_place(root: &Root, path: &Path) -> io::Result<()> {
    let real = root.real_path(path)?;
    let over_groups = real != path && real.starts_with(GROUPS);
    if spec::may_be_covered(&real) && !over_groups {
        return Ok(());
    }
    Err(io::Error::other(format!("the image's links lead it to {}, which cannot be covered", real.display())))
}

/// The image's volumes, which stay writable on a read-only root.
fn writable_paths(plan: &ContainerPlan, root: &Root) -> Result<Vec<(String, PathBuf)>, StartError> {
    let volumes = if plan.root.readonly { plan.root.volumes.as_slice() } else { &[] };
    let mounted = |volume: &str| plan.mounts.iter().any(|mount| mount.destination == volume);
    volumes
        .iter()
        .filter(|volume| !mounted(volume))
        .map(|volume| {
            let directory = root
                .make_dirs(Path::new(volume))
                .and_then(|directory| check_place(root, Path::new(volume)).map(|()| directory))
                .and_then(|directory| fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())))
                .map_err(|error| StartError::invalid(format!("volume {volume} of the image: {error}")))?;
            Ok((volume.clone(), directory))
        })
        .collect()
}

fn find_devices(plan: &ContainerPlan) -> Result<Vec<HostDevice>, StartError> {
    let everything =
        Device { host_path: "/dev".into(), container_path: "/dev".to_owned(), permissions: "rwm".to_owned() };
    let privileged = plan.security.privileged.then_some(everything);
    let mut found: Vec<HostDevice> = Vec::new();
    for device in plan.devices.iter().chain(&privileged) {
        let devices = host_devices(device).map_err(|error| {
            let text = format!("device {}: {error}", device.host_path.display());
            StartError::new(StartErrorKind::MountSource, text)
        })?;
        for device in devices {
            if !found.iter().any(|other| other.container_path == device.container_path) {
                found.push(device);
            }
        }
    }
    Ok(found)
}

/// The groups that programs in the container look at to size themselves. On v2 a namespace of the container's own shows them, and
/// who is privileged sees all there are.
fn visible_groups(plan: &ContainerPlan, groups: &Cgroups) -> Vec<(String, PathBuf)> {
    const LOOKED_AT: [&str; 6] = ["memory", "cpu", "cpuacct", "cpuset", "pids", "blkio"];
    if groups.version == cgroup::Version::V2 {
        let bound = !plan.namespaces.private_cgroup && !plan.security.privileged;
        return groups.members.iter().filter(|_| bound).map(|group| (String::new(), group.path.clone())).collect();
    }
    let path = |name: &&str| match (&plan.cgroup.cpuset_v1, *name) {
        (Some(cpuset), "cpuset") => Some(cpuset.clone()),
        _ => groups.path_of(name).map(Path::to_owned),
    };
    LOOKED_AT.iter().filter_map(|name| Some(((*name).to_owned(), path(name)?))).collect()
}

fn stdio(outputs: &Outputs) -> io::Result<[OwnedFd; 3]> {
    let stdin = OwnedFd::from(File::open("/dev/null")?);
    Ok([stdin, outputs.stdout.reopen(OFlags::empty())?, outputs.stderr.reopen(OFlags::empty())?])
}

fn device_rule(device: &HostDevice) -> DeviceRule {
    DeviceRule {
        block: device.block,
        major: Some(device.major),
        minor: Some(device.minor),
        access: Access::from_letters(&device.permissions),
    }
}
