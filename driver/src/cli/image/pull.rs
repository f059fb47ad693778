//! `image pull` and `image load`: the commands that add an image.

use std::{fs, path::Path};

use image_store::{LeaseOwner, LoadRequest, PullError, PullRequest, Reference, Store};
use serde_json::json;

use super::{
    interrupt::{interrupted, run},
    lease::lease_owner,
    progress,
    store::open_or_create,
};
use crate::cli::{failure::Failure, output::Output, settings::Settings};

/// Downloads an image, and pins its name if `pin` is set.
pub fn pull(settings: &Settings, (reference, pin): (Reference, bool), output: &Output) -> Result<(), Failure> {
    let (store, owner) = (open_or_create(settings)?, lease_owner());
    let request = PullRequest {
        // The operator expects the image that the name means now, not the local copy.
        force: true,
        pin,
        idle_timeout: settings.config.pull_activity_timeout,
        ..PullRequest::new(reference.clone())
    };
    // When this returns, no part of the pull runs any more, and the bars are gone from the terminal.
    let work = store.acquire_unless(request, &owner, progress::of(output), interrupted());
    let image = complete(&store, &owner, work)?;
    report(&reference, &image.digest, pin, output)
}

/// Unpacks an image of an archive, and pins its name if `pin` is set.
pub fn load(
    settings: &Settings,
    file: &Path,
    (reference, pin): (Reference, bool),
    output: &Output,
) -> Result<(), Failure> {
    let (store, owner) = (open_or_create(settings)?, lease_owner());
    let source = fs::File::open(file).map_err(|error| Failure::Failed(format!("{}: {error}", file.display())))?;
    let name = format!("archive {:?}", file.display().to_string());
    let request = LoadRequest { source: source.into(), name, reference: reference.clone(), pin, timeout: None };
    let image = complete(&store, &owner, store.load_unless(request, &owner, interrupted()))?;
    report(&reference, &image.digest, pin, output)
}

/// Runs a pull or load to its end, and releases its lease. After SIGINT or SIGTERM only complete layers are left.
fn complete<T>(
    store: &Store,
    owner: &LeaseOwner,
    work: impl Future<Output = Result<T, PullError>>,
) -> Result<T, Failure> {
    let result = run(work);
    // The release counts as the image's last use. The plugin's `gc` block decides how long the image is kept.
    store.release(owner).map_err(Failure::of)?;
    let result = result?;
    store.sync().map_err(Failure::of)?;
    Ok(result)
}

fn report(reference: &Reference, digest: &str, pinned: bool, output: &Output) -> Result<(), Failure> {
    if output.json {
        output.value(&json!({ "reference": reference.to_string(), "digest": digest, "pinned": pinned }))?;
        return Ok(());
    }
    output.line(format_args!("{reference} is here: {digest}"))?;
    if pinned && reference.is_floating() {
        output.line("jobs ask the registry at each start, because the tag is latest; another tag needs no registry")?;
    }
    Ok(())
}
