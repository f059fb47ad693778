//! The image store of the node, and the images in it.

use std::fs;

use image_store::{ImageRecord, ImageUsage, Reference, Store};
use serde_json::Value;

use crate::{
    cli::{failure::Failure, settings::Settings},
    layers,
};

/// Opens the existing store. It is not created, because `--data-dir` may be mistyped.
pub fn open(settings: &Settings) -> Result<Store, Failure> {
    expect(settings)?;
    Store::open(settings.config.store()).map_err(Failure::of)
}

/// Fails if there is no store.
pub fn expect(settings: &Settings) -> Result<(), Failure> {
    let store = settings.config.store();
    let Err(problem) = fs::symlink_metadata(&store.root) else { return Ok(()) };
    let (directory, hint) = (store.root.display(), "is --data-dir or --config missing or mistyped?");
    Err(Failure::Failed(format!("no images in {directory}: {problem}; if the plugin has run on this node, {hint}")))
}

/// Opens the store for a command that adds to it, and creates it if it is missing.
pub fn open_or_create(settings: &Settings) -> Result<Store, Failure> {
    let mut config = settings.config.clone();
    if !settings.is_plugins {
        // Without the operator's `gc` block, a pull must not remove other images to free disk space.
        config.retention = None;
    }
    layers::open_store(&config).map_err(Failure::of)
}

/// The images that a name means: a reference, or a digest of an image or its first digits. A pulled image and one from
/// an archive can have the same name, and an image can have several.
pub fn find(store: &Store, name: &str) -> Result<Vec<ImageUsage>, Failure> {
    let mut images = store.usage().map_err(Failure::of)?;
    let records: Vec<&ImageRecord> = images.iter().map(|image| &image.record).collect();
    let found = matching(&records, name)?;
    let mut index = 0..;
    images.retain(|_| index.next().is_some_and(|index| found.contains(&index)));
    Ok(images)
}

/// The indexes of the images that a name means.
fn matching(images: &[&ImageRecord], name: &str) -> Result<Vec<usize>, Failure> {
    let of = |fits: &dyn Fn(&ImageRecord) -> bool| -> Vec<usize> {
        (0..images.len()).filter(|index| fits(images[*index])).collect()
    };
    let reference = name.parse::<Reference>();
    if let Ok(reference) = &reference {
        let named = of(&|image| image.reference == *reference);
        if !named.is_empty() {
            return Ok(named);
        }
    }
    let found = match digits(name) {
        Some(digits) => of(&|image| {
            let digests = [&image.manifest, &image.config, &image.resolved];
            digests.iter().any(|digest| hex(digest.as_str()).starts_with(digits))
        }),
        None => Vec::new(),
    };
    let Some(first) = found.first().map(|index| images[*index]) else {
        return Err(match reference {
            Ok(reference) => no_such_image(&reference),
            Err(_) if digits(name).is_some() => Failure::NotFound(format!("there is no image {name} here")),
            Err(error) => Failure::of(error),
        });
    };
    if found.iter().any(|index| images[*index].manifest != first.manifest) {
        let names: Vec<String> = found.iter().map(|index| images[*index].reference.to_string()).collect();
        return Err(Failure::Failed(format!("{name} means several images: {}; write more digits", names.join(", "))));
    }
    Ok(found)
}

/// The digits of a digest without its algorithm.
fn hex(digest: &str) -> &str {
    digest.split_once(':').map_or(digest, |(_, hex)| hex)
}

/// The digits of a name that may be the begin of a digest.
fn digits(name: &str) -> Option<&str> {
    /// Fewer digits are more likely a name.
    const FEWEST: usize = 4;
    let digits = name.strip_prefix("sha256:").unwrap_or(name);
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    (digits.len() >= FEWEST && digits.chars().all(is_digit)).then_some(digits)
}

/// The failure of a command that names an image that the store does not have.
pub fn no_such_image(reference: &Reference) -> Failure {
    Failure::NotFound(format!("there is no image {reference} here"))
}

/// The images with a name, with their configuration documents.
pub fn details(store: &Store, name: &str) -> Result<Vec<(ImageUsage, Value)>, Failure> {
    let mut details = Vec::new();
    for image in find(store, name)? {
        // The store verifies the document's digest. The pull checked that it is JSON.
        let config = store.config(&image.record).map_err(Failure::of)?;
        let config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Value::Null);
        details.push((image, config));
    }
    Ok(details)
}

#[cfg(test)]
mod tests {
    use image_store::{Access, Digest, ImageRecord};

    use super::matching;
    use crate::cli::failure::Failure;

    fn record(reference: &str, content: &str) -> ImageRecord {
        ImageRecord {
            reference: reference.parse().unwrap(),
            resolved: Digest::sha256(format!("index of {content}").as_bytes()),
            manifest: Digest::sha256(content.as_bytes()),
            config: Digest::sha256(format!("config of {content}").as_bytes()),
            layers: Vec::new(),
            pulled_at: 0,
            loaded: false,
            pinned: false,
            access: Access::Anyone,
        }
    }

    #[test]
    fn an_image_is_found_by_its_name_and_by_digits_of_its_digests() {
        let all = [record("r.example/a:1", "a"), record("r.example/a:2", "a"), record("busybox", "b")];
        let all: Vec<&ImageRecord> = all.iter().collect();
        let (digest, id) = (all[2].manifest.as_str(), all[2].config.as_str());
        let found = |name: &str| matching(&all, name);
        for (name, expected) in [
            ("busybox", vec![2]),
            ("r.example/a:1", vec![0]),
            (digest, vec![2]),
            (&digest[..19], vec![2]),
            (&id["sha256:".len()..][..12], vec![2]),
            (all[0].manifest.as_str(), vec![0, 1]),
        ] {
            assert_eq!(found(name).unwrap(), expected, "{name}");
        }
        assert!(matches!(found("r.example/a:3"), Err(Failure::NotFound(_))));
        assert!(matches!(found("sha256:00000000000000"), Err(Failure::NotFound(_) | Failure::Failed(_))));
        assert!(matches!(found("UPPER"), Err(Failure::Failed(_))));
    }
}
