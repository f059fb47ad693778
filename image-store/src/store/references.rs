//! The paths that the records of images and leases refer to. Garbage collection keeps exactly these.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use layer::Digest;

use super::{image_record::ImageRecord, layout::Layout, lease_record::Lease};

/// The referenced directories and files of a store.
#[derive(Debug, Default)]
pub(crate) struct References {
    paths: BTreeSet<PathBuf>,
    /// Layers of leases.
    leased: BTreeSet<Digest>,
}

impl References {
    pub(crate) fn collect(layout: &Layout, images: &[ImageRecord], leases: &[Lease]) -> References {
        let mut paths = BTreeSet::new();
        for image in images {
            paths.insert(layout.manifest(&image.manifest));
            paths.insert(layout.config(&image.config));
            paths.extend(image.layers.iter().map(|layer| layout.layer(&layer.diff_id)));
        }
        for lease in leases {
            paths.extend(lease.layers.iter().map(|layer| layout.layer(layer)));
            paths.extend(lease.implied.iter().map(|key| layout.implied(key)));
        }
        let leased = leases.iter().flat_map(|lease| lease.layers.iter().cloned()).collect();
        References { paths, leased }
    }

    /// Whether a lease refers to a layer.
    pub(crate) fn is_leased(&self, layer: &Digest) -> bool {
        self.leased.contains(layer)
    }

    /// Adds layers that stay although no record refers to them.
    pub(crate) fn spare(&mut self, layout: &Layout, layers: &BTreeSet<Digest>) {
        self.paths.extend(layers.iter().map(|layer| layout.layer(layer)));
    }

    pub(crate) fn contain(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }
}
