//! The task block's options for mounts and volumes.
//!
//! This module checks the form of paths and does not look at the file system. `plan` knows the allocation directory and
//! decides whether a bind lies inside it. Links are checked when the container is made.

use std::path::{Component, PathBuf};

use image_store::Reference;
use runtime::{
    VolumeOptions,
    plan::{Propagation, Relabel},
};

use super::volume_options::{self, VOLUMES_ALLOWED};
use crate::config::{
    block::ConfigBlock,
    option::{
        DefaultValue::{Literal, Words},
        OptionSpec, OptionType,
    },
    plugin::Policy,
};

/// The options of the task block that this module reads.
pub const OPTIONS: &[OptionSpec] = &[
    OptionSpec::partial(
        "mount",
        OptionType::Blocks(MOUNT),
        Words("none"),
        "a mount of type `bind`, `tmpfs`, `volume` or `image`",
    ),
    OptionSpec::partial(
        "mounts",
        OptionType::Blocks(MOUNT),
        Words("none"),
        "older form of `mount`, with the same options",
    ),
    OptionSpec::honoured(
        "volumes",
        OptionType::Strings,
        Words("none"),
        "binds as `source:destination[:options]`. A relative source is relative to the task's directory",
    ),
    OptionSpec::partial(
        "volume_driver",
        OptionType::String,
        Words("sources are paths"),
        "with `local`, a source in `volumes` that does not begin with `/` is the name of a volume",
    ),
    OptionSpec::honoured(
        "readonly_rootfs",
        OptionType::Bool,
        Words("false"),
        "the container's root file system is read-only. The image's volumes stay writable",
    ),
    OptionSpec::partial(
        "storage_opt",
        OptionType::StringAttrs,
        Words("the plugin's `writable_layer`"),
        "`size`: the most that the container can write to its root file system, as in `10G`",
    ),
];

