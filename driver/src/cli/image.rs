//! The commands.

use std::{
    collections::BTreeSet,
    fs,
    io::{IsTerminal, Write},
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use image_store::{
    FsckOptions, ImageUsage, LeaseOwner, LoadRequest, Progress, PullError, PullEvent, PullRequest, Reference, Store,
    StoreError, fsck,
};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    ImageArguments, ImageCommand,
    failure::Failure,
    report,
    settings::Settings,
    show::{self, Output},
};
use crate::layers;

/// Carries a command out.
pub fn run(arguments: &ImageArguments) -> Result<(), Failure> {
    let settings = Settings::read(arguments)?;
    let output = Output { json: arguments.json };
    match &arguments.command {
        ImageCommand::Ls => report::list(&open(&settings)?.usage().map_err(Failure::of)?, &output),
        ImageCommand::Inspect { reference } => inspect(&open(&settings)?, &parse(reference)?, &output),
        ImageCommand::Pull { reference } => pull(&settings, parse(reference)?, &output),
        ImageCommand::Load { file, reference } => load(&settings, file, parse(reference)?, &output),
        ImageCommand::Rm { references } => {
            let references = references.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
            remove(&open(&settings)?, &references, &output)
        }
        ImageCommand::Prune => prune(&open(&settings)?, &output),
        ImageCommand::Fsck { repair } => check(&settings, *repair, &output),
    }
}

fn parse(text: &str) -> Result<Reference, Failure> {
    text.parse().map_err(Failure::of)
}

/// The store that is there. A mistyped directory must not become a store.
fn open(settings: &Settings) -> Result<Store, Failure> {
    expect_store(settings)?;
    Store::open(settings.config.store()).map_err(Failure::of)
}

fn expect_store(settings: &Settings) -> Result<(), Failure> {
    let store = settings.config.store();
    let problem = match fs::symlink_metadata(&store.root) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let (directory, hint) = (store.root.display(), "is --data-dir or --config missing?");
    Err(Failure::Failed(format!("no images in {directory}: {problem}; if the plugin has run on this node, {hint}")))
}

/// The store for those who add to it, made if there is none.
fn make(settings: &Settings) -> Result<Store, Failure> {
    let mut config = settings.config.clone();
    if !settings.known {
        // Whether a pull may remove other images to make room only the operator's own block can say.
        config.retention = None;
    }
    layers::open_store(&config).map_err(Failure::of)
}

/// The image of a name; one from an archive and a pulled one may stand side by side.
fn find(store: &Store, reference: &Reference) -> Result<Vec<ImageUsage>, Failure> {
    let mut images = store.usage().map_err(Failure::of)?;
    images.retain(|image| image.record.reference == *reference);
    if images.is_empty() {
        return Err(Failure::Unknown(format!("there is no image {reference} here")));
    }
    Ok(images)
}

fn inspect(store: &Store, reference: &Reference, output: &Output) -> Result<(), Failure> {
    let mut details = Vec::new();
    for image in find(store, reference)? {
        let config = store.config(&image.record).map_err(Failure::of)?;
        // Verified bytes; that they are JSON was seen when they were pulled.
        let config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(serde_json::Value::Null);
        details.push((image, config));
    }
    report::details(&details, output)
}

/// Runs pulls. A signal gives the work up in order, with nothing of it left but finished layers.
fn wait_for<T>(
    store: &Store,
    owner: &LeaseOwner,
    work: impl Future<Output = Result<T, PullError>>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::of)?;
    let result = runtime.block_on(async {
        let mut ended = signal(SignalKind::terminate()).map_err(Failure::of)?;
        tokio::select! {
            result = work => result.map_err(Failure::of),
            _ = tokio::signal::ctrl_c() => Err(Failure::Failed("given up".to_owned())),
            _ = ended.recv() => Err(Failure::Failed("given up".to_owned())),
        }
    });
    // Threads that unpack or write the lease may be at it still.
    drop(runtime);
    // The image is here now and counts as used until now; what the plugin's gc says decides how long it stays.
    store.release(owner).map_err(Failure::of)?;
    let result = result?;
    store.sync().map_err(Failure::of)?;
    Ok(result)
}

/// This process as the owner of a lease.
fn lease_owner() -> LeaseOwner {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    LeaseOwner::Operator { process: std::process::id(), started: now.as_nanos() }
}

fn pull(settings: &Settings, reference: Reference, output: &Output) -> Result<(), Failure> {
    let (store, owner) = (make(settings)?, lease_owner());
    let request = PullRequest {
        // Whoever types it wants to know what the name means now.
        force: true,
        idle_timeout: settings.config.pull_activity_timeout,
        ..PullRequest::new(reference.clone())
    };
    let progress: Arc<dyn Progress> = Arc::new(Teller { people: std::io::stderr().is_terminal() && !output.json });
    let image = wait_for(&store, &owner, store.acquire(request, &owner, progress))?;
    ready(&reference, &image.digest, output)
}

