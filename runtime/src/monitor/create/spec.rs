//! Phase 6: the spec, and the command's restrictions.

use std::{
    io::{self, Write},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use host::durable::private_file;
use oci_spec::runtime::Spec;

use super::{
    cgroups::{CgroupsRecorded, visible_cgroups},
    job::Job,
};
use crate::{
    cgroup::{Access, DeviceRule},
    command::{ConfinedCommand, confined_command, held_capabilities, kernel_version},
    error::{Context, StartError, StartErrorKind},
    installed::{Dialect, for_installed},
    plan::{ContainerPlan, Device, IdRange, InstalledRuntime, Network, NodeKind, SelinuxLabels},
    rootfs::{device_nodes, make_binds},
    spec::{self, HostDevice, PreparedSources, SpecInputs, described_device, host_devices},
    state::{TaskDir, private_dir},
    user::ResolvedUser,
};

/// Phase 6: the bundle is written, and the inputs of the engine are known.
pub(super) struct SpecWritten {
    pub recorded: CgroupsRecorded,
    /// The engine's spec.
    pub spec: Spec,
    /// The cgroups that the container may read.
    pub visible_cgroups: Vec<(String, PathBuf)>,
    /// The devices that the container may use; `None` allows all.
    pub device_rules: Option<Vec<DeviceRule>>,
    /// Standard input, output and error of the container.
    pub stdio: [OwnedFd; 3],
    pub command: ConfinedCommand,
    /// Device nodes as detached mounts, each with its place in the container.
    pub nodes: Vec<(PathBuf, OwnedFd)>,
}

impl CgroupsRecorded {
    /// Writes the complete spec to the bundle, and derives the engine's spec and the command from the plan.
    pub fn write_spec(
        self,
        job: &Job<'_>,
        plan: &ContainerPlan,
        filter: Option<Vec<u8>>,
    ) -> Result<SpecWritten, StartError> {
        let user = &self.paths.user;
        let devices = find_devices(plan, user)?;
        let held = held_capabilities();
        let visible_cgroups = visible_cgroups(plan, &self.groups);
        let inputs = SpecInputs {
            user,
            cgroup_version: self.groups.version,
            swap_accounting: self.groups.accounts_swap(),
            held,
            kernel: kernel_version(),
            devices: &devices,
            rootfs: &job.task.rootfs(),
            files: &job.task.files(),
            visible_cgroups: &visible_cgroups,
            volumes: &self.paths.volumes,
        };
        let sources = self.paths.sources.with(&self.paths.volumes);
        let (spec, nodes) = match &plan.runtime {
            Some(runtime) => (write_installed_bundle(job.task, plan, &inputs, &sources, runtime)?, Vec::new()),
            None => self.write_engine_spec(job, plan, &inputs, &sources)?,
        };
        let stdio = self.paths.logs.stdio(job, plan.open_stdin.then_some(self.paths.ids_on_node));
        let stdio = stdio.context(|| "opening the container's standard streams".to_owned())?;
        let command = confined_command(plan, user, held, filter, job.report.as_raw_fd())?;
        let device_rules = device_rules(plan, &devices);
        Ok(SpecWritten { recorded: self, spec, visible_cgroups, device_rules, stdio, command, nodes })
    }

    /// Writes the bundle; the engine's spec, and the device nodes that the engine cannot make.
    fn write_engine_spec(
        &self,
        job: &Job<'_>,
        plan: &ContainerPlan,
        inputs: &SpecInputs<'_>,
        sources: &PreparedSources,
    ) -> Result<(Spec, Vec<(PathBuf, OwnedFd)>), StartError> {
        let complete = write_bundle(job.task, plan, inputs)?;
        let (version, user) = (self.groups.version, &self.paths.user);
        let view = spec::cgroup_view(plan, version, inputs.visible_cgroups);
        let mut spec = spec::for_engine(complete, &user.home, sources, version, view.as_ref());
        let nodes = match plan.id_range() {
            Some(range) => self.make_unmakeable(job, plan, &mut spec, inputs.devices, range)?,
            None => Vec::new(),
        };
        make_binds(&self.paths.root, &job.mounts(plan), &mut spec, self.paths.map.as_ref())?;
        Ok((spec, nodes))
    }

    /// Makes what the processes of a container with a user namespace of its own may not make, and changes the engine's
    /// spec accordingly. The result are the device nodes.
    fn make_unmakeable(
        &self,
        job: &Job<'_>,
        plan: &ContainerPlan,
        spec: &mut Spec,
        devices: &[HostDevice],
        range: IdRange,
    ) -> Result<Vec<(PathBuf, OwnedFd)>, StartError> {
        let own_network = plan.namespaces.network == Network::Private;
        if let Some(root) = spec.root_mut() {
            root.set_path(job.rootfs(plan));
        }
        let left = spec::leave_nodes_sysfs_and_network(spec, own_network);
        self.paths.network.set_parameters(left.network_parameters.iter())?;
        if left.sysfs {
            self.paths.network.mount_sysfs(&self.paths.root)?;
        }
        let label = plan.selinux.as_ref().map(SelinuxLabels::of_files);
        // The engine mounts these of the node's /dev, with the node's labels. Nodes of our own cover them.
        let standard = if label.is_some() { spec::standard_devices(devices) } else { Vec::new() };
        let devices: Vec<&HostDevice> =
            spec::device_nodes(plan, devices).chain(spec::device_nodes(plan, &standard)).collect();
        let nodes = device_nodes(&job.mounts(plan).join("devices"), &devices, range, label.as_deref())?;
        Ok(devices.iter().map(|device| device.container_path.clone()).zip(nodes).collect())
    }
}

/// Writes the complete spec to the container's bundle. The result is the spec without a mount over the whole of /dev,
/// which the engine must not make.
fn write_bundle(task: &TaskDir, plan: &ContainerPlan, inputs: &SpecInputs<'_>) -> Result<Spec, StartError> {
    let spec = spec::complete_spec(plan, inputs)?;
    write_config(task, &spec)?;
    match spec::host_dev_mount(plan) {
        None => Ok(spec),
        Some(dev) => {
            let mut without = plan.clone();
            without.mounts.remove(dev);
            Ok(spec::complete_spec(&without, inputs)?)
        }
    }
}

/// Writes the spec of an installed runtime to the container's bundle.
fn write_installed_bundle(
    task: &TaskDir,
    plan: &ContainerPlan,
    inputs: &SpecInputs<'_>,
    sources: &PreparedSources,
    runtime: &InstalledRuntime,
) -> Result<Spec, StartError> {
    let complete = spec::complete_spec(plan, inputs)?;
    let spec = for_installed(complete, Dialect::of(runtime), inputs.cgroup_version, sources);
    write_config(task, &spec)?;
    Ok(spec)
}

fn write_config(task: &TaskDir, spec: &Spec) -> Result<(), StartError> {
    let write = || -> io::Result<()> {
        private_dir(&task.bundle())?;
        private_file(&task.bundle().join("config.json"))?.write_all(&serde_json::to_vec(spec)?)
    };
    Ok(write().context(|| format!("writing {}", task.bundle().display()))?)
}

/// The plan's devices on this host. A privileged container gets all devices of the host too.
fn find_devices(plan: &ContainerPlan, user: &ResolvedUser) -> Result<Vec<HostDevice>, StartError> {
    let everything =
        Device { host_path: "/dev".into(), container_path: "/dev".to_owned(), permissions: "rwm".to_owned() };
    let privileged = plan.security.privileged.then_some(everything);
    let failed = |path: &Path, error: io::Error| {
        StartError::new(StartErrorKind::MountSource, format!("device {}: {error}", path.display()))
    };
    let described = plan
        .described_devices
        .iter()
        .map(|device| described_device(device, user).map_err(|error| failed(&device.host_path, error)));
    let mut found: Vec<HostDevice> = described.collect::<Result<_, _>>()?;
    for device in plan.devices.iter().chain(&privileged) {
        for device in host_devices(device).map_err(|error| failed(&device.host_path, error))? {
            if !found.iter().any(|other| other.container_path == device.container_path) {
                found.push(device);
            }
        }
    }
    Ok(found)
}

/// The devices that the container's processes may use; `None` allows all. The processes of an installed runtime are
/// among them.
fn device_rules(plan: &ContainerPlan, devices: &[HostDevice]) -> Option<Vec<DeviceRule>> {
    let of_runtime = plan.runtime.as_ref().map_or(Some(Vec::new()), |runtime| Dialect::of(runtime).devices());
    let more = of_runtime.filter(|_| !plan.security.privileged)?;
    Some(devices.iter().filter_map(device_rule).chain(more).collect())
}

fn device_rule(device: &HostDevice) -> Option<DeviceRule> {
    Some(DeviceRule {
        block: device.kind == NodeKind::Block,
        major: Some(device.major),
        minor: Some(device.minor),
        access: Access::from_letters(device.access()?),
    })
}
