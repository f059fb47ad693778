//! Taking over the data of docker's named volumes, if the operator asks for it (`migrate_volumes`).

use super::{request::StartRequest, waiting::announced};
use crate::{blocking::blocking, dockerd::Dockerd, error::TaskError, events::Content, plan::TaskPlan};

/// Copies the data of docker's volumes for the named volumes of a plan that do not exist yet.
pub async fn take_over(request: &StartRequest, plan: &TaskPlan) -> Result<(), TaskError> {
    let node = &request.node;
    let Some(dockerd) = node.dockerd.as_ref().filter(|_| node.config.migrate_volumes) else { return Ok(()) };
    for volume in plan.container.volumes.iter().filter(|volume| !volume.mounted && !volume.directory.exists()) {
        let name = volume.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        take_over_one(request, dockerd, &name, &volume.directory).await?;
    }
    Ok(())
}

async fn take_over_one(
    request: &StartRequest,
    dockerd: &Dockerd,
    name: &str,
    directory: &std::path::Path,
) -> Result<(), TaskError> {
    let waits = || Content::DockerVolumeWaits { volume: name.to_owned() };
    let Some(source) = announced(&request.events, waits, dockerd.volume(name)).await? else { return Ok(()) };
    let (node, target) = (request.node.clone(), directory.to_owned());
    let cancelled = request.cancelled_flag();
    let copy = blocking(move || match node.runtime.import_volume(&target, &source, &cancelled) {
        Err(_) if cancelled() => Err(TaskError::Cancelled),
        staged => staged.map_err(TaskError::internal),
    });
    let copies = || Content::DockerVolumeCopying { volume: name.to_owned() };
    let Some(staged) = announced(&request.events, copies, copy).await? else { return Ok(()) };
    // A container that began meanwhile may have changed the data.
    let unused = dockerd.expect_unused(name).await;
    let taken = blocking(move || {
        unused?;
        staged.commit().map_err(TaskError::internal)
    });
    if taken.await? {
        request.events.emit(Content::DockerVolumeCopied { volume: name.to_owned() });
        tracing::info!(volume = name, task = request.task.id, "took over a volume of docker");
    }
    Ok(())
}
