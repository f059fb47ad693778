//! Leases of pulls: begun before the first byte, completed when all layers are on disk, restored after a failure.

use std::{io, path::PathBuf};

use super::{
    implied,
    layers::{self, LayerMeta},
    lease_record::Lease,
    local::LocalStore,
    partial::Partials,
};
use crate::{error::StoreError, files, lease::LeaseOwner};

/// What the root file system of an image is mounted from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountSources {
    /// Directories and EROFS images, topmost first.
    pub(crate) layers: Vec<PathBuf>,
    /// Some layers have marks that overlayfs does not read, so they can only be copied.
    pub(crate) copy_only: bool,
}

impl LocalStore {
    /// Writes a lease that protects layers before they are looked at. Returns the lease that it replaced.
    ///
    /// Until the pull has succeeded, the new lease also holds the layers of the replaced one. So a crash, or a disk too
    /// full to restore the replaced lease, takes no layer from its owner.
    pub(crate) fn begin_lease(&self, lease: &Lease) -> Result<Option<Lease>, StoreError> {
        // Made before the store lock is taken, because it takes the lock as well.
        let staging = match lease.owner {
            LeaseOwner::Operator { .. } => Some(self.staging()?.name()),
            LeaseOwner::Task { .. } | LeaseOwner::MountedImage { .. } | LeaseOwner::DebugImage { .. } => None,
        };
        let _adding = self.layout.lock_shared()?;
        let before = Lease::read(&self.layout, &lease.owner)?;
        let mut both = lease.clone();
        both.staging = staging;
        if let Some(before) = &before {
            both.layers.extend(before.layers.iter().filter(|layer| !lease.layers.contains(layer)).cloned());
            both.implied.extend(before.implied.iter().filter(|key| !lease.implied.contains(key)).cloned());
        }
        both.write(&self.layout)?;
        Ok(before)
    }

    /// Restores the lease that a failed pull had replaced; without one, removes the lease of the pull.
    pub(crate) fn restore_lease(&self, owner: &LeaseOwner, before: Option<&Lease>) -> Result<(), StoreError> {
        {
            let _adding = self.layout.lock_shared()?;
            match before {
                Some(lease) => lease.write(&self.layout)?,
                None => files::remove_file(&self.layout.lease(owner))?,
            }
        }
        self.notify_changed();
        Ok(())
    }

    /// Completes a lease whose layers are all on disk or served, and returns what to mount.
    pub(crate) fn complete_lease(&self, lease: &mut Lease, partials: &Partials) -> Result<MountSources, StoreError> {
        let chain = self.chain(lease, partials)?;
        // The kernel ignores the opaque mark on a layer's root, so the layers below are left out.
        let seen = &chain[chain.iter().rposition(|(_, meta)| meta.opaque_root).unwrap_or_default()..];
        let _adding = self.layout.lock_shared()?;
        let mut sources: Vec<PathBuf> = seen.iter().map(|(layer, _)| layers::mount_source(layer)).collect();
        lease.implied.clear();
        if seen.iter().any(|(_, meta)| !meta.implicit_dirs.is_empty()) {
            failpoint::at("mountable-before-implied");
            if let Some(key) = implied::make(&self.layout, || self.staging(), seen, &self.implied)? {
                sources.push(self.layout.implied(&key).join(layers::DIRECTORY));
                lease.implied.push(key);
            }
        }
        if sources.is_empty() {
            sources.push(self.empty_layer()?);
        }
        lease.ready = true;
        if let LeaseOwner::Operator { .. } = lease.owner {
            lease.staging = Some(self.staging()?.name());
        }
        failpoint::at("mountable-before-lease");
        lease.write(&self.layout)?;
        failpoint::at("mountable-before-touch");
        lease.touch_image(&self.layout)?;
        sources.reverse();
        Ok(MountSources { layers: sources, copy_only: chain.iter().any(|(_, meta)| meta.copy_only) })
    }

    /// The directories and records of a lease's layers, bottom first.
    fn chain(&self, lease: &Lease, partials: &Partials) -> Result<Vec<(PathBuf, LayerMeta)>, StoreError> {
        let mut chain = Vec::new();
        for diff_id in &lease.layers {
            if let Some(partial) = partials.get(diff_id) {
                chain.push((partial.directory.clone(), partial.meta.clone()));
                continue;
            }
            let path = self.layout.layer(diff_id);
            let meta = layers::usable(&self.layout, diff_id)?
                .ok_or_else(|| StoreError::io("opening", &path)(io::Error::from(io::ErrorKind::NotFound)))?;
            chain.push((path, meta));
        }
        Ok(chain)
    }

    /// The only layer of an image without layers.
    fn empty_layer(&self) -> Result<PathBuf, StoreError> {
        let path = self.layout.directory("empty");
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(StoreError::io("creating", path)(error)),
            _ => Ok(path),
        }
    }
}
