//! The image of a command's tools, leased for as long as the command runs.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use image_store::{Image, PullRequest, Silent};
use runtime::{ToolsImage, plan::ContainerId};

use crate::{engine::Engine, task::TaskError};

/// Holds an image for one command. Dropped, it lets the image go.
pub struct Lease {
    engine: Arc<Engine>,
    name: String,
    image: Image,
}

/// Between a container's name and the rest of a lease's, with the plugin's process: what another one left is nobody's any more.
fn mark() -> String {
    format!(".tools-{}-", std::process::id())
}

/// Whether a lease belongs to a command of this process.
pub fn is_ours(lease: &str) -> bool {
    lease.contains(&mark())
}

impl Lease {
    /// Pulls the image if it is not here yet, with the node's own credentials.
    pub async fn acquire(engine: Arc<Engine>, container: &ContainerId, image: &str) -> Result<Self, TaskError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{container}{}{}", mark(), NEXT.fetch_add(1, Ordering::Relaxed));
        let reference = image.parse().map_err(|error| TaskError::Invalid(format!("exec: image {image:?}: {error}")))?;
        let request = PullRequest {
            timeout: Some(engine.config.image_pull_timeout),
            inactivity: engine.config.pull_activity_timeout,
            ..PullRequest::new(reference)
        };
        let ready = engine.store.acquire(request, &name, Arc::new(Silent)).await;
        let ready = ready.map_err(|error| TaskError::Pull { image: image.to_owned(), error })?;
        let lease = Self { engine, name, image: ready };
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
        if let Err(error) = self.engine.store.release(&self.name) {
            tracing::warn!(lease = self.name, %error, "image of tools not released");
        }
    }
}
