//! Bind mounts that are made before the engine starts.
//!
//! The engine needs about 75 system calls for each mount; a bind mount needs a handful here. Mounts below the root file
//! system move with it when the engine moves it. The engine still makes the bind mounts that depend on its own mounts:
//! those below `/proc`, `/dev` and `/sys`, and those in or over a file system that it mounts.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use oci_spec::runtime::{Mount, Spec};
use rustix::{
    fs::{CWD, FileType, OFlags, fstat},
    io,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use super::{
    mount_tree::{attach_private, clone_tree, map_tree},
    root::Root,
};
use crate::{
    error::{StartError, StartErrorKind},
    id_map::IdMap,
    spec::is_on_standard_mount,
    sys::make_private,
};

/// Makes the bind mounts of a spec that the engine need not make, and removes them from the spec. A source in the
/// directory `own` is a mount for this container only, so it is moved instead of cloned. With a mapping of ids, the
/// mounts in `own` have it; all others get it, and the sources of those that remain are replaced by mounts in `own`.
pub(crate) fn make_binds(root: &Root, own: &Path, spec: &mut Spec, map: Option<&IdMap>) -> Result<(), StartError> {
    let mut remaining: Vec<(PathBuf, Mount)> = Vec::new();
    for mount in spec.mounts_mut().take().unwrap_or_default() {
        let is_free =
            |path: &Path| !is_on_standard_mount(path) && remaining.iter().all(|(other, _)| are_disjoint(other, path));
        let made = match Bind::parse(&mount).filter(|bind| !is_on_standard_mount(bind.destination)) {
            Some(bind) => bind.make(root, own, map, is_free)?,
            None => false,
        };
        if !made {
            let mount = if map.is_some() { with_mapped_source(mount, own, remaining.len(), map)? } else { mount };
            let path = root.real_path(mount.destination()).unwrap_or_else(|_| mount.destination().clone());
            remaining.push((path, mount));
        }
    }
    spec.set_mounts(Some(remaining.into_iter().map(|(_, mount)| mount).collect()));
    Ok(())
}

/// Replaces the source of a bind mount that the engine makes by a mount with mapped ids. Control groups stay as they
/// are: their file system cannot be mapped, and the container only reads them.
fn with_mapped_source(mut mount: Mount, own: &Path, number: usize, map: Option<&IdMap>) -> Result<Mount, StartError> {
    let Some(source) = mount.source().clone().filter(|_| mount.typ().as_deref() == Some("bind")) else {
        return Ok(mount);
    };
    if source.starts_with(own) || source.starts_with("/sys/fs/cgroup") {
        return Ok(mount);
    }
    let failed = |error: std::io::Error| {
        StartError::new(StartErrorKind::MountSource, format!("mount source {}: {error}", source.display()))
    };
    let tree = clone_tree(&source).map_err(|error| failed(error.into()))?;
    map_tree(&tree, map, || format!("mount source {}", source.display()))?;
    let mapped = own.join(format!("mapped-{number}"));
    attach_private(&tree, &mapped).map_err(failed)?;
    mount.set_source(Some(mapped));
    Ok(mount)
}

/// Whether neither of two paths contains the other.
fn are_disjoint(one: &Path, other: &Path) -> bool {
    !one.starts_with(other) && !other.starts_with(one)
}

/// A bind mount of a spec.
struct Bind<'a> {
    source: &'a Path,
    destination: &'a Path,
    readonly: bool,
    restricted: bool,
}

impl<'a> Bind<'a> {
    /// `None` for another kind of mount, and for a bind mount with other options than those that are known here.
    fn parse(mount: &'a Mount) -> Option<Self> {
        let source = mount.source().as_deref().filter(|_| mount.typ().as_deref() == Some("bind"))?;
        let options = mount.options().iter().flatten().map(String::as_str);
        let mut bind = Self { source, destination: mount.destination(), readonly: false, restricted: false };
        let (mut nosuid, mut nodev) = (false, false);
        for option in options {
            match option {
                "rbind" | "rprivate" => {}
                "rro" => bind.readonly = true,
                "rnosuid" => nosuid = true,
                "rnodev" => nodev = true,
                _ => return None,
            }
        }
        bind.restricted = nosuid;
        (nosuid == nodev).then_some(bind)
    }

