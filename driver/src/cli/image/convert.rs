//! `image convert`: adds native images to an OCI layout. Needs no plugin and no root.

use std::{fs::File, path::Path};

use image_store::{Conversion, Limits, NativeManifest, convert_layout};
use serde_json::json;

use crate::cli::{failure::Failure, format, output::Output};

/// Converts the image of this name in a layout.
pub fn convert(source: &Path, target: &Path, image: Option<&str>, output: &Output) -> Result<(), Failure> {
    let opened = File::open(source).map_err(|error| Failure::Failed(format!("{}: {error}", source.display())))?;
    let name = format!("layout {:?}", source.display().to_string());
    let converted = convert_layout(opened.into(), name, image, target, &Limits::default()).map_err(Failure::of)?;
    report(&converted, output)
}

fn report(converted: &Conversion, output: &Output) -> Result<(), Failure> {
    if output.json {
        let shown = |image: &NativeManifest| {
            let (manifest, bytes) = (image.digest.as_str(), image.bytes);
            json!({"platform": image.platform, "manifest": manifest, "layer_bytes": bytes})
        };
        let images: Vec<_> = converted.images.iter().map(shown).collect();
        return Ok(output.value(&json!({"index": converted.index.as_str(), "images": images}))?);
    }
    for image in &converted.images {
        let size = format::size(image.bytes);
        output.line(format_args!("{}: {} with {size} of layers", image.platform, image.digest))?;
    }
    Ok(output.line(format_args!("index: {}", converted.index))?)
}
