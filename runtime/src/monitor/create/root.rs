//! Phase 3: the root file system.

use std::fs;

use super::{handles::Detached, job::Job, mounted_volumes::VolumeLocks, streams::LogMounts};
use crate::{
    error::{Context, StartError},
    id_map::IdMap,
    plan::{ContainerPlan, RootStorage, SelinuxLabels},
    rootfs::{BindSources, HeldNetwork, ImageMounts, Layers, Root, SizedLayer, WritableLayer, create_volume},
    state::private_dir,
};

/// Phase 3: the root file system is mounted, and the named volumes exist.
pub(super) struct RootMounted {
    pub root: Root,
    pub bind_sources: BindSources,
    pub network: HeldNetwork,
    /// Paths of layers lead through its descriptors.
    pub layers: Layers,
    pub images: ImageMounts,
    pub map: Option<IdMap>,
    pub volume_locks: VolumeLocks,
    pub logs: LogMounts,
}

impl Detached {
    /// Mounts the root file system, and makes and fills the named volumes.
    pub fn mount_root(self, job: &Job<'_>, plan: &ContainerPlan) -> Result<RootMounted, StartError> {
        failpoint::at("creator-before-root");
        let Self { bind_sources, network, mut layers, images, sized, map, volume_locks, logs } = self;
        let root = make_root(job, plan, &mut layers, sized, map.as_ref())?;
        for volume in plan.volumes.iter().filter(|volume| !volume.mounted) {
            create_volume(volume, &root, map.as_ref())?;
        }
        Ok(RootMounted { root, bind_sources, network, layers, images, map, volume_locks, logs })
    }
}

fn make_root(
    job: &Job<'_>,
    plan: &ContainerPlan,
    layers: &mut Layers,
    sized: Option<SizedLayer>,
    map: Option<&IdMap>,
) -> Result<Root, StartError> {
    if plan.root.layers.is_empty() {
        return Err(StartError::invalid("the image has no layers"));
    }
    let writable = WritableLayer::of(&job.args.data_dir, plan.id.as_str());
    let (paths, state_dir, rootfs) = (layers.paths(), job.task.state_dir(), job.rootfs(plan));
    let make = || {
        // A command with a debug image needs this directory, also if the root is elsewhere.
        private_dir(&job.task.rootfs())?;
        if plan.id_range().is_some() { fs::create_dir_all(&rootfs) } else { Ok(()) }
    };
    make().context(|| format!("making {}", rootfs.display()))?;
    let place = job.writable_layer(plan);
    let label = plan.selinux.as_ref().map(SelinuxLabels::of_files);
    match plan.root.storage {
        RootStorage::Overlay => {
            let sized = match sized {
                Some(sized) => Some(sized.into_mount()),
                None => writable.create(state_dir).map(|()| None)?,
            };
            let label = label.as_deref();
            if let Some(mount) = writable.mount_over(paths, sized, &rootfs, map, place.as_deref(), label)? {
                layers.keep(mount);
            }
        }
        RootStorage::Copy => {
            writable.mount_copy(paths, state_dir, &rootfs, map, label.as_deref())?;
        }
    }
    Ok(Root::open(&rootfs, map.map(IdMap::range)).context(|| format!("opening {}", rootfs.display()))?)
}
