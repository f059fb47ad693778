//! `image prefetch`: pulls images before a task needs them, by name or for the tasks of job files.
//!
//! Only credentials of the node are used. The images are not pinned: garbage collection treats them as if a task had
//! just ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use futures_util::{StreamExt, stream};
use image_store::{Image, LeaseOwner, Progress, PullError, PullEvent, PullRequest, Reference, Silent, Store};
use serde_json::{Value as Json, json};

use super::{
    interrupt::{self, Interrupted, interrupted},
    lease::lease_owners,
    progress,
    store::open_or_create,
};
use crate::{
    cli::{
        arguments::{NodeArguments, PrefetchOptions},
        failure::Failure,
        format,
        job_files::{self, Variables},
        output::{self, Output},
        settings::Settings,
    },
    metrics::ObservedPull,
    name::DriverName,
    nomad::{TaskImage, task_images},
};

/// Runs the command.
pub fn run(node: &NodeArguments, options: &PrefetchOptions, output: &Output) -> Result<(), Failure> {
    let (wanted, skipped) = wanted(node, options)?;
    for image in &skipped {
        output::note(skip_line(image));
    }
    let mut settings = Settings::one(node)?;
    // No image makes way for one that nothing uses yet.
    settings.config.retention = None;
    let done = if wanted.is_empty() { Vec::new() } else { pull_all(&settings, wanted, options.parallel, output)? };
    if output.json {
        let images: Vec<Json> = done.iter().map(Done::json).collect();
        let skipped: Vec<Json> = skipped.iter().map(skip_json).collect();
        output.value(&json!({ "images": images, "skipped": skipped }))?;
    }
    let failed = done.iter().filter(|done| done.result.is_err()).count();
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!("{failed} of {} images are not here", done.len()))),
    }
}

/// The images of the command line and of the job files, each once, with whether a task asks the registry at each
/// start. Then the images of tasks that cannot be pulled.
fn wanted(
    node: &NodeArguments,
    options: &PrefetchOptions,
) -> Result<(BTreeMap<Reference, bool>, Vec<TaskImage>), Failure> {
    let mut wanted = BTreeMap::new();
    for name in &options.references {
        wanted.insert(name.parse().map_err(Failure::of)?, false);
    }
    let jobs = job_files::read_all(&options.file, &Variables { values: &options.var, files: &options.var_file })?;
    let drivers: Vec<String> = if jobs.is_empty() { Vec::new() } else { drivers(&Settings::all(node)?) };
    let drivers: Vec<&str> = drivers.iter().map(String::as_str).collect();
    let mut skipped = Vec::new();
    for image in jobs.iter().flat_map(|(_, job)| task_images(job, &drivers)) {
        match &image.image {
            Ok(reference) => *wanted.entry(reference.clone()).or_default() |= image.force,
            Err(_) => skipped.push(image),
        }
    }
    Ok((wanted, skipped))
}

/// The drivers of this node whose tasks are looked at: `oci-rs`, and `docker` if the plugin has that name here.
fn drivers(all: &[Settings]) -> Vec<String> {
    let here = all.iter().filter(|settings| settings.is_plugins).map(|settings| settings.config.driver);
    let names: BTreeSet<String> = here.chain([DriverName::OciRs]).map(|name| name.to_string()).collect();
    names.into_iter().collect()
}

/// One image of the command.
struct Done {
    reference: Reference,
    result: Result<Image, PullError>,
    /// The received bytes; `None` if the image was here.
    fetched: Option<u64>,
}

impl Done {
    fn line(&self) -> String {
        let reference = &self.reference;
        match (&self.result, self.fetched) {
            (Ok(image), Some(bytes)) => format!("{reference} is pulled, {}: {}", format::size(bytes), image.digest),
            (Ok(image), None) => format!("{reference} was here: {}", image.digest),
            (Err(error), _) => format!("{reference}: {error}"),
        }
    }

