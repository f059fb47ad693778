//! Mounts of specs, and their options.

use std::{collections::BTreeSet, path::Path};

use runtime::plan::{Mount, MountKind, MountRestriction, Propagation};

use super::super::path::{normalize_container_path, normalize_host_path};

/// A mount. Without a type it is a bind.
pub(super) fn decide(wanted: &::cdi::Mount) -> Result<(Mount, BTreeSet<MountRestriction>), String> {
    let destination = normalize_container_path(absolute(&wanted.container_path)?);
    let in_spec = |problem: String| format!("mount {destination:?} of the device's spec: {problem}");
    let mut options = Options::default();
    for option in &wanted.options {
        options.read(option).map_err(in_spec)?;
    }
    let binds = options.bind || matches!(wanted.mount_type.as_str(), "" | "none" | "bind");
    let kind = match wanted.mount_type.as_str() {
        _ if binds => MountKind::Bind { source: normalize_host_path(Path::new(absolute(&wanted.host_path)?)) },
        "tmpfs" => MountKind::Tmpfs { size: options.size, mode: options.mode, uid: None, gid: None },
        other => return Err(in_spec(format!("the type {other:?} is neither a bind nor a tmpfs"))),
    };
    if binds && (options.size.is_some() || options.mode.is_some()) {
        return Err(in_spec("a bind has no size and no mode".to_owned()));
    }
    let mount = Mount { destination, kind, readonly: options.readonly, propagation: options.propagation };
    Ok((mount, options.restrictions))
}

/// The options of a mount.
struct Options {
    bind: bool,
    readonly: bool,
    propagation: Propagation,
    restrictions: BTreeSet<MountRestriction>,
    size: Option<u64>,
    mode: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        let restrictions = BTreeSet::new();
        let propagation = Propagation::Private;
        Self { bind: false, readonly: false, propagation, restrictions, size: None, mode: None }
    }
}

impl Options {
    fn read(&mut self, option: &str) -> Result<(), String> {
        use MountRestriction::{Nodev, Noexec, Nosuid};
        match option {
            // A bind has all mounts below it.
            "bind" | "rbind" => self.bind = true,
            "ro" | "rro" => self.readonly = true,
            "rw" | "rrw" => self.readonly = false,
            "private" | "rprivate" => self.propagation = Propagation::Private,
            "slave" | "rslave" => self.propagation = Propagation::HostToContainer,
            "shared" | "rshared" => {
                return Err("mounts of the container would appear on the node: use rprivate or rslave".to_owned());
            }
            "nodev" | "rnodev" => drop(self.restrictions.insert(Nodev)),
            "noexec" | "rnoexec" => drop(self.restrictions.insert(Noexec)),
            "nosuid" | "rnosuid" => drop(self.restrictions.insert(Nosuid)),
            // The mount's defaults. Times of access are those of the node's mount.
            "defaults" | "dev" | "exec" | "suid" | "relatime" | "noatime" | "nodiratime" => {}
            other => match other.split_once('=') {
                Some(("size", size)) => self.size = Some(bytes(size).ok_or_else(|| format!("{option:?} is no size"))?),
                Some(("mode", mode)) => {
                    let mode = u32::from_str_radix(mode, 8).map_err(|_| format!("{option:?} is no mode"))?;
                    self.mode = Some(mode & 0o7777);
                }
                _ => return Err(format!("the option {option:?} is not known")),
            },
        }
        Ok(())
    }
}

/// A size as the kernel reads it: a number with `k`, `m` or `g`.
fn bytes(text: &str) -> Option<u64> {
    let (digits, shift) = match text.to_ascii_lowercase().strip_suffix(['k', 'm', 'g']) {
        None => (text.to_owned(), 0),
        Some(digits) => (
            digits.to_owned(),
            match text.as_bytes().last()?.to_ascii_lowercase() {
                b'k' => 10,
                b'm' => 20,
                _ => 30,
            },
        ),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A path of a spec, if it is absolute.
pub(super) fn absolute(path: &str) -> Result<&str, String> {
    if path.starts_with('/') { Ok(path) } else { Err(format!("{path:?} of the device's spec is not an absolute path")) }
}
