//! The debug image of an exec command, leased for as long as the command runs.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use image_store::{Image, LeaseOwner, PullRequest, Silent};
use runtime::{DebugImage, plan::ContainerId};

use crate::{error::TaskError, metrics::ObservedPull, node::Node, traces::Span};

/// A lease of an image for one command. Dropped, it releases the image.
pub struct DebugImageLease {
    node: Arc<Node>,
    owner: LeaseOwner,
    image: Image,
}

impl DebugImageLease {
    /// Pulls the image if the node does not have it, with the node's own credentials.
    pub async fn acquire(node: Arc<Node>, container: &ContainerId, image: &str) -> Result<Self, TaskError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let owner = LeaseOwner::DebugImage {
            container: container.to_string(),
            process: std::process::id(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        let reference = image.parse().map_err(|error| TaskError::Invalid(format!("exec: image {image:?}: {error}")))?;
        let request = PullRequest {
            timeout: Some(node.config.image_pull_timeout),
            idle_timeout: node.config.pull_activity_timeout,
            ..PullRequest::new(reference)
        };
        let registry = request.reference.domain().to_owned();
        let progress = ObservedPull::new(Silent);
        let ready = node.store.acquire(request, &owner, Arc::clone(&progress) as _).await;
        progress.record(node.recorder(), &registry, &ready);
        node.trace(|| vec![span(&progress, container, image, ready.as_ref().err().map(ToString::to_string))]);
        let ready = ready.map_err(|error| TaskError::Pull { image: image.to_owned(), error })?;
        let lease = Self { node, owner, image: ready };
        if lease.image.copy_only {
            return Err(TaskError::Invalid(format!(
                "exec: image {image:?}: overlayfs does not work with data_dir here"
            )));
        }
        Ok(lease)
    }

    /// The image's programs, as the runtime mounts them for a command.
    pub fn programs(&self) -> DebugImage {
        let path = self.image.config.env.iter().find(|(name, _)| name == "PATH");
        DebugImage { layers: self.image.layers.clone(), path: path.map(|(_, path)| path.clone()) }
    }
}

/// The span of a pull that has ended now.
fn span(pull: &ObservedPull<Silent>, container: &ContainerId, image: &str, error: Option<String>) -> Span {
    let attributes = vec![
        ("container.id", container.to_string()),
        ("container.image.name", image.to_owned()),
        ("cached", pull.is_cached().to_string()),
    ];
    Span::ended("pull debug image", pull.elapsed(), attributes, error)
}

impl Drop for DebugImageLease {
    fn drop(&mut self) {
        if let Err(error) = self.node.store.release(&self.owner) {
            tracing::warn!(lease = %self.owner, %error, "debug image not released");
        }
    }
}