const MOUNT: &[OptionSpec] = &[
    OptionSpec::honoured("type", OptionType::String, Literal(r#""volume""#), "`bind`, `tmpfs`, `volume` or `image`"),
    OptionSpec::honoured("target", OptionType::String, Words("none, must be set"), "absolute path in the container"),
    OptionSpec::honoured(
        "source",
        OptionType::String,
        Words("none"),
        "host path of a bind; a relative one is relative to the task's directory. Name of a volume; a volume without a \
         name is removed with the task. Name of an image, as in the option `image`",
    ),
    OptionSpec::honoured(
        "sub_path",
        OptionType::String,
        Words("all of the image"),
        "only for the type `image`: the directory or file of the image that is mounted. Docker has no such option",
    ),
    OptionSpec::honoured("readonly", OptionType::Bool, Words("false"), "the mount is read-only, as an image always is"),
    OptionSpec::honoured("bind_options", OptionType::Block(BIND), Words(""), "options of a bind"),
    OptionSpec::honoured("tmpfs_options", OptionType::Block(TMPFS), Words(""), "options of a tmpfs"),
    OptionSpec::partial("volume_options", OptionType::Block(VOLUME), Words(""), "options of a volume"),
];

const BIND: &[OptionSpec] = &[OptionSpec::honoured(
    "propagation",
    OptionType::String,
    Words("`rprivate`"),
    "mount propagation: `private`, `slave` or `shared`, each also with a leading `r`",
)];

const TMPFS: &[OptionSpec] = &[
    OptionSpec::honoured("size", OptionType::Number, Words("half of the memory"), "size limit in bytes"),
    OptionSpec::honoured(
        "mode",
        OptionType::Number,
        Words("1023, which is 1777 octal"),
        "mode of the root directory, as a decimal number",
    ),
    OptionSpec::honoured(
        "uid",
        OptionType::Number,
        Words("0"),
        "owner of the root directory. Docker has no such option",
    ),
    OptionSpec::honoured(
        "gid",
        OptionType::Number,
        Words("0"),
        "group of the root directory. Docker has no such option",
    ),
];

const VOLUME: &[OptionSpec] = &[
    OptionSpec::honoured(
        "no_copy",
        OptionType::Bool,
        Words("false"),
        "a new volume starts empty. Otherwise it starts with a copy of the image's files at the target",
    ),
    OptionSpec::ignored("labels", OptionType::StringMaps, "", "labels of the volume"),
    OptionSpec::partial("driver_config", OptionType::Block(DRIVER), Words("`local`"), "volume driver"),
];

const DRIVER: &[OptionSpec] = &[
    OptionSpec::partial("name", OptionType::String, Words("`local`"), "name of the volume driver: only `local`"),
    OptionSpec::partial(
        "options",
        OptionType::StringMaps,
        Words("a directory of the node"),
        "the file system that the volume consists of: `type`, `o` and `device`, as mount(8) has them",
    ),
];

/// A requested mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRequest {
    /// The option that asks for it, for error texts.
    pub option: String,
    /// The source.
    pub source: MountSource,
    /// Absolute path in the container.
    pub target: String,
    /// The mount is read-only.
    pub readonly: bool,
    /// The SELinux label that the source gets.
    pub relabel: Option<Relabel>,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A host path, absolute or relative to the task's directory.
    Bind {
        /// The path, as written in the job.
        path: String,
        /// Mount propagation.
        propagation: Propagation,
        /// A missing directory is made, as docker does for `volumes`.
        create: bool,
    },
    /// An empty tmpfs.
    Tmpfs {
        /// Size limit in bytes.
        size: Option<u64>,
        /// Mode of the root directory.
        mode: Option<u32>,
        /// Owner of the root directory.
        uid: Option<u32>,
        /// Group of the root directory.
        gid: Option<u32>,
    },
    /// A named volume of the node, which outlives the task.
    Volume {
        /// The name, safe as a file name.
        name: String,
        /// A new volume starts with a copy of the image's files at the target.
        copy: bool,
        /// The file system that it consists of. `None` is a directory of the node, or what another job said.
        options: Option<VolumeOptions>,
    },
    /// A volume without a name: writable also on a read-only root, and removed with the task.
    Anonymous {
        /// It starts with a copy of the image's files at the target.
        copy: bool,
        /// The file system that it consists of. `None` is a directory of the node.
        options: Option<VolumeOptions>,
    },
    /// The files of another image, read-only.
    Image {
        /// The image, as written in the job.
        image: String,
        /// The part of it that is mounted, relative to its root. `None` is all of it.
        sub_path: Option<PathBuf>,
    },
}

/// Reads `volumes`, `mount` and `mounts`.
pub fn all(block: &ConfigBlock, policy: &Policy) -> Vec<MountRequest> {
    let named = sources_are_names(block);
    let volumes = block
        .strings("volumes")
        .into_iter()
        .enumerate()
        .filter_map(|(index, text)| volume(block, policy, index, &text, named));
    let mounts = block.blocks("mount").into_iter().chain(block.blocks("mounts"));
    volumes.chain(mounts.filter_map(|mount| self::mount(&mount, policy))).collect()
}

/// Whether a source in `volumes` that is not an absolute path is the name of a volume. Docker's rule: only in jobs that
/// set `volume_driver`.
fn sources_are_names(block: &ConfigBlock) -> bool {
    match block.string("volume_driver").as_deref() {
        None => false,
        Some("local") => true,
        Some(driver) => {
            block.error(
                "volume_driver",
                format!("{driver:?} is not supported: there are no docker volume plugins"),
                "use a `volume` block in the group (host volume or CSI) and `volume_mount` in the task, or \"local\"",
            );
            false
        }
    }
}

/// Docker's rule for volume names. A valid name is safe as a file name.
fn is_volume_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (1..=128).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(allowed)
}

