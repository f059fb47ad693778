//! The record of a lease: a small JSON file that names the layers of one owner.
//!
//! The layers stay on disk until the lease is released, independent of the record of the image.

use std::path::Path;

use layer::Digest;
use serde::{Deserialize, Serialize};

use super::{image_record::ImageRecord, layout::Layout, staging_lock};
use crate::{
    error::StoreError,
    files::{self, Durability},
    lease::LeaseOwner,
    reference::Reference,
};

/// The layers that one owner uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// The name of the lease.
    #[serde(rename = "name")]
    pub(crate) owner: LeaseOwner,
    pub(crate) reference: Reference,
    pub(crate) manifest: Digest,
    pub(crate) layers: Vec<Digest>,
    /// Layers of implied directories.
    #[serde(default, rename = "fixups")]
    pub(crate) implied: Vec<Digest>,
    /// Everything that the lease names is on disk. Before that, a pull holds it to keep the layers that it finds and
    /// fetches.
    #[serde(default = "yes")]
    pub(crate) ready: bool,
    /// The staging directory of the process that holds the lease, if the lease ends with that process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) staging: Option<String>,
}

fn yes() -> bool {
    true
}

impl Lease {
    /// The lease of a pull that has not finished.
    pub(crate) fn unfinished(owner: LeaseOwner, reference: Reference, manifest: Digest, layers: Vec<Digest>) -> Self {
        Self { owner, reference, manifest, layers, implied: Vec::new(), ready: false, staging: None }
    }

    pub(crate) fn read(layout: &Layout, owner: &LeaseOwner) -> Result<Option<Lease>, StoreError> {
        files::read_json(&layout.lease(owner))
    }

    pub(crate) fn write(&self, layout: &Layout) -> Result<(), StoreError> {
        files::write_json(&layout.lease(&self.owner), self, Durability::Later)
    }

    /// Sets the last use of the lease's image to now.
    pub(crate) fn touch_image(&self, layout: &Layout) -> Result<(), StoreError> {
        files::touch(&layout.image(&self.reference))?;
        files::touch(&layout.loaded(&self.reference, &self.manifest))
    }

    /// Whether the process that held the lease has ended without releasing it. The lease of a task or a debug image is
    /// released by a plugin.
    pub(crate) fn is_abandoned(&self, layout: &Layout) -> Result<bool, StoreError> {
        match (&self.staging, &self.owner) {
            // The process locked the directory before it wrote the lease, and the kernel unlocks it.
            (Some(staging), _) if !staging.contains('/') => {
                let directory = layout.directory("staging").join(staging);
                Ok(!directory.exists() || staging_lock::is_abandoned(&directory)?)
            }
            // Written by an earlier version.
            (_, LeaseOwner::Operator { process, .. }) => Ok(!Path::new(&format!("/proc/{process}")).exists()),
            (_, LeaseOwner::Task { .. } | LeaseOwner::MountedImage { .. } | LeaseOwner::DebugImage { .. }) => Ok(false),
        }
    }

    /// Whether the lease keeps the record of an image.
    pub(crate) fn keeps(&self, image: &ImageRecord) -> bool {
        self.reference == image.reference && self.manifest == image.manifest
    }
}

/// All readable leases that are not abandoned.
pub(crate) fn leases(layout: &Layout) -> Result<Vec<Lease>, StoreError> {
    let mut held = Vec::new();
    for lease in files::read_all::<Lease>(&layout.directory("leases"))? {
        if !lease.is_abandoned(layout)? {
            held.push(lease);
        }
    }
    Ok(held)
}

/// Removes abandoned leases. Needs the exclusive store lock.
pub(crate) fn remove_abandoned(layout: &Layout) -> Result<(), StoreError> {
    for lease in files::read_all::<Lease>(&layout.directory("leases"))? {
        if lease.is_abandoned(layout)? {
            files::remove_file(&layout.lease(&lease.owner))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde::{Serialize, de::DeserializeOwned};
    use serde_json::Value;

    use super::Lease;
    use crate::store::{ImageRecord, layers::LayerMeta};

    /// Reads a record with every field and writes it again. A renamed field is missing then.
    fn keeps_its_fields<T: Serialize + DeserializeOwned>(text: &str) {
        let recorded: Value = serde_json::from_str(text).unwrap();
        let record: T = serde_json::from_str(text).unwrap();
        let written = serde_json::to_value(&record).unwrap();
        assert!(host::record::keeps_fields(&recorded, &written), "{recorded} became {written}");
    }

    /// The files hold every field of every record. No field changes its name: stores of older builds have records with
    /// it.
    #[test]
    fn records_keep_the_names_of_their_fields() {
        keeps_its_fields::<Lease>(include_str!("../../tests/records/lease.json"));
        keeps_its_fields::<ImageRecord>(include_str!("../../tests/records/image.json"));
        keeps_its_fields::<LayerMeta>(include_str!("../../tests/records/layer.json"));
    }
}
