//! `image convert` and `image push`: images for registries. Need no plugin and no root.

use std::path::Path;

use image_store::{Conversion, NativeForm, NativeManifest, PushRequest, Pushed, Reference, convert_layout};
use serde_json::{Value, json};

use super::{
    interrupt::until_interrupted,
    place::{Place, Scratch, open, registries},
    progress,
};
use crate::cli::{failure::Failure, format, output::Output, settings::Settings};

/// Converts an image of a layout or a registry into a layout or a registry.
pub fn convert(
    settings: &Settings,
    (source, target): (&str, &str),
    (image, form): (Option<String>, NativeForm),
    output: &Output,
) -> Result<(), Failure> {
    let (source, target) = (Place::parse(source)?, Place::parse(target)?);
    let uses_registry = [&source, &target].iter().any(|place| matches!(place, Place::Registry(_)));
    let scratch = uses_registry.then(Scratch::new).transpose()?;
    let in_scratch = |place: &Place, name: &str| match (place, &scratch) {
        (Place::Layout(path), _) => path.clone(),
        (Place::Registry(_), Some(scratch)) => scratch.path(name),
        (Place::Registry(_), None) => name.into(),
    };
    let (from, to) = (in_scratch(&source, "source"), in_scratch(&target, "target"));
    if let Place::Registry(reference) = &source {
        let (store, idle) = (registries(settings), settings.config.pull_activity_timeout);
        until_interrupted(store.fetch_layout(reference, &from, idle, progress::of(output)))?;
    }
    let image = if source == Place::Layout(from.clone()) { image } else { None };
    let opened = open(&from, image)?;
    let converted = until_interrupted(convert_layout(opened, to.clone(), form, registries(settings).limits))?;
    let pushed = match &target {
        Place::Layout(_) => None,
        Place::Registry(reference) => {
            let mount_from = match &source {
                Place::Registry(source) if source.domain() == reference.domain() => Some(source.repository()),
                _ => None,
            };
            Some((reference, send(settings, (&to, None), (reference, mount_from), output)?))
        }
    };
    report(&converted, pushed.as_ref(), output)
}

/// Uploads the image of this name in a layout.
pub fn push(
    settings: &Settings,
    (source, image): (&Path, Option<String>),
    reference: &Reference,
    output: &Output,
) -> Result<(), Failure> {
    let pushed = send(settings, (source, image), (reference, None), output)?;
    if output.json {
        return Ok(output.value(&pushed_json(reference, &pushed))?);
    }
    show(reference, &pushed, output)
}

fn send(
    settings: &Settings,
    (source, image): (&Path, Option<String>),
    (reference, mount_from): (&Reference, Option<&str>),
    output: &Output,
) -> Result<Pushed, Failure> {
    let request = PushRequest {
        layout: open(source, image)?,
        reference: reference.clone(),
        mount_from: mount_from.filter(|from| *from != reference.repository()).map(str::to_owned),
        idle_timeout: settings.config.pull_activity_timeout,
    };
    let store = registries(settings);
    until_interrupted(store.push(request, progress::of(output)))
}

fn report(converted: &Conversion, pushed: Option<&(&Reference, Pushed)>, output: &Output) -> Result<(), Failure> {
    if output.json {
        let shown = |image: &NativeManifest| {
            let (manifest, bytes) = (image.digest.as_str(), image.bytes);
            json!({"platform": image.platform, "manifest": manifest, "layer_bytes": bytes})
        };
        let images: Vec<_> = converted.images.iter().map(shown).collect();
        let mut value = json!({"index": converted.index.as_str(), "images": images});
        if let Some((reference, pushed)) = pushed {
            value["pushed"] = pushed_json(reference, pushed);
        }
        return Ok(output.value(&value)?);
    }
    for image in &converted.images {
        let size = format::size(image.bytes);
        output.line(format_args!("{}: {} with {size} of layers", image.platform, image.digest))?;
    }
    output.line(format_args!("index: {}", converted.index))?;
    pushed.map_or(Ok(()), |(reference, pushed)| show(reference, pushed, output))
}

fn pushed_json(reference: &Reference, pushed: &Pushed) -> Value {
    json!({
        "reference": reference.to_string(), "digest": pushed.digest, "uploaded": pushed.uploaded,
        "uploaded_bytes": pushed.uploaded_bytes, "mounted": pushed.mounted, "present": pushed.present,
    })
}

fn show(reference: &Reference, pushed: &Pushed, output: &Output) -> Result<(), Failure> {
    let Pushed { digest, uploaded, uploaded_bytes, mounted, present } = pushed;
    let size = format::size(*uploaded_bytes);
    output.line(format_args!("{reference} is there: {digest}"))?;
    let found = present + mounted;
    Ok(output.line(format_args!("blobs: {uploaded} sent ({size}), {found} were there"))?)
}