/// A named volume, if the name is valid. Refuses it unless the operator allows volumes.
fn named_volume(
    block: &ConfigBlock,
    policy: &Policy,
    option: &str,
    name: &str,
    copy: bool,
    options: Option<VolumeOptions>,
) -> Option<MountSource> {
    if !is_volume_name(name) {
        block.error(
            option,
            format!("{name:?} is no name of a volume"),
            "write letters, digits, `_`, `.` and `-`; for a path, write `type = \"bind\"`",
        );
        return None;
    }
    if !policy.volumes_enabled {
        block.forbid(
            option,
            format!("named volumes such as {name:?} are not allowed on this node"),
            "use a directory of the task, as in `type = \"bind\" source = \"local/data\"`, or a `volume` block in the \
             group, or have the operator set `volumes { enabled = true }` in the plugin block",
            VOLUMES_ALLOWED,
        );
    }
    Some(MountSource::Volume { name: name.to_owned(), copy, options })
}

/// Reads an item of `volumes`: `source:destination[:options]`.
fn volume(block: &ConfigBlock, policy: &Policy, index: usize, text: &str, named: bool) -> Option<MountRequest> {
    let option = format!("volumes[{index}]");
    let (path, target, options) = match text.split(':').collect::<Vec<_>>()[..] {
        [path, target] if !path.is_empty() => (path, target, ""),
        [path, target, options] if !path.is_empty() => (path, target, options),
        _ => {
            block.error(
                &option,
                format!("{text:?} is not `source:destination[:options]`"),
                "write it as in \"local/conf:/etc/app:ro\"",
            );
            return None;
        }
    };
    let flags = volume_flags(block, &option, options);
    check_target(block, &option, target);
    let source = if named && !path.starts_with('/') {
        named_volume(block, policy, &option, path, flags.copy, None)?
    } else {
        MountSource::Bind { path: path.to_owned(), propagation: flags.propagation, create: true }
    };
    Some(MountRequest { option, source, target: target.to_owned(), readonly: flags.readonly, relabel: flags.relabel })
}

/// The options of an item of `volumes`.
struct VolumeFlags {
    readonly: bool,
    propagation: Propagation,
    copy: bool,
    relabel: Option<Relabel>,
}

fn volume_flags(block: &ConfigBlock, option: &str, words: &str) -> VolumeFlags {
    let mut flags = VolumeFlags { readonly: false, propagation: Propagation::Private, copy: true, relabel: None };
    for word in words.split(',').filter(|word| !word.is_empty()) {
        match word {
            "ro" => flags.readonly = true,
            "nocopy" => flags.copy = false,
            "z" => flags.relabel = Some(Relabel::Shared),
            "Z" => flags.relabel = Some(Relabel::Private),
            // The last three have no effect on Linux.
            "rw" | "consistent" | "cached" | "delegated" => {}
            _ => match parse_propagation(word) {
                Some(propagation) => flags.propagation = propagation,
                None => block.error(
                    option,
                    format!("{word:?} is not an option of volumes"),
                    "use ro, rw, or a propagation such as rslave",
                ),
            },
        }
    }
    flags
}

/// Reads one `mount` or `mounts` block.
fn mount(block: &ConfigBlock, policy: &Policy) -> Option<MountRequest> {
    let kind = block.string("type").unwrap_or_else(|| "volume".to_owned());
    let source = block.string("source");
    let target = block.string("target").unwrap_or_default();
    check_target(block, "target", &target);
    if kind != "image" && block.has("sub_path") {
        block.error("sub_path", "is only for mounts of type \"image\"", "remove it, or name the path in `source`");
    }
    let source = match (kind.as_str(), source) {
        ("image", source) => image(block, source)?,
        ("bind", Some(path)) => MountSource::Bind { path, propagation: propagation(block), create: false },
        ("bind", None) => {
            block.error("source", "is missing", "name the host path to bind");
            return None;
        }
        ("tmpfs", None) => {
            let options = block.block("tmpfs_options");
            let (uid, gid) = (id(&options, "uid"), id(&options, "gid"));
            MountSource::Tmpfs { size: options.positive("size"), mode: mode(&options), uid, gid }
        }
        ("tmpfs", Some(_)) => {
            block.error("source", "has no meaning for a tmpfs", "remove it");
            return None;
        }
        ("volume", source) => volume_of_mount(block, policy, source)?,
        _ => {
            block.error(
                "type",
                format!("{kind:?} is not a type of mount"),
                "use \"bind\", \"tmpfs\", \"volume\" or \"image\"",
            );
            return None;
        }
    };
    let readonly = block.bool("readonly") || kind == "image";
    Some(MountRequest { option: block.path().to_owned(), source, target, readonly, relabel: None })
}

