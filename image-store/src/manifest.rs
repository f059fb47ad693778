//! Parses manifests, indexes and image configs into checked values. Pure.
//!
//! - The OCI forms and the docker schema 2 forms are read.
//! - `null` means absent in every field, because many real images contain it.
//! - A document that is readable both as a manifest and as an index is refused, independent of its media type.
//! - The `Content-Type` of the registry is ignored: the bytes decide.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use layer::Digest;
use serde::{Deserialize, Serialize};

use crate::{error::PullError, json::null_default, native, platform::Platform, reference::Reference};

/// The readable media types, for the `Accept` header.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

const MAX_INDEX_ENTRIES: usize = 1000;
/// Indexes inside an index.
pub(crate) const MAX_INDEX_DEPTH: usize = 2;

/// The media types of OCI's documents.
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A descriptor: digest, size and type of some content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default, deserialize_with = "null_default")]
    pub(crate) media_type: String,
    /// The digest of the content.
    pub digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
    /// The content itself, in base64 (OCI image specification, `descriptor.md`, field `data`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<String>,
}

impl Descriptor {
    /// The content that the descriptor holds, in its field or in the annotation of a native image. `None` if there is
    /// none, or other content than the descriptor names: the registry is asked then.
    pub(crate) fn embedded(&self) -> Option<Bytes> {
        let content = self.data.as_ref().or_else(|| self.annotations.get(native::DOCUMENT))?;
        let content = BASE64.decode(content).ok()?;
        (content.len() as u64 == self.size && self.digest.matches(&content)).then(|| content.into())
    }
}

/// Content as a descriptor holds it.
pub(crate) fn embed(content: &[u8]) -> String {
    BASE64.encode(content)
}

/// The answer to a request for a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// One image.
    Manifest(Manifest),
    /// Images for several platforms.
    Index(Vec<Descriptor>),
}

/// One image for one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The image config.
    pub config: Descriptor,
    /// Bottom first.
    pub layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default, deserialize_with = "null_default")]
    schema_version: u64,
    #[serde(default, deserialize_with = "null_default")]
    media_type: String,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default, rename = "fsLayers")]
    fs_layers: Option<serde::de::IgnoredAny>,
}

/// The text of a JSON error without values of the document, which may be the answer of another host.
fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let quotes_nothing = ["missing field", "duplicate field"].iter().any(|begin| text.starts_with(begin));
    match error.classify() {
        serde_json::error::Category::Data if !quotes_nothing => {
            // The value is between quotes.
            let kind = text.split(['"', '`']).next().unwrap_or_default().trim_end_matches([':', ' ']);
            format!("{kind} at line {} column {}", error.line(), error.column())
        }
        _ => text,
    }
}

/// Reads a manifest or an index.
pub fn parse_document(what: &str, bytes: &[u8]) -> Result<Document, PullError> {
    let raw: Raw = serde_json::from_slice(bytes).map_err(|error| PullError::malformed(what, json_problem(&error)))?;
    let unsupported = |problem: &str| PullError::Unsupported { what: what.to_owned(), problem: problem.to_owned() };
    if raw.fs_layers.is_some() || raw.schema_version == 1 {
        return Err(unsupported(
            "a docker schema 1 manifest, which no registry should serve any more; \
             push the image again with a current tool",
        ));
    }
    if raw.schema_version != 2 {
        return Err(PullError::malformed(what, format!("schemaVersion is {}, not 2", raw.schema_version)));
    }
    match (raw.manifests, raw.config, raw.layers) {
        (Some(entries), None, None) => {
            check_kind(what, &raw.media_type, true)?;
            if entries.len() > MAX_INDEX_ENTRIES {
                return Err(PullError::TooLarge {
                    what: format!("{what}: the number of manifests in the index"),
                    limit: MAX_INDEX_ENTRIES.to_string(),
                });
            }
            Ok(Document::Index(entries))
        }
        (None, Some(config), layers) => {
            check_kind(what, &raw.media_type, false)?;
            check_config_type(what, &config.media_type)?;
            let layers = layers.unwrap_or_default();
            layers.iter().try_for_each(|layer| check_layer_type(what, &layer.media_type))?;
            Ok(Document::Manifest(Manifest { config, layers }))
        }
        (Some(_), _, _) => Err(PullError::malformed(what, "it claims to be a manifest and an index at once")),
        (None, None, _) => Err(PullError::malformed(what, "it is neither a manifest nor an index")),
    }
}

