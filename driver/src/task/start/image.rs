//! The first phase of a start: the task block is decoded and its image is leased.

use std::{sync::Arc, time::Duration};

use image_store::{Image, LoadRequest, PullError, PullRequest, Reference};
use runtime::plan::{ContainerId, SeccompProfile};

use super::{load_archive, pull_progress::PullEvents, request::StartRequest, seccomp_profile, spans};
use crate::{
    blocking::blocking,
    config::{self, SeccompChoice, TaskSpec},
    error::TaskError,
    metrics::ObservedPull,
    node::{self, Node},
};

/// A task with a leased image.
pub struct Leased<'a> {
    /// The start.
    pub request: &'a StartRequest,
    /// The decoded task block.
    pub spec: TaskSpec,
    /// The seccomp profile from the file that the task block names.
    pub profile: Option<SeccompProfile>,
    /// The image. Released when dropped, unless a container uses it.
    pub image: ImageLease,
    /// The duration of this phase.
    pub pull_time: Duration,
}

impl<'a> Leased<'a> {
    /// Decodes the task block, reads its seccomp profile, and pulls or loads its image.
    pub async fn acquire(request: &'a StartRequest) -> Result<Self, TaskError> {
        let spec = config::decode_task(&request.task.driver_config, request.node.policy())?;
        let profile = read_profile(&spec).await?;
        failpoint::at("start-before-lease");
        let image = ImageLease::acquire(request, &spec).await?;
        Ok(Self { pull_time: request.elapsed(), request, spec, profile, image })
    }
}

/// A lease of an image for a container that does not exist yet. Dropped, it releases the image.
pub struct ImageLease {
    node: Arc<Node>,
    container: ContainerId,
    image: Image,
    kept: bool,
}

impl ImageLease {
    async fn acquire(request: &StartRequest, spec: &TaskSpec) -> Result<Self, TaskError> {
        let StartRequest { node, container, .. } = request;
        let reference = spec.image.parse().map_err(|error| TaskError::Invalid(format!("option image: {error}")))?;
        let timeout = Some(spec.image_pull_timeout.unwrap_or(node.config.image_pull_timeout));
        let image = match &spec.load {
            Some(path) => {
                request.events.emit(format!("Loading image from {path}"), []);
                let (task, below) = (request.task.clone(), path.clone());
                let source = blocking(move || load_archive::open(&task, &below)).await?;
                let load = LoadRequest { source, name: format!("archive {path:?}"), reference, pin: false, timeout };
                node.store.load_unless(load, node::lease_owner(container), request.cancellation()).await
            }
            None => {
                let registry = reference.domain().to_owned();
                let progress = ObservedPull::new(PullEvents::new(request.events.clone()));
                let pull = pull_request(node, spec, reference, timeout);
                let owner = node::lease_owner(container);
                let image = node.store.acquire_unless(pull, owner, Arc::clone(&progress) as _, request.cancellation());
                let image = progress.inner().during(image).await;
                progress.record(node.recorder(), &registry, &image);
                request.set_pull_attributes(spans::of_pull(&registry, &progress));
                image
            }
        };
        let image = image.map_err(|error| match error {
            PullError::Cancelled => TaskError::Cancelled,
            error => TaskError::Pull { image: spec.image.clone(), error },
        })?;
        Ok(Self { node: node.clone(), container: container.clone(), image, kept: false })
    }

    /// The leased image.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Leaves the lease to the container: the container's removal releases the image.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for ImageLease {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = self.node.store.release(node::lease_owner(&self.container))
        {
            tracing::warn!(container = %self.container, %error, "image lease not released");
        }
    }
}

fn pull_request(node: &Node, spec: &TaskSpec, reference: Reference, timeout: Option<Duration>) -> PullRequest {
    PullRequest {
        reference,
        credentials: spec.auth.clone(),
        soft_fail: spec.auth_soft_fail,
        force: spec.force_pull,
        pin: false,
        timeout,
        idle_timeout: node.config.pull_activity_timeout,
    }
}

async fn read_profile(spec: &TaskSpec) -> Result<Option<SeccompProfile>, TaskError> {
    let Some(SeccompChoice::File(path)) = spec.security.seccomp.clone() else { return Ok(None) };
    blocking(move || seccomp_profile::read(&path).map(Some)).await
}
