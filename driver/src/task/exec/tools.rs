//! The image of a command's tools, leased for as long as the command runs.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use image_store::{Image, LeaseOwner, PullRequest, Silent};
use runtime::{ToolsImage, plan::ContainerId};

use crate::{engine::Engine, task::TaskError};

/// Holds an image for one command. Dropped, it lets the image go.
pub struct Lease {
    engine: Arc<Engine>,
    owner: LeaseOwner,
    image: Image,
}

impl Lease {
    /// Pulls the image if it is not here yet, with the node's own credentials.
    pub async fn acquire(engine: Arc<Engine>, container: &ContainerId, image: &str) -> Result<Self, TaskError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let owner = LeaseOwner::DebugImage {
            container: container.to_string(),
            process: std::process::id(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        let reference = image.parse().map_err(|error| TaskError::Invalid(format!("exec: image {image:?}: {error}")))?;
        let request = PullRequest {
            timeout: Some(engine.config.image_pull_timeout),
            inactivity: engine.config.pull_activity_timeout,
            ..PullRequest::new(reference)
        };
        let ready = engine.store.acquire(request, &owner, Arc::new(Silent)).await;
        let ready = ready.map_err(|error| TaskError::Pull { image: image.to_owned(), error })?;
        let lease = Self { engine, owner, image: ready };
        if lease.image.copy_only {
            return Err(TaskError::Invalid(format!(
                "exec: image {image:?}: overlayfs does not work with data_dir here"
            )));
        }
        Ok(lease)
    }

    /// What the runtime makes of it.
    pub fn tools(&self) -> ToolsImage {
        let path = self.image.config.env.iter().find(|(name, _)| name == "PATH");
        ToolsImage { layers: self.image.layers.clone(), path: path.map(|(_, path)| path.clone()) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Err(error) = self.engine.store.release(&self.owner) {
            tracing::warn!(lease = %self.owner, %error, "image of tools not released");
        }
    }
}
