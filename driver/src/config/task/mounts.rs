//! Binds, other mounts and devices.
//!
//! Paths are only looked at here, not touched: whether a bind stays inside the allocation's directory is decided by
//! `plan`, which knows that directory, and checked against links when the container is made.

use runtime::plan::Propagation;

use super::super::{policy::Policy, value::Reader};

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
    /// A host path, absolute or relative to the task's directory.
    Bind {
        /// The path as it was written.
        path: String,
        /// How mounts travel.
        propagation: Propagation,
        /// A missing path becomes a directory, as docker does for `volumes`.
        create: bool,
    },
    /// An empty file system in memory.
    Tmpfs {
        /// Bytes.
        size: Option<u64>,
        /// Permission bits.
        mode: Option<u32>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
    },
    /// A directory of the node by its name, which outlives the task.
    Volume {
        /// Its name, safe as a file name.
        name: String,
        /// Starts with what the image has there.
        copy: bool,
    },
    /// What the image has there, writable even on a read-only root, gone with the task.
    Anonymous,
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
    let named = named_volumes(block);
    let volumes = block
        .strings("volumes")
        .into_iter()
        .enumerate()
        .filter_map(|(index, text)| volume(block, policy, index, &text, named));
    let mounts = block.blocks("mount").into_iter().chain(block.blocks("mounts"));
    volumes.chain(mounts.filter_map(|mount| self::mount(&mount, policy))).collect()
}

/// Whether sources in `volumes` that are no paths name volumes: docker's rule for jobs that name a volume driver.
fn named_volumes(block: &Reader) -> bool {
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

/// A volume's name by docker's rule, which makes it safe as a file name.
fn is_volume_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (1..=128).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(allowed)
}

fn named_volume(block: &Reader, policy: &Policy, option: &str, name: &str, copy: bool) -> Option<MountSource> {
    if !is_volume_name(name) {
        block.error(
            option,
            format!("{name:?} is no name of a volume"),
            "write letters, digits, `_`, `.` and `-`; for a path, write `type = \"bind\"`",
        );
        return None;
    }
    if !policy.volumes_enabled {
        block.error(
            option,
            format!("named volumes such as {name:?} are not allowed on this node"),
            "use a directory of the task, as in `type = \"bind\" source = \"local/data\"`, or a `volume` block in the group, or have the operator set `volumes { enabled = true }` in the plugin block",
        );
    }
    Some(MountSource::Volume { name: name.to_owned(), copy })
}

/// `source:destination[:options]`.
fn volume(block: &Reader, policy: &Policy, index: usize, text: &str, named: bool) -> Option<MountRequest> {
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
    let (mut readonly, mut propagation, mut copy) = (false, Propagation::Private, true);
    for word in options.split(',').filter(|word| !word.is_empty()) {
        match word {
            "ro" => readonly = true,
            "nocopy" => copy = false,
            // `z` and `Z` change SELinux labels, which containers do not have here; the rest has no effect on Linux.
            "rw" | "z" | "Z" | "consistent" | "cached" | "delegated" => {}
            _ => match parse_propagation(word) {
                Some(parsed) => propagation = parsed,
                None => block.error(
                    &option,
                    format!("{word:?} is not an option of volumes"),
                    "use ro, rw, or a propagation such as rslave",
                ),
            },
        }
    }
    check_target(block, &option, target);
    let source = if named && !path.starts_with('/') {
        named_volume(block, policy, &option, path, copy)?
    } else {
        MountSource::Bind { path: path.to_owned(), propagation, create: true }
    };
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
            block.error("type", format!("{kind:?} is not a type of mount"), "use \"bind\", \"tmpfs\" or \"volume\"");
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

/// A named volume, or without a name what the image has there.
fn volume_of_mount(block: &Reader, policy: &Policy, source: Option<String>) -> Option<MountSource> {
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
    match source {
        Some(name) => named_volume(block, policy, "source", &name, copy),
        None => {
            if block.bool("readonly") {
                block.error(
                    "readonly",
                    "makes no sense for a volume without a name",
                    "name the volume in `source`, or remove it",
                );
            }
            Some(MountSource::Anonymous)
        }
    }
}

fn check_target(block: &Reader, option: &str, target: &str) {
    if !target.starts_with('/') || target.trim_matches('/').is_empty() {
        block.error(option, format!("{target:?} is not a path below / in the container"), "write an absolute path");
    }
}

fn propagation(block: &Reader) -> Propagation {
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

fn id(block: &Reader, option: &str) -> Option<u32> {
    let id = block.positive(option)?;
    let valid = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    if valid.is_none() {
        block.error(option, format!("{id} is no id"), "write the number of a user or group");
    }
    valid
}

fn mode(block: &Reader) -> Option<u32> {
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

pub fn devices(block: &Reader) -> Vec<DeviceRequest> {
    block.blocks("devices").iter().filter_map(device).collect()
}

fn device(block: &Reader) -> Option<DeviceRequest> {
    let Some(host_path) = block.string("host_path") else {
        block.error("host_path", "is missing", "name the device node of the host, as in \"/dev/fuse\"");
        return None;
    };
    let container_path = block.string("container_path").unwrap_or_else(|| host_path.clone());
    for (option, path) in [("host_path", &host_path), ("container_path", &container_path)] {
        if !path.starts_with('/') {
            block.error(option, format!("{path:?} is not an absolute path"), "begin it with /");
        }
    }
    let permissions = block.string("cgroup_permissions").unwrap_or_else(|| "rwm".to_owned());
    if !permissions.chars().all(|c| "rwm".contains(c)) {
        block.error(
            "cgroup_permissions",
            format!("{permissions:?} is not made of r, w and m"),
            "use \"rwm\", \"rw\" or \"r\"",
        );
    }
    Some(DeviceRequest { host_path, container_path, permissions })
}
