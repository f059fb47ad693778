//! A part of phase 4: the volumes without a name.

use std::{io, os::fd::OwnedFd, path::Path};

use super::{job::Job, place::check_place};
use crate::{
    error::StartError,
    id_map::IdMap,
    plan::ContainerPlan,
    rootfs::{Root, WritableLayer, create_anonymous_volume},
    spec::PreparedSource,
};

/// Creates and fills the volumes without a name. A mount of the plan at the same place replaces a volume, also if a
/// link of the image leads one of them there. No mount of the plan has been made yet, so the root has the image's files
/// only.
pub(super) fn make_volumes(
    job: &Job<'_>,
    plan: &ContainerPlan,
    root: &Root,
    map: Option<&IdMap>,
) -> Result<Vec<PreparedSource>, StartError> {
    let layer = WritableLayer::of(&job.args.data_dir, plan.id.as_str());
    let mut volumes = Vec::new();
    for (index, destination) in plan.root.volumes.iter().enumerate() {
        let place = volume_place(plan, root, Path::new(destination));
        let place =
            place.map_err(|error| StartError::invalid(format!("volume {destination} of the image: {error}")))?;
        if let Some(place) = place {
            let (original, prepared) = (layer.volume(index), job.mounts(plan).join(format!("volume-{index}")));
            let model = (!plan.root.empty_volumes.contains(destination)).then_some(&place);
            create_anonymous_volume(&original, model, &prepared, map)?;
            volumes.push(PreparedSource { destination: destination.clone(), original, prepared });
        }
    }
    Ok(volumes)
}

/// Opens the directory of the root at the path of a volume, and creates it if it is missing. `None` if a mount of the
/// plan will be there.
fn volume_place(plan: &ContainerPlan, root: &Root, destination: &Path) -> io::Result<Option<OwnedFd>> {
    let place = root.create_directories(destination)?;
    check_place(root, destination)?;
    let real = root.path_of(&place)?;
    let mounted = |mount: &Path| mount == destination || root.real_path(mount).is_ok_and(|mount| mount == real);
    let replaced = plan.mounts.iter().any(|mount| mounted(Path::new(&mount.destination)));
    Ok((!replaced).then_some(place))
}
