//! The parsers that read bytes of strangers, one function each.

use std::{fs::File, io::Cursor, sync::Arc};

use cdi::{Format, QualifiedName, Registry, Spec};
use image_store::{
    ImageConfig, Platform, Reference, Secret,
    fuzzing::{
        DockerConfig, Document, Plan, Source, choose_image, choose_manifest, is_internal, parse_challenges,
        parse_config, parse_document, plan,
    },
};
use layer::{Digest, check_metadata, fuzzing::pax as pax_records};

use crate::limits::{assert_loggable, layer_limits, store_limits};

fn platform() -> Platform {
    Platform { os: "linux".into(), architecture: "amd64".into(), ..Platform::default() }
}

fn reference_of(text: &str) -> Reference {
    text.parse().expect("a reference")
}

/// PAX records.
pub fn pax(bytes: &[u8]) {
    match pax_records::parse(bytes) {
        Ok(read) => {
            for name in [&read.path, &read.link, &read.sparse.name].into_iter().flatten() {
                assert!(!name.is_empty() && !name.contains(&0));
            }
            assert!(read.mtime.is_none_or(|(_, nanos)| nanos < 1_000_000_000));
            let mut keys: Vec<_> = read.xattrs.iter().map(|(key, _)| key).collect();
            keys.sort();
            let count = keys.len();
            keys.dedup();
            assert!(count == keys.len() && count <= 1024);
        }
        Err(problem) => assert_loggable(&problem),
    }
}

/// The metadata of a native image. What is accepted is what the writer makes of the same files, so a changed number of
/// files is refused.
pub fn native(bytes: &[u8]) {
    let limits = layer_limits();
    // Inputs are short, and metadata consists of blocks.
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    match check_metadata(&bytes, &limits) {
        Ok(checked) => {
            assert_eq!(checked.parts.metadata, bytes.len() as u64);
            assert!(checked.files <= limits.entries + 1);
            assert!(checked.parts.data <= limits.layer_bytes + (checked.files << 12));
            // The number of files in the superblock.
            bytes[1024 + 16] ^= 1;
            assert!(check_metadata(&bytes, &limits).is_err());
        }
        Err(problem) => assert_loggable(&problem),
    }
}

/// A manifest or an index, and a config.
pub fn documents(bytes: &[u8]) {
    let (platform, reference) = (platform(), reference_of("team/app:1"));
    match parse_document("document", bytes) {
        Ok(Document::Index(entries)) => match choose_manifest(&reference, &entries, &platform) {
            Ok(chosen) => assert!(entries.contains(&chosen)),
            Err(error) => assert_loggable(&error.to_string()),
        },
        Ok(Document::Manifest(manifest)) => {
            for layer in manifest.layers.iter().chain([&manifest.config]) {
                digest(&layer.digest);
            }
        }
        Err(error) => assert_loggable(&error.to_string()),
    }
    match parse_config("config", bytes) {
        Ok(document) => {
            document.diff_ids.iter().for_each(digest);
            assert!(document.config.env.iter().all(|(key, _)| !key.is_empty() && !key.contains('=')));
            assert_loggable(&document.platform.to_string());
            let text = serde_json::to_vec(&document.config).expect("it can be written down");
            assert_eq!(serde_json::from_slice::<ImageConfig>(&text).expect("and read again"), document.config);
        }
        Err(error) => assert_loggable(&error.to_string()),
    }
}

fn digest(digest: &Digest) {
    assert!(matches!(digest.hex().len(), 64 | 128) && digest.hex().bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(digest.as_str().parse::<Digest>().as_ref(), Ok(digest));
}

/// An image's name.
pub fn reference(text: &str) {
    match text.parse::<Reference>() {
        Ok(reference) => {
            let shown = reference.to_string();
            assert_eq!(shown.parse::<Reference>().as_ref(), Ok(&reference), "{shown}");
            assert!(shown.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%\\\"".contains(&byte)), "{shown}");
            assert!(reference.repository().split('/').all(|part| !matches!(part, "" | "." | "..")));
            assert!(reference.tag().is_some() || reference.digest().is_some());
        }
        Err(error) => assert_loggable(&error.to_string()),
    }
}

/// A `WWW-Authenticate` header, and the token server that it names.
pub fn challenges(header: &str) {
    let registry = "https://registry.example/".parse().expect("a URL");
    match plan(&parse_challenges(header), &registry, "repository:team/app:pull", true) {
        Ok(Some(Plan::Bearer { realm, .. })) => {
            assert_eq!(realm.scheme(), "https");
            assert!(realm.username().is_empty() && realm.password().is_none());
            assert!(!is_internal(&realm), "{realm}");
        }
        Ok(_) => {}
        Err(problem) => assert_loggable(&problem),
    }
}

/// An image archive.
pub fn archive(bytes: &[u8]) {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("archive", flags).expect("a file in memory");
    let mut file = File::from(file);
    std::io::copy(&mut Cursor::new(bytes), &mut file).expect("room in memory");
    let (platform, reference) = (platform(), reference_of("team/app:1"));
    let limits = store_limits();
    let opened = Source::open("archive".into(), file.into(), &limits, &std::env::temp_dir(), Arc::default());
    let chosen = opened.and_then(|source| {
        let found = choose_image(&source, &reference, &platform, &limits)?;
        for layer in &found.layers {
            assert!(!layer.member.split('/').any(|part| matches!(part, "" | "." | "..")));
            if let Some(part) = source.member(&layer.member)? {
                // The archive alone says how large its members are.
                assert!(part.size() <= limits.layer_bytes.max(bytes.len() as u64));
            }
        }
        Ok(())
    });
    if let Err(error) = chosen {
        assert_loggable(&error.to_string());
    }
}

/// Docker's `config.json`.
pub fn docker_config(bytes: &[u8]) {
    match DockerConfig::parse(bytes) {
        Ok(config) => {
            for image in ["nginx", "registry.example/team/app", "registry.example:5000/app"] {
                let image = reference_of(image);
                match config.stored(&image) {
                    Ok(Some(found)) => assert!(!found.username.is_empty() && found.password != Secret::default()),
                    Ok(None) => {}
                    Err(problem) => assert_loggable(&problem),
                }
                assert!(config.helper(&image).is_none_or(|name| !name.is_empty()));
            }
        }
        Err(problem) => assert_loggable(&problem),
    }
}

/// A spec of devices. What is read as JSON is read as the same from YAML, and each of its devices is found by its name.
pub fn cdi(bytes: &[u8]) {
    let read = |format| Spec::parse(format, bytes);
    let (json, yaml) = (read(Format::Json), read(Format::Yaml));
    for spec in [json, yaml].into_iter().flatten() {
        let text = serde_json::to_vec(&spec).expect("it can be written down");
        assert_eq!(Spec::parse(Format::Json, &text).as_ref(), Ok(&spec), "and read again");
        let count = spec.devices.len();
        let registry = Registry::new([cdi::Source { path: "/spec".into(), priority: 0, spec: Ok(spec) }]);
        let names: Vec<_> = registry.devices().map(|(name, _)| name.clone()).collect();
        assert_eq!(names.len(), count);
        for name in &names {
            assert_eq!(name.to_string().parse::<QualifiedName>().as_ref(), Ok(name));
            assert!(!registry.edits(std::slice::from_ref(name)).expect("its edits").is_empty());
        }
    }
}
