//! Phases 1 and 2: taking hold of the host's parts, and leaving the host's mount namespace.

use super::{job::Job, mounted_volumes::VolumeLocks, streams::LogMounts};
use crate::{
    error::{Context, StartError},
    id_map::IdMap,
    plan::{ContainerPlan, RootStorage, SelinuxLabels},
    rootfs::{
        BindSources, BuildMounts, EmptyNamespace, HeldNetwork, ImageMounts, Layers, SizedLayer, WritableLayer,
        with_mount_points,
    },
};

/// Phase 1: open handles on everything of the host that the container needs.
pub(super) struct HostHandles {
    bind_sources: BindSources,
    network: HeldNetwork,
    layers: Layers,
    images: ImageMounts,
    sized: Option<SizedLayer>,
    map: Option<IdMap>,
    volume_locks: VolumeLocks,
    logs: LogMounts,
    build_mounts: BuildMounts,
}

/// Phase 2: the creator is in a mount namespace that contains only what building the container needs.
pub(super) struct Detached {
    pub bind_sources: BindSources,
    pub network: HeldNetwork,
    pub layers: Layers,
    pub images: ImageMounts,
    pub sized: Option<SizedLayer>,
    pub map: Option<IdMap>,
    pub volume_locks: VolumeLocks,
    pub logs: LogMounts,
}

impl HostHandles {
    /// Opens the handles. The caller is in the host's mount namespace.
    pub fn open(job: &Job<'_>, plan: &ContainerPlan) -> Result<Self, StartError> {
        let bind_sources = BindSources::open(plan)?;
        let logs = LogMounts::open(job, plan, &bind_sources);
        let network = HeldNetwork::open(&plan.namespaces.network)?;
        let map = plan.id_range().map(IdMap::new).transpose()?;
        // A copied root is mapped itself.
        let of_layers = map.as_ref().filter(|_| plan.root.storage == RootStorage::Overlay);
        let label = plan.selinux.as_ref().map(SelinuxLabels::of_shared_files);
        let mounts = job.args.layer_mounts.as_ref();
        let of_root = with_mount_points(plan, &job.args.data_dir);
        let layers = Layers::open(&of_root, mounts, of_layers, label.as_deref())?;
        let images = ImageMounts::open(plan, mounts, map.as_ref(), label.as_deref())?;
        let volume_locks = VolumeLocks::open(plan)?;
        let build_mounts = BuildMounts::open(job.task, &job.args.data_dir, plan)?;
        let size = plan.root.size.filter(|_| plan.root.storage == RootStorage::Overlay);
        let writable = WritableLayer::of(&job.args.data_dir, plan.id.as_str());
        let make = |size| SizedLayer::make(&writable, job.task.state_dir(), size, map.is_some());
        let sized = size.map(make).transpose()?;
        Ok(Self { bind_sources, network, layers, images, sized, map, volume_locks, logs, build_mounts })
    }

    /// Leaves the host's mount namespace for a copy of the plugin's empty one, and mounts there what building needs.
    pub fn leave_host(self, job: &Job<'_>, plan: &ContainerPlan) -> Result<Detached, StartError> {
        let Self { bind_sources, network, layers, images, sized, map, volume_locks, logs, build_mounts } = self;
        if plan.runtime.is_some() {
            build_mounts.enter_copy_of_host()?;
            return Ok(Detached { bind_sources, network, layers, images, sized, map, volume_locks, logs });
        }
        let empty = EmptyNamespace::open(&job.args.empty_mounts);
        build_mounts.enter(&empty.context(|| "finding the plugin's empty mount namespace".to_owned())?)?;
        if let Some(place) = job.layers(plan) {
            layers.attach(&place)?;
            images.attach(&place)?;
        }
        Ok(Detached { bind_sources, network, layers, images, sized, map, volume_locks, logs })
    }
}