    fn json(&self) -> Json {
        let (outcome, digest, error) = match &self.result {
            Ok(image) if self.fetched.is_some() => ("pulled", Some(image.digest.clone()), None),
            Ok(image) => ("present", Some(image.digest.clone()), None),
            Err(error) => ("failed", None, Some(error.to_string())),
        };
        json!({
            "reference": self.reference.to_string(), "outcome": outcome, "digest": digest, "bytes": self.fetched,
            "error": error,
        })
    }
}

fn skip_line(image: &TaskImage) -> String {
    let why = image.image.as_ref().err().map(ToString::to_string).unwrap_or_default();
    format!("{}: image {:?} is left to the task's start: {why}", image.task, image.name)
}

fn skip_json(image: &TaskImage) -> Json {
    let reason = image.image.as_ref().err();
    json!({
        "task": image.task, "image": image.name, "reason": reason.map(|reason| reason.label()),
        "text": reason.map(ToString::to_string),
    })
}

/// Pulls images, some at the same time. After SIGINT or SIGTERM only complete layers are left.
fn pull_all(
    settings: &Settings,
    wanted: BTreeMap<Reference, bool>,
    parallel: usize,
    output: &Output,
) -> Result<Vec<Done>, Failure> {
    let store = open_or_create(settings)?;
    // Bars of several pulls would overwrite each other.
    let shown: Arc<dyn Progress> = if wanted.len() == 1 { progress::of(output) } else { Arc::new(Silent) };
    let owners = lease_owners(wanted.len());
    let stop = interrupted();
    let pulls = wanted.into_iter().zip(&owners).map(|((reference, force), owner)| {
        let request =
            PullRequest { force, idle_timeout: settings.config.pull_activity_timeout, ..PullRequest::new(reference) };
        pull(&store, request, owner, (Arc::clone(&shown), stop.clone()))
    });
    let pulls = stream::iter(pulls).buffer_unordered(parallel.max(1));
    let result = interrupt::run(async move {
        let (mut pulls, mut all, mut given_up) = (pulls, Vec::new(), false);
        while let Some(done) = pulls.next().await {
            // The others are cancelled too, and have staged layers until they say so.
            if matches!(done.result, Err(PullError::Cancelled)) {
                given_up = true;
                continue;
            }
            if let Err(error) = show(&done, output) {
                return Ok(Err(error));
            }
            all.push(done);
        }
        if given_up { Err(PullError::Cancelled) } else { Ok(Ok(all)) }
    });
    // The release counts as the last use. The plugin's `gc` block decides how long an image is kept after it.
    owners.iter().try_for_each(|owner| store.release(owner)).map_err(Failure::of)?;
    let done = result??;
    store.sync().map_err(Failure::of)?;
    Ok(done)
}

async fn pull(
    store: &Store,
    request: PullRequest,
    owner: &LeaseOwner,
    (shown, stop): (Arc<dyn Progress>, Interrupted),
) -> Done {
    let (reference, progress) = (request.reference.clone(), ObservedPull::new(Shown(shown)));
    let result = store.acquire_unless(request, owner, Arc::clone(&progress) as _, stop).await;
    Done { reference, fetched: progress.fetched().filter(|_| result.is_ok()), result }
}

fn show(done: &Done, output: &Output) -> io::Result<()> {
    match (&done.result, output.json) {
        (Err(_), _) => output::note(done.line()),
        (Ok(_), true) => {}
        (Ok(_), false) => output.line(done.line())?,
    }
    Ok(())
}

/// Shared progress.
struct Shown(Arc<dyn Progress>);

impl Progress for Shown {
    fn report(&self, event: PullEvent) {
        self.0.report(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PluginConfig;

    #[test]
    fn the_drivers_are_those_whose_plugins_are_here() {
        let settings = |driver, is_plugins| Settings {
            config: PluginConfig { driver, ..PluginConfig::default() },
            is_plugins,
            unknown_config: None,
            only: None,
        };
        assert_eq!(drivers(&[settings(DriverName::OciRs, false)]), ["oci-rs"]);
        assert_eq!(drivers(&[settings(DriverName::Docker, false)]), ["oci-rs"], "no plugin, no stand-in");
        assert_eq!(drivers(&[settings(DriverName::Docker, true)]), ["docker", "oci-rs"]);
    }
}
