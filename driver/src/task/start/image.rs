//! The first phase of a start: the task block is decoded and its images are leased.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cdi::ContainerEdits;
use image_store::{Image, LayerGroup, LeaseOwner, LoadRequest, PullError, PullRequest, Reference};
use runtime::plan::{ContainerId, SeccompProfile};

use super::{cdi_devices, load_archive, pull_progress::PullEvents, request::StartRequest, seccomp_profile, spans};
use crate::{
    blocking::blocking,
    config::{self, RootChoice, SeccompChoice, TaskSpec},
    error::TaskError,
    events::Content,
    metrics::ObservedPull,
    node::{self, Node},
    plan,
};

/// A task with a leased image.
pub struct Leased<'a> {
    /// The start.
    pub request: &'a StartRequest,
    /// The decoded task block.
    pub spec: TaskSpec,
    /// The seccomp profile from the file that the task block names.
    pub profile: Option<SeccompProfile>,
    /// What the task's devices of the Container Device Interface change.
    pub edits: Option<ContainerEdits>,
    /// The image. Released when dropped, unless a container uses it.
    pub image: ImageLease,
    /// The duration of this phase.
    pub pull_time: Duration,
}

impl<'a> Leased<'a> {
    /// Decodes the task block, reads its seccomp profile and the specs of its devices, and pulls or loads its image.
    pub async fn acquire(request: &'a StartRequest) -> Result<Self, TaskError> {
        let spec = config::decode_task(&request.task.driver_config, request.node.policy())?;
        let profile = read_profile(&spec).await?;
        failpoint::at("start-before-lease");
        let mut image = ImageLease::acquire(request, &spec).await?;
        let edits = read_edits(request, &spec, image.image()).await?;
        image.acquire_mounted(request, &spec).await?;
        Ok(Self { pull_time: request.elapsed(), request, spec, profile, edits, image })
    }
}

/// A lease of an image for a container that does not exist yet. Dropped, it releases the image.
pub struct ImageLease {
    node: Arc<Node>,
    container: ContainerId,
    image: Image,
    mounted: BTreeMap<String, Image>,
    kept: bool,
}

impl ImageLease {
    async fn acquire(request: &StartRequest, spec: &TaskSpec) -> Result<Self, TaskError> {
        let StartRequest { node, container, .. } = request;
        let reference = parse("image", &spec.image)?;
        let timeout = Some(spec.image_pull_timeout.unwrap_or(node.config.image_pull_timeout));
        let image = match &spec.load {
            Some(path) => {
                request.events.emit(Content::Loading { path: path.clone() });
                let (task, below) = (request.task.clone(), path.clone());
                let source = blocking(move || load_archive::open(&task, &below)).await?;
                let load = LoadRequest { source, name: format!("archive {path:?}"), reference, pin: false, timeout };
                node.store.load_unless(load, node::lease_owner(container), request.cancellation()).await
            }
            None => {
                let registry = reference.domain().to_owned();
                let progress = ObservedPull::new(PullEvents::new(request.events.clone()));
                let pull = pull_request(node, spec, reference, timeout);
                let image = observed(request, pull, node::lease_owner(container), &progress).await;
                request.set_pull_attributes(spans::of_pull(&registry, &progress));
                image
            }
        };
        let image = image.map_err(|error| failed(&spec.image, error))?;
        Ok(Self { node: node.clone(), container: container.clone(), image, mounted: BTreeMap::new(), kept: false })
    }