fn check_kind(what: &str, media_type: &str, index: bool) -> Result<(), PullError> {
    let fits = match media_type {
        "" => true,
        "application/vnd.oci.image.index.v1+json" | "application/vnd.docker.distribution.manifest.list.v2+json" => {
            index
        }
        "application/vnd.oci.image.manifest.v1+json" | "application/vnd.docker.distribution.manifest.v2+json" => !index,
        other => {
            return Err(PullError::Unsupported {
                what: what.to_owned(),
                problem: format!("media type {other:?} is no container image"),
            });
        }
    };
    if fits {
        Ok(())
    } else {
        Err(PullError::malformed(what, format!("media type {media_type:?} does not fit its content")))
    }
}

fn check_config_type(what: &str, media_type: &str) -> Result<(), PullError> {
    match media_type {
        ""
        | "application/vnd.oci.image.config.v1+json"
        | "application/vnd.docker.container.image.v1+json"
        // Older tools left the generic types here.
        | "application/octet-stream"
        | "application/json" => Ok(()),
        other => Err(PullError::Unsupported {
            what: what.to_owned(),
            problem: format!("an artifact with config type {other:?}, not a container image"),
        }),
    }
}

/// Checks that a layer is a tar. Its compression is recognized by its first bytes, not by the suffix of the media type.
fn check_layer_type(what: &str, media_type: &str) -> Result<(), PullError> {
    let known = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
    ];
    let suffix = known.iter().find_map(|base| media_type.strip_prefix(base));
    match suffix {
        Some("" | "+gzip" | ".gzip" | "+zstd" | ".zstd") => Ok(()),
        Some("+encrypted" | "+gzip+encrypted" | "+zstd+encrypted") => Err(PullError::Unsupported {
            what: what.to_owned(),
            problem: "its layers are encrypted, which is not supported".into(),
        }),
        _ if media_type.is_empty() || media_type == native::MEDIA_TYPE => Ok(()),
        _ => Err(PullError::Unsupported {
            what: what.to_owned(),
            problem: format!("a layer of type {media_type:?} is no file system layer"),
        }),
    }
}

/// The entry of an index that fits `machine` best. Of equal ones, a native image precedes others, then the first one
/// counts.
pub fn choose(reference: &Reference, entries: &[Descriptor], machine: &Platform) -> Result<Descriptor, PullError> {
    let candidate = |entry: &Descriptor| -> Option<u32> {
        match &entry.platform {
            Some(platform) if platform.is_unknown() => None,
            // Images in EROFS of other tools are no choice. The index has an image with archives for other clients.
            Some(platform) if platform.is_erofs() && !native::is_mountable(&entry.annotations, machine) => None,
            Some(platform) => platform.distance(machine),
            // A nested index lists its platforms itself. A manifest without a platform is the last choice.
            None => Some(if entry.media_type.contains("manifest.v") { 900 } else { 800 }),
        }
    };
    let is_archive = |entry: &Descriptor| !entry.platform.as_ref().is_some_and(Platform::is_erofs);
    let best = entries
        .iter()
        .filter_map(|entry| Some((candidate(entry)?, entry)))
        .min_by_key(|(distance, entry)| (*distance, is_archive(entry)));
    best.map(|(_, entry)| entry.clone()).ok_or_else(|| {
        let offered: Vec<String> = entries
            .iter()
            .filter_map(|entry| entry.platform.as_ref())
            .filter(|platform| !platform.is_unknown())
            .take(20)
            .map(|platform| format!("{platform}{}", if platform.is_erofs() { " in EROFS" } else { "" }))
            .collect();
        PullError::NoPlatform {
            reference: reference.to_string(),
            wanted: machine.to_string(),
            offered: if offered.is_empty() { "none".into() } else { offered.join(", ") },
        }
    })
}

/// The part of the image's config that describes how to run it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Environment, in the image's order. Entries without `=` are dropped: they must not import values of the host.
    pub env: Vec<(String, String)>,
    /// The command line that the command is appended to.
    pub entrypoint: Option<Vec<String>>,
    /// The default command, or the default arguments of the entrypoint.
    pub cmd: Option<Vec<String>>,
    /// `user`, `uid`, `user:group` …, resolved in the image; empty means root.
    pub user: String,
    /// The working directory; empty means `/`.
    pub working_dir: String,
    /// The signal that asks the process to end.
    pub stop_signal: Option<String>,
    /// Paths of volumes.
    pub volumes: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Ports as `80/tcp`.
    pub exposed_ports: Vec<String>,
}

/// The used parts of a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigDocument {
    /// The platform that the image is made for.
    pub platform: Platform,
    /// The digests of the unpacked layers, bottom first.
    pub diff_ids: Vec<Digest>,
    /// What the image says about its processes.
    pub config: ImageConfig,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default, deserialize_with = "null_default")]
    config: RawRun,
    rootfs: RawRootfs,
    #[serde(flatten)]
    platform: Platform,
}

