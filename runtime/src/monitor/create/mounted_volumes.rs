//! A part of phase 4: the volumes that the plugin mounted are filled with the image's files if they are empty, as
//! docker does. Containers on this node fill a volume one after the other; those on other nodes do not wait for each
//! other.

use std::{fs::File, path::Path};

use rustix::{
    fs::{FlockOperation, flock},
    io::retry_on_intr,
};

use crate::{
    error::{Context, RuntimeError, StartError, StartErrorKind},
    id_map::IdMap,
    plan::{ContainerPlan, NamedVolume},
    rootfs::{Root, fill_if_empty},
    spec::PreparedSources,
    volumes::fill_lock,
};

/// The locks of the volumes to fill, which have no path after the creator has left the host's mount namespace.
pub(super) struct VolumeLocks(Vec<File>);

/// The volumes that are filled if they are empty.
fn filled(plan: &ContainerPlan) -> impl Iterator<Item = &NamedVolume> {
    plan.volumes.iter().filter(|volume| volume.mounted && volume.copy)
}

impl VolumeLocks {
    /// Opens the locks. The caller is in the host's mount namespace.
    pub fn open(plan: &ContainerPlan) -> Result<Self, StartError> {
        let open = |volume: &NamedVolume| {
            let path = fill_lock(&volume.directory).ok_or_else(|| StartError::internal("a volume without a lock"))?;
            Ok(File::open(&path).context(|| format!("opening {}", path.display()))?)
        };
        filled(plan).map(open).collect::<Result<_, StartError>>().map(Self)
    }

    /// Fills the volumes. `root` has the image's files, without any mounts in it.
    pub fn fill(
        self,
        plan: &ContainerPlan,
        root: &Root,
        sources: &PreparedSources,
        map: Option<&IdMap>,
    ) -> Result<(), StartError> {
        for (volume, lock) in filled(plan).zip(self.0) {
            let destination = &volume.destination;
            // The copy of the mount; its path on the host does not exist here.
            let Some(mounted) = sources.prepared_for(destination) else { continue };
            retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive)).context(|| "locking a volume".to_owned())?;
            fill_if_empty(mounted, root, Path::new(destination), map).map_err(|error| {
                let text = format!(
                    "copying the image's files at {destination} into the empty volume: {error}; write `no_copy = true` \
                     in `volume_options` if the volume is to stay empty"
                );
                let kind = match error {
                    RuntimeError::UserNamespace(_) => StartErrorKind::UserNamespace,
                    _ => StartErrorKind::MountSource,
                };
                StartError::new(kind, text)
            })?;
        }
        Ok(())
    }
}