    /// Makes the mount if its target `is_free`. Returns whether it did.
    fn make(
        &self,
        root: &Root,
        own: &Path,
        map: Option<&IdMap>,
        is_free: impl Fn(&Path) -> bool,
    ) -> Result<bool, StartError> {
        let tree = self.tree(own).map_err(|error| self.failed(&error.into()))?;
        if !self.source.starts_with(own) {
            map_tree(&tree, map, || format!("mount source {}", self.source.display()))?;
        }
        self.attach(root, &tree, is_free).map_err(|error| self.failed(&error))
    }

    fn attach(&self, root: &Root, tree: &OwnedFd, is_free: impl Fn(&Path) -> bool) -> std::io::Result<bool> {
        let is_directory = FileType::from_raw_mode(fstat(tree)?.st_mode) == FileType::Directory;
        if is_directory {
            root.create_directories(self.destination).map(drop)?
        } else {
            root.create_file(self.destination)?
        }
        // The mount goes to the open file, because another process may exchange a part of the path.
        let target = root.resolve(self.destination, OFlags::PATH)?;
        if !is_free(&root.path_of(&target)?) {
            return Ok(false);
        }
        make_private(tree.as_fd(), self.readonly, self.restricted)?;
        let by_descriptors = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(tree, "", &target, "", by_descriptors)?;
        Ok(true)
    }

    /// The tree to attach: the mount in `own` itself, or a clone of the source.
    fn tree(&self, own: &Path) -> io::Result<OwnedFd> {
        if self.source.starts_with(own) {
            open_tree(CWD, self.source, OpenTreeFlags::OPEN_TREE_CLOEXEC)
        } else {
            clone_tree(self.source)
        }
    }

    fn failed(&self, error: &std::io::Error) -> StartError {
        let (source, destination) = (self.source.display(), self.destination.display());
        StartError::new(
            StartErrorKind::MountSource,
            format!("mounting {source} at {destination} in the container: {error}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use oci_spec::runtime::MountBuilder;

    use super::*;

    #[test]
    fn paths_are_disjoint_unless_one_contains_the_other() {
        for (one, other, expected) in [
            ("/a", "/a", false),
            ("/a", "/a/b", false),
            ("/a/b", "/a", false),
            ("/a/b", "/a/c", true),
            ("/a", "/ab", true),
        ] {
            assert_eq!(are_disjoint(Path::new(one), Path::new(other)), expected, "{one} {other}");
        }
    }

    #[test]
    fn only_bind_mounts_with_known_options_are_parsed() {
        let readonly = |typ: &str, options: &[&str]| {
            let options = options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
            let mount = MountBuilder::default().typ(typ).source("/s").destination("/d").options(options).build();
            Bind::parse(&mount.unwrap()).map(|bind| (bind.readonly, bind.restricted))
        };
        assert_eq!(readonly("bind", &["rbind", "rprivate"]), Some((false, false)));
        assert_eq!(readonly("bind", &["rbind", "rro", "rprivate"]), Some((true, false)));
        assert_eq!(readonly("bind", &["rbind", "rprivate", "rnosuid", "rnodev"]), Some((false, true)));
        assert_eq!(readonly("bind", &["rbind", "rprivate", "rnosuid"]), None);
        assert_eq!(readonly("bind", &["rbind", "rslave"]), None, "left to the engine");
        assert_eq!(readonly("bind", &["rbind", "noexec"]), None);
        assert_eq!(readonly("tmpfs", &[]), None);
    }
}