#[derive(Deserialize)]
struct RawRootfs {
    #[serde(default, deserialize_with = "null_default")]
    diff_ids: Vec<Digest>,
}

type Keys = BTreeMap<String, serde::de::IgnoredAny>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct RawRun {
    #[serde(default, deserialize_with = "null_default")]
    user: String,
    #[serde(default, deserialize_with = "null_default")]
    env: Vec<String>,
    #[serde(default)]
    entrypoint: Option<Words>,
    #[serde(default)]
    cmd: Option<Words>,
    #[serde(default, deserialize_with = "null_default")]
    working_dir: String,
    #[serde(default, deserialize_with = "null_default")]
    stop_signal: String,
    #[serde(default, deserialize_with = "null_default")]
    volumes: Keys,
    #[serde(default, deserialize_with = "null_default")]
    labels: BTreeMap<String, Option<String>>,
    #[serde(default, deserialize_with = "null_default")]
    exposed_ports: Keys,
}

/// A list of strings. Old tools wrote a single string instead.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Many(Vec<String>),
    One(String),
}

impl Words {
    fn into_list(self) -> Option<Vec<String>> {
        match self {
            Words::Many(words) => Some(words),
            Words::One(word) => Some(vec![word]),
        }
        .filter(|words| !words.is_empty())
    }
}

