//! Binds, other mounts and devices.
//!
//! Paths are only looked at here, not touched: whether a bind stays inside the allocation's folder is decided by `plan`,
//! which knows that folder, and checked against links when the container is made.

use runtime::plan::Propagation;

use super::super::{plugin::Policy, value::Reader};

/// A mount that the task asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRequest {
    /// The option it was written in, for messages.
    pub option: String,
    /// What is mounted.
    pub source: MountSource,
    /// Where, absolute.
    pub target: String,
    /// Nothing can be written through it.
    pub readonly: bool,
}

/// What a mount shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A host path, absolute or relative to the task's folder.
    Bind {
        /// The path as it was written.
        path: String,
        /// How mounts travel.
        propagation: Propagation,
        /// A missing path becomes a folder, as docker does for `volumes`.
        create: bool,
    },
    /// An empty file system in memory.
    Tmpfs {
        /// Bytes.
        size: Option<u64>,
        /// Permission bits.
        mode: Option<u32>,
    },
}

/// A device that the task asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// On the host.
    pub host_path: String,
    /// In the container.
    pub container_path: String,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

pub fn all(block: &Reader, policy: &Policy) -> Vec<MountRequest> {
    let volumes =
        block.strings("volumes").into_iter().enumerate().filter_map(|(index, text)| volume(block, index, &text));
    let mounts = block.blocks("mount").into_iter().chain(block.blocks("mounts"));
    volumes.chain(mounts.filter_map(|mount| self::mount(&mount, policy))).collect()
}

/// `source:destination[:options]`.
fn volume(block: &Reader, index: usize, text: &str) -> Option<MountRequest> {
    let option = format!("volumes[{index}]");
    let (path, target, options) = match text.split(':').collect::<Vec<_>>()[..] {
        [path, target] if !path.is_empty() => (path, target, ""),
        [path, target, options] if !path.is_empty() => (path, target, options),
        _ => {
            block.mistake(
                &option,
                format!("{text:?} is not `source:destination[:options]`"),
                "write it as in \"local/conf:/etc/app:ro\"",
            );
            return None;
        }
    };
    let (mut readonly, mut propagation) = (false, Propagation::Private);
    for word in options.split(',').filter(|word| !word.is_empty()) {
        match word {
            "ro" => readonly = true,
            // `z` and `Z` change SELinux labels, which containers do not have here; the rest has no effect on Linux.
            "rw" | "z" | "Z" | "nocopy" | "consistent" | "cached" | "delegated" => {}
            _ => match parse_propagation(word) {
                Some(parsed) => propagation = parsed,
                None => block.mistake(
                    &option,
                    format!("{word:?} is not an option of volumes"),
                    "use ro, rw, or a propagation such as rslave",
                ),
            },
        }
    }
    check_target(block, &option, target);
    let source = MountSource::Bind { path: path.to_owned(), propagation, create: true };
    Some(MountRequest { option, source, target: target.to_owned(), readonly })
}

fn mount(block: &Reader, policy: &Policy) -> Option<MountRequest> {
    let kind = block.string("type").unwrap_or_else(|| "volume".to_owned());
    let source = block.string("source");
    let target = block.string("target").unwrap_or_default();
    check_target(block, "target", &target);
    let source = match (kind.as_str(), source) {
        ("bind", Some(path)) => MountSource::Bind { path, propagation: propagation(block), create: false },
        ("bind", None) => {
            block.mistake("source", "is missing", "name the host path to bind");
            return None;
        }
        ("tmpfs", None) => {
            let options = block.block("tmpfs_options");
            MountSource::Tmpfs { size: options.positive("size"), mode: mode(&options) }
        }
        ("tmpfs", Some(_)) => {
            block.mistake("source", "has no meaning for a tmpfs", "remove it");
            return None;
        }
        ("volume", _) => {
            let hint = if policy.volumes_enabled {
                "bind a host path with `type = \"bind\"`"
            } else {
                "bind a folder of the task, as in `type = \"bind\" source = \"local/data\"`"
            };
            block.mistake(
                "type",
                "\"volume\" is not supported: there are no docker volumes",
                format!("use a `volume` block in the group and `volume_mount` in the task, or {hint}"),
            );
            return None;
        }
        _ => {
            block.mistake("type", format!("{kind:?} is not a type of mount"), "use \"bind\" or \"tmpfs\"");
            return None;
        }
    };
    Some(MountRequest {
        option: block.name("target").trim_end_matches(".target").to_owned(),
        source,
        target,
        readonly: block.bool("readonly"),
    })
}

fn check_target(block: &Reader, option: &str, target: &str) {
    if !target.starts_with('/') || target.trim_matches('/').is_empty() {
        block.mistake(option, format!("{target:?} is not a path below / in the container"), "write an absolute path");
    }
}

fn propagation(block: &Reader) -> Propagation {
    let options = block.block("bind_options");
    let Some(text) = options.string("propagation") else { return Propagation::Private };
    parse_propagation(&text).unwrap_or_else(|| {
        options.mistake("propagation", format!("{text:?} is not a propagation"), "use rprivate, rslave or rshared");
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

fn mode(block: &Reader) -> Option<u32> {
    let mode = block.positive("mode")?;
    let bits = u32::try_from(mode).ok().filter(|bits| *bits <= 0o7777);
    if bits.is_none() {
        block.mistake(
            "mode",
            format!("{mode} is more than permission bits can say"),
            "write the octal mode as a decimal number: 1777 is 1023",
        );
    }
    bits
}

pub fn devices(block: &Reader) -> Vec<DeviceRequest> {
    block.blocks("devices").iter().filter_map(device).collect()
}

fn device(block: &Reader) -> Option<DeviceRequest> {
    let Some(host_path) = block.string("host_path") else {
        block.mistake("host_path", "is missing", "name the device node of the host, as in \"/dev/fuse\"");
        return None;
    };
    let container_path = block.string("container_path").unwrap_or_else(|| host_path.clone());
    for (option, path) in [("host_path", &host_path), ("container_path", &container_path)] {
        if !path.starts_with('/') {
            block.mistake(option, format!("{path:?} is not an absolute path"), "begin it with /");
        }
    }
    let permissions = block.string("cgroup_permissions").unwrap_or_else(|| "rwm".to_owned());
    if !permissions.chars().all(|c| "rwm".contains(c)) {
        block.mistake(
            "cgroup_permissions",
            format!("{permissions:?} is not made of r, w and m"),
            "use \"rwm\", \"rw\" or \"r\"",
        );
    }
    Some(DeviceRequest { host_path, container_path, permissions })
}
