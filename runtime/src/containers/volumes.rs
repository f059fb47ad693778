//! Volumes with options, which containers of any number of tasks share.

use std::time::Duration;

use super::runtime::Runtime;
use crate::{
    error::RuntimeError,
    plan::ContainerId,
    volumes::{VolumeError, VolumeKey, VolumeOptions},
};

impl Runtime {
    /// The options of a named volume that a task used with options before. Passwords are not among them.
    pub fn stored_volume_options(&self, name: &str) -> Result<Option<VolumeOptions>, RuntimeError> {
        self.inner.volumes.stored_options(name)
    }

    /// Mounts a volume for a container, unless it is mounted. Afterwards the file system answers. After an error the
    /// container does not use the volume. All of it takes little longer than `limit`.
    pub fn mount_volume(
        &self,
        key: &VolumeKey,
        options: &VolumeOptions,
        user: &ContainerId,
        limit: Duration,
    ) -> Result<(), VolumeError> {
        self.inner.volumes.mount(&self.inner.launcher, key, options, user, limit)
    }

    /// Ends a container's use of its volumes with options. Those without another user are unmounted. Idempotent.
    pub fn release_volumes(&self, user: &ContainerId) -> Result<(), RuntimeError> {
        self.inner.volumes.release(&self.inner.launcher, user)
    }

    /// Ends the use by containers for which `keep` is false, and unmounts volumes without users; their names.
    pub fn sweep_volumes(&self, keep: impl Fn(&str) -> bool) -> Result<Vec<String>, RuntimeError> {
        self.inner.volumes.sweep(&self.inner.launcher, keep)
    }
}