fn load(settings: &Settings, file: &Path, reference: Reference, output: &Output) -> Result<(), Failure> {
    let (store, owner) = (make(settings)?, lease_owner());
    let source = fs::File::open(file).map_err(|error| Failure::Failed(format!("{}: {error}", file.display())))?;
    let name = format!("archive {:?}", file.display().to_string());
    let request = LoadRequest { source: source.into(), name, reference: reference.clone(), timeout: None };
    let image = wait_for(&store, &owner, store.load(request, &owner))?;
    ready(&reference, &image.digest, output)
}

fn ready(reference: &Reference, digest: &str, output: &Output) -> Result<(), Failure> {
    if output.json {
        output.value(&json!({ "reference": reference.to_string(), "digest": digest }))?;
    } else {
        output.line(format_args!("{reference} is here: {digest}"))?;
    }
    Ok(())
}

/// Tells a terminal how far a pull is.
struct Teller {
    people: bool,
}

impl Progress for Teller {
    fn report(&self, event: PullEvent) {
        let PullEvent::Advanced { bytes_done, bytes_total, layers_done, layers } = event else { return };
        if self.people {
            let (done, total) = (show::size(bytes_done), show::size(bytes_total));
            let line = format!("{done} of {total}, {layers_done} of {layers} layers");
            // Nobody who cannot see it needs it.
            drop(writeln!(std::io::stderr(), "{line}"));
        }
    }
}

fn remove(store: &Store, references: &[Reference], output: &Output) -> Result<(), Failure> {
    let mut removed = Vec::new();
    let mut result = Ok(());
    for reference in references {
        match remove_one(store, reference) {
            Ok(()) => removed.push(reference.to_string()),
            // The others may go all the same; the last failure decides the exit code.
            Err(failure) => {
                if let Err(earlier) = std::mem::replace(&mut result, Err(failure)) {
                    earlier.tell();
                }
            }
        }
    }
    if output.json {
        output.value(&json!({ "removed": removed }))?;
    } else {
        removed.iter().try_for_each(|name| output.line(format_args!("removed {name}")))?;
    }
    result
}

fn remove_one(store: &Store, reference: &Reference) -> Result<(), Failure> {
    let unknown = || Failure::Unknown(format!("there is no image {reference} here"));
    match store.remove(reference) {
        Ok(true) => Ok(()),
        Ok(false) => Err(unknown()),
        Err(StoreError::InUse { owner, .. }) => {
            let mut held_by: Vec<LeaseOwner> =
                find(store, reference)?.into_iter().flat_map(|image| image.held_by).collect();
            if held_by.is_empty() {
                held_by.push(owner);
            }
            let who = show::owners(&held_by);
            Err(Failure::InUse(format!(
                "{reference} is in use by {who}; it can be removed once that has been destroyed"
            )))
        }
        Err(error) => Err(Failure::of(error)),
    }
}

fn prune(store: &Store, output: &Output) -> Result<(), Failure> {
    let report = store.prune().map_err(Failure::of)?;
    let kept = store.usage().map_err(Failure::of)?;
    let names: Vec<String> = report.images.iter().map(ToString::to_string).collect();
    if output.json {
        let kept: Vec<_> = kept.iter().map(report::image).collect();
        let removed = json!({ "removed": names, "layers": report.layers, "bytes": report.bytes, "kept": kept });
        return Ok(output.value(&removed)?);
    }
    names.iter().try_for_each(|name| output.line(format_args!("removed {name}")))?;
    for image in &kept {
        output.line(format_args!("kept {}: in use by {}", image.record.reference, show::owners(&image.held_by)))?;
    }
    output.line(format_args!("{} layers, {} freed", report.layers, show::size(report.bytes)))?;
    Ok(())
}

fn check(settings: &Settings, repair: bool, output: &Output) -> Result<(), Failure> {
    expect_store(settings)?;
    let owners = if settings.known { Some(containers(&settings.config.state_dir)?) } else { None };
    let found = fsck(&settings.config.store().root, &FsckOptions { repair, owners }).map_err(Failure::of)?;
    report::check(&found, repair, output)?;
    if found.is_sound() { Ok(()) } else { Err(Failure::Damage) }
}

/// The possible owners of leases: containers with a directory. A task that is just starting has none yet; its lease is young.
fn containers(state_dir: &Path) -> Result<BTreeSet<LeaseOwner>, Failure> {
    if !state_dir.exists() {
        // No task was started since the machine was.
        return Ok(BTreeSet::new());
    }
    let listed = runtime::containers(state_dir).map_err(Failure::of)?;
    Ok(listed.into_iter().map(|id| LeaseOwner::Task { container: id.to_string() }).collect())
}