/// A mount of type `image`.
fn image(block: &ConfigBlock, source: Option<String>) -> Option<MountSource> {
    let example = "write it as in \"registry.example/team/models:1\"";
    let Some(image) = source.filter(|image| !image.is_empty()) else {
        block.error("source", "is missing", format!("name the image; {example}"));
        return None;
    };
    if let Err(error) = image.parse::<Reference>() {
        block.error("source", error.to_string(), example);
    }
    let sub_path = block.string("sub_path").filter(|path| !path.is_empty()).map(PathBuf::from);
    let is_below = |path: &PathBuf| path.components().all(|part| matches!(part, Component::Normal(_)));
    if let Some(path) = sub_path.as_ref().filter(|path| !is_below(path)) {
        let remedy = "write it without a leading `/` and without `.` and `..`, as in \"share/models\"";
        block.error("sub_path", format!("{path:?} is not a path below the image's root"), remedy);
    }
    Some(MountSource::Image { image, sub_path })
}

/// A mount of type `volume`.
fn volume_of_mount(block: &ConfigBlock, policy: &Policy, source: Option<String>) -> Option<MountSource> {
    let options = block.block("volume_options");
    let driver = options.block("driver_config");
    if let Some(name) = driver.string("name").filter(|name| name != "local") {
        driver.error(
            "name",
            format!("{name:?} is not supported: there are no docker volume plugins"),
            "use a `volume` block in the group (host volume or CSI) and `volume_mount` in the task, or \"local\"",
        );
    }
    options.string_map("labels");
    let copy = !options.bool("no_copy");
    let options = volume_options::read(&driver, policy);
    match source {
        Some(name) => named_volume(block, policy, "source", &name, copy, options),
        None => {
            // Docker refuses it too.
            if block.bool("readonly") {
                block.error(
                    "readonly",
                    "makes no sense for a volume without a name",
                    "name the volume in `source`, or remove it",
                );
            }
            Some(MountSource::Anonymous { copy, options })
        }
    }
}

fn check_target(block: &ConfigBlock, option: &str, target: &str) {
    if !target.starts_with('/') || target.trim_matches('/').is_empty() {
        block.error(option, format!("{target:?} is not a path below / in the container"), "write an absolute path");
    }
}

fn propagation(block: &ConfigBlock) -> Propagation {
    let options = block.block("bind_options");
    let Some(text) = options.string("propagation") else { return Propagation::Private };
    parse_propagation(&text).unwrap_or_else(|| {
        options.error("propagation", format!("{text:?} is not a propagation"), "use rprivate, rslave or rshared");
        Propagation::Private
    })
}

fn parse_propagation(word: &str) -> Option<Propagation> {
    match word {
        "private" | "rprivate" => Some(Propagation::Private),
        "slave" | "rslave" => Some(Propagation::HostToContainer),
        "shared" | "rshared" => Some(Propagation::Bidirectional),
        _ => None,
    }
}

fn id(block: &ConfigBlock, option: &str) -> Option<u32> {
    let id = block.positive(option)?;
    let valid = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    if valid.is_none() {
        block.error(option, format!("{id} is no id"), "write the number of a user or group");
    }
    valid
}

fn mode(block: &ConfigBlock) -> Option<u32> {
    let mode = block.positive("mode")?;
    let bits = u32::try_from(mode).ok().filter(|bits| *bits <= 0o7777);
    if bits.is_none() {
        block.error(
            "mode",
            format!("{mode} is more than permission bits can say"),
            "write the octal mode as a decimal number: 1777 is 1023",
        );
    }
    bits
}