    /// Pulls and leases the images that the task mounts beside its own, one after the other.
    async fn acquire_mounted(&mut self, request: &StartRequest, spec: &TaskSpec) -> Result<(), TaskError> {
        let StartRequest { node, container, .. } = request;
        let timeout = Some(spec.image_pull_timeout.unwrap_or(node.config.image_pull_timeout));
        for (number, name) in (0..).zip(spec.mounted_images()) {
            failpoint::at("start-before-mounted-lease");
            let reference = parse("mount", name)?;
            let progress = ObservedPull::new(PullEvents::of_mounted(request.events.clone(), name));
            let mut pull = pull_request(node, spec, reference, timeout);
            // The task's credentials are those of its image's registry.
            if parse("image", &spec.image)?.domain() != pull.reference.domain() {
                pull.credentials = None;
            }
            let owner = LeaseOwner::MountedImage { container: container.to_string(), number };
            let image = observed(request, pull, owner, &progress).await.map_err(|error| failed(name, error))?;
            self.mounted.insert(name.to_owned(), image);
        }
        Ok(())
    }

    /// The images that the task mounts beside its own, by their names in the job.
    pub fn mounted(&self) -> &BTreeMap<String, Image> {
        &self.mounted
    }

    /// The leased image.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The descriptor that the container's processes must hold, if a layer is not complete.
    pub fn group(&self) -> Option<&LayerGroup> {
        self.mounted.values().chain([&self.image]).find_map(|image| image.group.as_ref())
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

fn parse(option: &str, name: &str) -> Result<Reference, TaskError> {
    name.parse().map_err(|error| TaskError::Invalid(format!("option {option}: {error}")))
}

fn failed(name: &str, error: PullError) -> TaskError {
    match error {
        PullError::Cancelled => TaskError::Cancelled,
        error => TaskError::Pull { image: name.to_owned(), error },
    }
}

/// Pulls and leases an image, with events and metrics.
async fn observed(
    request: &StartRequest,
    pull: PullRequest,
    owner: LeaseOwner,
    progress: &Arc<ObservedPull<PullEvents>>,
) -> Result<Image, PullError> {
    let node = &request.node;
    let registry = pull.reference.domain().to_owned();
    let image = node.store.acquire_unless(pull, owner, Arc::clone(progress) as _, request.cancellation());
    let image = progress.inner().during(image).await;
    progress.record(node.recorder(), &registry, &image);
    image
}

fn pull_request(node: &Node, spec: &TaskSpec, reference: Reference, timeout: Option<Duration>) -> PullRequest {
    PullRequest {
        reference,
        credentials: spec.auth.clone(),
        soft_fail: spec.auth_soft_fail,
        force: spec.force_pull,
        pin: false,
        background: false,
        lazy: may_be_incomplete(node, spec),
        timeout,
        idle_timeout: node.config.pull_activity_timeout,
    }
}

/// Whether the task may use images that are not complete. If all processes of the driver are killed, the kernel has to
/// end such a task. It does so by the parent-death signal of the container's first process, which ends the others of
/// its PID namespace. Where the execution of the command changes an AppArmor profile or an SELinux label, it clears the
/// signal, so the first process must be an init, which executes nothing.
fn may_be_incomplete(node: &Node, spec: &TaskSpec) -> bool {
    let copied = node.policy().rootfs == RootChoice::Copy;
    let keeps_signal = spec.init || !(node.apparmor.is_used() || node.selinux.labels.is_some());
    !spec.whole_image && keeps_signal && !copied && spec.runtime.is_none() && !spec.namespaces.host_pid
}

async fn read_profile(spec: &TaskSpec) -> Result<Option<SeccompProfile>, TaskError> {
    let Some(SeccompChoice::File(path)) = spec.security.seccomp.clone() else { return Ok(None) };
    blocking(move || seccomp_profile::read(&path).map(Some)).await
}

async fn read_edits(
    request: &StartRequest,
    spec: &TaskSpec,
    image: &Image,
) -> Result<Option<ContainerEdits>, TaskError> {
    let names = plan::permitted_cdi_names(spec, &request.task, &image.config, request.node.policy());
    if names.is_empty() {
        return Ok(None);
    }
    let node = request.node.clone();
    blocking(move || cdi_devices::edits(&node.config.cdi_spec_dirs, &names).map(Some)).await
}
