//! Mount sources that were prepared on the host and replace those of the plan.

use std::path::{Path, PathBuf};

use oci_spec::runtime::Mount;

/// The prepared sources of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PreparedSources(pub Vec<PreparedSource>);

/// One prepared source, and the mount to which it belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PreparedSource {
    pub destination: String,
    pub original: PathBuf,
    pub prepared: PathBuf,
}

impl PreparedSources {
    /// These sources and `others`.
    pub fn with(&self, others: &[PreparedSource]) -> Self {
        Self(self.0.iter().chain(others).cloned().collect())
    }

    /// The prepared source of the mount on `destination`.
    pub fn prepared_for(&self, destination: &str) -> Option<&PathBuf> {
        self.0.iter().find(|source| source.destination == destination).map(|source| &source.prepared)
    }

    /// Puts the prepared sources into the mounts of a spec.
    pub fn replace(&self, mounts: &mut [Mount]) {
        for mount in mounts {
            let prepared = self.0.iter().find(|source| {
                mount.destination() == Path::new(&source.destination)
                    && mount.source().as_ref() == Some(&source.original)
            });
            if let Some(source) = prepared {
                mount.set_source(Some(source.prepared.clone()));
            }
        }
    }
}
