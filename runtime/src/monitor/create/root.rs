//! Phase 3: the root file system.

use super::{handles::Detached, job::Job};
use crate::{
    error::{Context, StartError},
    plan::{ContainerPlan, RootStorage},
    rootfs::{BindSources, HeldNetwork, Layers, Root, WritableLayer, create_volume},
    state::private_dir,
};

/// Phase 3: the root file system is mounted, and the named volumes exist.
pub(super) struct RootMounted {
    pub root: Root,
    pub bind_sources: BindSources,
    pub network: HeldNetwork,
    /// Paths of layers lead through its descriptors.
    pub layers: Layers,
}

impl Detached {
    /// Mounts the root file system, and makes and fills the named volumes.
    pub fn mount_root(self, job: &Job<'_>, plan: &ContainerPlan) -> Result<RootMounted, StartError> {
        failpoint::at("creator-before-root");
        let root = make_root(job, plan, &self.layers)?;
        for volume in &plan.volumes {
            create_volume(volume, &root)?;
        }
        Ok(RootMounted { root, bind_sources: self.bind_sources, network: self.network, layers: self.layers })
    }
}

fn make_root(job: &Job<'_>, plan: &ContainerPlan, layers: &Layers) -> Result<Root, StartError> {
    if plan.root.layers.is_empty() {
        return Err(StartError::invalid("the image has no layers"));
    }
    let writable = WritableLayer::of(&job.args.data_dir, plan.id.as_str());
    let (layers, state_dir, rootfs) = (layers.paths(), job.task.state_dir(), job.task.rootfs());
    private_dir(&rootfs).context(|| format!("making {}", rootfs.display()))?;
    match plan.root.storage {
        RootStorage::Overlay => writable.mount_over(layers, state_dir, &rootfs)?,
        RootStorage::Copy => writable.mount_copy(layers, state_dir, &rootfs)?,
    }
    Ok(Root::open(&rootfs).context(|| format!("opening {}", rootfs.display()))?)
}