/// Reads an image config.
pub fn parse_config(what: &str, bytes: &[u8]) -> Result<ConfigDocument, PullError> {
    let raw: RawConfig =
        serde_json::from_slice(bytes).map_err(|error| PullError::malformed(what, json_problem(&error)))?;
    let run = raw.config;
    let env = run
        .env
        .into_iter()
        .filter_map(|line| line.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
        .filter(|(key, _)| !key.is_empty())
        .collect();
    Ok(ConfigDocument {
        platform: raw.platform,
        diff_ids: raw.rootfs.diff_ids,
        config: ImageConfig {
            env,
            entrypoint: run.entrypoint.and_then(Words::into_list),
            cmd: run.cmd.and_then(Words::into_list),
            user: run.user,
            working_dir: run.working_dir,
            stop_signal: Some(run.stop_signal).filter(|signal| !signal.is_empty()),
            volumes: run.volumes.into_keys().collect(),
            labels: run.labels.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect(),
            exposed_ports: run.exposed_ports.into_keys().collect(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn document(json: &str) -> Result<Document, PullError> {
        parse_document("x", json.replace("$D", D).as_bytes())
    }

    const CONFIG: &str = r#""config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"$D","size":2}"#;

    #[test]
    fn reads_manifests_with_and_without_media_type() {
        for media in ["", r#""mediaType":"application/vnd.docker.distribution.manifest.v2+json","#] {
            let json = format!(r#"{{"schemaVersion":2,{media}{CONFIG},"layers":null}}"#);
            assert!(matches!(document(&json), Ok(Document::Manifest(_))), "{json}");
        }
    }

    #[test]
    fn refuses_what_is_no_image_or_ambiguous() {
        let cases = [
            (r#"{"schemaVersion":1,"fsLayers":[]}"#.to_owned(), "schema 1"),
            (r#"{"schemaVersion":2}"#.to_owned(), "neither"),
            (format!(r#"{{"schemaVersion":2,{CONFIG},"layers":[],"manifests":[]}}"#), "at once"),
            (
                format!(r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json",{CONFIG}}}"#),
                "does not fit",
            ),
            (format!(r#"{{"schemaVersion":2,{CONFIG},{CONFIG}}}"#), "duplicate"),
            (
                r#"{"schemaVersion":2,
                   "config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"$D","size":2}}"#
                    .to_owned(),
                "artifact",
            ),
            (
                format!(
                    r#"{{"schemaVersion":2,{CONFIG},"layers":[
                       {{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
                       "digest":"$D","size":1}}]}}"#
                ),
                "encrypted",
            ),
            (format!(r#"{{"schemaVersion":2,{CONFIG},"layers":[{{"digest":"md5:00","size":1}}]}}"#), "invalid digest"),
            (format!(r#"{{"schemaVersion":2,{CONFIG},"layers":[{{"digest":"$D","size":-1}}]}}"#), "invalid value"),
        ];
        for (json, expected) in cases {
            let error = document(&json).expect_err(&json).to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    fn entry(os: &str, architecture: &str, size: u64) -> Descriptor {
        Descriptor {
            media_type: String::new(),
            digest: D.parse().unwrap(),
            size,
            platform: Some(platform(os, architecture)),
            annotations: BTreeMap::new(),
            data: None,
        }
    }

    #[test]
    fn only_the_named_content_is_embedded() {
        let content = b"the content";
        let digest = Digest::sha256(content);
        let with = |size, data: Option<String>| {
            let mut descriptor = entry("linux", "amd64", size);
            (descriptor.digest, descriptor.data) = (digest.clone(), data);
            descriptor.embedded()
        };
        let right = embed(content);
        assert_eq!(with(11, Some(right.clone())).as_deref(), Some(&content[..]));
        assert_eq!(with(11, None), None);
        assert_eq!(with(12, Some(right)), None, "another size");
        assert_eq!(with(11, Some(embed(b"a content !"))), None, "another digest");
        assert_eq!(with(11, Some("!".into())), None, "no base64");
        let mut native = entry("linux", "amd64", 11);
        native.digest = digest.clone();
        native.annotations.insert(native::DOCUMENT.into(), embed(content));
        assert_eq!(native.embedded().as_deref(), Some(&content[..]));
    }

    fn platform(os: &str, architecture: &str) -> Platform {
        Platform { os: os.into(), architecture: architecture.into(), ..Platform::default() }
    }

    #[test]
    fn prefers_native_images_where_they_can_be_mounted() {
        let reference: Reference = "app".parse().unwrap();
        let machine = platform("linux", "amd64");
        let erofs = |size, version: Option<&str>| {
            let mut entry = entry("linux", "amd64", size);
            entry.platform = entry.platform.map(|platform| platform.with_erofs(false));
            if let Some(version) = version {
                entry.annotations.insert(native::FORMAT.into(), version.into());
            }
            entry
        };
        let entries = [1, 2, 3, 4, 5].map(|size| match size {
            1 => entry("linux", "amd64", size),
            2 => erofs(size, None),
            3 => erofs(size, Some("5")),
            4 => erofs(size, Some("2")),
            _ => erofs(size, Some("1")),
        });
        let chosen = |entries: &[Descriptor], machine: &Platform| choose(&reference, entries, machine).unwrap().size;
        let (plain, zstd) = (machine.clone().with_erofs(false), machine.clone().with_erofs(true));
        assert_eq!([&machine, &plain, &zstd].map(|machine| chosen(&entries, machine)), [1, 5, 4]);
        assert_eq!([&machine, &plain, &zstd].map(|machine| chosen(&entries[..4], machine)), [1, 1, 4]);
        assert_eq!(chosen(&entries[..3], &zstd), 1);
        let ordered = [entry("linux", "amd64", 1), erofs(2, Some("4")), erofs(3, Some("3"))];
        assert_eq!([&machine, &plain, &zstd].map(|machine| chosen(&ordered, machine)), [1, 3, 2]);
    }

    #[test]
    fn chooses_by_platform_and_skips_attestations() {
        let reference: Reference = "app".parse().unwrap();
        let machine = platform("linux", "amd64");
        let entries = [
            entry("unknown", "unknown", 1),
            entry("linux", "arm64", 2),
            entry("linux", "amd64", 3),
            entry("linux", "amd64", 4),
        ];
        assert_eq!(choose(&reference, &entries, &machine).unwrap().size, 3);
        let error = choose(&reference, &entries[..2], &machine).unwrap_err().to_string();
        assert!(error.contains("linux/arm64") && !error.contains("unknown"), "{error}");
    }

    #[test]
    fn config_tolerates_nulls_and_drops_env_without_value() {
        let json = format!(
            r#"{{"os":null,"architecture":"amd64",
               "config":{{"Env":["A=1","HOME","=x","B="],"Cmd":"sh","Entrypoint":null,"User":null,
               "Volumes":{{"/v":{{}}}},"Labels":{{"a":null}},"ExposedPorts":null,"StopSignal":""}},
               "rootfs":{{"type":"layers","diff_ids":["{D}"]}}}}"#
        );
        let parsed = parse_config("x", json.as_bytes()).unwrap();
        assert_eq!(parsed.config.env, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), String::new())]);
        assert_eq!(parsed.config.cmd, Some(vec!["sh".to_owned()]));
        assert_eq!(parsed.config.volumes, ["/v"]);
        assert_eq!((parsed.config.stop_signal, parsed.config.entrypoint), (None, None));
        assert!(parse_config("x", br#"{"config":null}"#).is_err());
        assert!(parse_config("x", format!(r#"{{"config":null,"rootfs":{{"diff_ids":["{D}"]}}}}"#).as_bytes()).is_ok());
    }
}
